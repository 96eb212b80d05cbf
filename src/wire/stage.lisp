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
;;;; What people are told of all this is in stage-report.lisp.

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

(define-hot (ns-span :inline t) ((ns fixnum)) span
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
