;;;; What is to happen when.

(in-package #:clgrpc.tests.sim)

(test plans-come-by-time-and-then-in-order
  (let ((event-queue (sim::make-event-queue))
        (chance (sim:make-chance 1))
        (added '()))
    (dotimes (i 500)
      (let ((due (sim:below chance 50)))
        (push (cons due i) added)
        (sim::add-plan event-queue due #'identity i)))
    (is (eql (reduce #'min added :key #'car) (sim::next-plan-ns event-queue)))
    (is (equal (stable-sort (reverse added) #'< :key #'car)
               (loop while (sim::next-plan-ns event-queue)
                     collect (let ((plan (sim::take-plan event-queue)))
                               (cons (sim::plan-due plan) (sim::plan-argument plan))))))
    (is (null (sim::next-plan-ns event-queue)))))
