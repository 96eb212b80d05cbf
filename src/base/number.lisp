;;;; Numbers from outside: from a peer, a resolver, a service config, a user's function. SBCL traps
;;;; overflow, division by zero and invalid operations, and a comparison with a NaN is invalid. A
;;;; number from outside may be infinite or a NaN, and then computations with it may signal errors
;;;; anywhere. Hence the rule: the code that reads such a number checks that it is finite and moves
;;;; it into a range; this range makes later computations with the number safe.

(in-package #:clgrpc.base)

(declaim (inline finite-p))
(defun finite-p (number)
  "True if NUMBER, a real, is neither an infinity nor a NaN."
  (not (and (floatp number)
            (or (sb-ext:float-infinity-p number) (sb-ext:float-nan-p number)))))

(defun clamp (number least most)
  "Return NUMBER, a real, moved into the range from LEAST to MOST; nil for LEAST or MOST means no
limit. Return nil if NUMBER is an infinity or a NaN."
  (and (finite-p number)
       (let ((number (if least (max least number) number)))
         (if most (min most number) number))))
