(in-package #:clgrpc.tests.tools)
(in-suite :clgrpc.tools)

(test latency-buckets
  "A bucket's middle is within one part in 128 of every latency it holds, and buckets go up."
  (let ((last 0))
    (loop for ns = 1 then (ceiling (* ns 1001/1000))
          while (< ns (expt 10 12))
          do (let ((bucket (tools::latency-bucket ns)))
               (unless (and (<= last bucket 5119)
                            (<= (abs (- (tools::bucket-ns bucket) ns)) (max 1/2 (/ ns 128))))
                 (fail "~D ns is in bucket ~D, whose middle is ~D" ns bucket
                       (tools::bucket-ns bucket)))
               (setf last bucket)))
    (is (< 3000 last))))

(test tally-quantiles
  (let ((sum (tools::merge-tallies
              (loop for begin in '(1 501)
                    collect (let ((tally (tools::make-tally)))
                              (loop for us from begin repeat 500
                                    do (tools::count-call tally (* 1000 us)))
                              tally)))))
    (is (= 1000 (tools::tally-calls sum)))
    (is (= 500500000 (tools::tally-total-ns sum)))
    (is (< 495 (tools::tally-quantile-us sum 1/2) 505))
    (is (< 980 (tools::tally-quantile-us sum 99/100) 1000))))

(test every-manner-calls
  (with-offer (channel "bench")
    (dolist (manner '(:one :threads :async))
      (let ((tally (tools::call-in-manner-until
                    manner (+ (tools::monotonic-ns) 20000000) channel 7)))
        (is (plusp (tools::tally-calls tally)) "~(~A~)" manner)
        (is (= (tools::tally-calls tally) (reduce #'+ (tools::tally-buckets tally))))))))
