;;;; Driving: on a loop without a thread of its own, an attended one, a caller who must wait for an
;;;; answer runs the loop itself, so that nothing sleeps between the answer's arrival and its
;;;; reader. That is for one caller at a time: as soon as more than one call is under way a reserve
;;;; thread runs the loop and wakes the owners, all that it has answers for at the end of a turn. It
;;;; gives the loop back when a call that somebody waited for was alone from its beginning to its
;;;; end, or when the only call under way is that of a CANDIDATE, a thread that would have driven
;;;; and has just been woken: otherwise it would be woken for each message until the call's end.
;;;; With no call under way a reserve thread takes the loop after a while (the watchdog sees to
;;;; that), for keepalive and whatever else comes.
;;;;
;;;; CALLS counts the calls under way; WAITERS what counts on another thread to run the loop: the
;;;; threads that sleep, and the calls that nobody waits for. Nobody sleeps unnoticed: who becomes a
;;;; waiter counts itself and then looks whether the loop is free; who gives the loop up does so and
;;;; then looks whether there are waiters; so one of them, at least, has a reserve thread come. If
;;;; the only waiter is the candidate, it is woken instead, and finds the loop free; and who was a
;;;; waiter looks once more for others, since it may have been taken for the only one. Posts do the
;;;; same with the inbox.
;;;;
;;;; A driver runs user code of its own call only (DRIVEN-FOR): what is another's makes it yield.
;;;;
;;;; On any loop user code that waits in our own API may go on running it itself (DRIVE-ON), below
;;;; itself on the stack; so no thread is changed when a handler and its peer speak by turns. User
;;;; code never runs there: as soon as some is due, a reserve thread takes the loop over.

