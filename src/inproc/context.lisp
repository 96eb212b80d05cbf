;;;; Whose code runs. Caller and handler share a thread, but not their dynamic context. A handler
;;;; sees neither the condition handlers nor the restarts of its caller; the body of a caller's
;;;; DO-MESSAGES sees none of the handler that runs it by sending. *CALL*, and with it the deadline
;;;; that nested calls inherit, changes likewise. The outermost restarts of a thread stay: those
;;;; that return to the top level, or end the thread.

(in-package #:clgrpc.inproc)

(define-hot (outermost :inline t) ((clusters list)) list
  "The last of CLUSTERS, as a list."
  (loop for rest on clusters
        unless (cdr rest) return rest))

(defmacro with-context ((&key handlers restarts (call nil call-p)) &body body)
  "Evaluate BODY with these condition handlers, restarts and current call."
  `(let ((sb-kernel:*handler-clusters* ,handlers)
         (sb-kernel:*restart-clusters* ,restarts)
         ,@(when call-p `((*call* ,call))))
     ,@body))

(defmacro with-clean-context (() &body body)
  "Evaluate BODY, user code of the other end, without the context of the end that runs now."
  `(with-context (:handlers (outermost sb-kernel:*handler-clusters*)
                  :restarts (outermost sb-kernel:*restart-clusters*))
     ,@body))

(defmacro with-consumer-context ((consumer) &body body)
  "Evaluate BODY, user code of CONSUMER, in CONSUMER's context."
  (let ((variable (gensym "CONSUMER")))
    `(let ((,variable ,consumer))
       (with-context (:handlers (consumer-handlers ,variable)
                      :restarts (consumer-restarts ,variable)
                      :call (consumer-call ,variable))
         ,@body))))

(defmacro this-context (function)
  "A CONSUMER of FUNCTION with the current context."
  `(make-consumer ,function sb-kernel:*handler-clusters* sb-kernel:*restart-clusters* *call*))
