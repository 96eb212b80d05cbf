;;;; What is to happen when.

(in-package #:clgrpc.tests.sim)
(in-suite :clgrpc.sim)

(test plans-come-by-time-and-then-in-order
  (let ((agenda (sim::make-agenda))
        (chance (sim:make-chance 1))
        (added '()))
    (dotimes (i 500)
      (let ((due (sim:below chance 50)))
        (push (cons due i) added)
        (sim::add-plan agenda due #'identity i)))
    (is (eql (reduce #'min added :key #'car) (sim::next-plan-ns agenda)))
    (is (equal (stable-sort (reverse added) #'< :key #'car)
               (loop while (sim::next-plan-ns agenda)
                     collect (let ((plan (sim::take-plan agenda)))
                               (cons (sim::plan-due plan) (sim::plan-argument plan))))))
    (is (null (sim::next-plan-ns agenda)))))
