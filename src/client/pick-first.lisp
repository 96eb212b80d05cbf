;;;; The policy pick_first: one subchannel, which has the addresses of all servers and is connected
;;;; to the first that answers (RFC 8305, gRFC A61). Its state is the subchannel's, but that once
;;;; all addresses have failed it stays in :transient-failure until it is ready, and tries again
;;;; without being asked (gRFC A62). The subchannel itself is the picker. The first list of
;;;; addresses is connected to at once. With shuffleAddressList each list is shuffled first.

(in-package #:clgrpc.client)

(defclass pick-first (balancer)
  ((subchannel :initform nil :accessor pick-first-subchannel
               :documentation "The only one, or nil while there is no address.")
   (failed :initform nil :accessor pick-first-failed
           :documentation "True if all addresses have failed and none has been ready since."))
  (:documentation "The policy pick_first."))

(defun parse-pick-first (object path)
  "True if lists of servers are to be shuffled."
  (config:boolean-field object "shuffleAddressList" path))

(config:register-policy :pick-first '("pick_first") 'pick-first 'parse-pick-first)

(defun shuffled (backends random-state)
  "BACKENDS, in an order that RANDOM-STATE gives."
  (let ((vector (coerce backends 'simple-vector)))
    (loop for last from (1- (length vector)) above 0
          do (rotatef (svref vector last) (svref vector (random (1+ last) random-state))))
    (coerce vector 'list)))

(defmethod update-backends ((balancer pick-first) backends config)
  (let* ((backends (if config
                       (shuffled backends (balancer-random balancer))
                       backends))
         (addresses (remove-duplicates
                     (mapcan (lambda (backend) (copy-list (backend-addresses backend))) backends)
                     :test #'equalp :from-end t))
         (subchannel (pick-first-subchannel balancer)))
    (cond ((and subchannel addresses) (change-addresses subchannel addresses))
          (addresses
           (setf (pick-first-failed balancer) nil
                 (pick-first-subchannel balancer)
                 (open-subchannel balancer (make-backend :addresses addresses)))
           (connect (pick-first-subchannel balancer)))
          (t
           (setf (pick-first-subchannel balancer) nil)
           (when subchannel
             (close-subchannel subchannel "its addresses are the servers' no more"))
           (publish balancer :transient-failure (make-failure "there are no servers"))))))

(defmethod exit-idle ((balancer pick-first))
  (let ((subchannel (pick-first-subchannel balancer)))
    (when subchannel (connect subchannel))))

(defmethod subchannel-changed ((balancer pick-first) subchannel)
  (let ((state (subchannel-state subchannel)))
    (case state
      (:ready (setf (pick-first-failed balancer) nil))
      (:transient-failure (setf (pick-first-failed balancer) t)))
    (cond ((eq :transient-failure state)
           (publish balancer state (make-failure (trouble-text subchannel))))
          ((not (pick-first-failed balancer))
           (publish balancer state (when (eq :ready state) subchannel)))
          ((eq :idle state) (connect subchannel)))))
