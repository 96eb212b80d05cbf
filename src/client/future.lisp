;;;; Calls without waiting: CALL-ASYNC returns a future. Completions never run on the loop or under
;;;; a lock: a reserve thread runs them.

(in-package #:clgrpc.client)

(defstruct (future (:constructor make-future (call)) (:copier nil))
  "The reply of CALL, to come. COMPLETIONS, newest first, is :done once CALL has ended. OUTCOME,
under LOCK, is the reply, or the RPC-ERROR, once somebody has asked for it."
  (call nil :type (or null client-call))
  (completions '() :type (or list (eql :done)))
  (lock (sb-thread:make-mutex :name "clgrpc future") :type sb-thread:mutex)
  (outcome nil))

(document-functions
  future-call "The call whose reply FUTURE stands for. From any thread.")

(defmethod print-object ((future future) stream)
  (print-unreadable-object (future stream :type t)
    (format stream "~:[pending~;~:*~(~A~)~] ~A" (call-status (future-call future))
            (rpc:rpc-method-path (call-rpc-method (future-call future))))))

(defun call-async (function channel request &rest options)
  "Make the call that (FUNCTION CHANNEL REQUEST . OPTIONS) stands for, a unary one or a
client-streaming one with a sequence or generator, without waiting. Return a future; its call is
(future-call FUTURE). From any thread."
  (let* ((future (make-future nil))
         (call (apply function channel request
                      :async (lambda (call) (declare (ignore call)) (run-completions future))
                      options)))
    (unless (and (typep call 'client-call)
                 (member (rpc-method-kind (call-rpc-method call)) '(:unary :client-streaming))
                 (not (eq :open request)))
      (when (typep call 'call) (cancel call))
      (misuse "CALL-ASYNC is for stubs that return a reply; ~S with ~S returned ~S." function request
              call))
    (setf (future-call future) call)
    future))

(defmethod cancel ((future future) &optional (text "cancelled by the caller"))
  (cancel (future-call future) text))

(defun future-done-p (future)
  "True if FUTURE's call has ended. From any thread."
  (and (call-status (future-call future)) t))

(defun await (future)
  "Wait for FUTURE's call to end; return its reply and the call, or signal its RPC-ERROR. The call's
:timeout bounds the wait. May be called again, from any thread but a loop's."
  (let ((call (future-call future)))
    (rpc:wait-for-call call #'never)
    (let ((outcome (sb-thread:with-mutex ((future-lock future))
                     (or (future-outcome future)
                         (setf (future-outcome future)
                               (handler-case (reply-of call)
                                 (rpc:rpc-error (error) error)))))))
      (if (typep outcome 'rpc:rpc-error)
          (error outcome)
          (values outcome call)))))

(defun attach (future function)
  "Call (FUNCTION reply error) on a reserve thread when FUTURE's call has ended, at once if it has:
ERROR is nil or the RPC-ERROR, REPLY nil with an error. Return FUTURE. From any thread."
  (loop
    (let ((old (future-completions future)))
      (cond ((eq :done old)
             (run-completion future function)
             (return future))
            ((eq old (sb-ext:compare-and-swap (future-completions future) old
                                              (cons function old)))
             (return future))))))

(defun run-completions (future)
  "The call has ended: have every completion run, in the order they were attached."
  (loop for old = (future-completions future)
        until (eq old (sb-ext:compare-and-swap (future-completions future) old :done))
        finally (dolist (function (reverse old)) (run-completion future function))))

(defun run-completion (future function)
  (declare (type function function))
  (let ((runtime (channel-runtime (subchannel-channel (client-call-subchannel
                                                       (future-call future))))))
    (flet ((run ()
             (multiple-value-bind (reply error)
                 (handler-case (values (await future) nil)
                   (rpc:rpc-error (error) (values nil error)))
               (funcall function reply error))))
      ;; refused only after the last channel was closed, when there is no loop to hold up
      (unless (loop:run-on-reserve (runtime-reserve runtime) #'run :if-busy :insist)
        (run)))))
