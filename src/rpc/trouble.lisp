;;;; Errors in user code, handlers above all: what they end the call with, the log, and the debugger
;;;; with its restarts (*DEBUG-ON-ERROR*). User code runs in WITH-USER-CODE, which nothing leaves
;;;; but an interrupt and who leaves the thread.
;;;;
;;;; What FAIL signals ends the call as it says. An RPC-ERROR of another call, one that the handler
;;;; has made itself, is an error like any other: its message, details and trailers are for this
;;;; server, not for its clients. A handler that wants them passed on says so, with FAIL.

(in-package #:clgrpc.rpc)

(defvar *debug-on-error* nil
  "If true, an error in a handler enters the debugger in the handler's thread, with the restarts
RETURN-STATUS, RETRY-HANDLER and CANCEL-CALL, while everybody else is served; if false, the default,
it becomes status :internal and its backtrace goes to the log. Set it globally.")

(defun debug-error (error)
  "Enter the debugger because of ERROR. Return the RPC-ERROR that the restart chosen there stands
for, or :RETRY."
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
      :report "Run the handler, or whatever of the call it was, again."
      :retry)))

(defun return-status (status &optional (message ""))
  "Invoke the restart RETURN-STATUS: end the call whose handler is in the debugger with STATUS, a
keyword, and MESSAGE. Signal a CONTROL-ERROR if there is none. See *DEBUG-ON-ERROR*."
  (invoke-restart 'return-status status message))

(defun retry-call ()
  "Invoke the restart RETRY-CALL, which a blocking stub offers while it signals the RPC-ERROR of its
call, unless it sent what a generator function gave: make the call again, with the same arguments (a
:timeout begins anew), and have the stub return what that returns. Signal a CONTROL-ERROR if there
is none. The caller decides how often, and waits between."
  (invoke-restart 'retry-call))

(defun cancel-call ()
  "Invoke the restart CANCEL-CALL: end the call whose handler is in the debugger with :cancelled.
Signal a CONTROL-ERROR if there is none. See *DEBUG-ON-ERROR*."
  (invoke-restart 'cancel-call))

(defun retry-handler ()
  "Invoke the restart RETRY-HANDLER: run the handler that is in the debugger again, in its newest
definition, with the same request. Signal a CONTROL-ERROR if there is none. See *DEBUG-ON-ERROR*."
  (invoke-restart 'retry-handler))

(defun same-call-p (one other)
  "True if the calls ONE and OTHER are one, or the two ends of a call within the image."
  (or (eq one other)
      (eq one (operate other-end other))))

(defun of-another-call-p (error call)
  "True if ERROR, an RPC-ERROR, is not about CALL, nor what CALL's handler has said by FAIL: it
ended another call, or a channel could not be used for one."
  (let ((other (rpc-error-call error)))
    (if other
        (not (same-call-p other call))
        (or (eq :transport (rpc-error-ended-by error))
            (not (rpc-error-sent-p error))))))

(defun over-p (call)
  "True if CALL has ended, or is past its deadline, as then the calls are that it has made."
  (or (call-status call) (overdue-p call)))

(defun error-condition (call error)
  "The RPC-ERROR that ERROR, signalled by CALL's user code, ends the call with, or :RETRY."
  (cond ((and (typep error 'rpc-error) (not (of-another-call-p error call))) error)
        ((and (typep error 'rpc-error) (over-p call))
         (verdict-error :deadline-passed '()))
        (*debug-on-error* (debug-error error))
        (t (log-condition :error :handler-error error
                          :method (and (call-rpc-method call)
                                       (rpc-method-path (call-rpc-method call))))
           (verdict-error (if (heap-condition-p error) :no-memory :handler-error) '()
                          :cause error))))

(defun note-trouble (error)
  "User code has been left because of what ERROR, an RPC-ERROR, stands for; return ERROR."
  (when (typep (rpc-error-cause error) 'storage-condition) (os:protect-stack-end))
  error)

(defmacro with-user-code ((call) &body body)
  "Run BODY, user code of CALL: with CALL as the current call, and with the baton lent. Return nil,
or the RPC-ERROR that an error in BODY stands for. From the debugger BODY may be run once more."
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
                              ;; C-c is not an error: it is for the debugger
                              (unless (typep ,error 'sb-sys:interactive-interrupt)
                                (return-from ,block (error-condition ,call ,error))))))
                       (,function)
                       nil)))))
           (unless (eq :retry ,outcome)
             (return (and ,outcome (note-trouble ,outcome)))))))))
