;;;; Timers of balancers, on their channel's loop.

(in-package #:clgrpc.balance)

(defconstant +least-period-ns+ (floor +ns-per-second+ 10)
  "What a config has done again and again is not done more often, whatever the config says.")

(defun start-timer (balancer ns function)
  "Have FUNCTION called with BALANCER in NS nanoseconds, on the loop, and after an error again;
return the timer."
  (let* ((loop (client:core-loop (balancer-core balancer)))
         (timer (loop:make-lasting-timer loop function balancer)))
    (schedule-timer (loop:event-loop-wheel loop) timer (time-after ns (balancer-now balancer)))
    timer))

(defun stop-timer (balancer timer)
  "TIMER, which may be nil, is not to call anything any more."
  (when (and timer (timer-pending-p timer))
    (cancel-timer (loop:event-loop-wheel (client:core-loop (balancer-core balancer))) timer)))
