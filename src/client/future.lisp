;;;; Calls without waiting: CALL-ASYNC returns a future. Completions never run on the loop or under
;;;; a lock: a reserve thread runs them.

(in-package #:clgrpc.client)

(document-functions
  future-call "The call whose reply FUTURE stands for. From any thread.")

(defmethod print-object ((future future) stream)
  (print-unreadable-object (future stream :type t)
    (let ((call (future-call future)))
      (if call
          (format stream "~:[pending~;~:*~(~A~)~] ~A" (call-status call)
                  (rpc:rpc-method-path (call-rpc-method call)))
          (write-string "of no call" stream)))))

(defun call-async (function channel request &rest options)
  "Make the call that (FUNCTION CHANNEL REQUEST . OPTIONS) stands for, a unary one or a
client-streaming one with a sequence or generator, without waiting. Return a future; its call is
(future-call FUTURE). From any thread."
  (let* ((future (make-future))
         (call (apply function channel request :async future options)))
    (unless (and (typep call 'client-call)
                 (member (rpc-method-kind (call-rpc-method call)) '(:unary :client-streaming))
                 (not (eq :open request)))
      (when (typep call 'call) (cancel call))
      (misuse "CALL-ASYNC is for stubs that return a reply; ~S with ~S returned ~S."
              function request call))
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
    (unless (eq :ok (call-status call)) (error (rpc:call-condition call)))
    (when (rpc:undecoded-p (client-call-message call)) (decode-reply future call))
    (let ((reply (client-call-message call)))
      (if (typep reply 'rpc:rpc-error)
          (error reply)
          (values reply call)))))

(defun decode-reply (future call)
  "Decode the reply of CALL, a long one, unless another thread has: in its place comes the message,
or the RPC-ERROR that says what is wrong with it."
  (sb-thread:with-mutex ((ensure-lock future))
    (let ((reply (client-call-message call)))
      (when (rpc:undecoded-p reply)
        (setf (client-call-message call)
              (handler-case (rpc:wire-decode call reply 0 0)
                (rpc:rpc-error (error) error)))))))

(defun ensure-lock (future)
  (or (future-lock future)
      (let ((new (sb-thread:make-mutex :name "clgrpc future")))
        (or (sb-ext:compare-and-swap (future-lock future) nil new) new))))

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
