;;;; Numbers as single and double floats: numbers of texts and users are rounded once, and those
;;;; that are too large become infinities.

(in-package #:clgrpc.protobuf)

(defun double-nan ()
  (bits-double #x7FF8000000000000))

(defun to-double (value)
  "VALUE, a real, as a double; a rational that is too large becomes an infinity."
  (typecase value
    (double-float value)
    (single-float (cond ((finite-p value) (coerce value 'double-float))
                        ((sb-ext:float-nan-p value) (double-nan))
                        ((plusp value) sb-ext:double-float-positive-infinity)
                        (t sb-ext:double-float-negative-infinity)))
    (fixnum (coerce value 'double-float))
    (t (or (rational-double (the rational value))
           (if (plusp value)
               sb-ext:double-float-positive-infinity
               sb-ext:double-float-negative-infinity)))))

(defun to-single (value)
  "VALUE, a real, as a single float; an infinity if it is too large."
  (typecase value
    (single-float value)
    (double-float
     (cond ((sb-ext:float-nan-p value) (bits-single #x7FC00000))
           ((> value (float most-positive-single-float 1d0)) (to-single-large value))
           ((< value (float most-negative-single-float 1d0)) (- (to-single-large (- value))))
           (t (sb-int:with-float-traps-masked (:underflow :inexact) (coerce value 'single-float)))))
    (t (or (rational-single (the rational value))
           (if (plusp value)
               sb-ext:single-float-positive-infinity
               sb-ext:single-float-negative-infinity)))))

(defun to-single-large (value)
  "Round VALUE, which is above the greatest single float, to a single float."
  (if (< value 3.4028235677973366d38)
      most-positive-single-float
      sb-ext:single-float-positive-infinity))
