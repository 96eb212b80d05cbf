;;;; Room in the store: what is refused for lack of it, what goes on, and what makes room.

(in-package #:clgrpc.tests.workflow)

(defun call-with-small-store (function octets &rest arguments)
  "Call FUNCTION with a node, of ARGUMENTS, on a store in memory that takes OCTETS."
  (let* ((engine (memory:make-engine :max-octets octets)) (etcd (memory:connect engine)))
    (unwind-protect
         (let ((node (apply #'make-workflow-service etcd arguments)))
           (unwind-protect (funcall function node)
             (close-workflow-service node)))
      (etcd:close-etcd etcd)
      (memory:close-engine engine))))

(defun fill-store (node octets)
  "Start workflows of OCTETS of input at NODE until one is refused. Return how many there are, and
the condition."
  (loop for i from 0
        do (handler-case (start-workflow node (format nil "w~D" i) '("a")
                                         :input (make-octets octets))
             (backlog-full (condition) (return (values i condition))))))

(test a-store-is-not-filled-up
  "With a share of the quota in use no workflow is started, and all else goes on; what is deleted
makes room."
  (call-with-small-store
   (lambda (node)
     (eventually (workflow::usage-octets (workflow::node-usage node)))
     (multiple-value-bind (count condition) (fill-store node 10000)
       (is (<= 40 count 50))
       (is (string= "max-store-octets" (workflow-error-limit condition)))
       (is (= 500000 (workflow-error-most condition)))
       ;; what was started is answered alike
       (is-false (start-workflow node "w0" '("a") :input (make-octets 10000)))
       (let* ((session (open-a-session node)) (task (first (claim node session '("a")))))
         (report node task "done")
         (is (eq :completed (await-workflow node (pb:task-id task))))
         (signal-workflow node (format nil "w~D" (if (string= "w1" (pb:task-id task)) 2 1)) "x" "y")
         (signals backlog-full (start-workflow node "new" '("a")))
         (loop for i below 20
               do (is-true (delete-workflow node (format nil "w~D" i) :cancel t))))
       ;; once the store is asked again
       (eventually (handler-case (start-workflow node "new" '("a"))
                     (backlog-full () nil)))))
   1000000 :max-store-share 1/2))

(test quotas-are-the-store-s-or-the-user-s
  (call-with-small-store
   (lambda (node)
     (eventually (workflow::usage-octets (workflow::node-usage node)))
     (is (= 70000 (nth-value 1 (workflow::room-used node)))))
   1000000 :store-quota 100000))

(test workflows-are-deleted
  "One that has ended leaves nothing; one that runs is refused unless it is to be cancelled."
  (with-memory-node (node)
    (start-workflow node "w" '("a") :input "in")
    (signals workflow-running (delete-workflow node "w"))
    (is (eq :running (pb:workflow-state-status (state-of node "w"))))
    (is-true (delete-workflow node "w" :cancel t :reason "enough"))
    (signals workflow-not-found (workflow-state node "w"))
    (is-false (delete-workflow node "w" :cancel t))
    (is-true (start-workflow node "w" '("a" "b")))
    (cancel-workflow node "w")
    (is-true (delete-workflow node "w"))
    (dolist (part '("state" "steps" "history" "data" "by" "index/due" "index/ready" "claims"))
      (is (zerop (etcd:count-entries (workflow::node-etcd node)
                                     :prefix (workflow::node-key node part "")))
          "~A is left" part))))

(test the-oldest-of-what-has-ended-goes-first
  (let ((ahead 0))
    (with-memory-node (node :retention-octets 50000
                            :clock (lambda () (+ (loop:unix-ns) (* ahead 1000000))))
      (flet ((ids (status)
               (let ((ids '()))
                 (map-workflows (lambda (summary) (push (pb:workflow-summary-id summary) ids)) node
                                :status status)
                 ids)))
        (dotimes (i 20)
          (incf ahead 10)
          (start-workflow node (format nil "w~2,'0D" i) '((:signal "x")))
          (signal-workflow node (format nil "w~2,'0D" i) "x" (make-octets 5000)))
        (start-workflow node "runs" '((:signal "x")))
        (eventually (workflow::timer-queue-own (workflow::node-timer-queue node)))
        (workflow::limit-retention node)
        (let ((kept (ids :completed)))
          (is (<= 6 (length kept) 9) "~D are kept" (length kept))
          (is (equal kept (loop for i from (- 20 (length kept)) below 20
                                collect (format nil "w~2,'0D" i)))
              "the newest"))
        (is (equal '("runs") (ids :running)))
        (workflow::limit-retention node)
        (is (<= 6 (length (ids :completed))))))))

(test limits-have-names
  (is (member :retention-octets (limit-names)))
  (is (= 5 (check-limit :max-running 5)))
  (is (null (check-limit :retention-seconds nil)))
  (signals misuse (check-limit :max-running 0))
  (signals misuse (check-limit :max-rubbish 5)))
