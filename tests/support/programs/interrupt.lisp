;;;; Interrupts of threads, as WITH-TIMEOUT, TERMINATE-THREAD and SLIME make them.

(in-package #:clgrpc.tests.support)

(defun interrupt-again-and-again (function count)
  "Have a thread call FUNCTION over and over, and unwind it out of that by COUNT interrupts."
  (let ((ended nil) (inside nil) (hits 0) (misses 0) (tag (list nil)))
    (declare (type fixnum hits misses))
    (let ((thread (sb-thread:make-thread
                   (lambda ()
                     (loop until ended
                           do (catch tag
                                (setf inside t)
                                (loop until ended do (funcall function)))
                              (sb-sys:without-interrupts (incf hits)))))))
      (flet ((unwind ()
               (cond ((shiftf inside nil) (throw tag nil))
                     (t (incf misses)))))
        (loop while (< hits count)
              do (let ((before (+ hits misses)))
                   (sb-thread:interrupt-thread thread #'unwind)
                   (loop while (= before (+ hits misses)) do (sb-thread:thread-yield)))))
      (setf ended t)
      (sb-thread:join-thread thread))))
