;;;; The policy round_robin: a subchannel for each backend, all of them kept connected, and calls by
;;;; turns on those that are ready. The channel is :ready while one is; else :connecting while one
;;;; may become so that has not just failed; else in :transient-failure. A subchannel that has
;;;; failed counts as failed until it is ready again, although it connects anew meanwhile (gRPC's
;;;; document "Load Balancing Policies").

(in-package #:clgrpc.client)

(defclass round-robin (balancer)
  ((subchannels :initform (make-hash-table :test #'equal) :reader round-robin-subchannels
                :documentation "From a backend's key to its subchannel.")
   (failed :initform (make-hash-table :test #'eq) :reader round-robin-failed
           :documentation "The subchannels, as keys, that have failed and not been ready since.")
   (trouble :initform "no server can be reached" :accessor round-robin-trouble
            :documentation "Why the last of them failed."))
  (:documentation "The policy round_robin."))

(config:register-policy :round-robin '("round_robin") 'round-robin)

(defmethod update-backends ((balancer round-robin) backends config)
  (declare (ignore config))
  (let ((subchannels (round-robin-subchannels balancer))
        (kept (make-hash-table :test #'equal))
        (new '()))
    (dolist (backend backends)
      (let* ((key (backend-key backend))
             (subchannel (gethash key subchannels)))
        (cond ((gethash key kept))      ; told twice
              (subchannel
               (setf (subchannel-attributes subchannel) (backend-attributes backend)
                     (gethash key kept) subchannel))
              (t (push (setf (gethash key kept)
                             (setf (gethash key subchannels)
                                   (open-subchannel balancer (backend-addresses backend)
                                                    :key key
                                                    :attributes (backend-attributes backend))))
                       new)))))
    (loop for key being the hash-keys of subchannels using (hash-value subchannel)
          unless (gethash key kept)
            collect (cons key subchannel) into gone
          finally (loop for (key . subchannel) in gone
                        do (remhash key subchannels)
                           (remhash subchannel (round-robin-failed balancer))
                           (close-subchannel subchannel
                                             "its address is the servers' no more")))
    (mapc #'connect new)
    (publish-turns balancer)))

(defmethod subchannel-changed ((balancer round-robin) subchannel)
  (ecase (subchannel-state subchannel)
    (:idle
     (ask-resolver (balancer-core balancer))
     (connect subchannel))
    (:connecting (publish-turns balancer))
    (:ready
     (remhash subchannel (round-robin-failed balancer))
     (publish-turns balancer))
    (:transient-failure
     (setf (gethash subchannel (round-robin-failed balancer)) t
           (round-robin-trouble balancer) (trouble-text subchannel))
     (publish-turns balancer))))

(defun publish-turns (balancer)
  "Publish what the states of BALANCER's subchannels come to."
  (let ((subchannels (alexandria:hash-table-values (round-robin-subchannels balancer))))
    (flet ((failed-p (subchannel) (gethash subchannel (round-robin-failed balancer))))
      (let ((ready (remove :ready subchannels :key #'subchannel-state :test-not #'eq)))
        (cond (ready (publish balancer :ready
                              (turns-picker (coerce ready 'simple-vector)
                                            (balancer-random balancer))))
              ((null subchannels))      ; the channel says that it has no servers
              ((every #'failed-p subchannels)
               (publish balancer :transient-failure
                        (make-failure (round-robin-trouble balancer))))
              (t (publish balancer :connecting nil)))))))

(defun turns-picker (ready random-state)
  "A picker of READY, a vector of subchannels, by turns, from one that RANDOM-STATE gives on. It
passes over those that have no stream now, as long as others have one."
  (declare (type simple-vector ready))
  (let ((last (random (length ready) random-state)))
    (declare (type index last))
    (flet ((next ()
             (setf last (if (= (1+ last) (length ready)) 0 (1+ last)))
             (svref ready last)))
      (make-picker (lambda (call)
                     (declare (ignore call))
                     (loop repeat (length ready)
                           for subchannel = (next)
                           when (room-p subchannel) return subchannel
                           finally (return (next))))
                   (format nil "by turns, ~D ready" (length ready))))))
