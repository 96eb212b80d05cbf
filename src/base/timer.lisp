;;;; Timers: a hierarchical hashed wheel (Varghese and Lauck, scheme 7). Scheduling and cancelling
;;;; are O(1) and allocate nothing; time is an argument.
;;;;
;;;; A tick is 2^20 ns, about a millisecond. Seven levels of 64 slots each cover every time that
;;;; NANOSECONDS can represent. A timer's level is the highest group of six bits in which the
;;;; timer's due tick differs from the wheel's tick; the timer's slot is the value of this group in
;;;; the due tick. So all timers of a level are due before those of the next, and on a level a lower
;;;; slot is due before a higher one: the first timer is found in one bitmap per level. When the
;;;; wheel's tick reaches a slot above level 0, the timers in it move down. A level-0 slot holds the
;;;; timers of one tick; they run once they are due, never before.
;;;;
;;;; A slot holds the first timer of a circular list.
;;;; ADVANCE-WHEEL first moves the due timers to the last slot, +EXPIRED+, and then runs these:
;;;; functions may schedule and cancel at will, and if one signals an error the next call continues
;;;; with the rest.
;;;;
;;;; EARLIEST-NS is a time before which no timer is due, so that one comparison shows whether the
;;;; wheel must be advanced; other threads may read it as well. Scheduling a timer may make
;;;; EARLIEST-NS smaller; NEXT-DUE-NS, and with it ADVANCE-WHEEL, makes it exact.

