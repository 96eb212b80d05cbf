;;;; The watchdog: one thread for all loops of the image. The watchdog detects user code that takes
;;;; too long, and makes a reserve thread take the loop over. The watchdog also detects a
;;;; caller-driven loop without a thread, and makes a reserve thread run it.
;;;;
;;;; The watchdog ticks only while batons move. User code takes too long if two ticks, a millisecond
;;;; apart, see the same lent baton, and no garbage was collected between the ticks. While all
;;;; handlers are quick the ticks become rarer, up to +LONGEST-TICK-NS+ apart, so that watching
;;;; costs next to nothing. When a handler has taken too long, others are likely to, so the ticks
;;;; stay short for a while: at first for +ALERT-NS+, since a thread that the kernel delayed looks
;;;; the same, and after each further such handler for four times as long.
;;;;
;;;; User code that uses its loop all the time, such as a handler that sends message after message,
;;;; changes the baton and still delays all other handlers. So a check also notes the turn and the
;;;; function that runs in it. When two checks see the same function, LATE-TURN is set, and the user
;;;; code gives the loop up the next time it has the baton (CALL-WITH-BATON). When two checks see
;;;; the same turn but not the same function, quick functions have made the turn long, and LONG-TURN
;;;; is set: from then on the loop reads the clock after each function.
;;;;
;;;; A thread that waits for events and was woken by a post answers that wake-up at once, unless it
;;;; handles an interrupt, perhaps in a debugger. When +WAKE-UP-LOOKS+ checks in a row find the same
;;;; wait with the wake-up unanswered, a reserve thread overtakes the loop.
;;;;
;;;; A tick ends at the time when the first timer may be due, if not before. Then a loop that has
;;;; just been left gets a thread, and user code that takes too long is found at the next check.
;;;;
;;;; When no baton has changed for a while the watchdog sleeps, and a thread that changes one wakes
;;;; it. LEND has no full barrier between its store and its read of **WATCHDOG-ASLEEP**, since that
;;;; would cost each call 20 ns. So the watchdog first announces that it sleeps, waits one tick
;;;; more, in which each earlier store becomes visible, checks once more, and only then sleeps.
;;;;
;;;; The watchdog also adapts the collector (base/memory/collector.lisp): while it ticks, it checks
;;;; now and then whether the nursery fits, and whether the process is quiet and can give memory
;;;; back. It also gives memory back before it sleeps for good, once no loop has made a turn for a
;;;; while.

