;;;; Changes: what a node remembers of them.

(in-package #:clgrpc.tests.workflow)

(defun remembered-octets (node)
  "How long the states are together that NODE remembers."
  (loop for cached-state being the hash-values of (workflow::node-recent node)
        sum (protobuf:serialized-size (workflow::cached-state-state cached-state))))

(test remembered-states-are-bounded
  "However long the states are, a node remembers only so many octets of them, and the last."
  (let ((node (make-instance 'workflow-service))
        (text (make-string 1000000 :initial-element #\a)))
    (flet ((state (id &rest arguments)
             (apply #'pb:make-workflow-state :id id :type text
                    (append arguments '(:status :running)))))
      (dotimes (i 40)
        (workflow::remember-state node (state (format nil "~D" i)) (1+ i))
        (is (= (remembered-octets node) (workflow::node-recent-octets node)))
        (is (<= (remembered-octets node) workflow::+most-cached-state-octets+))
        (is-true (gethash (format nil "~D" i) (workflow::node-recent node))))
      ;; what is remembered anew, has ended or is forgotten takes no room
      (workflow::remember-state node (state "39") 41)
      (is (= (remembered-octets node) (workflow::node-recent-octets node)))
      (workflow::remember-state node (state "38" :status :completed) 42)
      (is (= (remembered-octets node) (workflow::node-recent-octets node)))
      (workflow::forget-state node "39")
      (is (= (remembered-octets node) (workflow::node-recent-octets node)))
      (workflow::forget-states node)
      (is (zerop (workflow::node-recent-octets node))))))
