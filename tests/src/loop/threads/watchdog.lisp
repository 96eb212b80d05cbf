;;;; The watchdog's lock and interrupts. What the watchdog sees is in baton.lisp and turn.lisp.

(in-package #:clgrpc.tests.loop)
(in-suite :clgrpc.loop)

(defun call-with-watchdog (function)
  "Call FUNCTION with the watchdog's thread while one loop runs, on which user code ran just now."
  (let ((reserve (make-reserve :threads 2)))
    (with-loops (loop) (:reserve reserve)
      (settle loop)
      (funcall function loop loop::**watchdog**))
    (is-true (close-reserve reserve 20))))

(test the-watchdog-takes-no-interrupt-with-its-lock
  "A signal handler that runs in its thread may post to a loop, and so need the lock."
  (call-with-watchdog
   (lambda (loop thread)
     (let ((outcome nil) (sent nil) (done (sb-thread:make-semaphore)))
       (flet ((handle-signal ()
                (setf outcome (handler-case (progn (loop::wake-watchdog) :woken)
                                (error (error) (princ-to-string error))))
                (sb-thread:signal-semaphore done)))
         (unwind-protect
              (progn
                (sb-int:encapsulate 'loop::look-at-loops 'interrupt
                                    (lambda (look &rest arguments)
                                      (when (and (eq thread sb-thread:*current-thread*)
                                                 (not (shiftf sent t)))
                                        (sb-thread:interrupt-thread thread #'handle-signal))
                                      (apply (the function look) arguments)))
                (loop::wake-watchdog)
                (settle loop)
                (is-true (await done)))
           (sb-int:unencapsulate 'loop::look-at-loops 'interrupt)))
       (is (equal :woken outcome))))))

(test the-sleeping-watchdog-takes-interrupts
  (call-with-watchdog
   (lambda (loop thread)
     (declare (ignore loop))
     (let ((done (sb-thread:make-semaphore)) (pause (sb-thread:make-semaphore)))
       (is-true (loop repeat 2000
                      thereis loop::**watchdog-asleep**
                      do (sb-thread:wait-on-semaphore pause :timeout 0.01)))
       (sb-thread:interrupt-thread thread (lambda () (sb-thread:signal-semaphore done)))
       (is-true (await done))))))
