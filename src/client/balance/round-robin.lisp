;;;; The policy round_robin: the ready servers get calls in turn.

(in-package #:clgrpc.balance)

(defclass round-robin (leaf-policy) ()
  (:documentation "The policy round_robin."))

(config:register-policy :round-robin '("round_robin") 'round-robin)

(defun turns-picker (ready last)
  "A picker of READY, a vector of subchannels, in turn, beginning after the index LAST. The picker
skips subchannels without a free stream, as long as others have one, and those whose breakers refuse
the call."
  (declare (type simple-vector ready) (type index last))
  (flet ((next ()
           (setf last (if (= (1+ last) (length ready)) 0 (1+ last)))
           (svref ready last)))
    (new-picker (lambda (call)
                  (or (loop repeat (length ready)
                            for subchannel = (next)
                            when (room-p subchannel call) return subchannel)
                      (loop repeat (length ready)
                            for subchannel = (next)
                            until (breaker-passed-p subchannel call)
                            finally (return subchannel))))
                (format nil "by turns, ~D ready" (length ready)))))

(defmethod leaf-policy-picker ((leaf-policy round-robin) ready)
  (turns-picker ready (first-turn leaf-policy ready)))
