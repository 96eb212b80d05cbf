;;;; The clocks advance, agree with the system's own, and allocate nothing.

(in-package #:clgrpc.tests.base)

(test clocks
  (let* ((first (monotonic-ns))
         (second (monotonic-ns)))
    (is (typep first 'nanoseconds))
    (is (<= first second)))
  (is (>= 1 (abs (- (+ (floor (real-time-ns) +ns-per-second+)
                       (encode-universal-time 0 0 0 1 1 1970 0))
                    (get-universal-time))))))

(test seconds-and-nanoseconds
  (is (= 0 (seconds-ns 0)))
  (is (= 1500000000 (seconds-ns 3/2) (seconds-ns 1.5)))
  (is (= 1 (seconds-ns 1d-9)))
  (is (= most-positive-fixnum (seconds-ns 1d30)))
  (signals type-error (seconds-ns -1))
  (is (= 0.25d0 (ns-seconds 250000000))))

(test times-have-an-end
  (is (= 12 (time-after 5 7)))
  (is (= (1- most-positive-fixnum) (time-after 1 (- most-positive-fixnum 2))))
  (is (= most-positive-fixnum (time-after 1 most-positive-fixnum)
         (time-after most-positive-fixnum 1))))

(test clock-allocates-nothing
  (let ((before (sb-ext:get-bytes-consed)))
    (dotimes (i 20000) (monotonic-ns))
    ;; less than an octet each: other threads may allocate meanwhile
    (is (> 20000 (- (sb-ext:get-bytes-consed) before)))))