(in-package #:clgrpc.base)

(defconstant +tick-bits+ 20)
(defconstant +level-bits+ 6)
(defconstant +levels+ 7)
(defconstant +expired+ (* +levels+ (ash 1 +level-bits+))
  "The index of the slot with the timers that are due and have not rung yet.")
(defconstant +idle+ -1
  "The SLOT of a timer that is in no slot.")
(defconstant +exact-scan+ 32
  "The maximum number of timers that NEXT-DUE-NS examines in a slot above level 0. If the slot has
more timers, NEXT-DUE-NS returns the slot's start.")

(defstruct (timer (:constructor make-timer (function argument)) (:copier nil))
  "A timer, which calls a function when it is due. A timer can be reused; it is in at most one wheel
at a time."
  (function nil :type function :read-only t) ; the function to call
  (argument nil :read-only t)           ; the function's argument
  (due-ns 0 :type nanoseconds)          ; when the timer is due
  (slot +idle+ :type (integer -1 448))  ; the timer's slot of the wheel, or +IDLE+
  (next nil :type (or null timer))      ; the next timer in its slot
  (previous nil :type (or null timer))) ; the previous timer in its slot

(declaim (sb-ext:freeze-type timer))

(document-functions
  make-timer "Return a timer that calls FUNCTION with ARGUMENT each time it is scheduled and becomes
due."
  timer-due-ns "The time for which TIMER was last scheduled.")

(defstruct (timer-wheel (:constructor make-timer-wheel ()) (:copier nil))
  "Timers by the times when they are due."
  (tick 0 :type (unsigned-byte 42))     ; the tick up to which the wheel has turned
  (count 0 :type index)                 ; how many timers are in the wheel
  (earliest-ns most-positive-fixnum :type nanoseconds) ; no timer is due before this time
  (earliest-known t :type boolean)      ; false once the timer that is due then may have left
  ;; the first timer of each slot, or nil
  (slots (make-array (1+ +expired+) :initial-element nil) :type (simple-vector 449))
  ;; for each level, a bit for each slot with timers
  (maps (make-array +levels+ :element-type '(unsigned-byte 64) :initial-element 0)
   :type (simple-array (unsigned-byte 64) (7))))

(declaim (sb-ext:freeze-type timer-wheel))

(document-functions
  make-timer-wheel "Return an empty wheel. One thread at a time may use it."
  timer-wheel-earliest-ns "A time before which no timer of WHEEL is due, or the latest possible time
if WHEEL has no timers. From any thread. On threads other than the wheel's the value may be a moment
old.")

(define-hot (wheel-count :inline t) ((wheel timer-wheel)) index
  "The number of timers in WHEEL."
  (timer-wheel-count wheel))

(define-hot (timers-due-p :inline t) ((wheel timer-wheel) (now-ns nanoseconds)) boolean
  "False if ADVANCE-WHEEL has nothing to do at NOW-NS. From any thread; on threads other than the
wheel's the answer may be a moment old."
  (<= (timer-wheel-earliest-ns wheel) now-ns))

(define-hot (timer-pending-p :inline t) ((timer timer)) boolean
  "True from the moment TIMER is scheduled until it runs or is cancelled."
  (/= +idle+ (timer-slot timer)))

(defmethod print-object ((timer timer) stream)
  (print-unreadable-object (timer stream :type t :identity t)
    (if (timer-pending-p timer)
        (format stream "due at ~,3F s" (ns-seconds (timer-due-ns timer)))
        (write-string "idle" stream))))

(defmethod print-object ((wheel timer-wheel) stream)
  (print-unreadable-object (wheel stream :type t :identity t)
    (format stream "~D timers" (wheel-count wheel))))

;;; Slots

(define-hot link-timer ((wheel timer-wheel) (timer timer) (slot (integer 0 448))) null
  "Append TIMER, which is in no slot, to SLOT."
  (let* ((slots (timer-wheel-slots wheel))
         (first (svref slots slot)))
    (declare (type (or null timer) first))
    (cond (first
           (let ((last (timer-previous first)))
             (setf (timer-previous timer) last
                   (timer-next timer) first
                   (timer-next (the timer last)) timer
                   (timer-previous first) timer)))
          (t (setf (timer-next timer) timer
                   (timer-previous timer) timer
                   (svref slots slot) timer)
             (when (< slot +expired+)
               (multiple-value-bind (level bit) (floor slot (ash 1 +level-bits+))
                 (setf (ldb (byte 1 bit) (aref (timer-wheel-maps wheel) level)) 1)))))
    (setf (timer-slot timer) slot)
    nil))

(define-hot unlink-timer ((wheel timer-wheel) (timer timer)) null
  "Remove TIMER from its slot."
  (let* ((slots (timer-wheel-slots wheel))
         (slot (timer-slot timer))
         (next (timer-next timer))
         (previous (timer-previous timer)))
    (declare (type timer next previous))
    (cond ((eq next timer)
           (setf (svref slots slot) nil)
           (when (< slot +expired+)
             (multiple-value-bind (level bit) (floor slot (ash 1 +level-bits+))
               (setf (ldb (byte 1 bit) (aref (timer-wheel-maps wheel) level)) 0))))
          (t (setf (timer-next previous) next
                   (timer-previous next) previous)
             (when (eq timer (svref slots slot)) (setf (svref slots slot) next))))
    (setf (timer-slot timer) +idle+
          (timer-next timer) nil
          (timer-previous timer) nil)
    nil))

(define-hot place-timer ((wheel timer-wheel) (timer timer)) null
  "Put TIMER, which is in no slot, into the slot of its due time."
  (let* ((now (timer-wheel-tick wheel))
         (tick (max now (ash (timer-due-ns timer) (- +tick-bits+))))
         (difference (logxor now tick))
         (level (if (zerop difference) 0 (floor (1- (integer-length difference)) +level-bits+))))
    (declare (type (unsigned-byte 42) tick difference) (type (integer 0 6) level))
    (link-timer wheel timer
                (+ (ash level +level-bits+)
                   (ldb (byte +level-bits+ 0) (ash tick (- (* +level-bits+ level))))))))

;;; For users

(define-hot (note-removal :inline t) ((wheel timer-wheel) (timer timer)) null
  "Note that TIMER, which is pending and may be the first timer of WHEEL, is about to be removed
from WHEEL."
  (when (<= (timer-due-ns timer) (timer-wheel-earliest-ns wheel))
    (setf (timer-wheel-earliest-known wheel) nil))
  nil)

(define-hot schedule-timer ((wheel timer-wheel) (timer timer) (due-ns nanoseconds)) null
  "Schedule TIMER to run in the first ADVANCE-WHEEL at DUE-NS or later. A pending timer is moved."
  (cond ((timer-pending-p timer)
         (note-removal wheel timer)
         (unlink-timer wheel timer))
        (t (incf (timer-wheel-count wheel))))
  (setf (timer-due-ns timer) due-ns)
  (when (< due-ns (timer-wheel-earliest-ns wheel))
    (setf (timer-wheel-earliest-ns wheel) due-ns))
  (place-timer wheel timer))

(define-hot cancel-timer ((wheel timer-wheel) (timer timer)) boolean
  "Cancel TIMER, so that it does not ring. Return true if TIMER was pending."
  (when (timer-pending-p timer)
    (note-removal wheel timer)
    (unlink-timer wheel timer)
    (decf (timer-wheel-count wheel))
    t))

(define-hot first-slot ((wheel timer-wheel)) (values (or null (integer 0 447)) (unsigned-byte 42))
  "Return two values: the slot that the wheel's tick reaches first, or NIL if all slots are empty,
and the tick at which it reaches the slot."
  (let ((maps (timer-wheel-maps wheel))
        (now (timer-wheel-tick wheel)))
    (dotimes (level +levels+ (values nil 0))
      (let ((map (aref maps level)))
        (unless (zerop map)
          (let ((group (1- (integer-length (logand map (ldb (byte 64 0) (- map))))))
                (shift (* +level-bits+ level)))
            (declare (type (integer 0 63) group))
            (return (values (+ (ash level +level-bits+) group)
                            (dpb (ash group shift) (byte (+ shift +level-bits+) 0) now)))))))))

(define-hot earliest-due ((first timer) (limit index)) (or null nanoseconds)
  "Return the earliest due time in the slot whose first timer is FIRST, or NIL if the slot has more
than LIMIT timers."
  (loop with due of-type nanoseconds = (timer-due-ns first)
        for timer of-type timer = (timer-next first) then (timer-next timer)
        for count of-type index from 1
        until (eq timer first)
        do (when (>= count limit) (return nil))
           (setf due (min due (timer-due-ns timer)))
        finally (return due)))

(define-hot find-next-due ((wheel timer-wheel)) (or null nanoseconds)
  "Return the value of NEXT-DUE-NS, which is found by a search of the slots."
  (let ((expired (svref (timer-wheel-slots wheel) +expired+)))
    (if expired
        (timer-due-ns expired)
        (multiple-value-bind (slot tick) (first-slot wheel)
          (when slot
            (or (earliest-due (svref (timer-wheel-slots wheel) slot)
                              (if (< slot (ash 1 +level-bits+)) #xFFFFFFFF +exact-scan+))
                (ash tick +tick-bits+)))))))

(define-hot renew-earliest ((wheel timer-wheel)) null
  "Set EARLIEST-NS of WHEEL to the exact time, as returned by NEXT-DUE-NS."
  (setf (timer-wheel-earliest-ns wheel) (or (find-next-due wheel) most-positive-fixnum)
        (timer-wheel-earliest-known wheel) t)
  nil)

(define-hot (next-due-ns :inline t) ((wheel timer-wheel)) (or null nanoseconds)
  "Return the time at which ADVANCE-WHEEL should be called next, or NIL if WHEEL has no timers. The
time is never later than the due time of the first timer. If more than +EXACT-SCAN+ timers share a
slot above level 0, it may be earlier: it is the time at which that slot's timers move down."
  (unless (timer-wheel-earliest-known wheel) (renew-earliest wheel))
  (let ((due (timer-wheel-earliest-ns wheel)))
    (if (= due most-positive-fixnum) nil due)))

(define-hot empty-slot ((wheel timer-wheel) (slot (integer 0 447)) (now-ns nanoseconds)) null
  "Move every timer of SLOT, which the wheel's tick has reached, to its new slot. A timer of level 0
moves to +EXPIRED+ if it is due; a timer of a higher level moves down. The order of timers is kept."
  (let* ((first (svref (timer-wheel-slots wheel) slot))
         (last (and first (timer-previous first))))
    (declare (type (or null timer) first last))
    (loop while last
          do (let ((timer (svref (timer-wheel-slots wheel) slot)))
               (unlink-timer wheel timer)
               (if (and (< slot (ash 1 +level-bits+)) (<= (timer-due-ns timer) now-ns))
                   (link-timer wheel timer +expired+)
                   (place-timer wheel timer))
               (when (eq timer last) (return))))
    nil))

(define-hot expire-timers ((wheel timer-wheel) (now-ns nanoseconds)) null
  "Set the wheel's tick to NOW-NS, and move the timers that are due to +EXPIRED+."
  (let ((now (ash now-ns (- +tick-bits+))))
    (loop
      (multiple-value-bind (slot tick) (first-slot wheel)
        (when (or (null slot) (> tick now)) (return))
        (setf (timer-wheel-tick wheel) (max tick (timer-wheel-tick wheel)))
        (empty-slot wheel slot now-ns)
        ;; at level 0 the remaining timers are due within this very tick
        (when (and (= tick now) (< slot (ash 1 +level-bits+))) (return))))
    (setf (timer-wheel-tick wheel) (max now (timer-wheel-tick wheel)))
    nil))

(define-hot advance-wheel ((wheel timer-wheel) (now-ns nanoseconds)) null
  "Call (FUNCTION ARGUMENT) for every timer that is due at NOW-NS, in the order of their ticks and,
within a tick, in the order in which they were scheduled. A timer that these functions schedule
waits for the next call, even if it is due."
  (expire-timers wheel now-ns)
  (let ((slots (timer-wheel-slots wheel)))
    (loop
      (let ((timer (svref slots +expired+)))
        (unless timer (return))
        (unlink-timer wheel timer)
        (decf (timer-wheel-count wheel))
        (funcall (timer-function timer) (timer-argument timer))))
    (renew-earliest wheel)
    nil))
