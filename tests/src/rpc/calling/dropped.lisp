;;;; The functions that are called for dropped objects.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.calling)

(test endings-run-in-order-elsewhere
  (let ((order '()) (done (sb-thread:make-semaphore)) (threads '()))
    (flet ((ending (number)
             (lambda ()
               (push number order)
               (pushnew sb-thread:*current-thread* threads)
               (when (= number 3) (sb-thread:signal-semaphore done))
               (when (= number 2) (error "the second does not end")))))
      (with-logged (events :close-error)
        (loop for number from 1 to 3 do (calling:end-elsewhere (ending number)))
        (is-true (sb-thread:wait-on-semaphore done :timeout 10))
        (is (equal '(:error) (mapcar #'first (events))))))
    (is (equal '(3 2 1) order))
    (is (not (member sb-thread:*current-thread* threads)))
    (dolist (thread threads) (sb-thread:join-thread thread :default nil :timeout 10))))

(test endings-outlive-a-thread-that-cannot-be-made
  "Objects dropped then are closed together with those dropped next."
  (let ((failed nil) (done (sb-thread:make-semaphore)))
    (loop for closer = (find "clgrpc closer" (sb-thread:list-all-threads)
                             :key #'sb-thread:thread-name :test #'equal)
          while closer
          do (sb-thread:join-thread closer :default nil))
    (with-replaced (('calling::make-closer
                     (lambda (function)
                       (if (shiftf failed t) (funcall function) (error "on purpose")))))
      (let ((*log-function* (constantly nil)))
        (loop repeat 2
              do (calling:end-elsewhere (lambda () (sb-thread:signal-semaphore done))))))
    (is-true failed)
    (is-true (sb-thread:wait-on-semaphore done :n 2 :timeout 30))))
