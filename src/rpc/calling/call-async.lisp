;;;; Calls without waiting: CALL-ASYNC returns a future (loop/future.lisp). The future is the call
;;;; itself, and its value is the call's reply. Completions never run on the loop or under a lock: a
;;;; reserve thread runs them. Each transport declares the slot for completions, by
;;;; LOOP:DEFINE-COMPLETIONS for its class of calls.

(in-package #:clgrpc.calling)

(defmethod loop:future-completions :before ((call call))
  (check-future call))

(defun check-future (call)
  "Signal MISUSE unless CALL, a call, is its own future."
  (unless (and (client-p call) (operate future-p call))
    (misuse "~S is not a future of CALL-ASYNC." call)))

(defmethod print-object :around ((call call) stream)
  (if (and (client-p call) (null (call-status call)) (operate future-p call))
      (print-unreadable-object (call stream :type t)
        (format stream "pending ~A" (call-path call)))
      (call-next-method)))

(defun call-async (&optional function channel (request nil given) &rest options)
  "Make the call (FUNCTION CHANNEL REQUEST . OPTIONS) without waiting, and return its future, which
is the call itself. FUNCTION is a unary stub, or a client-streaming one with a sequence or generator
for REQUEST. Signal MISUSE for other stubs and wrong arguments. From any thread."
  (unless given
    (misuse "CALL-ASYNC takes a stub, a channel and a request, and then the stub's keywords, such ~
             as (call-async #'helloworld.greeter:say-hello channel request :timeout 2)."))
  (unless (or (functionp function)
              (and function (symbolp function) (fboundp function)))
    (misuse "CALL-ASYNC takes a stub, such as the function HELLOWORLD.GREETER:SAY-HELLO, not ~S."
            function))
  (let ((method (stub-method function)))
    (when (and method
               (or (eq :open request)
                   (member (rpc-method-kind method) '(:server-streaming :bidi))))
      (misuse "CALL-ASYNC is for stubs that return a reply; the stub of ~A returns a call at once~
               ~@[, given :open~]. Call it directly."
              (rpc-method-path method) (eq :open request))))
  (let ((call (apply function channel request :async t options)))
    (unless (and (typep call 'call) (operate future-p call))
      (when (typep call 'call) (cancel call))
      (misuse "CALL-ASYNC is for stubs that return a reply; ~S with ~S returned ~S."
              function request call))
    call))

(setf (sb-kernel:%fun-lambda-list #'call-async) '(function channel request &rest options))

(defmethod future-done-p ((call call))
  (and (call-status call) t))

(defmethod future-values ((call call) timeout)
  (check-future call)
  (when timeout (loop:await-settlement call timeout))
  (wait-for-call call #'call-status)
  (unless (eq :ok (call-status call)) (error (call-condition call)))
  (let ((reply (operate reply-of-future call)))
    (if (failure-p reply)
        (error reply)
        (values reply call))))

(defmethod loop:run-completion ((call call) function)
  (check-future call)
  (flet ((run () (loop:call-with-outcome call function)))
    ;; the reserve refuses the function only after the last channel was closed; then the function
    ;; delays no loop
    (let ((reserve (operate reserve-of-future call)))
      (unless (and reserve (loop:run-on-reserve reserve #'run :if-busy :insist))
        (run)))))
