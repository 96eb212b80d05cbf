;;;; Picks by weight.

(in-package #:clgrpc.tests.balance)

(test strides-pick-as-weights-say
  (dolist (weights '((1 1) (1 2 3) (9 1) (100 250 399 777) (5 5 5 6)))
    (let* ((stride (balance::make-stride (balance::scaled-weights (coerce weights 'vector)) 12345))
           (counts (make-list (length weights) :initial-element 0))
           (total (reduce #'+ weights)))
      (loop repeat 100000 do (incf (elt counts (balance::next-entry stride))))
      (loop for weight in weights
            for count in counts
            do (is (within-p (/ weight total) 100000 count) "~D of ~S: ~D" weight weights count)))))

(test weights-that-are-none
  (is (null (balance::scaled-weights #(0 0 0))))
  (is (null (balance::scaled-weights #(0 5 0))) "a single weight has none to compare with")
  (is (equalp #(21845 65535 43690) (balance::scaled-weights #(1 3 0)))
      "a server without a weight gets the mean")
  (is (equalp (balance::scaled-weights (vector 1000000 1 1 1))
              (balance::scaled-weights (vector 1000000000 1000 1000 1000)))
      "only the ratios of weights count")
  (is (every #'plusp (balance::scaled-weights (vector 1000000 1 1 1)))))

(test weights-of-any-size-are-scaled
  "Weights of reports are from 1e-9 to 1e9, weights of a resolver integers of up to 32 bits."
  (dolist (weights '(#(1d-9 1d9) #(1d9 1d9 1d9) #(1d-9 1d-9) #(1 4294967295)
                     #(4294967295 4294967295 1 0)))
    (let ((scaled (balance::scaled-weights weights)))
      (is (every #'plusp scaled))
      (is (= 65535 (reduce #'max scaled)))))
  (is (every #'plusp (balance::scaled-weights
                      (make-array 8000 :initial-element 1d9)))))
