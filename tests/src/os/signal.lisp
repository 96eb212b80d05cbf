;;;; Signals reach their function.

(in-package #:clgrpc.tests.os)
(in-suite :clgrpc.os)

(defun send-signal (signal)
  "Send SIGNAL to this process."
  (sb-alien:alien-funcall
   (sb-alien:extern-alien "kill" (function sb-alien:int sb-alien:int sb-alien:int))
   (sb-alien:alien-funcall (sb-alien:extern-alien "getpid" (function sb-alien:int)))
   signal))

(test signal-calls-its-function
  (let ((called (sb-thread:make-semaphore)))
    (unwind-protect
         (progn
           (os:handle-signal os:+sigusr1+ (lambda () (sb-thread:signal-semaphore called)))
           (dotimes (i 3)
             (send-signal os:+sigusr1+)
             (is-true (sb-thread:wait-on-semaphore called :timeout 10))))
      (os:reset-signal os:+sigusr1+))))
