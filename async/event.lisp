;;;; Timers for users: DELAY, INTERVAL, and events that are added by hand. Times count from the
;;;; beginning of the turn; an interval counts from its last due time, so that it does not drift.

(in-package #:clgrpc.async)

(defstruct (event (:include handle) (:constructor %make-event) (:conc-name %event-) (:copier nil))
  "A function that is called once, at a certain time, or every PERIOD-NS nanoseconds."
  (function nil :type callback)         ; a function without arguments
  (event-cb nil :type callback)         ; gets errors in FUNCTION
  (timer nil :type (or null timer))     ; nil until the event is added
  (period-ns 0 :type nanoseconds)       ; if 0, the event happens once each time it is added
  (freed nil :type boolean))            ; true once the event must not be added any more

(defun timeout-ns (seconds)
  (if seconds
      (seconds-ns (if (typep seconds '(real 0))
                      seconds
                      (misuse "~S is not a time in seconds." seconds)))
      0))

(defun event-timer (event)
  (or (%event-timer event)
      (setf (%event-timer event) (make-timer #'event-due event))))

(defun schedule-event (event ns)
  "Schedule EVENT for NS nanoseconds after the beginning of the turn."
  (let ((loop (handle-loop event)))
    (begin-use event)
    (loop:start-timer loop (event-timer event) (time-after ns (loop:event-loop-now loop)))))

(defun event-due (event)
  (if (plusp (%event-period-ns event))
      (schedule-again event)
      (end-event event))
  (with-callback (event (%event-event-cb event))
    (funcall (%event-function event))))

(defun schedule-again (event)
  "Schedule EVENT, which is due, again: one period later. Times that have passed already are
skipped."
  (let* ((loop (handle-loop event))
         (timer (%event-timer event))
         (period (%event-period-ns event))
         (late (max 0 (- (loop:event-loop-now loop) (timer-due-ns timer)))))
    (loop:start-timer loop timer (+ (timer-due-ns timer) (* period (1+ (floor late period)))))))

(defun end-event (event)
  (loop:stop-timer (handle-loop event) (%event-timer event))
  (end-use event))

(defun delay (function &key time event-cb (loop *event-loop*))
  "Call FUNCTION, without arguments, on LOOP in TIME seconds, a real; if TIME is nil, as soon as
possible, but not before this function returns. EVENT-CB gets errors in FUNCTION, if the loop sends
errors to event callbacks. Return the event, for CANCEL. From any thread."
  (let ((event (make-event function :event-cb event-cb :loop loop)))
    (add-event event :timeout time)
    event))

(defmacro with-delay ((&optional (seconds 0)) &body body)
  "Evaluate BODY on the event loop of this thread after SECONDS; see DELAY."
  `(delay (lambda () ,@body) :time ,seconds))

(defun interval (function &key time event-cb (loop *event-loop*))
  "Call FUNCTION, without arguments, on LOOP every TIME seconds, a positive real, for the first time
TIME seconds from now. Return two values: a function that ends the interval when it is called, or
given to CANCEL or REMOVE-INTERVAL; and the event. From any thread."
  (let ((period (timeout-ns time)))
    (unless (plusp period) (misuse "~S is not a time in seconds for an interval." time))
    (let ((event (%make-event :loop (the-loop loop) :function function :event-cb event-cb
                              :period-ns period)))
      (add-event event :timeout time)
      (values (lambda () (cancel event)) event))))

(defmacro with-interval ((seconds) &body body)
  "Evaluate BODY on the event loop of this thread every SECONDS; see INTERVAL."
  `(interval (lambda () ,@body) :time ,seconds))

(defun remove-interval (function)
  "End the interval for which INTERVAL has returned FUNCTION. From any thread."
  (cancel function))

(defun make-event (function &key event-cb (loop *event-loop*))
  "Return an event of LOOP. ADD-EVENT schedules the event; FUNCTION is called when it is due. From
any thread."
  (%make-event :loop (the-loop loop) :function function :event-cb event-cb))

(defun add-event (event &key timeout activate)
  "Schedule EVENT for TIMEOUT seconds from now, a real, or, if TIMEOUT is nil, as soon as possible.
An EVENT that is scheduled already is scheduled for the new time instead. ACTIVATE is accepted, as
in cl-async, and has no effect. From any thread."
  (declare (ignore activate))
  (when (%event-freed event) (misuse "~A has been freed." event))
  (let ((loop (handle-loop event)) (ns (timeout-ns timeout)))
    (on-loop (loop) (schedule-event event ns))
    t))

(defun remove-event (event)
  "Take EVENT off the schedule; it may be added again. From any thread."
  (let ((loop (handle-loop event)))
    (on-loop (loop) (end-event event))
    t))

(defun free-event (event)
  "End EVENT: its function is not called any more. From any thread."
  (setf (%event-freed event) t)
  (cancel event)
  t)

(defun event-freed-p (event)
  "True if FREE-EVENT was called with EVENT. From any thread."
  (%event-freed event))

(defmethod cancel ((event event) &optional text)
  (declare (ignore text))
  (end-handle event #'end-event))
