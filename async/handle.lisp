;;;; Handles: the objects of the library's user on a loop (timers, sockets, servers, notifiers and
;;;; so on), and how the user's callbacks are run.
;;;;
;;;; A handle that is in use counts as one of its loop's USES, unless UNREF was called. A loop begun
;;;; by START-EVENT-LOOP ends with its last use; it checks at the end of the turn, so a callback may
;;;; end the last handle in use and begin another. The thread that runs the loop makes and uses
;;;; handles; a function for users that is called by another thread posts to the loop.
;;;;
;;;; An error in a callback: if the loop catches errors, the callback is left, and the condition
;;;; goes to its event callback or to the log. If the loop does not catch errors, handlers outside
;;;; the loop see the condition, and then the debugger, with restarts. The restarts are established
;;;; only when an error is signalled, so a callback without an error costs only one handler.

(in-package #:clgrpc.async)

(defstruct (handle (:constructor nil) (:copier nil))
  "A user's object on a loop, such as a timer or a socket."
  (loop nil :type event-loop)           ; the loop where it is used
  ;; :COUNTED and :UNCOUNTED: it is in use, and one of LOOP's USES or not
  (use :idle :type (member :idle :counted :uncounted)))

(defmethod print-object ((handle handle) stream)
  (print-unreadable-object (handle stream :type t :identity t)
    (format stream "on ~A" (event-loop-name (handle-loop handle)))))

(defun the-loop (loop)
  "Return LOOP, the :LOOP argument of a caller; signal MISUSE if it is nil."
  (cond ((null loop)
         (misuse "No event loop runs in this thread: call this within WITH-EVENT-LOOP, or give ~
                  the loop as :LOOP."))
        ((eq :stopped (loop:event-loop-state loop)) (misuse "~A has stopped." loop))
        (t loop)))

(defmacro on-loop ((loop) &body body)
  "Evaluate BODY on LOOP: at once if this thread runs LOOP, else in a later turn of LOOP. Signal
MISUSE if LOOP has stopped."
  (let ((function (gensym "BODY")))
    `(flet ((,function () ,@body))
       (loop:with-baton (,loop) (,function)
         (unless (post ,loop #',function) (misuse "~A has stopped." ,loop))))))

;;; Uses

(defun begin-use (handle)
  (when (eq :idle (handle-use handle))
    (setf (handle-use handle) :counted)
    (incf (program-uses (loop-program (handle-loop handle))))))

(defun give-up-use (loop)
  (when (zerop (decf (program-uses (loop-program loop))))
    (loop:call-last loop #'stop-unless-used loop)))

(defun end-use (handle)
  (when (eq :counted (shiftf (handle-use handle) :idle))
    (give-up-use (handle-loop handle))))

(defun end-handle (handle function)
  "Call FUNCTION with HANDLE on the handle's loop, unless the loop has stopped."
  (declare (type function function))
  (let ((loop (handle-loop handle)))
    (loop:with-baton (loop) (funcall function handle)
      (post loop (lambda () (funcall function handle))))
    nil))

(defun stop-unless-used (loop)
  "End LOOP if it should end once it is unused, no object uses it, and no connection waits until its
peer has received the last output."
  (let ((program (loop-program loop)))
    (when (and (program-until-unused program)
               (zerop (program-uses program))
               (not (loop:connections-closing-p loop)))
      (stop-event-loop loop))))

(defun exit-event-loop (&key (loop *event-loop*))
  "End LOOP after the current turn. From any thread."
  (when loop (stop-event-loop loop))
  nil)

(defun unref (handle)
  "Let the loop of HANDLE end although HANDLE is in use. Return HANDLE. From any thread."
  (let ((loop (handle-loop handle)))
    (on-loop (loop)
      (when (eq :counted (handle-use handle))
        (setf (handle-use handle) :uncounted)
        (give-up-use loop)))
    handle))

(defun ref (handle)
  "Undo UNREF. Return HANDLE. From any thread."
  (let ((loop (handle-loop handle)))
    (on-loop (loop)
      (when (eq :uncounted (handle-use handle))
        (setf (handle-use handle) :counted)
        (incf (program-uses (loop-program loop)))))
    handle))

;;; Callbacks

(define-hot (callback-function :inline t) ((callback callback)) function
  (if (functionp callback) callback (fdefinition callback)))

(defun report-failure (loop event-cb condition)
  "Call EVENT-CB, an event callback, with CONDITION, which has ended a callback of LOOP. If EVENT-CB
is nil, log CONDITION."
  (let* ((program (loop-program loop))
         (catcher (program-catch-errors program))
         (teller (cond ((and event-cb (program-errors-to-event-cb program)) event-cb)
                       ((eq t catcher) nil)
                       (t catcher))))
    (if teller
        (loop:guarding (:event-callback-error :loop loop)
          (sb-sys:with-interrupts (funcall teller condition)))
        (log-condition :error :callback-error condition :loop loop))
    nil))

(defgeneric call-with-restarts (handle function)
  (:documentation "Call FUNCTION, without arguments, and meanwhile offer the restarts that only
handles of HANDLE's kind have. Return the outcome of the callback.")
  (:method ((handle handle) function) (funcall function)))

(defun offer-restarts (loop event-cb handle condition)
  "Pass CONDITION, which a callback for HANDLE has signalled, to the handlers outside of LOOP and
then to the debugger, with restarts. Return the outcome of the callback."
  (restart-case (call-with-restarts handle (lambda ()
                                             (let ((loop:*unguarded* condition))
                                               (error condition))))
    (abort-callback ()
      :report "Leave the callback and continue the loop."
      nil)
    (continue-event-loop ()
      :report "Leave the callback, report the error where the loop reports errors, and continue."
      (report-failure loop event-cb condition))
    (exit-event-loop ()
      :report "Leave the callback and end the loop."
      (exit-event-loop :loop loop))))

(defun callback-failed (loop event-cb handle condition)
  (if (program-catch-errors (loop-program loop))
      (report-failure loop event-cb condition)
      (offer-restarts loop event-cb handle condition))
  nil)

(define-hot call-callback ((handle handle) (event-cb callback) (function function)) null
  "Call FUNCTION, which calls a callback for HANDLE, and handle errors in it."
  (block callback
    (handler-bind
        ((serious-condition
           (lambda (condition)
             ;; C-c is not an error: the debugger handles it
             (unless (typep condition 'sb-sys:interactive-interrupt)
               (callback-failed (handle-loop handle) event-cb handle condition)
               (return-from callback nil)))))
      (sb-sys:with-interrupts (funcall function)))
    nil))

(defmacro with-callback ((handle event-cb) &body body)
  "Evaluate BODY, which calls a callback for HANDLE, and handle errors in it: call EVENT-CB with
them, unless it is nil."
  (let ((function (gensym "BODY")))
    `(flet ((,function () ,@body))
       (declare (dynamic-extent #',function))
       (call-callback ,handle ,event-cb #',function))))

(defun abort-callback ()
  "Leave the callback and continue the loop. Call this on the loop, in a handler of an error in a
callback."
  (invoke-restart 'abort-callback))

(defun continue-event-loop ()
  "Leave the callback, report the error to its event callback, or in the log, and continue the loop.
Call this on the loop, in a handler of an error in a callback."
  (invoke-restart 'continue-event-loop))
