;;;; Calls without waiting: CALL-ASYNC returns a future, of those that src/loop/future.lisp has.
;;;; Completions never run on the loop or under a lock: a reserve thread runs them.

(in-package #:clgrpc.client)

(document-functions
  future-call "The call whose reply FUTURE stands for. From any thread.")

(defmethod print-object ((future call-future) stream)
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
  (let* ((future (make-call-future))
         (call (apply function channel request :async future options)))
    (unless (and (typep call 'call)
                 (member (rpc-method-kind (call-rpc-method call)) '(:unary :client-streaming))
                 (not (eq :open request)))
      (when (typep call 'call) (cancel call))
      (misuse "CALL-ASYNC is for stubs that return a reply; ~S with ~S returned ~S."
              function request call))
    future))

(defmethod cancel ((future call-future) &optional (text "cancelled by the caller"))
  (cancel (future-call future) text))

(defmethod future-done-p ((future call-future))
  (and (call-status (future-call future)) t))

(defmethod await ((future call-future) &key timeout)
  (let ((call (future-call future)))
    (when timeout (loop:await-settlement future timeout))
    (rpc:wait-for-call call #'never)
    (unless (eq :ok (call-status call)) (error (rpc:call-condition call)))
    (let ((reply (call-reply call future)))
      (if (typep reply 'rpc:rpc-error)
          (error reply)
          (values reply call)))))

(defgeneric call-reply (call future)
  (:documentation "The reply of CALL, the call of FUTURE, which has ended with :ok; or the RPC-ERROR
that says what is wrong with it. From any thread.")
  (:method ((call client-call) future)
    (when (rpc:undecoded-p (client-call-message call)) (decode-reply future call))
    (client-call-message call)))

(defgeneric call-reserve (call)
  (:documentation "The reserve whose threads run the completions of CALL's future, or nil if there
is none any more.")
  (:method ((call client-call))
    (runtime-reserve (channel-runtime (subchannel-channel (client-call-subchannel call))))))

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
  (or (future-value future)
      (let ((new (sb-thread:make-mutex :name "clgrpc future")))
        (or (sb-ext:compare-and-swap (future-value future) nil new) new))))

(defmethod loop:run-completion ((future call-future) function)
  (flet ((run () (loop:call-with-outcome future function)))
    ;; refused only after the last channel was closed, when there is no loop to hold up
    (let ((reserve (call-reserve (future-call future))))
      (unless (and reserve (loop:run-on-reserve reserve #'run :if-busy :insist))
        (run)))))
