;;;; Driving: on a caller-driven loop, which has no thread of its own, the thread that waits for an
;;;; answer runs the loop itself. So no thread sleeps between the answer's arrival and its reader.
;;;;
;;;; One thread can run a loop at a time, so a caller drives only while its call is the only one
;;;; under way on the loop. When a second call begins, a reserve thread runs the loop; at the end of
;;;; a turn it wakes the threads whose answers have arrived. The reserve thread gives the loop back
;;;;   - when a call that a thread waited for was alone from its beginning to its end;
;;;;   - when the only call under way is that of the candidate: a thread that would drive and has
;;;;     just been woken. Otherwise, after one slow moment, the candidate would have to be woken for
;;;;     each message until its call ends. While no call is under way, the watchdog makes a reserve
;;;;     thread take the loop after a while, since keepalive and timers need a running loop.
;;;;
;;;; A waiter relies on another thread to run the loop: it is a thread that sleeps, or a call that
;;;; no thread waits for. No waiter is left alone, because each of two racing threads first
;;;; announces its own action and then reads the announcement of the other:
;;;;
;;;;      a thread that begins to wait           the thread that gives the loop up
;;;;   1. adds 1 to WAITERS                      frees the baton
;;;;   2. full barrier                           full barrier
;;;;   3. if the baton is free, asks for         if there are WAITERS, asks for
;;;;      a reserve thread                       a reserve thread
;;;;
;;;; At least one of them sees the other's announcement. A thread that posts does the same, with the
;;;; inbox instead of WAITERS. If the only waiter is the candidate, step 3 on the right wakes the
;;;; candidate instead; it finds the loop free and drives. The candidate may stop waiting just then,
;;;; while another waiter has arrived; so a thread that stops waiting checks once more whether
;;;; others wait.
;;;;
;;;; A driver runs user code only for its own call, OWNER. When user code of another call is due,
;;;; the driver leaves the loop to a reserve thread (YIELDING).
;;;;
;;;; On any loop, user code that calls one of our functions that wait may run the loop during the
;;;; wait, nested in its own call (DRIVE-ON). So a handler and a peer that send alternately do not
;;;; switch threads. Other user code never runs in such a nested loop: when it is due, a reserve
;;;; thread overtakes the loop.

