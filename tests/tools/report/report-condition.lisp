(in-package #:clgrpc.tests.report)

(defun broken (text run)
  (report:broken-conditions (report:parse-conditions text) run))

(defun plain-run (&rest latencies)
  "A run of 1 s of calls with LATENCIES in nanoseconds, of which all ended with OK."
  (let ((histogram (histogram-of latencies)))
    (load:make-run :count (length latencies) :duration-ns 1000000000 :latency histogram
                   :statuses (list (load:make-status-row :name "OK" :count (length latencies)
                                                         :latency histogram)))))

(test conditions-and-their-bounds
  (let ((run (plain-run 1000000 2000000 3000000)))
    (loop for (text broken) in '(("max > 3ms" nil) ("max >= 3ms" t) ("max < 3 ms" nil)
                                 ("max<=3ms" t) ("max > 2999us" t) ("max > 2999µs" t)
                                 ("max > 0.0029s" t) ("max > 2999999 ns" t) ("rps < 4" t)
                                 ("rps < 3" nil) ("errors > 0" nil) ("errors >= 0" t)
                                 ("error-ratio > 0%" nil) ("error-ratio >= 0" t)
                                 ("mean > 1.9ms" t) ("mean>2.1ms" nil) ("min < 1.1 ms" t))
          do (is (eq broken (and (broken text run) t)) "~A" text))
    (is (equal '("max >= 3ms: max is 3.00 ms" "rps < 4: rps is 3.00")
               (broken "max >= 3ms , errors > 0, rps < 4" run)))))

(test error-ratios-in-per-cent
  (let ((run (sample-run :seconds 10 :rate 100 :failures 1)))
    (is (broken "error-ratio >= 1%" run))
    (is (broken "error-ratio >= 0.01" run))
    (is (null (broken "error-ratio > 1%" run)))
    (is (equal '("errors > 9: errors is 10") (broken "errors > 9" run)))))

(test a-figure-that-is-not-there-breaks-the-condition
  (is (equal '("p99 > 10ms: there is no p99, no call ended")
             (broken "p99 > 10ms" (load:make-run))))
  (is (equal '("p99 > 10ms: there is no p99, no call succeeded")
             (broken "p99 > 10ms" (load:make-run :count 1)))))

(test conditions-that-are-none
  (loop for (text part) in '(("p99 > 10" "needs a unit") ("p99 > 10kg" "needs a unit")
                             ("foo > 1" "no figure is called \"foo\"") ("p100 > 1ms" "no figure")
                             ("p99" "FIGURE > VALUE") ("" "FIGURE > VALUE")
                             ("p99 = 10ms" "FIGURE > VALUE") ("p99 > ms" "a number is expected")
                             ("p99 > 1.2.3ms" "a number is expected") ("p99 > -1ms" "a number")
                             ("errors > 1ms" "without a unit") ("errors > 0," "FIGURE > VALUE")
                             ("error-ratio > 1ms" "a share") ("rps < 1%" "without a unit"))
        do (is (search part (handler-case (progn (report:parse-conditions text) "")
                              (report:condition-syntax-error (error) (princ-to-string error))))
               "~S" text)))
