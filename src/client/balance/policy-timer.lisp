;;;; Timers of balancers, on their channel's loop.

(in-package #:clgrpc.balance)

(defconstant +least-period-ns+ (floor +ns-per-second+ 10)
  "The minimum period of repeated actions of policies, in nanoseconds, regardless of the config.")

(defun start-policy-timer (balancer ns function)
  "Call FUNCTION with BALANCER in NS nanoseconds, on the loop, and again after an error; return the
timer."
  (let* ((loop (client:core-loop (balancer-core balancer)))
         (timer (loop:make-lasting-timer loop function balancer)))
    (loop:start-timer loop timer (time-after ns (balancer-now balancer)))
    timer))

(defun stop-policy-timer (balancer timer)
  "Stop TIMER, or nil."
  (loop:stop-timer (client:core-loop (balancer-core balancer)) timer))
