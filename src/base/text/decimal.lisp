;;;; Floats from decimal digits and from rational numbers, rounded correctly (to nearest, ties to
;;;; even); and floats written with the fewest decimal digits that read back as the same float.
;;;; SBCL's COERCE rounds some ratios and long integers wrongly, and its printer writes denormals
;;;; with superfluous digits.
;;;;
;;;; Invariant: the work is bounded by the number of digits; a large exponent does not lead to a
;;;; large integer.

(in-package #:clgrpc.base)

;;; From rational numbers

(defun nearest-bits (numerator denominator digits least)
  "Return the bits of the float nearest to NUMERATOR over DENOMINATOR, positive integers, with ties
to even. The float format has DIGITS significant bits; its smallest denormal is two to
the power LEAST. If the quotient is too large, the bits are those of infinity or a greater number."
  (flet ((scaled (rounding power)
           (if (minusp power)
               (funcall rounding (ash numerator (- power)) denominator)
               (funcall rounding numerator (ash denominator power)))))
    ;; the quotient divided by 2^POWER has DIGITS or DIGITS + 1 bits, or fewer if it is denormal
    (let* ((power (max least
                       (- (integer-length numerator) (integer-length denominator) digits)))
           (power (if (> (integer-length (values (scaled #'floor power))) digits)
                      (1+ power)
                      power)))
      ;; the highest bit of the significand, also one that rounding has carried, adds to the
      ;; exponent
      (+ (values (scaled #'round power)) (ash (- power least) (1- digits))))))

(defun bits-of-double (bits negative)
  "Return the double with the magnitude BITS, or nil if the magnitude is that of infinity or
greater."
  (when (< bits #x7FF0000000000000)
    (sb-kernel:make-double-float (- (ash bits -32) (if negative #x80000000 0))
                                 (ldb (byte 32 0) bits))))

(defun bits-of-single (bits negative)
  (when (< bits #x7F800000)
    (sb-kernel:make-single-float (- bits (if negative #x80000000 0)))))

(defun double-of-quotient (numerator denominator negative)
  (bits-of-double (nearest-bits numerator denominator 53 -1074) negative))

(defun single-of-quotient (numerator denominator negative)
  (bits-of-single (nearest-bits numerator denominator 24 -149) negative))

(defun rational-double (rational)
  "Return the double nearest to RATIONAL, with ties to even, or nil if it is too large for a
double."
  (if (zerop rational)
      0d0
      (double-of-quotient (abs (numerator rational)) (denominator rational) (minusp rational))))

(defun rational-single (rational)
  "Do what RATIONAL-DOUBLE does, for a single float."
  (if (zerop rational)
      0f0
      (single-of-quotient (abs (numerator rational)) (denominator rational) (minusp rational))))

;;; From decimal digits

(defun call-with-quotient (function digits exponent negative)
  "Call FUNCTION with the numerator and the denominator of DIGITS times ten to the power EXPONENT,
and with NEGATIVE."
  (if (minusp exponent)
      (funcall function digits (expt 10 (- exponent)) negative)
      (funcall function (* digits (expt 10 exponent)) 1 negative)))

(defun digits-double (digits exponent negative)
  "Return the double nearest to DIGITS times ten to the power EXPONENT, with a minus sign if
NEGATIVE and with ties to even, or nil if that is too large for a double. The work is bounded if the
length of DIGITS is bounded."
  (flet ((signed (double) (if negative (- double) double)))
    (let ((magnitude (+ exponent (ceiling (* (integer-length digits) 0.30103d0)))))
      (cond ((or (zerop digits) (< magnitude -330)) (signed 0d0))
            ((> magnitude 310) nil)
            ;; both factors are exact, so there is one rounding
            ((and (< digits (expt 2 53)) (<= 0 exponent 22))
             (signed (* (coerce digits 'double-float) (coerce (expt 10 exponent) 'double-float))))
            ((and (< digits (expt 2 53)) (<= -22 exponent -1))
             (signed (/ (coerce digits 'double-float)
                        (coerce (expt 10 (- exponent)) 'double-float))))
            (t (call-with-quotient #'double-of-quotient digits exponent negative))))))

(defun digits-single (digits exponent negative)
  "Do what DIGITS-DOUBLE does, for a single float."
  (let ((double (digits-double digits exponent nil)))
    (cond ((or (null double) (> double 3.5d38)) nil)
          ((zerop double) (if negative -0f0 0f0))
          ((single-clear-p double)
           (let ((single (coerce double 'single-float))) (if negative (- single) single)))
          (t (call-with-quotient #'single-of-quotient digits exponent negative)))))

(defun single-clear-p (double)
  "True if a number that was rounded to DOUBLE can safely be rounded again, to a normalized single
float. This is so if DOUBLE is not next to the midpoint of two single floats."
  (and (< 2d-38 double 3.4d38)
       (not (<= #xFFFFFFF
                (logand #x1FFFFFFF (sb-kernel:double-float-low-bits double))
                #x10000001))))

;;; To decimal digits

(defun decimal-digits (number count)
  "Round the positive rational NUMBER to COUNT significant decimal digits. Return the digits as an
integer and the exponent E of the first digit: NUMBER is about d.ddd × 10^E."
  (let ((exponent (floor (* (- (integer-length (numerator number))
                               (integer-length (denominator number)))
                            0.30103d0))))
    (loop while (>= number (expt 10 (1+ exponent))) do (incf exponent))
    (loop while (< number (expt 10 exponent)) do (decf exponent))
    (let ((digits (round (* number (expt 10 (- count 1 exponent))))))
      (if (= digits (expt 10 count))
          (values (floor digits 10) (1+ exponent))
          (values digits exponent)))))

(defun denormal-decimal (float)
  "Return FLOAT, which must be denormal, in the fewest decimal digits that are read back as the same
float."
  ;; the two floats next to FLOAT are equally far from it, so for each length it suffices to try the
  ;; nearest decimal
  (let ((number (rational (abs float))))
    (loop for count from 1
          do (multiple-value-bind (digits exponent) (decimal-digits number count)
               (when (= number (rational (if (typep float 'single-float)
                                             (digits-single digits (- exponent count -1) nil)
                                             (digits-double digits (- exponent count -1) nil))))
                 (let ((text (format nil "~D" digits)))
                   (return (format nil "~:[~;-~]~C.~:[0~;~:*~A~]e~D" (minusp float) (char text 0)
                                   (and (> count 1) (subseq text 1)) exponent))))))))

(define-hot (digit-count :inline t) ((number (unsigned-byte 50))) (integer 1 16)
  (loop for rest of-type (unsigned-byte 50) = (truncate number 10) then (truncate rest 10)
        for count of-type (integer 1 16) from 1
        when (zerop rest) return count))

(define-hot nanos-decimal ((nanos (unsigned-byte 50)) negative) simple-base-string
  "Return the text of NANOS billionths, where NANOS is at least one, in the form that FLOAT-DECIMAL
returns."
  (let* ((small (< nanos 1000000))
         (digits nanos)
         (places (if small (1- (digit-count nanos)) 9)) ; digits after the point
         (exponent (- 9 places))
         (sign (if negative 1 0)))
    (declare (type (unsigned-byte 50) digits) (type (integer 0 9) places exponent))
    (loop while (> places 1)
          do (multiple-value-bind (rest digit) (truncate digits 10)
               (unless (zerop digit) (return))
               (setf digits rest)
               (decf places)))
    (when (zerop places) (setf digits (* 10 nanos) ; 5e-9 is written as 5.0e-9
                               places 1))
    (let* ((end (+ sign (max (digit-count digits) (1+ places)) 1))
           (point (- end 1 places))
           (text (make-string (if small (+ end 3) end) :element-type 'base-char)))
      (declare (type (integer 0 20) end point))
      (when negative (setf (schar text 0) #\-))
      (loop for at of-type (integer -1 20) from (1- end) downto sign
            do (if (= at point)
                   (setf (schar text at) #\.)
                   (multiple-value-bind (rest digit) (truncate digits 10)
                     (setf (schar text at) (digit-char digit)
                           digits rest))))
      (when small
        (setf (schar text end) #\e
              (schar text (+ end 1)) #\-
              (schar text (+ end 2)) (digit-char exponent)))
      text)))

(define-hot short-decimal ((float double-float)) (or null simple-base-string)
  "Return FLOAT in the form that FLOAT-DECIMAL returns, if it is less than a million and a whole
number of billionths, as most times in seconds are. Otherwise return nil."
  (let ((magnitude (abs float)))
    (when (< 0d0 magnitude 1d6)
      ;; Decimals of at most 15 digits become different doubles, so this is FLOAT's shortest
      ;; decimal.
      (let ((nanos (truncate (+ 0.5d0 (* 1d9 magnitude)))))
        (declare (type (unsigned-byte 50) nanos))
        (when (= magnitude (locally (declare (sb-ext:muffle-conditions sb-ext:compiler-note))
                             (/ (coerce nanos 'double-float) 1d9))) ; * 1d-9 would not be exact
          (nanos-decimal nanos (minusp float)))))))

(defun float-decimal (float)
  "Return FLOAT, which is finite, in the fewest decimal digits that are read back as the same float,
as a base string: 0.5, 100.0, 1.0e23."
  (or (and (typep float 'double-float) (short-decimal float))
      (coerce (if (sb-ext:float-denormalized-p float)
                  (denormal-decimal float)
                  (with-standard-io-syntax
                    (let ((*read-default-float-format* (type-of float)))
                      (prin1-to-string float))))
              'simple-base-string)))
