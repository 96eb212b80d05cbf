;;;; Interrupts of threads. A user's WITH-TIMEOUT, TERMINATE-THREAD or a debugger's abort unwinds a
;;;; thread at any instruction, also in the middle of ours. Some actions must be announced to other
;;;; threads first, such as the wakeup of a loop. So a thread announces and performs such an action,
;;;; or undoes the announcement, with interrupts off. They are on where user code runs and where a
;;;; thread sleeps.

(in-package #:clgrpc.base)

(defmacro with-undoing ((begin &rest undo) &body body)
  "Evaluate the form BEGIN, then BODY and return its values; then, however BODY is left, the forms
UNDO. Interrupts are enabled only in BODY, so the effect of BEGIN is always undone."
  `(sb-sys:without-interrupts
     ,begin
     (unwind-protect (sb-sys:with-local-interrupts ,@body)
       ,@undo)))

(defmacro uninterrupted (&body body)
  "Evaluate BODY, a few instructions without a non-local exit, with interrupts off; then handle an
interrupt that has arrived meanwhile. This costs less than WITHOUT-INTERRUPTS, which protects itself
from unwinding."
  `(progn
     (let ((sb-sys:*interrupts-enabled* nil)) ,@body)
     (when (and sb-sys:*interrupt-pending* sb-sys:*interrupts-enabled*)
       (sb-sys:without-interrupts)))) ; its end takes it

;;; The time of a WITH-TIMEOUT may be over while its thread runs a function that is guarded against
;;; errors, such as a log function. The timeout is no error of that function: handlers outside get
;;; it first, and only if they leave it to nobody is it taken for one.

(defvar *unguarded* nil
  "The condition that is signalled to the handlers outside of all guards against errors, or nil.")

(defun guarded-p (condition)
  "True if a guard against errors handles CONDITION: not C-c, which is for the debugger, and not one
that goes to the handlers outside."
  (not (or (eq condition *unguarded*)
           (typep condition 'sb-sys:interactive-interrupt))))

(defun pass-timeout (timeout)
  "Let the handlers outside of all guards have TIMEOUT, an SB-EXT:TIMEOUT; return if none takes it.
For HANDLER-BIND."
  (let ((*unguarded* timeout)) (signal timeout)))

(defmacro with-guard ((condition &rest actions) &body body)
  "Do BODY and return its value and NIL. If a serious condition is signalled and not handled in it,
evaluate ACTIONS, with CONDITION bound to it, where it was signalled; leave BODY, and return NIL and
the condition."
  (let ((block-name (gensym "GUARDED")))
    `(block ,block-name
       (handler-bind ((serious-condition
                        (lambda (,condition)
                          (when (guarded-p ,condition)
                            ,@actions
                            (return-from ,block-name (values nil ,condition))))))
         (values (progn ,@body) nil)))))

(defmacro passing-timeouts (&body body)
  "Do BODY, a function of other code within a guard, and return its values. A timeout that is
signalled in it goes to the handlers outside of all guards first."
  `(handler-bind ((sb-ext:timeout #'pass-timeout)) ,@body))
