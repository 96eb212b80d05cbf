;;;; Interceptors: functions around calls, for what all methods have in common. A server's are
;;;; called around its handlers, where these run; a channel's around its stubs, in the caller's
;;;; thread. The first of a list is the outermost. What they do not see by that, the messages of
;;;; streams and the ends of calls that outlive their handler or stub, they learn by FILTER-MESSAGES
;;;; and ON-END (verb.lisp).
;;;;
;;;; A server or channel without interceptors pays nothing for them: channels with interceptors or
;;;; call credentials are of a class of their own, a subclass of INTERCEPTION, so that calls on
;;;; others do not even look for them.

(in-package #:clgrpc.rpc)

(defun check-interceptors (interceptors)
  "Return INTERCEPTORS, a list of functions or their names; signal MISUSE if it is none."
  (unless (and (listp interceptors)
               (every (lambda (item) (typep item '(or function (and symbol (not null)))))
                      interceptors))
    (misuse "Interceptors are a list of functions, not ~S." interceptors))
  interceptors)
