;;;; The stages of a call. A call keeps the time when it began, and its MARKS: at most three later
;;;; moments, all in one fixnum. Each moment is kept as a SPAN, a floating-point number of
;;;; nanoseconds in 20 bits. 14 of the bits are the mantissa, so spans are exact to 0.013 %, from
;;;; nanoseconds to centuries. A span of 0 means that the moment has not come. So a call notes a
;;;; stage with one store, without reading the clock (it uses the time of the loop's turn) and
;;;; without consing. Two flags that only the loop changes share the fixnum.
;;;;
;;;;   client  :HEADERS request headers sent   :ANSWER the first response headers   :END
;;;;   server  :HEADERS response headers sent  :DUE    the handler may start        :END
;;;;
;;;; The reports for users are in stage-report.lisp.

(in-package #:clgrpc.wire)

(defconstant +mantissa-bits+ 14)
(defconstant +span-bits+ 20)

(deftype span () `(unsigned-byte ,+span-bits+))
(deftype marks () '(unsigned-byte 62))

(deftype moment ()
  "A moment whose time is in the marks of a call: this end's headers were sent, a client's answer
began to arrive, a server's handler could start, or the call has ended."
  '(member :headers :answer :due :end))

(deftype flag ()
  "A fact that is in the marks without a time: this end has sent its last message, or a client's
call is its own future."
  '(member :closed :unattended))

(deftype mark () '(or moment flag))

(define-hot (moment-place :inline t) ((moment moment)) (member 0 20 40)
  (cond ((eq :headers moment) 0)
        ((eq :end moment) 40)
        (t 20)))

(define-hot (flag-bit :inline t) ((flag flag)) marks
  (if (eq :closed flag) (ash 1 60) (ash 1 61)))

(define-hot (mark-bits :inline t) ((mark mark)) marks
  (typecase mark
    (flag (flag-bit mark))
    (t (ash (1- (ash 1 +span-bits+)) (moment-place mark)))))

(define-hot (ns-span :inline t) ((ns fixnum)) span
  "Return NS as a span, or the shortest span if NS is not positive."
  (let* ((ns (max 1 ns))
         (shift (max 0 (- (integer-length ns) +mantissa-bits+))))
    (declare (type (unsigned-byte 62) ns) (type (integer 0 48) shift))
    (logior (ash shift +mantissa-bits+) (ash ns (- shift)))))

(defun span-ns (span)
  "The nanoseconds of SPAN."
  (ash (ldb (byte +mantissa-bits+ 0) span) (ash span (- +mantissa-bits+))))

(define-hot (add-moment :inline t) ((marks marks) (moment moment) (ns fixnum)) marks
  "Return MARKS with MOMENT, which is not among them yet, added at NS nanoseconds after the
beginning."
  (logior marks (ash (if (plusp ns) (ns-span ns) 1) (moment-place moment))))

(define-hot without-moments ((marks marks)) marks
  "Return MARKS without any moments."
  (logand marks (logior (flag-bit :closed) (flag-bit :unattended))))

(defun moment-ns (marks moment)
  "Return the number of nanoseconds from the beginning to MOMENT, or nil if MOMENT is not among
MARKS."
  (and (logtest marks (mark-bits moment))
       (span-ns (ldb (byte +span-bits+ (moment-place moment)) marks))))
