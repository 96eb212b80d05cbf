;;;; Errors in functions that a loop calls never end the loop. Code that calls a function that other
;;;; code has given, such as that of a listener, a watcher, a timer or a balancer, calls it in
;;;; GUARDING. An error is then logged with its backtrace and unwinds the function; the caller
;;;; continues, or makes the error the outcome of its call. The phases of a turn are guarded as
;;;; well, for functions that have no guard of their own.
;;;;
;;;; A peer may cause the same error with each message. So each use of GUARDING logs at most
;;;; +LOGGED-ERRORS+ errors in a second; the next logged error says how many were not logged
;;;; (:unlogged). In a simulated world each error is logged: those seconds are the machine's, and
;;;; the events of a simulation must not depend on the machine's speed.

(in-package #:clgrpc.loop)

(defvar *unguarded* nil
  "The condition that is being signalled to the handlers outside of all GUARDING forms, or nil.")

(defconstant +logged-errors+ 10
  "The maximum number of errors that each place logs in a second.")

(defstruct (errors (:constructor make-errors ()) (:copier nil))
  "The counts of errors that a place has logged lately. If several threads change this structure at
once, a count may be lost."
  (since-ns 0 :type nanoseconds)        ; the beginning of the second in which LOGGED counts
  (logged 0 :type fixnum)               ; how many conditions were logged since SINCE-NS
  (unlogged 0 :type fixnum))            ; how many conditions were not logged since the last logged
                                        ; one

(declaim (sb-ext:freeze-type errors))

(define-printer (errors errors)
  "~D logged, ~D not" (errors-logged errors) (errors-unlogged errors))

(defun log-guarded (errors event condition plist)
  "Log EVENT with CONDITION and PLIST, unless the place of ERRORS has reached +LOGGED-ERRORS+."
  (flet ((note (plist) (apply #'log-condition :error event condition plist)))
    (let ((now (monotonic-ns)))
      (when (>= now (+ (errors-since-ns errors) +ns-per-second+))
        (setf (errors-since-ns errors) now
              (errors-logged errors) 0))
      (cond ((simulated-p) (note plist))
            ((< (errors-logged errors) +logged-errors+)
             (incf (errors-logged errors))
             (let ((unlogged (shiftf (errors-unlogged errors) 0)))
               (note (if (zerop unlogged) plist (list* :unlogged unlogged plist)))))
            (t (incf (errors-unlogged errors))))
      nil)))

(defun guarded-p (condition)
  "True if a guard against errors handles CONDITION. A guard does not handle C-c, which is for the
debugger, nor a condition that is signalled for handlers outside of the guard."
  (not (or (eq condition *unguarded*)
           (typep condition 'sb-sys:interactive-interrupt))))

(defmacro with-guard ((condition &rest actions) &body body)
  "Do BODY and return its value and NIL. If BODY signals a serious condition and does not handle it,
evaluate ACTIONS at the point of the signal, with CONDITION bound to the condition; leave BODY, and
return NIL and the condition."
  (let ((block-name (gensym "GUARDED")))
    `(block ,block-name
       (handler-bind ((serious-condition
                        (lambda (,condition)
                          (when (guarded-p ,condition)
                            ,@actions
                            (return-from ,block-name (values nil ,condition))))))
         (values (progn ,@body) nil)))))

(defun pass-timeout (timeout)
  "Signal TIMEOUT, an SB-EXT:TIMEOUT, to the handlers outside of all guards; return if no handler
takes it."
  (let ((*unguarded* timeout)) (signal timeout)))

(defmacro passing-timeouts (&body body)
  "Do BODY, a user's function within a guard, and return its values. The time of a WITH-TIMEOUT
around the thread's code may end meanwhile, which is not an error of the function. Therefore the
timeout is signalled to the handlers outside of all guards, and counts as an error only if none of
them handles it."
  `(handler-bind ((sb-ext:timeout #'pass-timeout)) ,@body))

(defmacro guarding ((event &rest plist) &body body)
  "Do BODY and return its value and NIL. If BODY signals an error and does not handle it, log EVENT
with PLIST, leave BODY, and return NIL and the condition."
  `(with-guard (condition
                (log-guarded (load-time-value (make-errors)) ,event condition (list ,@plist)))
     ,@body))

(declaim (type options **default-options**))
(defglobal **default-options** (make-options)
  "The options that are used if none are given.")
