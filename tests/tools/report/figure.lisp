(in-package #:clgrpc.tests.report)

(defun near (a b share)
  "True if the numbers A and B differ by at most SHARE of B."
  (<= (abs (- a b)) (* share (abs b))))

(test figures-of-a-run
  (let* ((run (sample-run :seconds 10 :rate 400))
         (latency (load:run-latency run)))
    (loop for (name value) in `(("p50" ,(load:histogram-quantile latency 1/2))
                                ("p99.99" ,(load:histogram-quantile latency 9999/10000))
                                ("max" ,(load:histogram-max latency))
                                ("min" ,(load:histogram-min latency))
                                ("mean" ,(load:histogram-mean latency))
                                ("errors" 30) ("error-ratio" 30/4000) ("rps" 400)
                                ("cpu-per-call" 7000))
          do (is (= value (report:figure-value name run)) "~A" name))))

(test percentiles-by-name
  (loop for (name share) in '(("p50" 1/2) ("p99.9" 999/1000) ("p0.1" 1/1000)
                              ("p0" nil) ("p100" nil) ("p" nil) ("p9." nil) ("p.5" nil) ("px" nil)
                              ("max" nil) ("p1.2.3" nil))
        do (is (eql share (report::percentile name)) "~A" name)))

(test what-a-run-without-success-has
  (let ((run (load:make-run :count 3 :duration-ns 1000000000
                            :statuses (list (load:make-status-row :name "Unavailable" :code 14
                                                                  :count 3)))))
    (is (null (report:figure-value "p99" run)))
    (is (null (report:figure-value "max" run)))
    (is (= 1 (report:figure-value "error-ratio" run)))
    (is (null (report:figure-value "error-ratio" (load:make-run))))))
