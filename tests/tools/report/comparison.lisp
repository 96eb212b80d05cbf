(in-package #:clgrpc.tests.report)

(defun verdict (better before after)
  (report:comparison-verdict (report:compare-values "x" :time better before after)))

(test differences-beyond-noise
  (is (eq :better (verdict :less '(100 101 99) '(50 51 49))))
  (is (eq :worse (verdict :more '(100 101 99) '(50 51 49))))
  (is (eq :worse (verdict :less '(100 101 99) '(150 151 149))))
  (is (eq :unclear (verdict :less '(100 140 60) '(90 130 60))) "the noise is larger")
  (is (eq :same (verdict :less '(1000 1001 999) '(1005 1006 1004))) "less than 1 %")
  (is (eq :same (verdict :less '(1000 1002 1004 1001 1003) '(1001 1003 1000 1004 1002))))
  (is (eq :unknown (verdict :less '(100) '(50))))
  (is (eq :unknown (verdict :less '(100 101) '(50))))
  (is (eq :same (verdict :less '(100) '(100))))
  (is (eq :same (verdict :less '(0 0) '(0 0))))
  (is (eq :worse (verdict :less '(0 0) '(5 5)))))

(test a-disturbed-round-hides-nothing
  "Rounds that were measured on a busy machine: a server is 14 % slower, and one round of it took
ten times as long."
  (let ((before '(5.55 5.49 5.49 5.55 5.52)) (after '(6.34 6.28 6.28 6.28 60.95)))
    (is (eq :worse (verdict :less before after)))
    (is (eq :better (verdict :less after before)))
    (let ((comparison (report:compare-values "p50" :time :less before after)))
      (is (= 5.52 (report::comparison-before comparison)) "the median")
      (is (= 6.28 (report::comparison-after comparison)))
      (is (equal '() (report::comparison-outliers-before comparison)))
      (is (equal '(4) (report::comparison-outliers-after comparison)))
      (is (string= "p50 was disturbed in round 5 after" (report::outlier-words comparison))))))

(test failures-in-some-rounds-are-not-disturbances
  (flet ((verdict (after)
           (report:comparison-verdict
            (report:compare-values "error-ratio" :share :less '(0 0 0 0 0) after))))
    (is (eq :unclear (verdict '(0 0 0 1/2 1))))
    (is (eq :worse (verdict '(9/100 10/100 11/100 9/100 1/2))))
    (is (eq :same (verdict '(0 0 0 0 1/10000))))))

(test calm-halves-differ-by-hand
  ;; the best three of five: 9 10 11 and 18 20 22, with variances 1 and 4
  (multiple-value-bind (difference error)
      (report::calm-difference '(11 500 9 10 700) '(22 20 90 18 900) :less)
    (is (= 10 difference))
    (is (near error (sqrt 5/3) 1d-6)))
  (is (= -10 (report::calm-difference '(-9 -10 -11 -500 -700) '(-18 -20 -22 -90 -90) :more)))
  ;; of all of two rounds it is Student's t with two degrees of freedom, whose quantile is 9.925
  (is (< 9 (report::t-quantile 2 2) 11))
  (is (apply #'> (loop for count in '(6 8 10 20 30) collect (report::t-quantile count count))))
  (is (= (report::t-quantile 30 30) (report::t-quantile 500 1000))))

(test rounds-that-do-not-overlap
  "Five rounds each are apart by chance in 2 of 252 comparisons, which is enough; four are in 2 of
70, which is not."
  (is (report::apart-p '(1 2 3 4 5) '(6 7 8 9 100)))
  (is (report::apart-p '(6 7 8 9 100) '(1 2 3 4 5)))
  (is (not (report::apart-p '(1 2 3 4 6) '(6 7 8 9 100))))
  (is (not (report::apart-p '(1 2 3 4) '(6 7 8 9 10))) "either side may be the upper one: 2 of 126")
  (is (not (report::apart-p '(1 2 3 4) '(6 7 8 9)))))

(defun disturbed-rounds (median state &key (spread 2/100) (share 1/5))
  "The p50 of five rounds on a machine that does other things besides: they spread to one side, and
a SHARE of them takes longer by as much again, on average."
  (loop repeat 5
        collect (* median (+ 1 (* spread (abs (normal state))))
                   (if (< (random 1d0 state) share)
                       (- 1 (log (- 1 (random 1d0 state))))
                       1))))

(test a-slower-server-is-found-on-a-busy-machine
  "Of comparisons with a server that is 14 % slower, nine of ten find it, and the others say that
they do not know, and how many rounds would; without a change two of a hundred find one."
  (let ((state (sb-ext:seed-random-state 5)) (found 0) (unclear 0) (false 0))
    (loop repeat 1000
          do (let ((comparison (report:compare-values "p50" :time :less
                                                      (disturbed-rounds 5500000 state)
                                                      (disturbed-rounds 6270000 state))))
               (case (report:comparison-verdict comparison)
                 (:worse (incf found))
                 (:unclear (incf unclear)
                  (is-true (report:unclear-p comparison))
                  (is (< 5 (report::comparison-rounds-needed comparison)))))
               (when (member (verdict :less (disturbed-rounds 5500000 state)
                                      (disturbed-rounds 5500000 state))
                             '(:better :worse))
                 (incf false))))
    (is (<= 900 found 960) "~D" found)
    (is (<= 995 (+ found unclear)) "~D of ~D" unclear (- 1000 found))
    (is (<= false 20) "~D" false)))

(test noise-alone-is-seldom-a-change
  ;; 2,000 pairs of five rounds each of the same distribution: 2 % of them differ, by chance
  (let ((state (sb-ext:seed-random-state 11)))
    (flet ((rounds () (loop repeat 5 collect (+ 1000 (* 100 (normal state))))))
      (is (<= (loop repeat 2000
                    count (member (verdict :less (rounds) (rounds)) '(:better :worse)))
              50)))))

(test unclear-tails-are-no-reason-to-measure-again
  (flet ((unclear (name)
           (report:unclear-p (report:compare-values name :time :less '(100 140 60) '(90 130 60)))))
    (is-true (unclear "p99"))
    (is (notany #'unclear '("p99.9" "p99.99" "max")))))

(test comparisons-in-words
  (flet ((words (name unit better before after)
           (report:comparison-words (report:compare-values name unit better before after))))
    (is (string= "p99 fell from 4.10 ms to 2.00 ms (−51 %): better"
                 (words "p99" :time :less '(4100000 4100000) '(2000000 2000000))))
    (is (string= "rps rose from 100 to 200 (+100 %): better"
                 (words "rps" :rate :more '(100 100) '(200 200))))
    (is (string= "errors rose from 0 to 5: worse" (words "errors" :count :less '(0 0) '(5 5))))
    (is (string= "p50 differs by no more than noise, which is small: 1.00 ms and 1.00 ms"
                 (words "p50" :time :less '(1000000) '(1000000))))
    (is (search "): unclear, the noise is ±" (words "p50" :time :less '(1000000 1400000 600000)
                                                   '(900000 1300000 600000))))
    (is (string= "p50 fell from 2.00 ms to 1.00 ms (−50 %): noise is unknown with one round"
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
  (let* ((json (report:runs-comparison-json (rounds-of 300000 '(1 2 3))
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
    (is (every (lambda (row) (member (cdr row) '(:same :unclear)))
               (remove "max" (verdicts (rounds-of 180000 '(1 2 3)) (rounds-of 180000 '(4 5 6)))
                       :key #'car :test #'string=)))
    (is (eq :unknown (cdr (assoc "p50" (verdicts (sample-run) (sample-run :median-ns 90000))
                                 :test #'string=))))))

(test runs-that-are-not-alike
  (is (equal '(("rps" "500" "800") ("total" "1000" "1600"))
             (report::option-differences (sample-run :seconds 2)
                                         (sample-run :seconds 2 :rate 800)))))
