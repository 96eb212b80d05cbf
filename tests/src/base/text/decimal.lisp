;;;; Decimal digits to floats: compared with exact arithmetic, at random and near midpoints of two
;;;; floats, where a second rounding would show.

(in-package #:clgrpc.tests.base)

(defun float-bits (float)
  (etypecase float
    (single-float (sb-kernel:single-float-bits float))
    (double-float (logior (ash (sb-kernel:double-float-high-bits float) 32)
                          (sb-kernel:double-float-low-bits float)))))

(defun float-of-bits (bits like)
  (etypecase like
    (single-float (sb-kernel:make-single-float bits))
    (double-float (sb-kernel:make-double-float (ash bits -32) (ldb (byte 32 0) bits)))))

(defun largest-bits (like)
  (float-bits (etypecase like
                (single-float most-positive-single-float)
                (double-float most-positive-double-float))))

(defun nearest-p (float rational)
  "True if FLOAT, not negative, is the float nearest to RATIONAL, ties to even."
  (let* ((bits (float-bits float))
         (distance (abs (- (rational float) rational))))
    (loop for other in (list (1- bits) (1+ bits))
          always (or (not (<= 0 other (largest-bits float)))
                     (let ((there (abs (- (rational (float-of-bits other float)) rational))))
                       (or (< distance there) (and (= distance there) (evenp bits))))))))

(defun hard-rational (like state)
  "A number that is hard to round to a float like LIKE: at or near the midpoint of two floats, in
the whole range, half of the time denormal."
  (let* ((largest (largest-bits like))
         (bits (random (if (zerop (random 2 state))
                           largest
                           (ash 1 (1+ (random (float-digits like) state))))
                       state))
         (middle (/ (+ (rational (float-of-bits bits like))
                       (rational (float-of-bits (min largest (1+ bits)) like)))
                    2)))
    (* middle (+ 1 (* (- (random 3 state) 1)
                      (expt 10 (- (+ 20 (random 400 state)))))))))

(test ratios-and-integers-are-rounded-to-the-nearest
  (let* ((seed (random (expt 2 32) (make-random-state t)))
         (state (sb-ext:seed-random-state seed)))
    (loop for (convert like) in '((rational-double 1d0) (rational-single 1f0))
          do (dotimes (i 2000)
               (let* ((number (hard-rational like state)) (float (funcall convert number)))
                 (unless (and (typep float (type-of like))
                              (nearest-p float number)
                              (eql (- float) (funcall convert (- number))))
                   (fail "~A of ~S: ~S; seed ~D" convert number float seed)))))
    (pass))
  (is (eql 9.766130757749266d15 (rational-double 97661307577492651/10)))
  (is (eql most-positive-double-float
           (rational-double (- (expt 2 1024) (expt 2 970) 1))))
  (is (null (rational-double (- (expt 2 1024) (expt 2 970)))))
  (is (null (rational-single (- (- (expt 2 128) (expt 2 103))))))
  (is (eql 0d0 (rational-double (expt 2 -1075))))
  (is (eql least-positive-double-float (rational-double (+ (expt 2 -1075) (expt 10 -400)))))
  (is (eql 0d0 (rational-double 0))))

(test digits-are-rounded-to-the-nearest-double
  "The digits are of hard numbers, and short ones with exponents near those of exact powers of ten."
  (let* ((seed (random (expt 2 32) (make-random-state t)))
         (state (sb-ext:seed-random-state seed)))
    (flet ((check (digits exponent)
             (let ((double (digits-double digits exponent nil)))
               (unless (and (nearest-p double (* digits (expt 10 exponent)))
                            (eql (- double) (digits-double digits exponent t)))
                 (fail "~De~D: ~S; seed ~D" digits exponent double seed)))))
      (dotimes (i 2000)
        (let* ((number (hard-rational 1d0 state))
               ;; enough, since only 2 and 5 divide the denominator
               (places (integer-length (denominator number))))
          (check (* number (expt 10 places)) (- places))
          (check (random (expt 2 54) state) (- (random 51 state) 25)))))
    (pass)))

(test denormals-have-the-fewest-digits
  (loop for (bits like text) in '((1 1d0 "5.0e-324") (3 1d0 "1.5e-323")
                                  (20240225330731 1d0 "1.0e-310")
                                  (#xFFFFFFFFFFFFF 1d0 "2.225073858507201e-308")
                                  (1 1f0 "1.0e-45") (#x7FFFFF 1f0 "1.1754942e-38"))
        for float = (float-of-bits bits like)
        do (is (string= text (float-decimal float)))
           (is (string= (format nil "-~A" text) (float-decimal (- float))))))

(test billionths-are-written-as-the-printer-writes-them
  "FLOAT-DECIMAL has code of its own for multiples of a billionth, such as times in seconds."
  (let* ((seed (random (expt 2 32) (make-random-state t)))
         (state (sb-ext:seed-random-state seed)))
    (flet ((check (double)
             (let ((printed (with-standard-io-syntax
                              (let ((*read-default-float-format* 'double-float))
                                (prin1-to-string double)))))
               (unless (string= printed (float-decimal double))
                 (fail "~A is written as ~A; seed ~D" printed (float-decimal double) seed)))))
      (mapc #'check '(0d0 -0d0 1d-10 5d-10 1d-9 -1d-9 1.5d-9 9.99999d-4 1d-3 1.01d-3 0.5d0 -0.5d0
                      1d0 10d0 100.25d0 999999.999999999d0 1d6 1234567.5d0))
      (dotimes (i 20000)
        (check (/ (coerce (random (expt 10 (1+ (random 16 state))) state) 'double-float) 1d9))
        (check (- (random 1d6 state)))
        (check (/ (random 1000000 state) 1d4))))
    (pass)))

(test singles-are-the-nearest
  (let* ((seed (random (expt 2 32) (make-random-state t)))
         (state (sb-ext:seed-random-state seed)))
    (dotimes (i 5000)
      (let* ((digits (random (expt 10 (1+ (random 20 state))) state))
             (exponent (- (random 70 state) 55))
             (single (digits-single digits exponent nil)))
        (unless (or (null single)
                    (and (nearest-p single (* digits (expt 10 exponent)))
                         (eql (- single) (digits-single digits exponent t))))
          (fail "~D e~D gives ~S; seed ~D" digits exponent single seed))))
    (dotimes (i 2000)
      (let* ((bits (1+ (random #x7F7FFFF0 state)))
             (middle (/ (+ (rational (sb-kernel:make-single-float bits))
                           (rational (sb-kernel:make-single-float (1+ bits))))
                        2))
             (places (integer-length (1- (denominator middle))))
             (digits (* 10 (numerator middle) (expt 5 places))))
        (loop for (step expected) in `((-1 ,bits) (1 ,(1+ bits))
                                       (0 ,(if (evenp bits) bits (1+ bits))))
              for single = (digits-single (+ digits step) (- -1 places) nil)
              unless (= expected (sb-kernel:single-float-bits single))
                do (fail "beside the middle above ~D: ~S; seed ~D" bits single seed))))
    (is (eql 0f0 (digits-single 0 5 nil)))
    (is (eql -0f0 (digits-single 0 5 t)))
    (is (eql most-positive-single-float (digits-single 34028235 31 nil)))
    (is (null (digits-single 34028236 31 t)))
    (pass)))

(test the-ends-of-the-range
  (is (null (digits-double 18 308 nil)))
  (is (null (digits-double 1 1000000 t)))
  (is (eql 0d0 (digits-double 1 -1000000 nil)))
  (is (eql -0d0 (digits-double 0 5 t)))
  (is (null (digits-single 34028236 31 nil)))
  (is (eql most-positive-single-float (digits-single 34028235 31 nil)))
  (is (eql least-positive-single-float (digits-single 1 -45 nil)))
  (is (eql 0f0 (digits-single 1 -46 nil)))
  (is (string= "0.1" (float-decimal 0.1f0)))
  (is (string= "100.0" (float-decimal 1d2))))
