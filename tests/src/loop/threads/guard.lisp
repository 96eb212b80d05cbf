;;;; Errors in functions that a loop calls: they are logged, and a timer survives them.

(in-package #:clgrpc.tests.loop)

(defun fail-here (count)
  "Fail COUNT times at one guarded place; return the last error."
  (let ((last nil))
    (dotimes (i count last)
      (setf last (nth-value 1 (clgrpc.loop:guarding (:test-error :number i) (error 'mishap)))))))

(test a-place-logs-few-errors-in-a-second
  (with-logged (events)
    (is (typep (fail-here 1000) 'mishap))
    (let ((logged (length (events))))
      (is (<= 10 logged 30) "~D were logged" logged)
      (is (equal '(:test-error) (remove-duplicates (mapcar #'second (events)))))
      (is-true (getf (cddr (first (events))) :backtrace)))
    (is (null (nth-value 1 (clgrpc.loop:guarding (:test-error) 1))))))

(test a-simulated-place-logs-all-errors
  (let ((*world* (make-world :clock #'monotonic-ns :wait (constantly nil)
                             :network (clgrpc.loop::world-network *world*))))
    (with-logged (events)
      (dotimes (i 100) (clgrpc.loop:guarding (:simulated-error) (error 'mishap)))
      (is (= 100 (length (events)))))))

(test what-is-not-logged-is-counted
  (with-logged (events)
    (let ((errors (clgrpc.loop::make-errors)))
      (flet ((note () (clgrpc.loop::log-guarded errors :test-error (make-condition 'mishap) '())))
        (dotimes (i 25) (note))
        (setf (clgrpc.loop::errors-since-ns errors) 0)
        (note)
        (is (= 11 (length (events))))
        (is (= 15 (loop for event in (events)
                        sum (or (getf (cddr event) :unlogged) 0))))))))

(test a-lasting-timer-outlives-errors
  "Its function fails before it starts the timer again: the timer rings again, later each time."
  (let ((now 0) (rung '()) (fails 3) (timer nil))
    (with-still-loop (loop :clock (lambda () now))
      (with-logged (events)
        (setf timer (clgrpc.loop:make-lasting-timer
                     loop
                     (lambda (argument)
                       (push (round now +ns-per-second+) rung)
                       (when (plusp fails)
                         (decf fails)
                         (error 'mishap))
                       argument)
                     nil))
        (flet ((on-it (function)
                 (defer loop (fn (_argument) (funcall function))
                   nil)
                 (make-turn-of loop)))
          (on-it (lambda ()
                   (clgrpc.loop:start-timer loop timer +ns-per-second+)))
          (loop for second from 1 to 20
                do (setf now (* second +ns-per-second+))
                   (make-turn-of loop))
          (is (equal '(1 2 4 8) (reverse rung)))
          (is-false (timer-pending-p timer))
          (is (= 3 (count :timer-function-error (events) :key #'second))))))))
