;;;; Futures: values that come later. The code that produces the value makes a future and settles
;;;; it, once; other code waits for the future, or attaches functions to it. A future is any object
;;;; that has COMPLETIONS: the attached functions, newest first, or :DONE once these begin to run.
;;;; The futures made here, by MAKE-FUTURE, ALL and ANY, are PROMISES. A call of gRPC is another
;;;; kind of future (calling/call-async.lisp): the call itself, so that no further object is needed.
;;;;
;;;; At first the slot VALUE of a promise holds the function that CANCEL calls, or nil. The thread
;;;; that settles the promise sets VALUE by a compare-and-swap; from then on VALUE holds a list of
;;;; values, or a condition in place of the values. VALUE is written before COMPLETIONS, so a thread
;;;; that sees :DONE sees the value.

(in-package #:clgrpc.loop)

(defgeneric cancel (thing &optional text)
  (:documentation "End THING early. THING is a call, a future, or a handle that DELAY, INTERVAL,
TCP-SERVER, TCP-CONNECT, IDLE, POLL, MAKE-NOTIFIER or SIGNAL-HANDLER of CLGRPC.ASYNC returned. If it
is a function, such as the value of INTERVAL, the function is called. Calls and futures end with a
condition that has TEXT. If THING has already ended, nothing happens. Signal MISUSE for any other
object. From any thread.")
  (:method ((thing function) &optional text)
    (declare (ignore text))
    (funcall thing)
    nil)
  (:method (thing &optional text)
    (declare (ignore text))
    (misuse "~S is neither a call nor a future: CANCEL takes the value of CALL-ASYNC or of a ~
             streaming stub, for example." thing)))

(defstruct (future (:constructor nil) (:copier nil))
  "A value that will be available later. See MAKE-FUTURE.")

(deftype completions ()
  "A list of the functions and ATTACHED-FUNCTIONs of a future, newest first, or :DONE once they
begin to run."
  '(or list (eql :done)))

(defstruct (attached-function (:conc-name attached-)
                              (:constructor make-attached-function (function counts))
                              (:copier nil))
  "A function that ATTACH-FOR has attached to a future."
  (function nil :type (or null function)) ; nil once the function runs or is not needed any more
  ;; (ALL . LEFT), counts of all such functions of a future: how many it has, and how many of these
  ;; are not needed any more; both may be a little wrong
  (counts '(0 . 0) :type cons :read-only t))

(defgeneric future-completions (future)
  (:documentation "The COMPLETIONS of FUTURE. From any thread.")
  (:method ((future future)) '())
  (:method (future)
    (misuse "~S is not a future, such as the value of CALL-ASYNC." future)))

(defgeneric swap-completions (future old new)
  (:documentation "If the completions of FUTURE are OLD, replace them by NEW and return true;
otherwise return false. From any thread."))

(defmacro define-completions ((future type) place)
  "Define PLACE as the place where a FUTURE of TYPE, a symbol, keeps its COMPLETIONS."
  `(progn
     (defmethod future-completions ((,future ,type))
       ,place)
     (defmethod swap-completions ((,future ,type) old new)
       (eq old (compare-and-swap ,place old new)))))

(defstruct (promise (:include future) (:constructor make-promise (&optional value)) (:copier nil))
  "See MAKE-FUTURE."
  (completions '() :type completions)   ; functions to call, or :done
  ;; before the future is settled: nil, or the function that CANCEL calls; afterwards (:values .
  ;; VALUES), or the condition with which the future was rejected
  (value nil))

(define-completions (promise promise) (promise-completions promise))

(define-condition future-cancelled (clgrpc-error)
  ((text :initarg :text :reader future-cancelled-text)) ; the reason, an argument of CANCEL
  (:report (lambda (condition stream)
             (format stream "The future was ~A." (future-cancelled-text condition))))
  (:documentation "A future will not get a value, because CANCEL was called."))

(define-condition await-timeout (clgrpc-error)
  ((future :initarg :future :reader await-timeout-future)) ; the future that was awaited
  (:report (lambda (condition stream)
             (format stream "~A was not settled in time." (await-timeout-future condition))))
  (:documentation "A future was not settled in time; it may still be settled later."))

(document-functions
  future-cancelled-text "The reason given to CANCEL, as text."
  await-timeout-future "The future that was awaited.")

(defmethod print-object ((promise promise) stream)
  (print-unreadable-object (promise stream :type t :identity t)
    (let ((value (promise-value promise)))
      (write-string (cond ((not (future-done-p promise)) "pending")
                          ((consp value) "done")
                          (t (princ-to-string (type-of value))))
                    stream))))

(defun make-future (&key on-cancel)
  "Return a future, to be settled by RESOLVE-FUTURE or REJECT-FUTURE. If CANCEL ends the future,
CANCEL calls (ON-CANCEL), which should stop the work for its value. From any thread."
  (make-promise on-cancel))

(defgeneric future-done-p (future)
  (:documentation "True if FUTURE has its value, or will never have one. From any thread.")
  (:method ((future future)) (eq :done (future-completions future))))

;;; Settling

(defun settle-future (future value &key cancel)
  "If FUTURE has no value yet, set it to VALUE, call the functions attached to FUTURE and, if CANCEL
is true, the ON-CANCEL of FUTURE. Return true if FUTURE had no value."
  (loop
    (let ((old (promise-value future)))
      (unless (or (null old) (functionp old)) (return nil))
      ;; A thread that is unwound between these two steps would leave others waiting for ever. So
      ;; interrupts are on only in users' functions.
      (when (sb-sys:without-interrupts
              (when (eq old (compare-and-swap (promise-value future) old value))
                (unwind-protect (sb-sys:allow-with-interrupts (run-completions future))
                  (when (and cancel old)
                    (sb-sys:allow-with-interrupts
                      (sb-sys:with-interrupts (funcall (the function old))))))
                t))
        (return t)))))

(defun resolve-future (future &rest values)
  "Settle FUTURE with VALUES. If it is settled already, return false and do nothing. From any
thread; attached functions run in that thread."
  (settle-future future (cons :values values)))

(defun reject-future (future condition)
  "Settle FUTURE with CONDITION, an error, in place of a value. If it is settled already, return
false and do nothing. From any thread; attached functions run in that thread."
  (check-type condition condition)
  (settle-future future condition))

(defmethod cancel ((promise promise) &optional (text "cancelled"))
  (settle-future promise (make-condition 'future-cancelled :text text) :cancel t)
  nil)

(defun function-of (completion)
  "The function of COMPLETION, a function or an ATTACHED-FUNCTION; nil if that is no longer needed."
  (if (attached-function-p completion) (shiftf (attached-function completion) nil) completion))

(defun run-each-completion (future completions)
  "Call the functions of COMPLETIONS, a list, with the outcome of FUTURE. Call all of them, even if
a function exits non-locally."
  (unwind-protect (loop while completions
                        do (let ((function (function-of (pop completions))))
                             (when function (run-completion future function))))
    (when completions (run-each-completion future completions))))

(defun run-completions (future)
  "Call the functions attached to FUTURE, which is settled, in the order in which they were
attached."
  (loop for old = (future-completions future)
        until (swap-completions future old :done)
        finally (run-each-completion future (reverse old))))

(defgeneric future-outcome (future)
  (:documentation "Return two values: the value of FUTURE, which must be settled, and nil; or nil
and its condition.")
  (:method ((future future))
    (handler-case (values (future-values future nil) nil)
      ((or error storage-condition) (condition) (values nil condition))))
  ;; without signalling the condition, which may be of any type
  (:method ((promise promise))
    (let ((value (promise-value promise)))
      (if (consp value)
          (values (second value) nil)
          (values nil value)))))

(defun call-with-outcome (future function)
  "Call FUNCTION with the value of FUTURE, which must be settled, and nil, or with nil and its
condition."
  (declare (type function function))
  (multiple-value-call function (future-outcome future)))

;;; A function attached to one future may settle another one, whose functions settle a third, and so
;;; on. Each of these futures takes some of the control stack. Once half of the stack is used, the
;;; functions are postponed: they run when the outermost function has returned, or when this thread
;;; is about to wait for a future.

(declaim (type (or null fifo (eql :none)) *postponed*))
(defvar *postponed* nil
  "While this thread runs functions attached to futures: those that it has postponed, or :none.")

(defun run-postponed ()
  "Call the functions that this thread has postponed; call all of them, even if one is left by a
non-local exit."
  (let ((postponed *postponed*))
    (when (typep postponed 'fifo)
      (unwind-protect (loop for function = (dequeue postponed)
                            while function do (funcall (the function function)))
        (when (fifo-items postponed) (run-postponed))))))

(defun run-attached (future function)
  "Do the work of RUN-COMPLETION now, on this thread."
  (guarding (:completion-error :future future)
    (passing-timeouts (call-with-outcome future function))))

(defgeneric run-completion (future function)
  (:documentation "Call FUNCTION with the outcome of FUTURE, which is settled, on a thread that may
run users' functions.")
  (:method ((future future) function)
    (cond ((null *postponed*)
           (let ((*postponed* :none))
             (unwind-protect (run-attached future function)
               (run-postponed))))
          ((os:stack-half-used-p)
           (enqueue (lambda () (run-attached future function))
                    (if (typep *postponed* 'fifo)
                        *postponed*
                        (setf *postponed* (make-fifo)))))
          (t (run-attached future function)))))

;;; Using the value

(declaim (type (or null function) **carrier**))
(defglobal **carrier** nil
  "Nil, or a function that wraps each function attached to a future, so that the attached function
runs in the context, such as tracing's, in which it was attached.")

(defun carried (function)
  "Return FUNCTION, wrapped by the carrier if there is one."
  (if **carrier** (funcall (the function **carrier**) function) function))

(defun add-unless-settled (future function)
  "Attach FUNCTION to FUTURE and return true; return false if FUTURE is settled."
  (loop for old = (future-completions future)
        until (eq :done old)
          thereis (swap-completions future old (cons function old))))

(defun add-completion (future function)
  "Attach FUNCTION to FUTURE as ATTACH does, but without the current context."
  (unless (add-unless-settled future function)
    (run-completion future function))
  future)

(defun detach (future function)
  "Undo ADD-COMPLETION, unless FUTURE is settled."
  (loop for old = (future-completions future)
        until (or (eq :done old)
                  (swap-completions future old (remove function old)))))

(defun completion-on (loop future function)
  "Return a completion of FUTURE that calls FUNCTION on LOOP. Signal MISUSE if LOOP is not an event
loop or has stopped."
  (unless (event-loop-p loop) (misuse ":ON of ATTACH is an event loop, not ~S." loop))
  (when (eq :stopped (event-loop-state loop)) (misuse "~A has stopped." loop))
  (lambda (value error)
    (unless (post loop (lambda () (funcall function value error)))
      (log-event :warning :completion-not-called :future future :loop loop))))

(define-keyword-function attach (future function &key on)
  "Call (FUNCTION value error) when FUTURE is settled, or at once if it is settled already. ERROR is
nil or, if FUTURE was rejected, its condition; the value is nil then. FUNCTION runs on the loop ON
if ON is given; if ON has stopped by then, FUNCTION is not called, and the event
completion-not-called is logged. Without ON, FUNCTION runs on a reserve thread if FUTURE is a call,
else on the thread that settles FUTURE. If attached functions settle futures whose functions settle
others, and so on, until half of the control stack is used, the further functions run once the first
one has returned. Return FUTURE. Signal MISUSE if ON has stopped, or for wrong arguments. From any
thread."
  (unless (or (functionp function)
              (and function (symbolp function) (fboundp function)))
    (misuse "ATTACH takes a future and a function of its value and its error, not ~S." function))
  (let* ((function (carried function))
         (function (if on
                       (completion-on on future function)
                       (lambda (value error)
                         (sb-sys:with-interrupts (funcall function value error))))))
    (add-completion future function)))

(defun sweep-attached (future counts)
  "Drop those ATTACHED-FUNCTIONs of FUTURE that are no longer needed, and update their COUNTS."
  (flet ((left-p (completion)
           (and (attached-function-p completion) (null (attached-function completion)))))
    (loop for old = (future-completions future)
          for new = (if (eq :done old) old (remove-if #'left-p old))
          until (or (eq :done old) (swap-completions future old new))
          finally (unless (eq :done old)
                    (setf (car counts) (count-if #'attached-function-p new)
                          (cdr counts) 0)))))

(defgeneric leave-future (giver future attached)
  (:documentation "Release ATTACHED, which ATTACH-FOR has attached to FUTURE and which is no longer
needed. GIVER has returned FUTURE. From any thread.")
  ;; FUTURE may have very many functions, each of which may be released. So a release only empties a
  ;; place, and all empty places are removed when half of the places are empty
  (:method (giver future attached)
    (declare (ignore giver))
    (when (shiftf (attached-function attached) nil)
      (let* ((counts (attached-counts attached))
             (left (1+ (atomic-incf (cdr counts)))))
        (when (<= (car counts) (* 2 left)) (sweep-attached future counts))))))

(defun attach-for (giver future function)
  "ATTACH FUNCTION to FUTURE, which GIVER has returned. Return a function that detaches FUNCTION by
LEAVE-FUTURE; otherwise FUTURE would keep FUNCTION until it is settled."
  (let* ((function (carried function))
         (completions (future-completions future))
         (other (and (listp completions) (find-if #'attached-function-p completions)))
         (counts (if other (attached-counts other) (cons 0 0)))
         (attached (make-attached-function function counts)))
    (atomic-incf (car counts))
    (unless (add-unless-settled future attached)
      (run-completion future function))
    (lambda () (leave-future giver future attached))))

(defun await-settlement (future timeout-seconds)
  "Wait until FUTURE is settled. If TIMEOUT-SECONDS is not nil, signal AWAIT-TIMEOUT after that
time."
  (unless (future-done-p future) (run-postponed)) ; one of these functions may settle FUTURE
  (unless (future-done-p future)
    (unless (prepare-to-wait) (misuse "This thread runs a loop, and must not wait for ~A." future))
    (let* ((settled (sb-thread:make-semaphore :name "clgrpc future"))
           (wake (lambda (value error)
                   (declare (ignore value error))
                   (sb-thread:signal-semaphore settled))))
      ;; if RUN-COMPLETION called WAKE here, a user's time-out would not reach this thread
      (unwind-protect
           (unless (or (not (add-unless-settled future wake))
                       (await-semaphore settled :timeout-seconds timeout-seconds))
             (error 'await-timeout :future future))
        (detach future wake)))))

(defgeneric future-values (future timeout)
  (:documentation "See AWAIT.")
  (:method ((promise promise) timeout)
    (await-settlement promise timeout)
    (let ((value (promise-value promise)))
      (if (consp value)
          (values-list (rest value))
          (error value))))
  (:method (future timeout)
    (declare (ignore timeout))
    (misuse "~S is not a future: AWAIT takes the value of CALL-ASYNC, for example." future)))

(define-keyword-function await (future &key timeout)
  "Wait until FUTURE is settled; return its values (the values of a call are its reply and the
call), or signal its error. Signal AWAIT-TIMEOUT if the wait takes longer than TIMEOUT seconds; nil,
the default, means no limit. The time-out of a call also ends the wait for the call. AWAIT may be
called again for the same FUTURE. Signal MISUSE if FUTURE is not a future, and for other wrong
arguments. From any thread that does not run a loop."
  (unless (typep timeout '(or null real))
    (misuse ":timeout of AWAIT is a number of seconds or nil, not ~S." timeout))
  (future-values future timeout))

;;; Several

(defun cancel-each (futures)
  "Cancel all of FUTURES, a list, even if the ON-CANCEL of one of them fails."
  (unwind-protect (loop while futures do (cancel (pop futures)))
    (when futures (cancel-each futures))))

(defun add-completions (whole futures functions)
  "Attach to each of FUTURES the element of FUNCTIONS in the same position. Detach these functions
when WHOLE, a future, is settled, because a future that stays unsettled would otherwise keep its
function."
  (mapc #'add-completion futures functions)
  (flet ((leave (value error)
           (declare (ignore value error))
           (mapc #'detach futures functions)))
    (unless (add-unless-settled whole #'leave)
      (leave nil nil)))
  whole)

(defun all (futures)
  "Return a future of the list of the first values of FUTURES, a sequence, in the same order. The
future is rejected with the first error of any of FUTURES. Cancelling the new future cancels
FUTURES. From any thread."
  (let* ((futures (coerce futures 'list))
         (values (make-list (length futures)))
         (left (list (length futures)))
         (whole (make-future :on-cancel (lambda () (cancel-each futures)))))
    (when (null futures) (resolve-future whole '()))
    (flet ((keeper (place)
             (lambda (value error)
               (cond (error (reject-future whole error))
                     (t (setf (first place) value)
                        (when (= 1 (atomic-decf (car left)))
                          (resolve-future whole values)))))))
      (add-completions whole futures (maplist #'keeper values)))))

(defun any (futures)
  "Return a future of the first value that any of FUTURES, a sequence, gets. The future is rejected,
with the last error, if all of FUTURES are rejected. The other futures continue; cancelling the
returned future cancels all of them. Signal MISUSE if FUTURES is empty. From any thread."
  (let* ((futures (coerce futures 'list))
         (left (list (length futures)))
         (whole (make-future :on-cancel (lambda () (cancel-each futures)))))
    (unless futures (misuse "ANY takes at least one future."))
    (flet ((settle (value error)
             (cond ((null error) (resolve-future whole value))
                   ((= 1 (atomic-decf (car left))) (reject-future whole error)))))
      (add-completions whole futures (make-list (length futures) :initial-element #'settle)))))

(defun settle-by-call (future function)
  "Call FUNCTION, and settle FUTURE with its values or with the error that it signals. If FUNCTION
exits non-locally, settle FUTURE with an error that reports this exit."
  (unwind-protect
       (multiple-value-bind (values condition)
           (with-guard (condition)
             (passing-timeouts (multiple-value-list (funcall function))))
         (if condition
             (reject-future future condition)
             (apply #'resolve-future future values)))
    (cancel future "left by a non-local exit"))) ; does nothing if the future is settled

(defun call-in-loop (loop function)
  "Call FUNCTION, without arguments, on LOOP; return a future of its values. An error in FUNCTION
rejects the future. Signal MISUSE if LOOP has stopped. From any thread."
  (let ((future (make-future)))
    (unless (post loop
                  (lambda ()
                    (unless (future-done-p future) (settle-by-call future function))))
      (misuse "~A has stopped." loop))
    future))

(defun call-and-wait (loop function timeout-seconds otherwise)
  "Call FUNCTION, without arguments, on LOOP, at once if this thread may run LOOP. Wait until
FUNCTION has returned; return its values, or signal the error that it signalled. If LOOP has
stopped, call OTHERWISE with :stopped instead and return its values. Call OTHERWISE with :late after
TIMEOUT-SECONDS, or if this thread must not wait. From any thread."
  (declare (type function otherwise))
  (let ((future (make-future)))
    (cond ((not (run-or-post loop (lambda () (settle-by-call future function))))
           (funcall otherwise :stopped))
          ((or (future-done-p future)
               (and (prepare-to-wait)
                    (handler-case (progn (await-settlement future timeout-seconds) t)
                      (await-timeout () nil))))
           (await future))
          (t (funcall otherwise :late)))))
