(in-package #:clgrpc.tests.load)

(defun values-at (seconds &rest arguments)
  (let ((schedule (apply #'load:make-schedule arguments)))
    (mapcar (lambda (at) (load:schedule-value schedule at)) seconds)))

(test schedules
  "The examples of ghz's documentation of its load options."
  (is (equal '(50d0 50d0 60d0 150d0 150d0)
             (values-at '(0 4.9 5 50 500) :kind :step :start 50d0 :step 10d0 :end 150d0
                                          :step-seconds 5d0)))
  (is (equal '(50d0 170d0 170d0)
             (values-at '(0 60 500) :kind :step :start 50d0 :step 10d0 :step-seconds 5d0
                                    :max-seconds 60d0)))
  (is (equal '(200d0 198d0 50d0 50d0)
             (values-at '(0 1 75 100) :kind :line :start 200d0 :step -2d0 :end 50d0)))
  (is (equal '(10d0 0d0) (values-at '(0 100) :kind :line :start 10d0 :step -1d0)))
  (is (equal '(7d0 7d0) (values-at '(0 100) :start 7d0))))

(defun dues (count pacer)
  (loop repeat count collect (load:next-due pacer)))

(test constant-rate
  "Calls are evenly spaced, over all generators together too, and no error adds up."
  (is (equal '(0 2000000 4000000 6000000)
             (dues 4 (load:make-pacer (load:make-schedule :start 500d0)))))
  (let ((generators (loop for generator below 3
                          collect (load:make-pacer (load:make-schedule :start 300d0)
                                                   :generators 3 :generator generator))))
    (is (equal (loop for i below 12 collect (floor (* i 1000000000) 300))
               (sort (loop for pacer in generators append (dues 4 pacer)) #'<))))
  (let ((pacer (load:make-pacer (load:make-schedule :start 999.7d0))))
    (dues 1000000 pacer)
    (is (< (abs (- (load:next-due pacer) (/ 1000000 999.7d-9))) 1000))))

(test rates-near-zero
  "The second call is due in years, not beyond what a clock can say."
  (destructuring-bind (first second) (dues 2 (load:make-pacer (load:make-schedule :start 1d-11)))
    (is (= 0 first))
    (is (< 100000000000000000 second 1000000000000000000))))

(test calls-due-together
  "At a high rate those due within a group are due together, at its end, if that is asked for and
the rate is above the one where it begins."
  (let ((schedule (load:make-schedule :start 5000d0)))
    (is (equal '(800000 800000 800000 800000 800000 1800000 1800000)
               (dues 7 (load:make-pacer schedule :group-ns 1000000))))
    (is (equal '(0 200000 400000) (dues 3 (load:make-pacer schedule))))
    (is (equal '(0 200000 400000)
               (dues 3 (load:make-pacer schedule :group-ns 1000000 :group-above 5000))))
    (is (equal '(800000 800000)
               (dues 2 (load:make-pacer schedule :group-ns 1000000 :group-above 4999))))
    (let ((times (dues 50000 (load:make-pacer schedule :arrival :poisson :group-ns 1000000))))
      (is (every (lambda (time) (zerop (mod time 1000000))) times))
      (is (< 9.5d9 (first (last times)) 10.5d9)))))

(test poisson
  "Times between calls are exponential: their mean and deviation are the interval, and independent
of the generators."
  (let* ((pacer (load:make-pacer (load:make-schedule :start 100d0) :arrival :poisson))
         (times (dues 20000 pacer))
         (gaps (mapcar #'- (rest times) times))
         (mean (/ (reduce #'+ gaps) (length gaps)))
         (deviation (sqrt (/ (reduce #'+ gaps :key (lambda (gap) (expt (- gap mean) 2)))
                             (length gaps)))))
    (is (apply #'<= times))
    (is (< 9.7d6 mean 10.3d6))
    (is (< 9.6d6 deviation 10.4d6))))

(test changing-rate
  "On a line from 0 by 10 a second 500 calls are due in ten seconds; nothing is due while the rate
is 0."
  (let ((times (dues 500 (load:make-pacer (load:make-schedule :kind :line :start 0d0
                                                              :step 10d0)))))
    (is (apply #'<= times))
    (is (< 9.7d9 (first (last times)) 10.3d9)))
  (let ((pacer (load:make-pacer (load:make-schedule :kind :step :start 2d0 :step -2d0 :end 0d0))))
    (is (equal '(0 500) (mapcar (lambda (ns) (round ns 1000000)) (dues 2 pacer))))
    (dues 1 pacer)
    (is (<= 1000000000000000000 (load:next-due pacer)))))

(test a-line-is-grouped-where-it-is-steep
  "Of a rate that rises calls are grouped from the rate on above which that pays."
  (let ((times (dues 30000 (load:make-pacer (load:make-schedule :kind :line :start 0d0 :step 1000d0)
                                            :group-ns 1000000 :group-above 4000))))
    (flet ((grouped (from to)
             (loop for (a b) on times
                   when (and b (<= from a to)) count (= a b))))
      (is (zerop (grouped 0 3900000000)))
      (is (< 1000 (grouped 4100000000 7000000000))))))
