;;;; The policy pick_first: one subchannel, which has the addresses of all servers and is connected
;;;; to the first that answers (RFC 8305, gRFC A61). The policy's state is the subchannel's; but
;;;; when all addresses have failed, it is :transient-failure until the subchannel, which connects
;;;; again by itself, is ready (gRFC A62). The subchannel itself is the picker. The first list of
;;;; addresses is connected to at once. With shuffleAddressList each list is shuffled first, by
;;;; weight (gRFC A113). The subchannel has the attributes of the server to which it is connected.

(in-package #:clgrpc.client)

(defclass pick-first (balancer)
  ((subchannel :initform nil :accessor pick-first-subchannel
               :documentation "The only subchannel, or nil without addresses.")
   (failed :initform nil :accessor pick-first-failed
           :documentation "True if all addresses have failed and the subchannel has not been ready
since."))
  (:documentation "The policy pick_first."))

(defun parse-pick-first (object path)
  "True if lists of servers must be shuffled."
  (config:boolean-field object "shuffleAddressList" path))

(config:register-policy :pick-first '("pick_first") 'pick-first 'parse-pick-first)

(defun shuffled (backends random-state)
  "BACKENDS in a random order, by RANDOM-STATE. The first is drawn with a probability in proportion
to its weight, the attribute :weight or 1; the second is drawn in the same way from the others, and
so on."
  (flet ((lot (backend)
           (let ((weight (getf (backend-attributes backend) :weight)))
             (/ (- (log (- 1d0 (random 1d0 random-state))))
                (if (typep weight '(integer 1)) (min weight (expt 2 32)) 1)))))
    (mapcar #'rest (sort (mapcar (lambda (backend) (cons (lot backend) backend)) backends)
                         #'< :key #'first))))

(defmethod update-backends ((balancer pick-first) backends config)
  (let* ((backends (if config
                       (shuffled backends (balancer-random balancer))
                       backends))
         (addresses (remove-duplicates
                     (mapcan (lambda (backend) (copy-list (backend-addresses backend))) backends)
                     :test #'equalp :from-end t))
         (subchannel (pick-first-subchannel balancer)))
    (cond ((and subchannel addresses)
           (setf (subchannel-backends subchannel) backends)
           (change-addresses subchannel addresses)
           (note-attributes subchannel))
          ((and addresses (not (room-for-subchannel-p (balancer-core balancer))))
           (publish balancer :transient-failure
                    (make-failure "the channel may have no more servers (max-subchannels)")))
          (addresses
           (let ((subchannel (open-subchannel balancer (make-backend :addresses addresses))))
             (setf (pick-first-failed balancer) nil
                   (pick-first-subchannel balancer) subchannel
                   (subchannel-backends subchannel) backends)
             (connect subchannel)))
          (t
           (setf (pick-first-subchannel balancer) nil)
           (when subchannel
             (close-subchannel subchannel "the list of servers is now empty"))
           (publish balancer :transient-failure (make-failure "the list of servers is empty"))))))

(defun note-attributes (subchannel)
  "Give SUBCHANNEL, if it is connected, the attributes of the server to which it is connected."
  (when-let ((link (first (connection-set-links (subchannel-connection-set subchannel)))))
    (setf (subchannel-attributes subchannel)
          (attributes-at (find-address (subchannel-addresses subchannel)
                                       (client-link-peer link))
                         (subchannel-backends subchannel)))))

(defmethod exit-idle ((balancer pick-first))
  (let ((subchannel (pick-first-subchannel balancer)))
    (when subchannel (connect subchannel))))

(defmethod subchannel-changed ((balancer pick-first) subchannel)
  (let ((state (subchannel-state subchannel)))
    (case state
      (:ready (setf (pick-first-failed balancer) nil)
       (note-attributes subchannel))
      (:transient-failure (setf (pick-first-failed balancer) t)))
    (cond ((eq :transient-failure state)
           (publish balancer state (make-failure (last-error-text subchannel))))
          ((not (pick-first-failed balancer))
           (publish balancer state (when (eq :ready state) subchannel)))
          ((eq :idle state) (connect subchannel)))))
