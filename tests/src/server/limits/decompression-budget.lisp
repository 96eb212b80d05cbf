;;;; The debt of a peer for its compressed messages, by a clock that a test sets.

(in-package #:clgrpc.tests.server)

(defun call-with-clock (function)
  "Call FUNCTION with a function that sets this thread's clock to a number of seconds."
  (let* ((now 0)
         (loop:*world* (loop:make-world :clock (lambda () now)
                                        :network (loop::world-network loop:*world*))))
    (funcall function (lambda (seconds) (setf now (seconds-ns seconds))))))

(test debts-are-forgiven-at-a-rate
  "A peer owes what it is charged, less a share of the elapsed time. Beyond a quarter of a second
its messages wait."
  (dolist (percent '(25 100 400))
    (call-with-clock
     (lambda (set-clock)
       (let ((budget (server::make-decompression-budget)))
         (flet ((charge (seconds) (server::charge-time budget (seconds-ns seconds) percent))
                (wait ()                ; in nanoseconds of a processor
                  (/ (* percent (server::wait-ns budget percent)) 100)))
           (funcall set-clock 100)
           (is-false (server::budget-used-p budget))
           (is-false (plusp (wait)))
           (charge 1/4)
           (is-true (server::budget-used-p budget))
           (is (zerop (wait)))
           (charge 1)
           (is (= 1000000000 (wait)))
           (funcall set-clock (+ 100 (/ 60 percent))) ; 0.6 s are forgiven
           (is (= 400000000 (wait)))
           (funcall set-clock (+ 100 (/ 126 percent)))
           (is-false (server::budget-used-p budget))
           ;; nothing is saved for later
           (funcall set-clock 1000)
           (charge 1/2)
           (is (= 250000000 (wait)))))))))

(test what-octets-earn-is-not-charged
  "Nor is the rest saved for the next message."
  (let ((budget (server::make-decompression-budget)))
    (flet ((take (seconds earned)
             (server::call-timed budget 25 (seconds-ns earned)
                               (fn (_charge-used)
                                 (let ((end (+ (thread-time-ns) (seconds-ns seconds))))
                                   (loop while (< (thread-time-ns) end)))))))
      (take 1/100 3600)
      (is-false (server::budget-used-p budget))
      (let ((before (loop:world-now)))
        (take 1/100 0)
        (is (<= (+ before (seconds-ns 4/100))
                (server::decompression-budget-due-ns budget)))))))

(test what-fails-is-charged
  (let ((budget (server::make-decompression-budget)))
    (signals error (server::call-timed budget 1 0 (fn (_charge-used) (error "no message"))))
    (is (plusp (server::decompression-budget-due-ns budget)))))
