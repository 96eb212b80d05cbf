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

(test signals-wait-where-nothing-may-interrupt
  "A handler does not run where SBCL says that nothing may, whatever the signal: half an object may
have been allocated there."
  (dolist (signal (list os:+sigusr1+ os:+sighup+))
    (let ((called nil) (at-once nil))
      (unwind-protect
           (progn
             (os:handle-signal signal (lambda () (setf called t)))
             (sb-sys:without-interrupts
               (sb-alien:alien-funcall  ; to this thread
                (sb-alien:extern-alien "raise" (function sb-alien:int sb-alien:int)) signal)
               (setf at-once called))
             (is-false at-once "signal ~D" signal)
             (is-true called "signal ~D" signal))
        (os:reset-signal signal)))))
