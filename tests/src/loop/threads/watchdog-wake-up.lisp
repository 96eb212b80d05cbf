;;;; The wake-up: a move of a baton wakes a watchdog that sleeps, and costs nothing while it is
;;;; awake.

(in-package #:clgrpc.tests.loop)

(defun call-with-sleeper (function)
  "Call FUNCTION while a thread sleeps as the watchdog does; return true if that was woken."
  (let* ((asleep (sb-thread:make-semaphore))
         (sleeper (in-thread
                    (sb-thread:with-mutex (clgrpc.loop::**watchdog-lock**)
                      (setf clgrpc.loop::**watchdog-asleep** t)
                      (sb-thread:signal-semaphore asleep)
                      (loop while clgrpc.loop::**watchdog-asleep**
                            always (sb-thread:condition-wait clgrpc.loop::**watchdog-waitqueue**
                                                             clgrpc.loop::**watchdog-lock**
                                                             :timeout *patience-seconds*))))))
    (await asleep)
    ;; the thread has given the lock back once it waits for the wake-up
    (sb-thread:with-mutex (clgrpc.loop::**watchdog-lock**))
    (funcall function)
    (sb-thread:join-thread sleeper :timeout (* 2 *patience-seconds*) :default nil)))

(test a-moving-baton-wakes-the-watchdog
  (is-true (call-with-sleeper #'clgrpc.loop::wake-watchdog))
  (is (not clgrpc.loop::**watchdog-asleep**)))

(test lending-a-baton-rings
  (with-still-loop (loop)
    (defer loop (lambda (argument)
                  (clgrpc.loop:call-user loop #'identity argument))
      nil)
    (is-true (call-with-sleeper (lambda () (make-turn-of loop))))))

(test a-failure-to-return-memory-leaves-the-watchdog-its-lock
  (with-logged (events :giving-back-error)
    (sb-thread:with-mutex (clgrpc.loop::**watchdog-lock**)
      (clgrpc.loop::without-lock
       (lambda ()
         (is-false (sb-thread:holding-mutex-p clgrpc.loop::**watchdog-lock**))
         (error 'mishap)))
      (is-true (sb-thread:holding-mutex-p clgrpc.loop::**watchdog-lock**)))
    (is (= 1 (length (events))))))
