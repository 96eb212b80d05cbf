;;;; Floats from decimal digits, rounded correctly (to nearest, ties to even), and to the fewest
;;;; decimal digits that read back alike.
;;;;
;;;; Invariant: the work is bounded by the number of digits; no exponent, however large, makes a
;;;; large integer.

(in-package #:clgrpc.base)

(defun digits-double (digits exponent negative)
  "Return the double nearest to DIGITS times ten to the power EXPONENT, with a minus sign if
NEGATIVE, ties to even; nil if that is too large for one. The work is bounded if the length of
DIGITS is."
  (let* ((magnitude (+ exponent (ceiling (* (integer-length digits) 0.30103d0))))
         (double (cond ((or (zerop digits) (< magnitude -330)) 0d0)
                       ((> magnitude 310) nil)
                       ;; both exact, so one rounding
                       ((and (< digits (expt 2 53)) (<= 0 exponent 22))
                        (* (coerce digits 'double-float)
                           (coerce (expt 10 exponent) 'double-float)))
                       ((and (< digits (expt 2 53)) (<= -22 exponent -1))
                        (/ (coerce digits 'double-float)
                           (coerce (expt 10 (- exponent)) 'double-float)))
                       (t (rational-double (* digits (expt 10 exponent)))))))
    (and double (if negative (- double) double))))

(defun rational-double (rational)
  "The double nearest to RATIONAL, which is positive, ties to even; NIL if it overflows."
  (flet ((exponent-of (rational)
           (- (integer-length (numerator rational)) (integer-length (denominator rational)))))
    ;; the quotient has 53 or 54 significant bits, fewer when the result is denormal
    (let* ((scale (min (- 54 (exponent-of rational)) 1074))
           (scaled (* rational (expt 2 scale)))
           (excess (if (= scale 1074) (max 0 (- (integer-length (floor scaled)) 53))
                       (- (integer-length (floor scaled)) 53)))
           (significand (round scaled (expt 2 excess)))
           (power (- excess scale)))
      (when (<= (+ (integer-length significand) power) 1024)
        (scale-float (coerce significand 'double-float) power)))))

(defun digits-single (digits exponent negative)
  "As DIGITS-DOUBLE, for a single float."
  (let ((double (digits-double digits exponent nil)))
    (when (and double (< double 3.4028235677973366d38)) ; halfway to what would come next
      (let ((single (nearest-single double digits exponent)))
        (if negative (- single) single)))))

(defun nearest-single (double digits exponent)
  "The single float nearest to DIGITS times ten to the power EXPONENT, of which DOUBLE is the
nearest double. Only a double close to the middle between two singles could lead astray."
  (let* ((low (logand #x1FFFFFFF (sb-kernel:double-float-low-bits double)))
         (clear (and (not (<= #xFFFFFFF low #x10000001)) (> double 2d-38)))
         (order (cond ((or clear (zerop double)) 0)
                      (t (signum (- (* digits (expt 10 exponent)) (rational double)))))))
    (sb-int:with-float-traps-masked (:underflow :inexact)
      (cond ((>= double (float most-positive-single-float 1d0)) most-positive-single-float)
            ;; an odd last bit on the right side says that the value is not in the middle
            ((and (plusp order) (evenp low))
             (coerce (neighbour double 1) 'single-float))
            ((and (minusp order) (evenp low))
             (coerce (neighbour double -1) 'single-float))
            (t (coerce double 'single-float))))))

(defun neighbour (double step)
  "The double next to DOUBLE, which is positive: the greater one if STEP is 1, the smaller if -1."
  (let ((bits (+ step (logior (ash (sb-kernel:double-float-high-bits double) 32)
                              (sb-kernel:double-float-low-bits double)))))
    (sb-kernel:make-double-float (ash bits -32) (ldb (byte 32 0) bits))))

(defun float-decimal (float)
  "Return FLOAT, which is finite, in the fewest decimal digits that read back alike, as a base
string: 0.5, 100.0, 1.0e23."
  (coerce (with-standard-io-syntax
            (let ((*read-default-float-format* (type-of float)))
              (prin1-to-string float)))
          'simple-base-string))
