;;;; Signals reach their function.

(in-package #:clgrpc.tests.os)

(defun send-signal (signal)
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
  "A handler does not run in code that SBCL protects from interrupts, whatever the signal, and
however often it comes there: an object may be half allocated."
  (dolist (signal (list os:+sigusr1+ os:+sigusr1+ os:+sighup+))
    (let ((called (sb-thread:make-semaphore)) (here nil) (thread sb-thread:*current-thread*))
      (unwind-protect
           (progn
             (os:handle-signal signal (lambda ()
                                        (when (eq thread sb-thread:*current-thread*) (setf here t))
                                        (sb-thread:signal-semaphore called)))
             (sb-sys:without-interrupts
               (dotimes (i 3)
                 (sb-alien:alien-funcall ; to this thread
                  (sb-alien:extern-alien "raise" (function sb-alien:int sb-alien:int)) signal))
               (is-false here "signal ~D" signal))
             (is-true (sb-thread:wait-on-semaphore called :timeout 10) "signal ~D" signal))
        (os:reset-signal signal)))))

(test handlers-run-in-a-thread-of-their-own
  "The thread that a signal reaches may hold a lock that the handler needs."
  (dolist (signal (list os:+sigusr1+ os:+sighup+ os:+sigwinch+))
    (let ((lock (sb-thread:make-mutex)) (called (sb-thread:make-semaphore)) (failure nil))
      (unwind-protect
           (progn
             (os:handle-signal signal (lambda ()
                                        (handler-case (sb-thread:with-mutex (lock))
                                          (error (error) (setf failure error)))
                                        (sb-thread:signal-semaphore called)))
             (sb-thread:with-mutex (lock)
               (sb-alien:alien-funcall  ; to this thread
                (sb-alien:extern-alien "raise" (function sb-alien:int sb-alien:int)) signal))
             (is-true (sb-thread:wait-on-semaphore called :timeout 10) "signal ~D" signal)
             (is (null failure) "signal ~D: ~A" signal failure))
        (os:reset-signal signal)))))

(test threads-that-read-signals-end
  "If a signal has no handler, no thread waits for it; nor while an image is saved."
  (flet ((waiting ()
           (count "clgrpc signals" (sb-thread:list-all-threads)
                  :key #'sb-thread:thread-name :test #'equal)))
    (let ((before (waiting)))
      (dolist (release (list (lambda () (os:reset-signal os:+sigusr1+)) #'os::forget-catchers))
        (os:handle-signal os:+sigusr1+ #'list)
        (is (= (1+ before) (waiting)))
        (funcall release)
        (is (= before (waiting)))))))

(test a-handler-begins-without-a-signal
  "A signal left from an earlier handler does not call it: that handler's thread had ended already."
  (let ((begun (sb-thread:make-semaphore)) (called (sb-thread:make-semaphore)) (thread nil))
    (unwind-protect
         (progn
           (os:handle-signal os:+sigusr1+ (lambda ()
                                            (setf thread sb-thread:*current-thread*)
                                            (sb-thread:signal-semaphore begun)
                                            (sb-thread:abort-thread)))
           (send-signal os:+sigusr1+)
           (is-true (sb-thread:wait-on-semaphore begun :timeout 10))
           (sb-thread:join-thread thread :default nil)
           (os:reset-signal os:+sigusr1+)
           (os:handle-signal os:+sigusr1+ (lambda () (sb-thread:signal-semaphore called)))
           (is-false (sb-thread:wait-on-semaphore called :timeout 0.5)))
      (os:reset-signal os:+sigusr1+))))

(test no-signal-interrupts-another-handler
  "SIGUSR2 would get the alternate stack as this thread's own, and the collector would end the
process."
  (let ((action (make-octets 152)))     ; a struct sigaction
    (unwind-protect
         (progn
           (os:handle-signal os:+sigusr1+ #'list)
           (sb-sys:with-pinned-objects (action)
             (sb-alien:alien-funcall
              (sb-alien:extern-alien "sigaction" (function sb-alien:int sb-alien:int
                                                           (sb-alien:unsigned 64)
                                                           sb-sys:system-area-pointer))
              os:+sigusr1+ 0 (sb-sys:vector-sap action)))
           ;; all but SIGKILL and SIGSTOP, at octet 8
           (is (= (logandc2 (1- (ash 1 64)) (logior (ash 1 8) (ash 1 18))) (u64le action 8))))
      (os:reset-signal os:+sigusr1+))))
