;;;; Interrupts of threads. A user's WITH-TIMEOUT, TERMINATE-THREAD or a debugger's abort unwinds a
;;;; thread at any instruction, also in the middle of ours. Some actions must be announced to other
;;;; threads first, such as the wakeup of a loop. So a thread announces and performs such an action,
;;;; or undoes the announcement, with interrupts off. Interrupts are on where user code runs and
;;;; where a thread sleeps.

(in-package #:clgrpc.base)

(defmacro with-undoing ((begin &rest undo) &body body)
  "Evaluate the form BEGIN, then BODY, and return the values of BODY. Evaluate the forms UNDO when
BODY is left in any way. Interrupts are enabled only in BODY, so that the effect of BEGIN is always
undone."
  `(sb-sys:without-interrupts
     ,begin
     (unwind-protect (sb-sys:with-local-interrupts ,@body)
       ,@undo)))

(defmacro uninterrupted (&body body)
  "Evaluate BODY, which must be a few instructions without a non-local exit, with interrupts off.
Then handle an interrupt that has arrived meanwhile. This costs less than WITHOUT-INTERRUPTS, which
also protects against unwinding."
  `(progn
     (let ((sb-sys:*interrupts-enabled* nil)) ,@body)
     (when (and sb-sys:*interrupt-pending* sb-sys:*interrupts-enabled*)
       (sb-sys:without-interrupts)))) ; the end of WITHOUT-INTERRUPTS handles the pending interrupt

(defmacro with-log-guard (() &body body)
  "Do BODY, which logs or prints for the log. Return two values: the value of BODY and NIL; or, if
BODY signals a serious condition and does not handle it, NIL and the condition. C-c is not handled
here and reaches the debugger. A timeout may belong to a user's WITH-TIMEOUT around the logging
code; therefore it is first signalled to the handlers outside."
  (let ((block-name (gensym "GUARDED")))
    `(block ,block-name
       (handler-bind ((serious-condition
                        (lambda (condition)
                          (unless (typep condition 'sb-sys:interactive-interrupt)
                            (when (typep condition 'sb-ext:timeout) (signal condition))
                            (return-from ,block-name (values nil condition))))))
         (values (progn ,@body) nil)))))
