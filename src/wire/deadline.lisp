;;;; The timers of a call: its deadline, and those of AFTER.

(in-package #:clgrpc.wire)

(defun deadline-passed (call)
  "The function of the timer for CALL's deadline: end CALL if it runs."
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

(defun shorten-deadline (call deadline)
  "Change CALL's deadline to DEADLINE, unless its own is earlier. Return true if it has changed;
then call START-DEADLINE. On the loop."
  (let ((own (call-deadline call))
        (parts (call-wire-parts call)))
    (when (or (zerop own) (< deadline own))
      (setf (call-deadline call) deadline)
      (when parts
        (loop:stop-timer (wire-call-loop call) (shiftf (wire-parts-timer parts) nil)))
      t)))

(define-hot stop-timers-of ((call wire-call) (parts wire-parts)) null
  "See STOP-TIMERS; PARTS are CALL's."
  (let ((loop (wire-call-loop call))
        (reactions (wire-parts-reactions parts)))
    (when (wire-parts-timer parts)
      (loop:stop-timer loop (shiftf (wire-parts-timer parts) nil)))
    (when reactions
      (dolist (timer (shiftf (reactions-timers reactions) '()))
        (loop:stop-timer loop timer))))
  nil)

(define-hot (stop-timers :inline t) ((call wire-call)) null
  "Stop the timers of CALL, which has ended. Otherwise a peer that makes and cancels calls without
end would fill the wheel with timers that are due much later."
  (let ((parts (call-wire-parts call)))
    (when parts (stop-timers-of call parts)))
  nil)

(defun wire-after (call seconds function)
  "The operation AFTER."
  (let ((due (deadline-in (seconds-ns seconds) (operate now call)))
        (loop (wire-call-loop call))
        (timer nil))
    (flet ((ring (call)
             (let ((reactions (ensure-reactions call)))
               (setf (reactions-timers reactions) (delete timer (reactions-timers reactions))
                     (reactions-due reactions) (append (reactions-due reactions)
                                                       (list function)))
               (wire-schedule call))))
      (setf timer (make-timer #'ring call))
      (wire-post call (lambda ()
                        (unless (call-status call)
                          (push timer (reactions-timers (ensure-reactions call)))
                          (loop:start-timer loop timer due))))))
  nil)
