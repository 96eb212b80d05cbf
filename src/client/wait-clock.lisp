;;;; What a client's call waits for before it has a stream. Its channel keeps a WAIT-CLOCK: how long
;;;; it has been in each stage of getting a connection, in all. A call that begins to wait notes
;;;; what the clock shows then; what the clock shows at the end, less that, is what the call has
;;;; waited for. What people are told of this is in client-call.lisp.

(in-package #:clgrpc.client)

(defparameter *waiting-stages* '(:resolve :connect :handshake :back-off :queue)
  "What a client's call may wait for before it has a stream: its server's name to be looked up, a
connection, the handshakes of TLS and HTTP/2, the time for the next attempt, and, with a connection,
a stream of it.")

(defstruct (wait-clock (:copier nil))
  "How long a channel has been in each of *WAITING-STAGES*, and how often it has tried to connect. A
call that waits has one of its own, of which only TOTALS, ATTEMPTS and DONE count: what the
channel's clock showed when the call began to wait and, once DONE is true, what was added to that
while it waited."
  (stage :queue :type symbol)           ; of *WAITING-STAGES*
  (since-ns 0 :type nanoseconds)        ; when it came to STAGE
  ;; nanoseconds in each stage until then
  (totals (make-array 5 :initial-element 0) :type (simple-vector 5))
  (attempts 0 :type (unsigned-byte 62)) ; to connect
  (done nil :type boolean))             ; what it shows is a difference

(declaim (sb-ext:freeze-type wait-clock))

(defmethod print-object ((clock wait-clock) stream)
  (print-unreadable-object (clock stream :type t)
    (format stream "~(~A~), ~D attempts" (wait-clock-stage clock) (wait-clock-attempts clock))))

(defun clock-totals (clock now)
  "A fresh vector of the nanoseconds that CLOCK, a channel's, has been in each stage until NOW."
  (let ((totals (copy-seq (wait-clock-totals clock))))
    (incf (svref totals (position (wait-clock-stage clock) *waiting-stages*))
          (max 0 (- now (wait-clock-since-ns clock))))
    totals))

(defun enter-clock-stage (clock stage now)
  "CLOCK is in STAGE from NOW on."
  (setf (wait-clock-totals clock) (clock-totals clock now)
        (wait-clock-stage clock) stage
        (wait-clock-since-ns clock) now)
  (when (eq stage :resolve) (incf (wait-clock-attempts clock))))

(defun read-clock-for-call (clock now)
  "The wait clock for a call that begins to wait at NOW: what CLOCK, the channel's, shows. An
attempt to connect that is under way is left out, since the call will wait for it."
  (make-wait-clock :totals (clock-totals clock now)
                   :attempts (- (wait-clock-attempts clock)
                                (ecase (wait-clock-stage clock)
                                  ((:resolve :connect :handshake) 1)
                                  ((:back-off :queue) 0)))))

(defun clock-difference (clock before now)
  "The totals and the attempts that CLOCK has added until NOW to those of BEFORE, a call's clock."
  (values (map '(simple-vector 5) #'- (clock-totals clock now) (wait-clock-totals before))
          (- (wait-clock-attempts clock) (wait-clock-attempts before))))

(defun stop-clock (clock before now)
  "The call whose clock is BEFORE waits no longer: note in BEFORE what it has waited for."
  (unless (wait-clock-done before)
    (multiple-value-bind (totals attempts) (clock-difference clock before now)
      (setf (wait-clock-totals before) totals
            (wait-clock-attempts before) attempts
            (wait-clock-done before) t))))
