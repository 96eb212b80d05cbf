;;;; Interceptors: functions around calls, for what all methods have in common. A server's are
;;;; called around its handlers, on the handlers' threads; a channel's around its stubs, on the
;;;; caller's thread. The first of a list is the outermost. FILTER-MESSAGES and ON-END (verb.lisp)
;;;; show them what they would not see otherwise: the messages of streams, and the ends of calls
;;;; that outlive their handler or stub.
;;;;
;;;; A server or channel without interceptors pays nothing for them: a channel with interceptors or
;;;; call credentials is of a class of its own, a subclass of INTERCEPTION, so that calls on other
;;;; channels do not even look for them.

(in-package #:clgrpc.rpc)

(defun check-interceptors (interceptors)
  "Return INTERCEPTORS, a list of functions or their names; signal MISUSE if it is none."
  (unless (and (listp interceptors)
               (every (lambda (item) (typep item '(or function (and symbol (not null)))))
                      interceptors))
    (misuse "Interceptors are a list of functions, not ~S." interceptors))
  interceptors)
