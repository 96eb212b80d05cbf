;;;; Errors in what a loop calls never end the loop: they are logged with their backtrace, and the
;;;; phase of the turn in which they happened goes on with the next connection or function.

(in-package #:clgrpc.loop)

(defvar *unguarded* nil
  "True while an error in a user's callback is signalled to handlers outside the loop.")

(defmacro guarding ((event &rest plist) &body body)
  "Do BODY and return its value and NIL. If an error is signalled and not handled in it, log EVENT
with PLIST, leave BODY, and return NIL and the condition."
  (let ((block-name (gensym "GUARDED")))
    `(block ,block-name
       (handler-bind
           ((serious-condition
              (lambda (condition)
                ;; C-c is not an error: it is for the debugger
                (unless (or *unguarded* (typep condition 'sb-sys:interactive-interrupt))
                  (log-condition :error ,event condition ,@plist)
                  (return-from ,block-name (values nil condition))))))
         (values (progn ,@body) nil)))))

(declaim (type options **default-options**))
(defglobal **default-options** (make-options)
  "The options of those who give none.")
