;;;; What is called when something has been dropped.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.calling)

(test endings-run-in-order-elsewhere
  (let ((order '()) (done (sb-thread:make-semaphore)) (threads '()))
    (flet ((ending (number)
             (lambda ()
               (push number order)
               (pushnew sb-thread:*current-thread* threads)
               (when (= number 3) (sb-thread:signal-semaphore done)))))
      (loop for number from 1 to 3 do (calling:end-elsewhere (ending number))))
    (is-true (sb-thread:wait-on-semaphore done :timeout 10))
    (is (equal '(3 2 1) order))
    (is (not (member sb-thread:*current-thread* threads)))
    (dolist (thread threads) (sb-thread:join-thread thread :default nil :timeout 10))))
