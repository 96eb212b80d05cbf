;;;; Deadlines. A call's deadline is an absolute time on the monotonic clock in nanoseconds, 0 for
;;;; none. The wire carries the time that remains, grpc-timeout (gRPC over HTTP/2, "Timeout": one to
;;;; eight digits and a unit).

(in-package #:clgrpc.status)

(deftype deadline ()
  "A deadline in nanoseconds, so small that the difference of two deadlines, of either sign, fits
into 62 bits."
  '(unsigned-byte 61))

(defconstant +latest-deadline+ (1- (ash 1 61)) "A deadline that never passes: 73 years.")

(define-hot deadline-in ((ns (unsigned-byte 62)) (now (unsigned-byte 62))) deadline
  "The deadline NS nanoseconds after NOW, at most +LATEST-DEADLINE+, since peers may send time-outs
of 11,000 years."
  (min (+ now ns) +latest-deadline+))

(defun timeout-unit-ns (octet)
  (case (code-char octet)
    (#\n 1) (#\u 1000) (#\m 1000000) (#\S 1000000000) (#\M 60000000000) (#\H 3600000000000)))

(define-hot parse-timeout ((octets octets)) (or null (unsigned-byte 62))
  "Return the nanoseconds of the grpc-timeout value OCTETS, or nil if it is malformed."
  (let* ((digits (1- (length octets)))
         (unit (and (<= 1 digits 8) (timeout-unit-ns (aref octets digits))))
         (value 0))
    (declare (type (unsigned-byte 32) value))
    (when (and unit
               (loop for i below digits
                     for digit = (- (aref octets i) 48)
                     always (<= 0 digit 9)
                     do (setf value (+ (* 10 value) digit))))
      ;; 99999999H needs more than 61 bits of nanoseconds
      (locally (declare (sb-ext:muffle-conditions sb-ext:compiler-note))
        (min (* value (the (unsigned-byte 42) unit)) +latest-deadline+)))))

(defun encode-timeout (ns)
  "Return the octets of grpc-timeout for NS nanoseconds, rounded up to the finest unit that fits;
never less than one nanosecond."
  (loop for (unit . letter) in '((1 . #\n) (1000 . #\u) (1000000 . #\m) (1000000000 . #\S)
                                 (60000000000 . #\M) (3600000000000 . #\H))
        for value = (ceiling (max ns 1) unit)
        when (<= value 99999999)
          return (ascii-octets (format nil "~D~C" value letter))))
