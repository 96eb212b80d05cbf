;;;; Time. Everything below the event loop takes the time as an argument; the loop takes it from a
;;;; clock: a function without arguments that returns nanoseconds, MONOTONIC-NS or a simulator's
;;;; function. Nanoseconds are an (unsigned-byte 62), which suffices for 146 years; a time and the
;;;; difference of two times are fixnums.

(in-package #:clgrpc.base)

(deftype nanoseconds ()
  "A time or a duration in nanoseconds."
  '(unsigned-byte 62))

(deftype clock ()
  "A function of no arguments that returns the time in NANOSECONDS and never goes back."
  'function)

(defconstant +ns-per-second+ 1000000000
  "The number of nanoseconds in a second.")

;;; The kernel's numbers of the clocks; every Linux has the same.
(defconstant +clock-realtime+ 0)
(defconstant +clock-monotonic+ 1)
(defconstant +clock-thread+ 3)
(defconstant +clock-boottime+ 7)

(declaim (inline read-clock))
(defun read-clock (id)
  "Return the time of the clock ID. The kernel's struct timespec is two 64-bit integers on both
architectures."
  (sb-alien:with-alien ((timespec (array (sb-alien:signed 64) 2)))
    (sb-alien:alien-funcall
     (sb-alien:extern-alien "clock_gettime"
                            (function sb-alien:int sb-alien:int (* (array (sb-alien:signed 64) 2))))
     id (sb-alien:addr timespec))
    (the nanoseconds (+ (* (the (integer 0 4000000000) (sb-alien:deref timespec 0)) +ns-per-second+)
                        (the (integer 0 999999999) (sb-alien:deref timespec 1))))))

(declaim (sb-ext:maybe-inline monotonic-ns))
(define-hot monotonic-ns () nanoseconds
  "Return the time since some fixed point in the past, in nanoseconds. This time never goes back.
From any thread."
  (read-clock +clock-monotonic+))

(defun suspended-ns ()
  "Return the time for which the machine has been suspended since it was started, in nanoseconds.
MONOTONIC-NS does not advance while the machine is suspended."
  (max 0 (- (read-clock +clock-boottime+) (read-clock +clock-monotonic+))))

(defun thread-time-ns ()
  "The processor time of this thread, in nanoseconds."
  (read-clock +clock-thread+))

(define-hot real-time-ns () nanoseconds
  "The time since 1970-01-01 00:00 UTC in nanoseconds. This time jumps when the clock is set. From
any thread."
  (read-clock +clock-realtime+))

(defun seconds-ns (seconds)
  "Return SECONDS, a real that is not negative, in nanoseconds. A time that is too long for the type
NANOSECONDS becomes its largest value."
  (check-type seconds (real 0))
  (if (< seconds (floor most-positive-fixnum +ns-per-second+))
      (values (round (* (rational seconds) +ns-per-second+)))
      most-positive-fixnum))

(defun ns-seconds (ns)
  "Return the number of seconds, a double-float, in NS nanoseconds, an integer."
  (/ ns 1d9))

(declaim (inline time-after))
(defun time-after (ns now)
  "Return the time that is NS nanoseconds, an integer that is not negative, after NOW, or the
maximum of the type NANOSECONDS, if that is less."
  (min (+ now ns) most-positive-fixnum))