(in-package #:clgrpc.loop)

(define-hot enter-call ((loop event-loop) (unattended boolean)) null
  "A call on LOOP begins; UNATTENDED says that nobody is going to drive for it. From any thread."
  (when (plusp (atomic-incf (event-loop-calls loop)))
    (setf (event-loop-crowded loop) t))
  (when unattended (atomic-incf (event-loop-waiters loop)))
  nil)

(define-hot leave-call ((loop event-loop) (unattended boolean)) null
  "A call that ENTER-CALL counted has ended. From any thread."
  (atomic-decf (event-loop-calls loop))
  (if unattended
      (atomic-decf (event-loop-waiters loop))
      (setf (event-loop-served loop) t))
  nil)

(defun call-served (loop function candidate)
  "Call FUNCTION, which waits for something to happen on LOOP, while another thread runs that.
CANDIDATE is a function that wakes this thread, if FUNCTION returns as soon as it is woken and finds
that LEFT-TO-DRIVE-P; otherwise nil."
  (declare (type function function))
  (when candidate (setf (event-loop-candidate loop) candidate))
  (atomic-incf (event-loop-waiters loop))
  (sb-thread:barrier (:memory))
  (unwind-protect
       (progn
         (request-runner-if-free loop)
         (funcall function))
    (when candidate (compare-and-swap (event-loop-candidate loop) candidate nil))
    (atomic-decf (event-loop-waiters loop))
    (sb-thread:barrier (:memory))
    ;; who gave the loop up may have taken this thread for one that goes on to drive
    (when (waited-for-p loop) (request-runner-if-free loop))))

(defun request-runner-if-free (loop)
  (when (and (event-loop-attended loop)
             (= +free+ (baton-state (event-loop-baton loop))))
    (request-runner loop)))

(define-hot may-drive-p ((loop event-loop)) boolean
  "True if this thread may run LOOP, an attended one, at times."
  (and (event-loop-attended loop)
       (or (null *event-loop*) (not (in-event-loop-p *event-loop*)))))

(define-hot drivable-p ((loop event-loop)) boolean
  "True if this thread, whose call is under way on LOOP, may run that if nobody does."
  (and (= 1 (event-loop-calls loop))
       (not (event-loop-stopping loop))
       (may-drive-p loop)))

(define-hot left-to-drive-p ((loop event-loop)) boolean
  "True if nobody runs LOOP, and this thread may."
  (and (= +free+ (baton-state (event-loop-baton loop)))
       (drivable-p loop)))

(define-hot waited-for-p ((loop event-loop)) boolean
  "True if somebody counts on another thread to run LOOP. A waiter whose call has ended does so no
more, though it cannot say so before it has a processor."
  (and (plusp (event-loop-waiters loop))
       (plusp (event-loop-calls loop))))

(define-hot deserted-p ((loop event-loop)) boolean
  "True if LOOP, an attended one that a reserve thread runs, may be left to the next caller."
  (cond ((not (and (event-loop-served loop)
                   (event-loop-attended loop)
                   (zerop (event-loop-calls loop))))
         nil)
        ((event-loop-crowded loop)      ; there was more than one: they are likely to come back
         (setf (event-loop-crowded loop) nil
               (event-loop-served loop) nil))
        (t (not (work-left-p loop)))))

(define-hot wanted-back-p ((loop event-loop)) boolean
  "True if the only call under way on LOOP, an attended one that a reserve thread runs, is that of
the candidate, who has just been woken. Who has to be woken for each message of a call would be so
until its end, where it is the machine that is slow, or was crowded."
  (cond ((not (and (event-loop-woke loop)
                   (event-loop-candidate loop)
                   (= 1 (event-loop-calls loop))
                   (= 1 (event-loop-waiters loop))))
         nil)
        ((event-loop-crowded loop)      ; as in DESERTED-P
         (setf (event-loop-crowded loop) nil))
        (t (not (or (work-left-p loop)
                    (not (inbox-empty-p (event-loop-inbox loop))))))))

(define-hot work-left-p ((loop event-loop)) boolean
  (or (plusp (event-loop-ready-count loop))
      (and (plusp (event-loop-dirty-count loop))
           (zerop (event-loop-gathered-ns loop)))
      (plusp (event-loop-ring-count loop))))

(define-hot (timer-before-look-p :inline t) ((loop event-loop)) boolean
  "True if a timer of LOOP, which nobody is left to run, may be due before the watchdog looks."
  (< (timer-wheel-earliest-ns (event-loop-wheel loop)) **next-look-ns**))

(define-hot step-back ((loop event-loop)) null
  "Give up the baton of LOOP, an attended one, which this thread holds. If something is left to do,
or somebody counts on another thread, a reserve thread comes; the candidate, if that is all who
waits, comes itself."
  (setf (event-loop-served loop) nil
        (event-loop-driven-for loop) nil
        (event-loop-yielding loop) nil)
  (let ((work (or (work-left-p loop) (event-loop-blind loop))))
    (doze-inbox (event-loop-inbox loop))
    (hand-over loop)
    (sb-thread:barrier (:memory))
    (let ((candidate (event-loop-candidate loop)))
      (cond ((or work
                 (not (inbox-empty-p (event-loop-inbox loop)))
                 (> (event-loop-calls loop) 1)
                 (> (event-loop-waiters loop) 1)
                 (event-loop-stopping loop))
             (request-runner loop))
            ((not (waited-for-p loop)))
            (candidate (funcall candidate))
            (t (request-runner loop))))
    (when (or **watchdog-asleep** (timer-before-look-p loop)) (wake-watchdog)))
  nil)

(define-hot drive ((loop event-loop) (done-p function) argument) boolean
  "If LOOP is attended and nobody runs it, the one call under way on it is this thread's, and this
thread runs no other loop: run LOOP until (DONE-P ARGUMENT) is true, or somebody else needs it, or
user code of ARGUMENT, a call, loses it. Return false if none of this was done. An interrupt (C-c)
is taken only in user code and while waiting for events; then a reserve thread runs LOOP, and
whoever continues waits in another way."
  (and (drivable-p loop)
       (with-taken-loop (loop (take loop))
         (block driving
           (handler-bind ((sb-sys:interactive-interrupt
                            (lambda (interrupt)
                              (when (holds-baton-p loop) ; in user code the watchdog sees to it
                                (enter-debugger loop interrupt)
                                (return-from driving)))))
             (drive-as-holder loop done-p argument)))
         t)))

(define-hot drive-as-holder ((loop event-loop) (done-p function) argument) null
  (setf (event-loop-driven-for loop) argument)
  (rouse-inbox (event-loop-inbox loop))
  (unwind-protect
       (progn
         (setf (event-loop-burst loop) 0)
         (inbox-phase loop)
         (flush-phase loop)
         (loop until (or (funcall done-p argument)
                         (> (event-loop-calls loop) 1)
                         (event-loop-yielding loop)
                         (event-loop-stopping loop))
               while (run-turn loop)))
    (when (in-event-loop-p loop) (step-back loop)))
  nil)

(defun enter-debugger (loop interrupt)
  "This thread, which drives LOOP, was interrupted while it waited for events. Return if it is to go
on."
  (setf (event-loop-blind loop) t)
  (step-back loop)
  (signal interrupt)                    ; to those outside, who could not see it before
  (with-simple-restart (continue "Wait on.")
    (invoke-debugger interrupt)))

;;; Waiting in user code that the loop itself runs

(define-hot drive-on ((loop event-loop) (done-p function) argument) boolean
  "If this thread runs LOOP and is in user code now: go on running LOOP until (DONE-P ARGUMENT) is
true, so that nobody has to take it over; until other user code is due, which would have to wait for
this to return; or until another thread posts, as handlers elsewhere do: who runs the loop for them
should have nothing else to do. Return false if this thread does not run LOOP."
  (sb-sys:without-interrupts
    (when (eq :lent (claim loop))
      (unwind-protect
           (sb-sys:allow-with-interrupts (drive-on-as-holder loop done-p argument))
        (when (in-event-loop-p loop) (lend loop)))
      t)))

(define-hot drive-on-as-holder ((loop event-loop) (done-p function) argument) null
  (flush-phase loop)
  (last-phase loop)
  (loop with posted of-type boolean = nil
        until (or posted
                  (plusp (event-loop-ring-count loop))
                  (event-loop-stopping loop)
                  (funcall done-p argument))
        while (wait-and-dispatch loop)
        do (setf posted (not (inbox-empty-p (event-loop-inbox loop))))
           (read-phase loop)
           (end-turn loop))
  nil)

(define-hot not-for-driver-p ((loop event-loop) (argument t)) boolean
  "True if LOOP, which this thread holds, is driven for another than ARGUMENT, whose user code must
wait for somebody else to run the loop: who drives will yield."
  (and (event-loop-driven-for loop)
       (not (eq argument (event-loop-driven-for loop)))
       (setf (event-loop-yielding loop) t)))

(define-hot run-now ((loop event-loop) (function function)) boolean
  "Call FUNCTION, without arguments, on LOOP and return true if this thread runs that, or if it is
attended and nobody does. From any thread."
  (nth-value 1 (call-now loop function nil)))

(define-hot run-to-send ((loop event-loop) (function function)) (values t boolean)
  "As RUN-NOW for FUNCTION that sends one of perhaps many messages: what it writes may have to wait
a moment for more, see gather.lisp. Return its value as well, the first of the two values."
  (call-now loop function t))

(define-hot call-now ((loop event-loop) (function function) (gather boolean)) (values t boolean)
  "See RUN-NOW and, with GATHER, RUN-TO-SEND."
  (multiple-value-bind (value done) (call-with-baton loop function)
    (cond (done (values value t))
          ((and (event-loop-attended loop)
                (not (event-loop-stopping loop))
                (with-taken-loop (loop (take loop))
                  (setf value (run-aside loop function gather))
                  t))
           (values value t))
          (t (values nil nil)))))

(define-hot run-or-post ((loop event-loop) (function function)) boolean
  "Have FUNCTION called, without arguments, on LOOP: by RUN-NOW if that is possible, else by POST.
Return false if LOOP has stopped. From any thread."
  (or (run-now loop function)
      (post loop function)))

(define-hot run-aside ((loop event-loop) (function function) (gather boolean)) t
  "Call FUNCTION on LOOP, whose baton this thread has just taken, send what that wrote, unless with
GATHER that may wait, and step back. Return the value of FUNCTION. Timers that are due run first: a
thread that comes often enough may be the only one that ever runs LOOP."
  (unwind-protect
       (progn (setf (event-loop-now loop) (funcall (event-loop-clock loop)))
              (inbox-phase loop)
              (timer-phase loop)
              (prog1 (funcall function)
                (unless (and gather (gather-p loop)) (flush-phase loop))
                (last-phase loop)))
    (step-back loop)))
