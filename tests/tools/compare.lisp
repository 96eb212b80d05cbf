;;;; `compare`, of reports in files.

(in-package #:clgrpc.tests.tools)
(in-suite :clgrpc.tools)

(defun call-with-report (function median-ns seeds)
  "Call FUNCTION with the path of a file that has the report of a run of several rounds, one for each
of SEEDS, with latencies about MEDIAN-NS."
  (flet ((sample (seed rounds)
           (clgrpc.tests.report:sample-run :seconds 3 :median-ns median-ns :seed seed
                                           :rounds rounds)))
    (uiop:with-temporary-file (:stream stream :pathname path :type "json" :external-format :utf-8)
      (clgrpc.report:write-report
       :json (sample 1 (loop for seed in seeds collect (sample seed '()))) stream)
      (close stream)
      (funcall function (uiop:native-namestring path)))))

(defun check-comparison (slow fast)
  "Check what is said of the reports in the files SLOW and FAST."
  (multiple-value-bind (code output) (run-line "compare" slow fast)
    (is (= 0 code))
    (is (search "p50 fell from " output))
    (is (search "%): better" output)))
  (is (= 0 (run-line "compare" slow fast "--fail-if-worse")))
  (fails-p 1 "p50 rose from " "compare" fast slow "--fail-if-worse")
  (multiple-value-bind (code output) (run-line "compare" slow fast "--format" "html")
    (is (= 0 code))
    (is (search "Compared with before" output))))

(test compare-reports
  (call-with-report (lambda (slow)
                      (call-with-report (lambda (fast) (check-comparison slow fast))
                                        180000 '(4 5 6)))
                    300000 '(1 2 3)))

(test compare-what-is-no-report
  (fails-p 2 "cannot be read" "compare" "/nowhere/a.json" "/nowhere/b.json")
  (fails-p 2 "is no report of a run" "compare" *route-guide-proto* *route-guide-proto*))
