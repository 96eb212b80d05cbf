;;;; Numbers from outside.

(in-package #:clgrpc.tests.base)

(defparameter *infinities*
  (list sb-ext:double-float-positive-infinity sb-ext:double-float-negative-infinity
        sb-ext:single-float-positive-infinity sb-ext:single-float-negative-infinity))

(defparameter *nans*
  (list (sb-kernel:make-double-float #x7FF80000 0) (sb-kernel:make-double-float #x-80000 1)
        (sb-kernel:make-double-float #x7FF00000 1) ; a signalling one
        (sb-kernel:make-single-float #x7FC00000)))

(test numbers-that-are-none-are-found-without-a-trap
  (dolist (number (append *infinities* *nans*))
    (is (not (finite-p number)))
    (is (null (clamp number 0 1))))
  (dolist (number (list 0 -1 1/3 (expt 10 400) 0d0 -0d0 1f0 most-positive-double-float
                        least-negative-double-float least-positive-single-float))
    (is (finite-p number))))

(test numbers-are-moved-into-a-range
  (is (= 5 (clamp 5 5 7)))
  (is (= 5 (clamp 4 5 7)))
  (is (= 7 (clamp 8 5 7)))
  (is (= 8 (clamp 8 5 nil)))
  (is (= 4 (clamp 4 nil 7)))
  (is (eql 1d9 (clamp most-positive-double-float 1d-9 1d9)))
  (is (eql 1d9 (clamp (expt 10 400) 1d-9 1d9)))
  (is (eql 1d-9 (clamp least-positive-double-float 1d-9 1d9)))
  (is (eql 1d-9 (clamp (/ (expt 10 400)) 1d-9 1d9)))
  (is (eql 1d-9 (clamp most-negative-double-float 1d-9 1d9))))