(in-package #:clgrpc.loop)

(defconstant +shortest-tick-ns+ 1000000)
(defconstant +longest-tick-ns+ 32000000)
(defconstant +doze-after-ns+ 200000000
  "The time in nanoseconds without a change of any baton after which the watchdog sleeps.")
(defconstant +alert-ns+ 50000000
  "The time in nanoseconds for which the ticks stay short after the first handler that took too
long.")
(defconstant +longest-alert-ns+ 10000000000
  "The maximum time in nanoseconds for which the ticks stay short after a handler that took too
long. After this time without such a handler, the next such handler counts as the first.")

(defconstant +wake-up-looks+ 4
  "The number of checks in a row that must find a wake-up unanswered before the waiting thread is
overtaken. More than one check is needed because, on a busy machine, a woken thread may have no
processor yet.")

(defconstant +collector-look-ns+ (floor +ns-per-second+ 5)
  "The time in nanoseconds between two checks of the nursery and of the memory that may be given
back.")

(defconstant +idle-ns+ 8000000000
  "The time in nanoseconds without a turn of any loop after which the process gives memory back.")

(defstruct (watched (:constructor make-watched (loop)) (:copier nil))
  "The state of a loop at the watchdog's last check."
  (loop nil :type event-loop)           ; the watched loop
  (seen 0 :type sb-ext:word)            ; the loop's baton at the last check
  (asked 0 :type sb-ext:word)           ; the baton that a reserve thread has been asked to take
  (request nil :type (or null function)) ; the queued function that overtakes the loop
  (unanswered 0 :type index)            ; checks in a row that found its wake-up unanswered
  (turns 0 :type (unsigned-byte 62))    ; the number of turns that the loop had made
  (at 0 :type index))                   ; the place of the next deferred function

(defglobal **watchdog** nil)
(defglobal **watched** '())

(defun watch-loop (loop)
  "Make the watchdog watch LOOP, which runs."
  (sb-thread:with-mutex (**watchdog-lock**)
    (push (make-watched loop) **watched**)
    (unless **watchdog**
      (setf **watchdog** (sb-thread:make-thread #'run-watchdog :name "clgrpc watchdog")))))

(defun unwatch-loop (loop)
  "Stop watching LOOP, which has stopped. The watchdog ends with the last loop."
  (let ((thread (sb-thread:with-mutex (**watchdog-lock**)
                  (setf **watched** (remove loop **watched** :key #'watched-loop))
                  (unless **watched**
                    (setf **watchdog-asleep** nil)
                    (sb-thread:condition-notify **watchdog-waitqueue**)
                    (shiftf **watchdog** nil)))))
    (end-thread thread)))

(defun run-watchdog ()
  "Do the work of the watchdog's thread, which checks all loops and returns memory to the system."
  (let ((tick +shortest-tick-ns+) (quiet 0) (since-overstay +longest-alert-ns+) (alert 0)
        (collections nil) (collector-watch (make-collector-watch)) (collector-look-ns 0))
    (sb-thread:with-mutex (**watchdog-lock**)
      (loop while (eq **watchdog** sb-thread:*current-thread*)
            do (multiple-value-bind (moved lent overstayed)
                   (look-at-loops (eq collections (shiftf collections sb-ext:*gc-run-time*)))
                 (setf quiet (if (or moved lent) 0 (+ quiet tick))
                       since-overstay (min +longest-alert-ns+ (+ since-overstay tick)))
                 (when overstayed
                   (setf alert (if (< since-overstay +longest-alert-ns+)
                                   (min +longest-alert-ns+ (* 4 alert))
                                   +alert-ns+)
                         since-overstay 0))
                 (setf tick (if (or lent (< since-overstay alert))
                                +shortest-tick-ns+
                                (min (next-timer-ns) (* 2 tick)))))
               (let ((now (monotonic-ns)))
                 (collect-due-generation #'without-lock)
                 (when (<= collector-look-ns now)
                   (setf collector-look-ns (+ now +collector-look-ns+))
                   (without-lock (lambda () (retune-collector collector-watch)))))
               (cond ((<= quiet +doze-after-ns+) (pause tick))
                     (t (doze)
                        (setf quiet 0
                              tick +shortest-tick-ns+
                              collections nil)))))))

(defun without-lock (function)
  "Release the watchdog's lock, which this thread must hold, while FUNCTION is called."
  (sb-thread:release-mutex **watchdog-lock**)
  (unwind-protect (guarding (:giving-back-error) (funcall function))
    (sb-thread:grab-mutex **watchdog-lock**)))

(defun pause (tick-ns)
  "Wait for TICK-NS, or less if a timer is due before. Call this with the watchdog's lock."
  (let ((end (+ (monotonic-ns) tick-ns)))
    (loop do (setf **next-look-ns** end)
          while (and (await-notice **watchdog-waitqueue** **watchdog-lock** end)
                     (eq **watchdog** sb-thread:*current-thread*))
          do (setf end (min end (+ (monotonic-ns) (next-timer-ns)))))
    (setf **next-look-ns** 0)))

(defun asleep-p ()
  "True if this thread is the watchdog and no baton has moved. Call this with the watchdog's lock."
  (and **watchdog-asleep** (eq **watchdog** sb-thread:*current-thread*)))

(defun doze ()
  "Sleep until a baton moves. Call this with the watchdog's lock."
  (setf **watchdog-asleep** t)
  (await-notice **watchdog-waitqueue** **watchdog-lock** (+ (monotonic-ns) +shortest-tick-ns+))
  (when (and **watchdog-asleep** (not (look-at-loops nil)))
    (loop repeat 2 do (collect-when-idle)) ; young objects, then perhaps all
    (loop while (asleep-p)
          do (sb-thread:condition-wait **watchdog-waitqueue** **watchdog-lock**)))
  (when (eq **watchdog** sb-thread:*current-thread*) ; else another thread is the watchdog
    (setf **watchdog-asleep** nil)))

(defun total-turns ()
  "Return the number of turns of all loops. Call this with the watchdog's lock."
  (reduce #'+ **watched** :key (lambda (watched) (event-loop-turns (watched-loop watched)))))

(defun collect-when-idle ()
  "While a collection is due (DUE-COLLECTION), sleep until a baton changes or no loop has made a
turn for +IDLE-NS+; in the latter case make the collection. Call this with the watchdog's lock,
which is released while the collection runs."
  (loop for function = (and (asleep-p) (due-collection))
        while function
        do (let ((turns (total-turns))
                 (end (+ (monotonic-ns) +idle-ns+)))
             (loop while (and (asleep-p)
                              (await-notice **watchdog-waitqueue** **watchdog-lock** end)))
             (when (and (asleep-p) (= turns (total-turns)))
               (without-lock function)
               (return)))))

(defun next-timer-ns ()
  "Return the maximum tick, in nanoseconds, that timers allow, which is the time until a timer may
be due. Call this with the watchdog's lock."
  (let ((least +longest-tick-ns+))
    (dolist (watched **watched** least)
      (let* ((loop (watched-loop watched))
             (ahead (- (timer-wheel-earliest-ns (event-loop-wheel loop))
                       (the nanoseconds (funcall (event-loop-clock loop))))))
        ;; a loop that a thread runs handles due timers itself
        (when (or (plusp ahead) (= +free+ (baton-state (event-loop-baton loop))))
          (setf least (min least (max ahead +shortest-tick-ns+))))))))

(defun request-takeover-first (watched loop baton)
  "Do what REQUEST-TAKEOVER does, before all functions that wait for a thread. If a request for an
earlier baton of LOOP still waits, withdraw it; otherwise each handler would add a request while no
thread is free."
  (let ((reserve (event-loop-reserve loop)) (former (shiftf (watched-request watched) nil)))
    (when former (leave-reserve reserve (reserve-root reserve) :function former))
    (multiple-value-bind (place function) (request-takeover loop baton :first)
      (when (eq :queued place) (setf (watched-request watched) function))
      place)))

(defun look-at-loops (comparable)
  "Look at every baton. Return three booleans. The first is true if a baton has changed since the
last check. The second is true if a baton is lent, or if its loop needs a thread and cannot get it.
The third is true if user code takes too long. COMPARABLE is true if no garbage has been collected
since the last check."
  (let ((moved nil) (lent nil) (overstayed nil))
    (dolist (watched **watched** (values moved lent overstayed))
      (let* ((loop (watched-loop watched))
             (baton (event-loop-baton loop))
             (state (baton-state baton))
             (still (= baton (shiftf (watched-seen watched) baton)))
             ;; user code that only begins calls, which fail at once, reads no input
             (unread (= (watched-turns watched) (event-loop-turns loop)))
             (late (look-at-turn watched loop (and comparable (= state +lent+) (not still)))))
        (flet ((ask (asked)
                 (if asked
                     (setf (watched-asked watched) baton)
                     (setf lent t))))
          (unless still (setf moved t))
          (when late (setf overstayed t))
          (cond ((= baton (watched-asked watched)))
                ((and (= state +lent+) still comparable)
                 (setf overstayed t)
                 (let ((asked (request-takeover-first watched loop baton)))
                   ;; then a thread that is about to wait need not ask for another thread
                   (when (and asked (not (eq :queued asked)))
                     (setf (event-loop-asked loop) baton))
                   (ask asked)))
                ((= state +lent+) (setf lent t))
                ((= state +waiting+)
                 (when (wake-up-unanswered-p watched loop unread comparable)
                   (setf moved t)
                   (when (plusp (watched-unanswered watched)) (setf lent t)) ; look again soon
                   (when (and comparable (= +wake-up-looks+ (watched-unanswered watched)))
                     (request-takeover-first watched loop baton))))
                ((and (= state +free+)
                      (event-loop-driving loop)
                      (or still unread (timer-may-be-due-p loop)))
                 (ask (request-runner loop)))))))))

(defun wake-up-unanswered-p (watched loop same-wait comparable)
  "True if an item was posted to LOOP, whose runner waits for events, and has not been taken yet.
Count the consecutive checks in which this is the case and SAME-WAIT is true; a check that is not
COMPARABLE is not counted."
  (let* ((inbox (event-loop-inbox loop))
         (rung (not (or (inbox-asleep-p inbox) (inbox-empty-p inbox)))))
    (cond ((not (and rung same-wait)) (setf (watched-unanswered watched) 0))
          (comparable (incf (watched-unanswered watched))))
    rung))

(defun timer-may-be-due-p (loop)
  (timers-due-p (event-loop-wheel loop) (funcall (event-loop-clock loop))))

(defun look-at-turn (watched loop in-user-code)
  "Note the turn of LOOP and its current function. If LOOP is IN-USER-CODE and in the same turn as
at the last check, mark the turn as long. If LOOP is also in the same function, mark the function as
late, and return true."
  (let* ((turns (event-loop-turns loop))
         (at (event-loop-ring-start loop))
         (same-turn (= turns (shiftf (watched-turns watched) turns)))
         (same-function (= at (shiftf (watched-at watched) at))))
    (when (and in-user-code same-turn)
      (setf (event-loop-long-turn loop) turns)
      (when same-function
        (setf (event-loop-late-turn loop) turns)
        t))))
