(in-package #:clgrpc.tests.load)

(defun histogram-of (values)
  (let ((histogram (load:make-histogram)))
    (map nil (lambda (value) (load:record-value histogram value)) values)
    histogram))

(test buckets
  "Each value lies in its bucket, whose width is at most one part in 128 of it, and buckets go up
without a gap."
  (let ((last 0))
    (loop for ns = 0 then (ceiling (* (1+ ns) 1001/1000))
          while (< ns (expt 2 61))
          do (let* ((bucket (load::bucket-of ns))
                    (low (load::bucket-low bucket)) (high (load::bucket-low (1+ bucket))))
               (unless (and (<= last bucket) (<= low ns) (< ns high)
                            (<= (- high low) (max 1 (/ ns 128)))
                            (<= (abs (- (load::bucket-middle bucket) ns)) (/ ns 256)))
                 (fail "~D ns is in bucket ~D, from ~D to ~D" ns bucket low high))
               (setf last bucket)))
    (is (< 6000 last))))

(defun exact-quantile (sorted share)
  (aref sorted (1- (max 1 (ceiling (* share (length sorted)))))))

(test quantiles
  "Quantiles of several distributions are within 1 % of the exact ones of the same data; the
extremes are exact."
  (let ((state (sb-ext:seed-random-state 7)))
    (flet ((uniform () (random 1d0 state)))
      (loop for (name . draw)
              in (list (cons :constant (constantly 250000))
                       (cons :uniform (lambda () (floor (* 1d9 (uniform)))))
                       (cons :exponential (lambda () (floor (* -3d6 (log (- 1 (uniform)))))))
                       (cons :pareto (lambda () (min (expt 2 60)
                                                     (floor 20000 (- 1 (uniform)))))))
            do (let* ((values (loop repeat 50000 collect (funcall draw)))
                      (sorted (sort (coerce values 'vector) #'<))
                      (histogram (histogram-of values)))
                 (dolist (share '(1/1000 1/10 1/2 3/4 9/10 99/100 999/1000 9999/10000))
                   (let ((exact (exact-quantile sorted share))
                         (found (load:histogram-quantile histogram share)))
                     (is (<= (abs (- found exact)) (/ exact 100))
                         "~A of ~(~A~) is ~D, not ~D" share name (float found) exact)))
                 (is (= (aref sorted 0) (load:histogram-min histogram)))
                 (is (= (aref sorted 49999) (load:histogram-max histogram)
                        (load:histogram-quantile histogram 1)))
                 (is (= 50000 (load:histogram-count histogram)))
                 (is (= (reduce #'+ values) (load:histogram-sum histogram))))))))

(test quantiles-of-few-values
  "A quantile is the least value that so many of the values do not exceed."
  (let ((histogram (histogram-of '(1 2 3))))
    (loop for (share value) in '((1/3 1) (1/2 2) (2/3 2) (3/4 3) (1 3))
          do (is (= value (load:histogram-quantile histogram share)) "~A" share))))

(test histogram-means
  (let ((histogram (histogram-of '(2000000 4000000 4000000 4000000 5000000 5000000 7000000
                                   9000000))))
    (is (= 5000000 (load:histogram-mean histogram)))))

(test no-values
  (let ((histogram (load:make-histogram)))
    (is (= 0 (load:histogram-count histogram) (load:histogram-min histogram)
           (load:histogram-quantile histogram 1/2) (load:histogram-mean histogram)))
    (is (= 0 (load:histogram-count (load:merge-histograms (list histogram)))))))

(defun contents (histogram)
  (let ((rows '()))
    (load:map-histogram (lambda (&rest row) (push row rows)) histogram)
    (list rows (load:histogram-count histogram) (load:histogram-sum histogram)
          (load:histogram-min histogram) (load:histogram-max histogram))))

(test restored-histogram
  (let ((histogram (histogram-of '(7 7 3000000 80000000000 12345678))) (pairs '()))
    (load:map-histogram (fn (low _high count) (push (cons low count) pairs))
                        histogram)
    (is (equal (contents histogram)
               (contents (load:restore-histogram pairs :sum (load:histogram-sum histogram)
                                                       :min 7 :max 80000000000))))))

(test merged-histograms
  "What is merged is as if one histogram had seen all, in whatever order the ranges come."
  (let* ((parts '((5 3000000) () (70000000000 81) (1 2 3) (1000 1000)))
         (merged (load:merge-histograms (mapcar #'histogram-of parts)))
         (whole (histogram-of (apply #'append parts))))
    (is (equal (contents whole) (contents merged)))
    (is (= 9 (reduce #'+ (first (contents merged)) :key #'third)))))

(test recording-conses-nothing
  "A value in a range that a histogram knows costs no allocation."
  (let ((histogram (histogram-of '(100 1000000))))
    (let ((before (sb-ext:get-bytes-consed)))
      (loop for ns of-type fixnum from 100 to 1000000 by 7
            do (load:record-value histogram ns))
      (is (< (- (sb-ext:get-bytes-consed) before) 100000)))))
