;;;; The policy least_request (gRFC A48): of choiceCount ready servers, each chosen at random and
;;;; independently of the others, the call goes to the one with the fewest calls in flight, of equal
;;;; ones to the first.

(in-package #:clgrpc.balance)

(defclass least-request (leaf-policy)
  ((choices :initform 2 :accessor least-request-choices
            :documentation "How many servers are drawn for a call, 2 to 10."))
  (:documentation "The policy least_request_experimental."))

(defun parse-least-request (object path)
  "The number of servers that are drawn for a call; more than 10 count as 10."
  (min 10 (config:integer-field object "choiceCount" path :default 2 :minimum 2)))

(config:register-policy :least-request '("least_request_experimental" "least_request")
                        'least-request 'parse-least-request)

(defmethod configure ((leaf-policy least-request) config)
  (setf (least-request-choices leaf-policy) config))

(defun least-busy (ready choices random-state)
  "The member with the fewest calls among CHOICES members of READY, a vector of subchannels, drawn
by RANDOM-STATE."
  (declare (type simple-vector ready) (type (integer 2 10) choices))
  (let ((best nil) (fewest most-positive-fixnum))
    (declare (type fixnum fewest))
    (loop repeat choices
          do (let* ((subchannel (svref ready (random (length ready) random-state)))
                    (calls (subchannel-calls subchannel)))
               (declare (type fixnum calls))
               (when (< calls fewest)
                 (setf best subchannel
                       fewest calls))))
    best))

(defmethod leaf-policy-picker ((leaf-policy least-request) ready)
  (let ((choices (least-request-choices leaf-policy))
        (random-state (balancer-random leaf-policy)))
    (new-picker (lambda (call)
                   (declare (ignore call))
                   (let ((best (least-busy ready choices random-state)))
                     (if (room-p best)
                         best
                         (or (find-if #'room-p ready) best))))
                 (format nil "the least busy of ~D, ~D ready" choices (length ready)))))
