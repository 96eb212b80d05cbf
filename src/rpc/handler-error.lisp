;;;; Errors in user code, above all in handlers: how they end the call, the log, and the debugger
;;;; with its restarts (*DEBUG-ON-ERROR*). User code runs in WITH-USER-CODE. No error leaves that
;;;; form; only an interrupt from the keyboard or the end of the thread leaves it.
;;;;
;;;; The RPC-ERROR that FAIL signals ends the call with its status, message, details and trailers.
;;;; An RPC-ERROR of another call, made by the handler, is an error like any other, since it is
;;;; meant for this server and not for its clients. To pass such an error on to its client, a
;;;; handler uses FAIL.

(in-package #:clgrpc.rpc)

(defvar *debug-on-error* nil
  "If true, an error in a handler enters the debugger in the handler's thread, with the restarts
RETURN-STATUS, RETRY-HANDLER and CANCEL-CALL, while all other calls continue. If false, the default,
the call ends with status :internal and the backtrace is logged. Set it globally.")

(defun debug-error (error)
  "Enter the debugger because of ERROR. Return the RPC-ERROR of the restart chosen there, or
:RETRY."
  (restart-case (invoke-debugger error)
    (return-status (status &optional (message ""))
      :report "End the call with a status."
      :interactive (lambda ()
                     (format *query-io* "Status, a keyword: ")
                     (force-output *query-io*)
                     (list (read *query-io*)))
      (make-rpc-error status :message message :ended-by :local))
    (cancel-call ()
      :report "End the call with the status :cancelled."
      (make-rpc-error :cancelled :message "cancelled in the debugger" :ended-by :local))
    (retry-handler ()
      :report "Run the handler, or the other user code of the call, again."
      :retry)))

(defun return-status (status &optional (message ""))
  "Invoke the restart RETURN-STATUS: end the call whose handler is in the debugger with STATUS, a
keyword, and MESSAGE. Signal a CONTROL-ERROR if there is no restart RETURN-STATUS. From the
handler's thread. See *DEBUG-ON-ERROR*."
  (invoke-restart 'return-status status message))

(defun retry-call ()
  "Invoke the restart RETRY-CALL: make the call again with the same arguments (a :timeout begins
again), and let the stub return its values. A blocking stub offers this restart while it signals the
RPC-ERROR of its call, unless the call's requests came from a generator function. Signal a
CONTROL-ERROR if there is no such restart. The caller decides how often to repeat the call, and
waits between the calls. From the caller's thread."
  (invoke-restart 'retry-call))

(defun cancel-call ()
  "Invoke the restart CANCEL-CALL: end the call whose handler is in the debugger with :cancelled.
Signal a CONTROL-ERROR if there is no such restart. From the handler's thread. See
*DEBUG-ON-ERROR*."
  (invoke-restart 'cancel-call))

(defun retry-handler ()
  "Invoke the restart RETRY-HANDLER: run the handler that is in the debugger again, in its newest
definition, with the same request. Signal a CONTROL-ERROR if there is no such restart. From the
handler's thread. See *DEBUG-ON-ERROR*."
  (invoke-restart 'retry-handler))

(defun same-call-p (one other)
  "True if ONE and OTHER are the same call, or the two ends of a call within the image."
  (or (eq one other)
      (eq one (operate other-end other))))

(defun of-another-call-p (error call)
  "True if ERROR, an RPC-ERROR, comes from another call than CALL: it ended that call, or a channel
could not make that call. False if ERROR ended CALL, or if FAIL signalled it in CALL's handler."
  (if-let ((other (rpc-error-call error)))
    (not (same-call-p other call))
    (or (eq :transport (rpc-error-ended-by error))
        (not (rpc-error-sent-p error)))))

(defun over-p (call)
  "True if CALL has ended or is past its deadline, so that its handler's calls have ended too."
  (or (call-status call) (overdue-p call)))

(defun error-condition (call error)
  "The RPC-ERROR with which ERROR, signalled by CALL's user code, ends the call, or :RETRY."
  (cond ((and (typep error 'rpc-error) (not (of-another-call-p error call))) error)
        ((and (typep error 'rpc-error) (over-p call))
         (verdict-error :deadline-passed '()))
        (*debug-on-error* (debug-error error))
        (t (log-condition :error :handler-error error
                          :method (and (call-rpc-method call)
                                       (rpc-method-path (call-rpc-method call))))
           (cond ((heap-condition-p error) (verdict-error :no-memory '() :cause error))
                 ;; a client's own process may see the text of an error in its code
                 ((client-p call)
                  (verdict-error :callback-error (list (bounded-text error)) :cause error))
                 (t (verdict-error :handler-error '() :cause error))))))

(defun restore-stack-guard (error)
  "Restore the guard page of the stack if a full stack or heap caused ERROR, the RPC-ERROR with
which user code has ended. Return ERROR."
  (when (typep (rpc-error-cause error) 'storage-condition) (os:protect-stack-end))
  error)

(defmacro with-user-code ((call &key (pass-timeout 'loop:pass-timeout crossing)) &body body)
  "Run BODY, user code of CALL, with CALL as the current call and the baton lent. Return nil, or the
RPC-ERROR that ends the call because of an error in BODY. BODY is run again if the restart
RETRY-HANDLER is chosen in the debugger. A timeout of SB-EXT:WITH-TIMEOUT that BODY does not handle
may be meant for code around this form, such as a user's code that waits for CALL. So PASS-TIMEOUT,
the name of a function or a lambda form, is called with the timeout. If PASS-TIMEOUT returns, the
timeout is an error in BODY. A lambda form passes the timeout to other condition handlers than those
around this form, so it is also called with a timeout that code within BODY passes on. The timeout
may also come while an error is written to the log."
  (let ((function (gensym "BODY")) (error (gensym "ERROR")) (block (gensym "BLOCK"))
        (outcome (gensym "OUTCOME")))
    `(flet ((,function () ,@body))
       (declare (dynamic-extent #',function))
       (loop
         (let ((,outcome
                 (block ,block
                   (let ((*call* ,call))
                     (handler-bind
                         ((serious-condition
                            (lambda (,error)
                              (when (and (typep ,error 'sb-ext:timeout)
                                         ,(if crossing t `(loop:guarded-p ,error)))
                                (,pass-timeout ,error))
                              (when (loop:guarded-p ,error)
                                (return-from ,block
                                  (handler-bind ((sb-ext:timeout #',pass-timeout))
                                    (error-condition ,call ,error)))))))
                       (,function)
                       nil)))))
           (unless (eq :retry ,outcome)
             (return (and ,outcome (restore-stack-guard ,outcome)))))))))
