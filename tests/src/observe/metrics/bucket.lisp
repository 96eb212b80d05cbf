;;;; Values at the bounds of buckets.

(in-package #:clgrpc.tests.metrics)

(test a-bound-belongs-to-its-bucket
  (dolist (scale (list metrics::**latency** metrics::**size** metrics::**retries**
                       metrics::**transparent-retries** metrics::**weights**))
    (loop for bound across (metrics::scale-bounds scale)
          for i from 0
          do (is (= i (metrics::bucket-of scale bound)))
             (is (= (1+ i) (metrics::bucket-of scale (1+ bound)))
                 "~D of ~S" (1+ bound) scale))))

(test any-value-has-the-first-bucket-whose-bound-is-not-less
  (loop with bounds = (metrics::scale-bounds metrics::**latency**)
        with state = (sb-ext:seed-random-state 1)
        repeat 20000
        for value = (random (ash 1 (1+ (random 50 state))) state)
        do (assert (= (metrics::bucket-of metrics::**latency** value)
                      (or (position value bounds :test #'<=) (length bounds)))))
  (is (= 42 (1+ (length (metrics::scale-bounds metrics::**latency**)))))
  (is (equal '(0 1/100000) (subseq (metrics::scale-values metrics::**latency**) 0 2))))

(test values-are-counted-in-sums-and-buckets
  (let* ((scale metrics::**retries**) (at metrics::+padding+)
         (cells (metrics::make-cells (metrics::scale-cells scale))))
    (metrics::record-several cells at scale 2 3)
    (metrics::record-plainly cells at scale 1)
    (metrics::record-atomically cells at scale 7)
    (is (equal '(14 1 3 0 0 0 1) (coerce (subseq cells at (+ at 7)) 'list)))
    (is (= (+ at at 7) (length cells)))
    (is (every #'zerop (concatenate 'vector (subseq cells 0 at) (subseq cells (+ at 7)))))))
