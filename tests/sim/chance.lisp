;;;; Random numbers from a seed.

(in-package #:clgrpc.tests.sim)

(defun numbers-of (seed)
  (let ((chance (sim:make-chance seed)))
    (loop repeat 50 collect (sim:below chance 1000000))))

(test a-seed-gives-its-numbers
  (is (equal (numbers-of 7) (numbers-of 7)))
  (is (not (equal (numbers-of 7) (numbers-of 8))))
  (is (not (equal (numbers-of 7) (numbers-of -7)))))

(test numbers-are-in-range-and-all-come
  (let ((chance (sim:make-chance 1)))
    (is (equal '(3 4 5 6)
               (sort (remove-duplicates (loop repeat 200 collect (sim:between chance 3 6))) #'<)))
    (is (equal '(:a :b)
               (sort (remove-duplicates (loop repeat 100 collect (sim:pick chance '(:a :b))))
                     #'string<)))
    (is (< 150 (loop repeat 1000 count (sim:chance-p chance 5)) 250))))
