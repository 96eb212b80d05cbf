;;;; The timers of a call: the timer of its deadline, and the timers of AFTER. All these timers stop
;;;; at the call's end.

(in-package #:clgrpc.wire)

(defun deadline-passed (call)
  "End CALL if it runs. This is the function of the timer for CALL's deadline."
  (abort-as call :deadline-passed))

(define-hot schedule-deadline ((call wire-call)) null
  "Start the timer that ends CALL when its deadline passes. On the loop."
  (let ((timer (make-timer #'deadline-passed call)))
    (setf (wire-parts-timer (ensure-wire-parts call)) timer)
    (loop:start-timer (wire-call-loop call) timer (call-deadline call)))
  nil)

(define-hot (start-deadline :inline t) ((call wire-call)) null
  "Start the timer for CALL's deadline, if it has one. On the loop."
  (when (plusp (call-deadline call)) (schedule-deadline call))
  nil)

(define-hot stop-timers-of ((call wire-call) (parts wire-parts)) null
  "Stop the timers of CALL; PARTS are CALL's parts."
  (let ((loop (wire-call-loop call))
        (callbacks (the (or null wire-callbacks) (wire-parts-callbacks parts))))
    (when (wire-parts-timer parts)
      (loop:stop-timer loop (shiftf (wire-parts-timer parts) nil)))
    (when callbacks
      (dolist (timer (shiftf (wire-callbacks-timers callbacks) '()))
        (loop:stop-timer loop timer))))
  nil)

(define-hot (note-end :inline t) ((call wire-call)) null
  "Prepare for the end of CALL in this turn: queue the messages that have arrived, and stop its
timers. Timers are stopped now because a peer that makes and cancels calls all the time would
otherwise fill the wheel with timers that are due much later."
  (seal-batch call)
  (mark-call call :end)
  (let ((parts (call-wire-parts call)))
    (when parts (stop-timers-of call parts)))
  nil)

(defun wire-after (call seconds function)
  "The operation AFTER."
  (let ((due (deadline-in (seconds-ns seconds) (operate now call)))
        (loop (wire-call-loop call))
        (timer nil))
    (flet ((ring (call)
             (let ((callbacks (ensure-wire-callbacks call)))
               (setf (wire-callbacks-timers callbacks)
                     (delete timer (wire-callbacks-timers callbacks))
                     (wire-callbacks-due callbacks)
                     (append (wire-callbacks-due callbacks) (list function)))
               (wire-schedule call))))
      (setf timer (make-timer #'ring call))
      (wire-post call (lambda ()
                        (unless (call-status call)
                          (push timer (wire-callbacks-timers (ensure-wire-callbacks call)))
                          (loop:start-timer loop timer due))))))
  nil)
