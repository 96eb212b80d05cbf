;;;; Where the time of a call goes. A call keeps when it began, and its MARKS: at most three moments
;;;; after that, all in one fixnum. Each is a SPAN, a floating number of nanoseconds in 20 bits; 14
;;;; of them are the mantissa, so spans are true to 0.013 %, from nanoseconds to centuries. A span
;;;; of 0 is a moment that has not come. So a call notes a stage with one store, without reading the
;;;; clock (it takes the time of the loop's turn) and without consing. Two flags that only the loop
;;;; changes share the fixnum.
;;;;
;;;;   client  +HEADERS+ request headers sent   +ANSWER+ the first response headers   +END+
;;;;   server  +HEADERS+ response headers sent  +DUE+    the handler may start        +END+
;;;;
;;;; Before a client's call has a stream it waits for its channel. The channel keeps a WAIT-CLOCK:
;;;; how long it has been in each stage of getting a connection, in all. A call that begins to wait
;;;; notes what the clock shows then; what the clock shows at the end, less that, is what the call
;;;; has waited for.
;;;;
;;;; What people are told of all this is in account.lisp.

(in-package #:clgrpc.wire)

(defconstant +mantissa-bits+ 14)
(defconstant +span-bits+ 20)

(deftype span () `(unsigned-byte ,+span-bits+))
(defconstant +closed+ (ash 1 60)
  "The flag that our side of the call has ended.")
(defconstant +unattended+ (ash 1 61)
  "The flag that the call, a client's, is its own future.")
(deftype marks () '(unsigned-byte 62))
(deftype mark () "The place of a moment among MARKS." '(member 0 20 40))

(defconstant +headers+ 0 "The mark of our headers: when they went out.")
(defconstant +answer+ 20 "A client's mark: when the answer began to come.")
(defconstant +due+ 20 "A server's mark: when the handler could start.")
(defconstant +end+ 40 "The mark of the end.")

(define-hot ns-span ((ns fixnum)) span
  "NS as a span; the shortest span if NS is not positive."
  (let* ((ns (max 1 ns))
         (shift (max 0 (- (integer-length ns) +mantissa-bits+))))
    (declare (type (unsigned-byte 62) ns) (type (integer 0 48) shift))
    (logior (ash shift +mantissa-bits+) (ash ns (- shift)))))

(defun span-ns (span)
  "The nanoseconds that SPAN stands for."
  (ash (ldb (byte +mantissa-bits+ 0) span) (ash span (- +mantissa-bits+))))

(define-hot (add-mark :inline t) ((marks marks) (mark mark) (ns fixnum)) marks
  "MARKS with MARK, which is not among them, NS nanoseconds after the beginning."
  (logior marks (ash (if (plusp ns) (ns-span ns) 1) mark)))

(define-hot (marked-p :inline t) ((marks marks) (mark mark)) boolean
  "True if MARK is among MARKS."
  (logtest marks (ash (1- (ash 1 +span-bits+)) mark)))

(define-hot unmarked ((marks marks)) marks
  "MARKS as if no moment had come."
  (logand marks (logior +closed+ +unattended+)))

(defun mark-ns (marks mark)
  "The nanoseconds from the beginning to MARK, or nil if it has not come."
  (and (marked-p marks mark)
       (span-ns (ldb (byte +span-bits+ mark) marks))))

;;; Waiting for a stream

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

(defun enter-stage (clock stage now)
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

(defun stop-waiting (clock before now)
  "The call whose clock is BEFORE waits no longer: note in BEFORE what it has waited for."
  (unless (wait-clock-done before)
    (multiple-value-bind (totals attempts) (clock-difference clock before now)
      (setf (wait-clock-totals before) totals
            (wait-clock-attempts before) attempts
            (wait-clock-done before) t))))
