;;;; The policy pick-first: one subchannel, which has the addresses of all servers and is connected
;;;; to the first that answers (RFC 8305). The channel's state is the subchannel's, and the
;;;; subchannel itself is the picker.

(in-package #:clgrpc.client)

(defclass pick-first (balancer)
  ((subchannel :initform nil :accessor pick-first-subchannel
               :documentation "The only one, or nil while there is no address."))
  (:documentation "The policy PICK-FIRST."))

(register-policy :pick-first 'pick-first)

(defmethod update-backends ((balancer pick-first) backends)
  (let ((addresses (mapcan (lambda (backend) (copy-list (backend-addresses backend))) backends))
        (subchannel (pick-first-subchannel balancer)))
    (cond ((and subchannel addresses) (change-addresses subchannel addresses))
          (addresses
           (setf (pick-first-subchannel balancer) (open-subchannel balancer addresses)))
          (subchannel
           (setf (pick-first-subchannel balancer) nil)
           (close-subchannel subchannel "its addresses are the servers' no more")))))

(defmethod exit-idle ((balancer pick-first))
  (connect (pick-first-subchannel balancer)))

(defmethod subchannel-changed ((balancer pick-first) subchannel)
  (let ((core (balancer-core balancer))
        (state (subchannel-state subchannel)))
    (publish core state
             (case state
               (:ready subchannel)
               (:transient-failure (make-failure (subchannel-failure subchannel)))))))
