;;;; The policy least_request (gRFC A48): choiceCount ready servers are chosen at random,
;;;; independently of each other; the call goes to the one with the fewest calls in flight, and if
;;;; several have the fewest, to the first. Servers whose breakers refuse the call are ignored.

(in-package #:clgrpc.balance)

(defclass least-request (leaf-policy)
  ((choices :initform 2 :accessor least-request-choices
            :documentation "How many servers are drawn for a call, 2 to 10."))
  (:documentation "The policy least_request_experimental."))

(defun parse-least-request (object path)
  "The number of servers that are drawn at random for a call; a number above 10 is treated as 10."
  (min 10 (config:integer-field object "choiceCount" path :default 2 :minimum 2)))

(config:register-policy :least-request '("least_request_experimental" "least_request")
                        'least-request 'parse-least-request)

(defmethod configure ((leaf-policy least-request) config)
  (setf (least-request-choices leaf-policy) config))

(defun least-busy (ready choices random-state call)
  "The member with the fewest calls among CHOICES members of READY, a vector of subchannels, chosen
by RANDOM-STATE; nil if their breakers refuse CALL."
  (declare (type simple-vector ready) (type (integer 2 10) choices))
  (let ((best nil) (fewest most-positive-fixnum))
    (declare (type fixnum fewest))
    (loop repeat choices
          do (let* ((subchannel (svref ready (random (length ready) random-state)))
                    (calls (subchannel-calls subchannel)))
               (declare (type fixnum calls))
               (when (and (< calls fewest) (breaker-passed-p subchannel call))
                 (setf best subchannel
                       fewest calls))))
    best))

(defun find-from (start test ready)
  "The first element of READY, a vector, of which TEST is true, searched from the index START on and
then from the beginning; or nil."
  (declare (type simple-vector ready) (type function test))
  (or (find-if test ready :start start)
      (find-if test ready :end start)))

(defmethod leaf-policy-picker ((leaf-policy least-request) ready)
  (let ((choices (least-request-choices leaf-policy))
        (random-state (balancer-random leaf-policy)))
    (new-picker (lambda (call)
                  (let ((best (least-busy ready choices random-state call)))
                    (if (and best (room-p best call))
                        best
                        (flet ((room-p (other) (room-p other call))
                               (breaker-passed-p (other) (breaker-passed-p other call)))
                          (let ((start (random (length ready) random-state)))
                            (or (find-from start #'room-p ready)
                                best
                                (find-from start #'breaker-passed-p ready)
                                (svref ready start)))))))
                (format nil "the least busy of ~D, ~D ready" choices (length ready)))))
