;;;; The log: events as data, handed to one function of the user's choice. The library prints
;;;; nothing by itself. Logging must never be the reason why something fails, so errors in that
;;;; function are swallowed, and so is what it logs itself.

(in-package #:clgrpc.base)

(declaim (type (or null symbol function) *log-function*))
(defvar *log-function* nil
  "NIL, or a function that is called as (FUNCTION LEVEL EVENT &rest PLIST) with each event, in
whatever thread it happens, at times an event loop's, so it should be quick. LEVEL is :debug, :info,
:warning or :error, EVENT a keyword, PLIST what is known about it. Set it globally; a binding
reaches one thread only.")

(defun log-event (level event &rest plist)
  "Tell *LOG-FUNCTION*, if there is one, of EVENT. Return nothing; never signal. From any thread."
  (let ((function *log-function*))
    (when function
      (let ((*log-function* nil))
        (handler-case (apply function level event plist)
          (serious-condition () nil)))))
  (values))

(defun log-condition (level event condition &rest plist)
  "LOG-EVENT with :condition and, as text, the :backtrace of the point where it is called: from
within a HANDLER-BIND, that is where CONDITION was signalled."
  (when *log-function*
    (apply #'log-event level event
           :condition condition
           :backtrace (ignore-errors
                       (with-output-to-string (stream)
                         (sb-debug:print-backtrace :stream stream :count 60)))
           plist)))
