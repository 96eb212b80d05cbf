;;;; Calls without waiting: CALL-ASYNC returns a future, of those that src/loop/future.lisp has. It
;;;; is the call itself, whose reply is its value. Completions never run on the loop or under a
;;;; lock: a reserve thread runs them.

(in-package #:clgrpc.client)

(defgeneric unattended-p (call)
  (:documentation "True if CALL is its own future, one of CALL-ASYNC's.")
  (:method (call) (declare (ignore call)) nil)
  (:method ((call client-call)) (wire-call-unattended call)))

(loop:define-completions (call client-call) (client-call-completions call))

(defmethod loop:future-completions :before ((call call))
  (future-call call))

(defun future-call (future)
  "The call whose reply FUTURE, which CALL-ASYNC has returned, stands for: that is FUTURE itself.
From any thread."
  (unless (unattended-p future) (misuse "~S is not a future of CALL-ASYNC." future))
  future)

(defmethod print-object ((call client-call) stream)
  (if (and (wire-call-unattended call) (null (call-status call)))
      (print-unreadable-object (call stream :type t)
        (format stream "pending ~A" (rpc:call-path call)))
      (call-next-method)))

(defun call-async (function channel request &rest options)
  "Make the call that (FUNCTION CHANNEL REQUEST . OPTIONS) stands for, a unary one or a
client-streaming one with a sequence or generator, without waiting. Return a future, which is the
call. From any thread."
  (let ((call (apply function channel request :async t options)))
    (unless (and (unattended-p call)
                 (member (rpc-method-kind (call-rpc-method call)) '(:unary :client-streaming))
                 (not (eq :open request)))
      (when (typep call 'call) (cancel call))
      (misuse "CALL-ASYNC is for stubs that return a reply; ~S with ~S returned ~S."
              function request call))
    call))

(defmethod future-done-p ((call call))
  (and (call-status call) t))

(defmethod await ((call call) &key timeout)
  (future-call call)
  (when timeout (loop:await-settlement call timeout))
  (rpc:wait-for-call call #'never)
  (unless (eq :ok (call-status call)) (error (rpc:call-condition call)))
  (let ((reply (call-reply call)))
    (if (rpc:failure-p reply)
        (error reply)
        (values reply call))))

(defgeneric call-reply (call)
  (:documentation "The reply of CALL, a future, which has ended with :ok; or the RPC-ERROR that says
what is wrong with it. From any thread.")
  (:method ((call client-call))
    (let ((reply (client-call-message call)))
      (if (or (rpc:undecoded-p reply) (typep reply 'undecoded))
          (decode-reply call)
          reply))))

(defgeneric call-reserve (call)
  (:documentation "The reserve whose threads run the completions of CALL's future, or nil if there
is none any more.")
  (:method ((call client-call))
    (runtime-reserve (subchannel-runtime (client-call-subchannel call)))))

(defstruct (undecoded (:constructor make-undecoded (reply)) (:copier nil))
  "A long REPLY that several threads may ask for at once: who has LOCK decodes it."
  (reply nil)
  (lock (sb-thread:make-mutex :name "clgrpc reply") :read-only t))

(defmethod print-object ((undecoded undecoded) stream)
  (print-unreadable-object (undecoded stream :type t)))

(defun decode-reply (call)
  "Decode the reply of CALL, a long one, unless another thread has: in its place comes the message,
or the RPC-ERROR that says what is wrong with it, which is returned."
  (let ((item (client-call-message call)))
    (when (rpc:undecoded-p item)
      (let ((new (make-undecoded item)))
        (setf item (compare-and-swap (client-call-message call) item new))
        (when (rpc:undecoded-p item) (setf item new))))
    (when (typep item 'undecoded)
      (sb-thread:with-mutex ((undecoded-lock item))
        (when (eq item (client-call-message call))
          (setf (client-call-message call)
                (handler-case (rpc:wire-decode call (undecoded-reply item) 0 0)
                  (rpc:rpc-error (error) error))))))
    (client-call-message call)))

(defmethod loop:run-completion ((call call) function)
  (future-call call)
  (flet ((run () (loop:call-with-outcome call function)))
    ;; refused only after the last channel was closed, when there is no loop to hold up
    (let ((reserve (call-reserve call)))
      (unless (and reserve (loop:run-on-reserve reserve #'run :if-busy :insist))
        (run)))))