(in-package #:clgrpc.loop)

(define-hot enter-call ((loop event-loop) (future-p boolean)) null
  "Note that a call on LOOP begins. If FUTURE-P is true, no thread will drive LOOP for the call.
From any thread."
  (let ((driving (event-loop-driving loop)))
    (when driving
      (when (plusp (atomic-incf (driving-calls driving)))
        (setf (driving-crowded driving) t))
      (when future-p (atomic-incf (driving-waiters driving)))))
  nil)

(define-hot (leave-call :inline t) ((loop event-loop) (future-p boolean)) null
  "Note the end of a call that ENTER-CALL counted. From any thread."
  (let ((driving (event-loop-driving loop)))
    (when driving
      (atomic-decf (driving-calls driving))
      (if future-p
          (atomic-decf (driving-waiters driving))
          (setf (driving-served driving) t))))
  nil)

(defun call-served (loop function candidate)
  "Call FUNCTION, which waits for an event on LOOP while another thread runs LOOP. CANDIDATE is a
function that wakes this thread; it may be nil. CANDIDATE may be given only if FUNCTION returns as
soon as it is woken and finds that LEFT-TO-DRIVE-P is true."
  (declare (type function function))
  (if (event-loop-driving loop)
      (wait-as-waiter loop function candidate)
      (funcall function)))

(defun wait-as-waiter (loop function candidate)
  "Do what CALL-SERVED does, for a LOOP that is caller-driven."
  (declare (type function function))
  (let ((driving (driving-of loop)))
    (with-undoing ((progn
                     (when candidate (setf (driving-candidate driving) candidate))
                     (atomic-incf (driving-waiters driving))
                     (sb-thread:barrier (:memory)))
                   (when candidate
                     (compare-and-swap (driving-candidate driving) candidate nil))
                   (atomic-decf (driving-waiters driving))
                   (sb-thread:barrier (:memory))
                   ;; the thread that gave the loop up may have relied on this thread, the
                   ;; candidate, to drive the loop
                   (when (waited-for-p driving) (request-runner-if-free loop)))
      (request-runner-if-free loop)
      (funcall function))))

(defun request-runner-if-free (loop)
  (when (= +free+ (baton-state (event-loop-baton loop)))
    (request-runner loop)))

(define-hot may-drive-p ((loop event-loop)) boolean
  "True if LOOP is caller-driven and this thread, which runs no other loop, may be a driver."
  (and (event-loop-driving loop)
       (not (runs-loop-p))))

(define-hot drivable-p ((loop event-loop)) boolean
  "True if this thread, which has a call under way on LOOP, may run LOOP when no other thread runs
it."
  (let ((driving (event-loop-driving loop)))
    (and driving
         (= 1 (driving-calls driving))
         (not (event-loop-stopping loop))
         (may-drive-p loop))))

(define-hot left-to-drive-p ((loop event-loop)) boolean
  "True if no thread runs LOOP, and this thread may run it."
  (and (= +free+ (baton-state (event-loop-baton loop)))
       (drivable-p loop)))

(define-hot waited-for-p ((driving driving)) boolean
  "True if a waiter counts on another thread to run the loop of DRIVING. A waiter whose call has
ended does not count, although it remains among the WAITERS until it gets a processor."
  (and (plusp (driving-waiters driving))
       (plusp (driving-calls driving))))

(define-hot deserted-p ((loop event-loop)) boolean
  "True if LOOP, which a reserve thread runs, may be left to the next caller."
  (let ((driving (event-loop-driving loop)))
    (cond ((not (and driving
                     (driving-served driving)
                     (zerop (driving-calls driving))))
           nil)
          ((driving-crowded driving)    ; several calls were under way, and probably will be again
           (setf (driving-crowded driving) nil
                 (driving-served driving) nil))
          (t (not (work-left-p loop))))))

(define-hot wanted-back-p ((loop event-loop)) boolean
  "True if the only call under way on LOOP, which a reserve thread runs, is the call of the
candidate, a thread that was woken a moment ago."
  (let ((driving (event-loop-driving loop)))
    (cond ((not (and driving
                     (driving-woke driving)
                     (driving-candidate driving)
                     (= 1 (driving-calls driving))
                     (= 1 (driving-waiters driving))))
           nil)
          ((driving-crowded driving)    ; as in DESERTED-P
           (setf (driving-crowded driving) nil))
          (t (not (or (work-left-p loop)
                      (not (inbox-empty-p (event-loop-inbox loop)))))))))

(define-hot work-left-p ((loop event-loop)) boolean
  "True if LOOP, which is caller-driven, has work that is due now. Coalesced output does not count
as work."
  (or (plusp (event-loop-ready-count loop))
      (and (plusp (event-loop-dirty-count loop))
           (zerop (driving-coalesced-ns (driving-of loop))))
      (plusp (event-loop-ring-count loop))))

(define-hot (timer-before-look-p :inline t) ((loop event-loop)) boolean
  "True if a timer of LOOP, which no thread runs, may be due before the watchdog checks the loop."
  (< (timer-wheel-earliest-ns (event-loop-wheel loop)) **next-look-ns**))

(define-hot step-back ((loop event-loop)) null
  "Give up the baton of LOOP, a caller-driven loop; this thread must hold it. If work is left, or a
waiter relies on another thread, a reserve thread takes the baton over; if only the candidate waits,
the candidate takes it over instead."
  (let ((driving (driving-of loop))
        (work (or (work-left-p loop) (event-loop-blind loop))))
    (setf (driving-served driving) nil
          (driving-owner driving) nil
          (driving-yielding driving) nil)
    (doze-inbox (event-loop-inbox loop))
    (hand-over loop)
    (sb-thread:barrier (:memory))
    (let ((candidate (driving-candidate driving)))
      (cond ((or work
                 (not (inbox-empty-p (event-loop-inbox loop)))
                 (> (driving-calls driving) 1)
                 (> (driving-waiters driving) 1)
                 (event-loop-stopping loop))
             (request-runner loop))
            ((not (waited-for-p driving)))
            (candidate (funcall candidate))
            (t (request-runner loop))))
    (when (or **watchdog-asleep** (timer-before-look-p loop)) (wake-watchdog)))
  nil)

(define-hot drive ((loop event-loop) (done-p function) argument) boolean
  "Run LOOP if it is caller-driven, no thread runs it, its only call is the call of this thread, and
this thread runs no other loop. Run LOOP until (DONE-P ARGUMENT) is true, another thread needs LOOP,
or user code of ARGUMENT, a call, loses LOOP. Return false if LOOP was not run. An interrupt (C-c)
is handled only in user code and while waiting for events. When LOOP is lost, a reserve thread runs
it; if this thread continues, it waits in another way."
  (and (drivable-p loop)
       (with-taken-loop (loop (take loop))
         (block driving
           (handler-bind ((sb-sys:interactive-interrupt
                            (lambda (interrupt)
                              ;; in user code the watchdog can make a thread take over
                              (when (resume-wait loop)
                                (enter-debugger loop interrupt)
                                (return-from driving)))))
             (drive-as-holder loop done-p argument)))
         t)))

(define-hot drive-as-holder ((loop event-loop) (done-p function) argument) null
  (let ((driving (driving-of loop)))
    (setf (driving-owner driving) argument
          (driving-burst driving) 0)
    (rouse-inbox (event-loop-inbox loop))
    (unwind-protect
         (progn
           (call-some-posted loop)
           (flush-phase loop)
           (loop until (or (funcall done-p argument)
                           (> (driving-calls driving) 1)
                           (driving-yielding driving)
                           (event-loop-stopping loop))
                 while (run-turn loop)))
      (when (in-event-loop-p loop) (step-back loop))))
  nil)

(defun enter-debugger (loop interrupt)
  "Give LOOP up and open the debugger for INTERRUPT, which has interrupted this thread while it
drove LOOP and waited for events. Return if the user continues the call."
  (setf (event-loop-blind loop) t)
  (step-back loop)
  (signal interrupt)                    ; signal to the handlers outside, which have not seen it yet
  (with-simple-restart (continue "Wait on.")
    (invoke-debugger interrupt)))

;;; Waiting in user code that runs on the loop

(define-hot drive-on ((loop event-loop) (done-p function) argument) boolean
  "If this thread runs LOOP and is in user code now, continue to run LOOP, so that no other thread
must take it over. Stop in three cases: when (DONE-P ARGUMENT) is true; when other user code is due,
because it would have to wait until this code returns; and when another thread posts, because
handlers on other threads need a thread that only runs the loop. Return false if this thread does
not run LOOP, or LOOP belongs to a simulated world."
  (sb-sys:without-interrupts
    (when (and (not (world-wait (event-loop-world loop)))
               (eq :lent (claim loop)))
      (unwind-protect
           (allowing-user-interrupts (drive-on-as-holder loop done-p argument))
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
  "True if this thread, which runs LOOP, drives it for a call other than ARGUMENT. In that case the
driver will leave LOOP to a reserve thread, which may run user code of ARGUMENT."
  (let ((driving (event-loop-driving loop)))
    (and driving
         (driving-owner driving)
         (not (eq argument (driving-owner driving)))
         (setf (driving-yielding driving) t))))

;;; Running something on a loop at once

(define-hot run-now ((loop event-loop) (function function)) boolean
  "If this thread runs LOOP, or if LOOP is caller-driven and no thread runs it, call FUNCTION,
without arguments, on LOOP and return true. Otherwise return false. From any thread."
  (nth-value 1 (call-now loop function #'flush-phase)))

(define-hot run-or-post ((loop event-loop) (function function)) boolean
  "Call FUNCTION, without arguments, on LOOP, by RUN-NOW if possible, else by POST. Return false if
LOOP has stopped. From any thread."
  (or (run-now loop function)
      (post loop function)))

(define-hot call-now ((loop event-loop) (function function) (flush function)) (values t boolean)
  "Do what RUN-NOW does. If this thread had to take LOOP for FUNCTION, it then calls FLUSH, a
function of LOOP, to send the output of FUNCTION. Return two values: the value of FUNCTION, and the
value of RUN-NOW."
  (multiple-value-bind (value done) (call-with-baton loop function)
    (cond (done (values value t))
          ((and (event-loop-driving loop)
                (not (event-loop-stopping loop))
                (with-taken-loop (loop (take loop))
                  (setf value (run-briefly loop function flush))
                  t))
           (values value t))
          (t (values nil nil)))))

(defconstant +unwatched-ns+ 100000
  "If no thread has fetched a loop's events for this time in nanoseconds, a thread that takes the
loop first fetches them, which costs a system call. Otherwise a peer might have closed its
connection, and a call on that connection would be lost.")

(defconstant +looks+ 4
  "The maximum number of times that a thread reads each connection of such an unwatched loop when it
takes the loop.")

(define-hot look-after ((loop event-loop)) null
  "Read the input that has arrived for LOOP while no thread ran it, unless a thread has read it
within +UNWATCHED-NS+. This avoids writing to a connection that has ended meanwhile."
  (when (< +unwatched-ns+ (- (event-loop-now loop) (event-loop-flushed-at loop)))
    (note-events loop (fetch-events loop 0))
    ;; the end of a connection is read after the octets before it
    (loop repeat +looks+
          while (plusp (event-loop-ready-count loop))
          do (read-phase loop))
    ;; deferred functions notify the owners of connections whose peers have gone
    (flush-phase loop))
  nil)

(define-hot run-briefly ((loop event-loop) (function function) (flush function)) t
  "Call FUNCTION on LOOP, whose baton this thread has taken before, then FLUSH with LOOP, and step
back. Return the value of FUNCTION. Due timers run first, because a thread that calls this often may
be the only thread that ever runs LOOP."
  (unwind-protect
       (progn (setf (event-loop-now loop) (funcall (event-loop-clock loop)))
              (look-after loop)
              (inbox-phase loop)
              (timer-phase loop)
              (prog1 (funcall function)
                (funcall flush loop)
                (last-phase loop)))
    (step-back loop)))
