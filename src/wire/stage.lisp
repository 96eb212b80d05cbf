;;;; Where the time of a call goes. A call keeps when it began and MARKS: at most three moments
;;;; after that, each a SPAN, a floating number of nanoseconds in 20 bits (14 of them mantissa, so
;;;; spans are true to 0.013 %, from nanoseconds to centuries), all in one fixnum. So calls note
;;;; their stages with a store each, in time of the loop's turn, and without memory. 0 is a moment
;;;; that has not come. Two flags that only the loop changes share the fixnum.
;;;;
;;;;   client  +HEADERS+ request headers sent   +ANSWER+ the first response headers   +END+
;;;;   server  +HEADERS+ response headers sent  +DUE+    the handler may start        +END+
;;;;
;;;; What a client's call waits for before it has a stream is its channel's doing, which keeps
;;;; a WAIT-CLOCK: how long it has been in each stage of getting a connection, in all. A call that
;;;; begins to wait remembers what that showed, and the difference is what the call has waited for.
;;;;
;;;; What is made of all this, for people, is in account.lisp.

(in-package #:clgrpc.wire)

(defconstant +mantissa-bits+ 14)
(defconstant +span-bits+ 20)

(deftype span () `(unsigned-byte ,+span-bits+))
(defconstant +closed+ (ash 1 60)
  "Above the spans: that our side of the call has ended.")
(defconstant +unattended+ (ash 1 61)
  "That the call, a client's, is its own future.")
(deftype marks () '(unsigned-byte 62))
(deftype mark () "The place of a moment among MARKS." '(member 0 20 40))

(defconstant +headers+ 0 "The mark of our headers: when they went out.")
(defconstant +answer+ 20 "The mark, on a client, of the first of the answer.")
(defconstant +due+ 20 "The mark, on a server, of the handler that could start.")
(defconstant +end+ 40 "The mark of the end.")

(define-hot ns-span ((ns fixnum)) span
  "NS as a span; what is not positive as the shortest."
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
  "A clock that is in STAGE, of *WAITING-STAGES*, SINCE-NS: TOTALS are the nanoseconds in each until
then, ATTEMPTS the attempts to connect. What a call has of it differs: there TOTALS and ATTEMPTS are
those of the channel's when the call began to wait, and once DONE what has been added while it
did."
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
  "A fresh vector of what CLOCK, a channel's, shows at NOW."
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
  "What CLOCK shows at NOW, to be kept by a call that begins to wait. An attempt under way is not
counted yet: it is one that the call waits for."
  (make-wait-clock :totals (clock-totals clock now)
                   :attempts (- (wait-clock-attempts clock)
                                (ecase (wait-clock-stage clock)
                                  ((:resolve :connect :handshake) 1)
                                  ((:back-off :queue) 0)))))

(defun clock-difference (clock before now)
  "What CLOCK has added until NOW to what it showed BEFORE: totals and attempts."
  (values (map '(simple-vector 5) #'- (clock-totals clock now) (wait-clock-totals before))
          (- (wait-clock-attempts clock) (wait-clock-attempts before))))

(defun stop-waiting (clock before now)
  "The call that has kept BEFORE waits no longer: keep what it has waited for instead."
  (unless (wait-clock-done before)
    (multiple-value-bind (totals attempts) (clock-difference clock before now)
      (setf (wait-clock-totals before) totals
            (wait-clock-attempts before) attempts
            (wait-clock-done before) t))))
