;;;; The dynamic context of user code. Caller and handler share a thread, but not their dynamic
;;;; context. The condition handlers and restarts of the caller are not visible in a handler. The
;;;; handler's bindings are not visible in the body of the caller's DO-MESSAGES, although the
;;;; handler runs that body when it sends. *CALL*, and with it the deadline that nested calls
;;;; inherit, changes in the same way. The outermost restarts of a thread remain visible: they
;;;; return to the top level, or end the thread.

(in-package #:clgrpc.inproc)

(define-hot (outermost :inline t) ((clusters list)) list
  "A list of the last one of CLUSTERS."
  (loop for rest on clusters
        unless (cdr rest) return rest))

(defmacro with-context ((&key handlers restarts (call nil call-p)) &body body)
  "Evaluate BODY with the condition handlers HANDLERS, with RESTARTS, and with CALL as *CALL*."
  `(let ((sb-kernel:*handler-clusters* ,handlers)
         (sb-kernel:*restart-clusters* ,restarts)
         ,@(when call-p `((*call* ,call))))
     ,@body))

(defmacro with-others-code ((call) &body body)
  "Run BODY, user code of CALL, as RPC:WITH-USER-CODE does, without the context of the end that runs
now; only timeouts are passed to the condition handlers of that context. A condition handler is
established at every moment, since an interruption of this thread may signal an error."
  (let ((handlers (gensym "HANDLERS")) (restarts (gensym "RESTARTS")) (clean (gensym "CLEAN"))
        (timeout (gensym "TIMEOUT")))
    `(let ((,handlers sb-kernel:*handler-clusters*)
           (,restarts sb-kernel:*restart-clusters*))
       (with-user-code (,call :pass-timeout (lambda (,timeout)
                                              (with-context (:handlers ,handlers
                                                             :restarts ,restarts)
                                                (loop:pass-timeout ,timeout))))
         (let ((,clean (cons (first sb-kernel:*handler-clusters*) (outermost ,handlers))))
           (declare (dynamic-extent ,clean))
           (with-context (:handlers ,clean :restarts (outermost ,restarts))
             ,@body))))))

(defmacro with-consumer-context ((consumer) &body body)
  "Evaluate BODY, user code of CONSUMER, in CONSUMER's context."
  (let ((variable (gensym "CONSUMER")))
    `(let ((,variable ,consumer))
       (with-context (:handlers (consumer-handlers ,variable)
                      :restarts (consumer-restarts ,variable)
                      :call (consumer-call ,variable))
         ,@body))))

(defmacro this-context (function)
  "A CONSUMER with FUNCTION and the current context."
  `(make-consumer ,function sb-kernel:*handler-clusters* sb-kernel:*restart-clusters* *call*))
