(in-package #:clgrpc.tests.report)
(in-suite :clgrpc.report)

(defun verdict (better before after)
  (report:comparison-verdict (report:compare-values "x" :time better before after)))

(test differences-beyond-noise
  (is (eq :better (verdict :less '(100 101 99) '(50 51 49))))
  (is (eq :worse (verdict :more '(100 101 99) '(50 51 49))))
  (is (eq :worse (verdict :less '(100 101 99) '(150 151 149))))
  (is (eq :same (verdict :less '(100 140 60) '(90 130 60))) "the noise is larger")
  (is (eq :same (verdict :less '(1000 1001 999) '(1005 1006 1004))) "less than 1 %")
  (is (eq :unknown (verdict :less '(100) '(50))))
  (is (eq :unknown (verdict :less '(100 101) '(50))))
  (is (eq :same (verdict :less '(100) '(100))))
  (is (eq :same (verdict :less '(0 0) '(0 0))))
  (is (eq :worse (verdict :less '(0 0) '(5 5)))))

(test noise-is-welchs-interval
  ;; by hand: variances 1 and 4, three each: se = sqrt(5/3), 2.94 degrees of freedom, so t of 2
  (is (near (report::noise '(9 10 11) '(18 20 22)) (* 9.925d0 (sqrt 5/3)) 1d-6))
  (is (= 2.576 (min 2.576 (report::t-quantile 1000))))
  (is (= 63.657 (report::t-quantile 1)))
  (is (= 4.032 (report::t-quantile 5.9d0)) "the next smaller"))

(test noise-alone-is-seldom-a-change
  ;; 2,000 pairs of five rounds each of the same distribution: 1 % of them differ, by chance
  (let ((state (sb-ext:seed-random-state 11)))
    (flet ((rounds () (loop repeat 5 collect (+ 1000 (* 100 (normal state))))))
      (is (<= (loop repeat 2000 count (not (eq :same (verdict :less (rounds) (rounds))))) 40)))))

(test comparisons-in-words
  (flet ((words (name unit better before after)
           (report:comparison-words (report:compare-values name unit better before after))))
    (is (string= "p99 fell from 4.10 ms to 2.00 ms (−51 %): better"
                 (words "p99" :time :less '(4100000 4100000) '(2000000 2000000))))
    (is (string= "rps rose from 100 to 200 (+100 %): better"
                 (words "rps" :rate :more '(100 100) '(200 200))))
    (is (string= "errors rose from 0 to 5: worse" (words "errors" :count :less '(0 0) '(5 5))))
    (is (string= "p50 differs by no more than noise: 1.00 ms and 1.00 ms"
                 (words "p50" :time :less '(1000000) '(1000000))))
    (is (string= "p50 fell from 2.00 ms to 1.00 ms (−50 %): noise is unknown"
                 (words "p50" :time :less '(2000000) '(1000000))))))

(defun rounds-of (median-ns seeds)
  (let ((rounds (loop for seed in seeds
                      collect (sample-run :seconds 4 :median-ns median-ns :seed seed))))
    (sample-run :seconds 4 :median-ns median-ns :rounds rounds)))

(test options-that-differ
  "What was not given is what a report writes for it; parts of a schedule count with one."
  (flet ((differences (before after)
           (report::option-differences (load:make-run :options before)
                                       (load:make-run :options after))))
    (is (null (differences '() '(("binary" . :false) ("load-start" . 0) ("load-schedule" . "const")
                                 ("concurrency-step" . 1) ("rps" . nil)))))
    (is (equal '(("timeout" "20.0 s" "none") ("rps" "1000" "2000"))
               (differences '(("rps" . 1000) ("timeout" . 20000000000)) '(("rps" . 2000)))))
    (is (equal '(("load-step" "none" "5"))
               (remove "load-schedule"
                       (differences '() '(("load-schedule" . "step") ("load-step" . 5)))
                       :key #'first :test #'string=)))
    (is (> 70 (length (third (first (differences '() `(("data" . ,(make-string 500
                                                                               :initial-element
                                                                               #\x))))))))
        "not all of it")))

(test a-comparison-as-json
  (let* ((json (report::runs-comparison-json (rounds-of 300000 '(1 2 3))
                                               (rounds-of 180000 '(4 5 6))))
         (figures (cdr (assoc "figures" json :test #'string=)))
         (first (aref figures 0)))
    (is (equal '("p50" "ns" "better")
               (loop for name in '("name" "unit" "verdict")
                     collect (cdr (assoc name first :test #'string=)))))
    (is (> (cdr (assoc "before" first :test #'string=)) 290000))
    (is (equal '("before" "after" "figures" "options" "note") (mapcar #'car json)))))

(test runs-compared
  (flet ((verdicts (before after)
           (loop for comparison in (report:compare-runs before after)
                 collect (cons (report:comparison-name comparison)
                               (report:comparison-verdict comparison)))))
    (let ((verdicts (verdicts (rounds-of 300000 '(1 2 3)) (rounds-of 180000 '(4 5 6)))))
      (is (eq :better (cdr (assoc "p50" verdicts :test #'string=))))
      (is (eq :better (cdr (assoc "p99" verdicts :test #'string=))))
      (is (eq :same (cdr (assoc "rps" verdicts :test #'string=)))))
    (is (every (lambda (row) (eq :same (cdr row)))
               (remove "max" (verdicts (rounds-of 180000 '(1 2 3)) (rounds-of 180000 '(4 5 6)))
                       :key #'car :test #'string=)))
    (is (eq :unknown (cdr (assoc "p50" (verdicts (sample-run) (sample-run :median-ns 90000))
                                 :test #'string=))))))

(test runs-that-are-not-alike
  (is (equal '(("rps" "500" "800") ("total" "1000" "1600"))
             (report::option-differences (sample-run :seconds 2)
                                         (sample-run :seconds 2 :rate 800)))))
