;;;; The watchdog's wake-up: the watchdog (watchdog.lisp) sleeps while no baton moves, and a thread
;;;; that moves one wakes it with these functions.

(in-package #:clgrpc.loop)

(declaim (type boolean **watchdog-asleep**) (type nanoseconds **next-look-ns**))
(defglobal **watchdog-asleep** nil
  "True while the watchdog sleeps until a baton moves.")
(defglobal **next-look-ns** 0
  "The time of the watchdog's next check of the loops, until which it sleeps; 0 during the check.")

(defglobal **watchdog-lock** (sb-thread:make-mutex :name "clgrpc watchdog")
  "The lock that guards the data of the watchdog.")
(defglobal **watchdog-waitqueue** (sb-thread:make-waitqueue :name "clgrpc watchdog"))

(defun wake-watchdog ()
  (sb-thread:with-mutex (**watchdog-lock**)
    (setf **watchdog-asleep** nil)
    (sb-thread:condition-notify **watchdog-waitqueue**))
  nil)
