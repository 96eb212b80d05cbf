;;;; `storm-client`: how calls at a fixed rate have ended.

(in-package #:clgrpc.tests.tools)

(test a-storm-client-reports
  (with-serve (program address "bench")
    (multiple-value-bind (code output error-output)
        (run-line "storm-client" address "--rate" "200" "--seconds" "0.5" "--timeout" "10"
                  "--balance" "round_robin")
      (is (= 0 code))
      (is (uiop:string-prefix-p (format nil "ready~%") output))
      (let ((report (base:parse-json (subseq output 6))))
        (is (equal '(100 0 0 (("ok" . 100)))
                   (said report "calls" "lost" "failed" "statuses")))
        (is (apply #'<= 0 (said report "p50_ms" "p99_ms"))))
      (is (search "300 picked" error-output) "~A" error-output))))

(test failures-of-a-storm
  "Those that were due when the first was known already are counted apart."
  (let ((storm (testee::make-storm :begin-ns 1000000000 :begun 5)))
    (setf (testee::storm-failures storm)
          (list (list 3500000000 4000000000 "c") (list 1000000000 3000000000 "a")
                (list 2500000000 4500000000 "b")))
    (flet ((later (grace)
             (said (testee::storm-report storm 0.5d0 grace)
                   "failed" "failed_later" "longest_failure_s")))
      (is (equal '(3 1 2d0) (later 0)))
      (is (equal '(3 0 2d0) (later 1))))
    (is (equalp #(#(0d0 2d0 "a") #(1.5d0 3.5d0 "b") #(2.5d0 3d0 "c"))
                (testee::told-failures storm (sort (copy-list (testee::storm-failures storm)) #'<
                                                  :key #'first))))))

(test a-call-that-is-begun-before-it-was-due-counts-from-its-begin
  (with-offer (channel "bench")
    (let* ((due (+ 60000000000 (base:monotonic-ns)))
           (storm (testee::make-storm :begin-ns due)))
      (testee::begin-storm-call storm channel due 10)
      (eventually (= 1 (testee::storm-ended storm)))
      (is (equal '((:ok . 1)) (testee::storm-statuses storm)))
      (is (< 0 (load:histogram-max (testee::storm-latencies storm)) 10000000000)))))
