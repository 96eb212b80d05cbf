;;;; Interceptors: functions around calls, for the common tasks of methods. A server's interceptors
;;;; are called around its handlers, on the handlers' threads; a channel's interceptors around its
;;;; stubs, on the caller's thread. The first interceptor of a list is the outermost.
;;;; FILTER-MESSAGES and ON-END (messaging.lisp) show interceptors the messages of streams, and the
;;;; ends of calls that outlive their handler or stub. CALL-VALUE (call-value.lisp) carries the
;;;; results of interceptors to handlers. Interceptors of attempts are in attempt/attempt-view.lisp.
;;;;
;;;; An element of the list of interceptors may itself be a list: its first element is a service or
;;;; method, and the others are interceptors for this one only.
;;;;
;;;; A server or channel without interceptors has no cost from them. A route of a server has the
;;;; interceptors for its method. A channel with interceptors or call credentials has another class,
;;;; a subclass of INTERCEPTION, so that calls on other channels need not even check for
;;;; interceptors.

(in-package #:clgrpc.rpc)

(defun check-interceptors (interceptors)
  "Return INTERCEPTORS, a list of functions or their names, and of lists (WHERE . FUNCTIONS); signal
MISUSE for any other value. WHERE is the full name of a service, a string, or the symbol of a
method."
  (labels ((all-p (predicate object)
             (and (listp object) (every predicate object)))
           (interceptor-p (object)
             (typep object '(or function (and symbol (not null)))))
           (item-p (object)
             (or (interceptor-p object)
                 (and (typep object '(cons (or string (and symbol (not null))) cons))
                      (all-p #'interceptor-p (rest object))))))
    (unless (all-p #'item-p interceptors)
      (misuse "Interceptors are a list of functions, and of lists (SERVICE-OR-METHOD FUNCTION…), ~
               not ~S."
              interceptors))
    interceptors))

(defun for-method-p (where method)
  "True if WHERE, in a list of interceptors, names METHOD or its service."
  (if (stringp where)
      (string= where (rpc-method-service-name method))
      (eq where (rpc-method-function-name method))))

(defun interceptors-for (interceptors method)
  "The functions for METHOD in INTERCEPTORS, in CHECK-INTERCEPTORS's form; the outermost first."
  (if (every #'atom interceptors)
      interceptors
      (loop for item in interceptors
            if (atom item) collect item
              else when (for-method-p (first item) method) append (rest item))))
