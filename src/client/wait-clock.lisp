;;;; The waits of a client's call before it has a stream. A channel keeps a WAIT-CLOCK: the total
;;;; time it has been in each stage of getting a connection. A call that begins to wait stores the
;;;; totals of the clock; the totals at the end minus these are the waits of the call. The report
;;;; for people is in client-call.lisp.

(in-package #:clgrpc.client)

(defparameter *waiting-stages* '(:resolve :connect :handshake :back-off :queue)
  "The stages in which a client's call may wait before it has a stream: for the look-up of its
server's name, a connection, the handshakes of TLS and HTTP/2, the next attempt to connect, and,
once there is a connection, a stream on it.")

(defstruct (wait-clock (:copier nil))
  "How long a channel has been in each of *WAITING-STAGES*, and how often it has tried to connect. A
call that waits has a clock of its own, with only TOTALS, ATTEMPTS and DONE. TOTALS and ATTEMPTS are
the values of the channel's clock when the call began to wait; once DONE is true, they are what the
wait has added to those values."
  (stage :queue :type symbol)           ; one of *WAITING-STAGES*
  (since-ns 0 :type nanoseconds)        ; when the call came to STAGE
  ;; nanoseconds in each stage until then
  (totals (make-array 5 :initial-element 0) :type (simple-vector 5))
  (attempts 0 :type (unsigned-byte 62)) ; the number of attempts to connect
  (done nil :type boolean))             ; TOTALS and ATTEMPTS are differences

(declaim (sb-ext:freeze-type wait-clock))

(define-printer (clock wait-clock)
  "~(~A~), ~D attempts" (wait-clock-stage clock) (wait-clock-attempts clock))

(defun clock-totals (clock now)
  "A fresh vector of the nanoseconds that CLOCK, a channel's, has been in each stage until NOW."
  (let ((totals (copy-seq (wait-clock-totals clock))))
    (incf (svref totals (position (wait-clock-stage clock) *waiting-stages*))
          (max 0 (- now (wait-clock-since-ns clock))))
    totals))

(defun enter-clock-stage (clock stage now)
  (setf (wait-clock-totals clock) (clock-totals clock now)
        (wait-clock-stage clock) stage
        (wait-clock-since-ns clock) now)
  (when (eq stage :resolve) (incf (wait-clock-attempts clock))))

(defun read-clock-for-call (clock now)
  "The wait clock for a call that begins to wait at NOW, with the values of CLOCK, the channel's.
The attempt to connect that is under way counts among the call's own, since the call will wait for
it."
  (make-wait-clock :totals (clock-totals clock now)
                   :attempts (- (wait-clock-attempts clock)
                                (ecase (wait-clock-stage clock)
                                  ((:resolve :connect :handshake) 1)
                                  ((:back-off :queue) 0)))))

(defun clock-difference (clock before now)
  "Two values: the totals and the attempts of CLOCK at NOW, minus those of BEFORE, a call's clock."
  (values (map '(simple-vector 5) #'- (clock-totals clock now) (wait-clock-totals before))
          (- (wait-clock-attempts clock) (wait-clock-attempts before))))

(defun stop-clock (clock before now)
  "Store the waits of a call, which end at NOW, in BEFORE, its clock."
  (unless (wait-clock-done before)
    (multiple-value-bind (totals attempts) (clock-difference clock before now)
      (setf (wait-clock-totals before) totals
            (wait-clock-attempts before) attempts
            (wait-clock-done before) t))))
