;;;; The life of a loop: :new → :running → :stopped, never back. A loop that stops closes all its
;;;; sources and calls their owners, runs the functions posted before, and refuses posts from then
;;;; on. The signals of the process, which loops can take, are handled here as well.

(in-package #:clgrpc.loop)

(defconstant +join-seconds+ 10
  "The time in seconds that JOIN-EVENT-LOOP waits. It is longer than any turn, unless user code
blocks the loop for ever.")

(defun make-event-loop (&key (name "clgrpc loop") (clock (world-clock *world*))
                          (poller (funcall (world-make-poller *world*)))
                          (random (funcall (world-make-random *world*)))
                          reserve caller-driven)
  "Return a loop of this thread's world that does not run yet. NAME is shown to people. The world
gives the defaults of CLOCK (a function that returns nanoseconds), POLLER and RANDOM (a
random-state). If RESERVE is given, its threads take the loop over when user code takes too long or
is about to wait. With CALLER-DRIVEN, which needs a RESERVE, the loop has no thread of its own:
callers run it (see DRIVE), and a reserve thread runs it when no caller does. A simulated world
ignores both arguments: the simulator runs the loop. STOP-EVENT-LOOP must be called at some time,
even if the loop was never started."
  (let ((loop (if (simulated-p)
                  (%make-event-loop name clock poller random nil nil nil #'run-as-holder)
                  (%make-event-loop name clock poller random reserve
                                    (and caller-driven (make-driving)) (make-spin-state-if-useful)
                                    #'run-as-holder))))
    (setf (event-loop-input loop) (make-octets (+ +copied-leftover-octets+ +read-octets+))
          (event-loop-now loop) (funcall clock)
          (poller-interest poller) (lambda (token)
                                     (let ((source (find-source loop token)))
                                       (if source (interest source) 0))))
    loop))

(defun leave-state (loop from to)
  "If the state of LOOP is FROM, change it and return true; else return false."
  (sb-thread:with-mutex ((event-loop-lock loop))
    (when (eq from (event-loop-state loop))
      (setf (event-loop-state loop) to)
      (sb-thread:condition-broadcast (event-loop-stopped loop))
      t)))

(defun run-event-loop (loop)
  "Run LOOP in this thread until STOP-EVENT-LOOP stops it, or until a non-local exit. In both cases
LOOP has stopped afterwards, unless a thread of its reserve continues it after the exit. Signal
MISUSE if LOOP runs or has run already."
  (begin-running loop)
  (run-as-own loop)
  ;; the loop was overtaken, or stopped before it began
  (await-stop loop +forever-seconds+)
  nil)

(defun launch-event-loop (loop)
  "Start LOOP. It runs in a thread of its own or, if it is caller-driven, in the threads of its
callers. Signal MISUSE if LOOP runs or has run already."
  (begin-running loop)
  (cond ((simulated-p (event-loop-world loop))
         (funcall (world-start-loop (event-loop-world loop)) loop))
        ((event-loop-driving loop)
         (doze-inbox (event-loop-inbox loop))) ; the first post wakes a thread
        (t (handler-bind ((error (lambda (error)
                                   (declare (ignore error))
                                   (stop-event-loop loop))))
             (setf (event-loop-runner loop)
                   (sb-thread:make-thread #'run-in-thread :name (event-loop-name loop)
                                                          :arguments (list loop))))))
  nil)

(defun begin-running (loop)
  (unless (leave-state loop :new :running)
    (misuse "~A was started before." loop))
  (when (event-loop-reserve loop) (watch-loop loop)))

(defun end-running (loop)
  "Stop LOOP, whose end was requested. The thread that holds the baton must call this. If user code
loses the baton meanwhile, return false; another thread continues then."
  (when (release-all loop)
    (retire loop)
    (leave-state loop :running :stopped)
    (let ((reserve (event-loop-reserve loop)))
      (when reserve
        (count-runner reserve -1 (lambda () (shiftf (event-loop-left loop) nil)))
        (unwatch-loop loop)))
    t))

(defun run-as-own (loop)
  "Run LOOP in its own thread until the loop stops or a reserve thread has taken it. Return :LOST if
a reserve thread has taken it without a non-local exit."
  (unwind-protect (with-taken-loop (loop (take loop)) (run-as-holder loop))
    (when (and (event-loop-reserve loop) (null (event-loop-driving loop)))
      (count-runner (event-loop-reserve loop) 1
                    (lambda ()
                      (unless (eq :stopped (event-loop-state loop))
                        (setf (event-loop-left loop) t)))))))

(defun run-in-thread (loop)
  (unwind-protect
       (when (eq :lost (run-as-own loop))
         ;; this thread, overtaken during long user code, joins the reserve
         (enlist (event-loop-reserve loop)))
    (os:protect-stack-end)))            ; user code may have exhausted the stack

(defun run-as-holder (loop)
  "Run LOOP, whose baton this thread has taken before, until the loop stops or has nothing to do for
this thread; then release the baton. If the baton is lost, return :LOST."
  (let ((done nil))
    ;; the loop may have been taken from a caller that drove it
    (let ((driving (event-loop-driving loop)))
      (when driving
        (setf (driving-owner driving) nil
              (driving-yielding driving) nil)))
    (rouse-inbox (event-loop-inbox loop))
    (unwind-protect
         (progn
           (call-some-posted loop)
           (loop until (event-loop-stopping loop)
                 while (run-turn loop)
                 until (or (deserted-p loop) (wanted-back-p loop)))
           (prog1 (cond ((not (in-event-loop-p loop)) :lost)
                        ((event-loop-stopping loop) (if (end-running loop) nil :lost))
                        (t (step-back loop)))
             (setf done t)))
      (when (and (not done) (in-event-loop-p loop)) (pass-on loop)))))

(defun pass-on (loop)
  "Let a reserve thread run LOOP, because a non-local exit is leaving LOOP; if no reserve thread can
run it, end LOOP. This thread must hold the baton."
  (hand-over loop)
  (unless (request-runner loop)
    (when (take loop) (end-running loop))))

(defun stop-event-loop (loop)
  "Stop LOOP after the current turn, and close every connection and descriptor that it owns. Output
that the kernel does not accept at once is lost. Stopping again does nothing. From any thread."
  (setf (event-loop-stopping loop) t)
  (sb-thread:barrier (:memory))
  (leave-state loop :new :running)
  (unless (with-taken-loop (loop (take loop)) (run-as-holder loop) t)
    (post loop (constantly nil)))
  nil)

(defun await-stop (loop timeout-seconds)
  "Wait until LOOP has stopped; return false if that takes longer than TIMEOUT-SECONDS."
  (await-until (event-loop-stopped loop) (event-loop-lock loop) (notice-end timeout-seconds)
               (lambda () (eq :stopped (event-loop-state loop)))))

(defun join-event-loop (loop &key (timeout-seconds +join-seconds+))
  "Wait until LOOP has stopped, TIMEOUT-SECONDS at most. Return true if LOOP has stopped; false
means that a function that LOOP has called does not return. Do not call this on the loop."
  (cond ((await-stop loop timeout-seconds)
         (or (event-loop-overtaken loop)
             (end-thread (event-loop-runner loop))))
        (t (log-event :error :loop-does-not-stop :loop loop)
           nil)))

(defun call-at-stop (loop function)
  "Call FUNCTION with LOOP when LOOP stops, before its sources are closed. The function that was
added last is called first; a function that was added twice is called once. On the loop, or before
it is started."
  (pushnew function (event-loop-at-stop loop))
  nil)

(defun run-stop-functions (loop)
  "Call the functions that CALL-AT-STOP has added to LOOP, which is about to stop."
  (loop while (event-loop-at-stop loop)
        do (let ((function (pop (event-loop-at-stop loop))))
             (guarding (:stop-function-error :loop loop)
               (funcall (the function function) loop)))))

(defun first-source (loop start)
  "Return the first place, beginning at START, in which LOOP has a source, or nil if there is none."
  (position-if #'identity (event-loop-sources loop) :start start))

(defun release-sources (loop)
  "Close the connections and all other sources of LOOP, and call their owners."
  (flet ((release (source)
           (if (typep source 'connection)
               (finish-connection source nil)
               (guarding (:release-error :source source)
                 (funcall (source-on-release source) source)))))
    (loop while (event-loop-unconnected loop)
          do (release (pop (event-loop-unconnected loop))))
    ;; an owner that was called may have added sources, also before this place
    (loop for at = (first-source loop 0) then (or (first-source loop at) (first-source loop 0))
          while at
          do (let ((source (svref (event-loop-sources loop) at)))
               (release source)
               (remove-source source)))))

(defun release-all (loop)
  "Close everything that LOOP owns. Return false if user code has lost the baton meanwhile, in which
case another thread releases the rest. On the loop."
  (run-stop-functions loop)
  (let ((quiet (close-inbox (event-loop-inbox loop))))
    (inbox-phase loop)
    (unless (deferred-phase loop) (return-from release-all nil))
    (flush-phase loop)
    (last-phase loop)
    (release-sources loop)
    (close-poller loop (event-loop-poller loop) quiet))
  (release-area loop)
  (fill (event-loop-pool loop) nil)
  (setf (event-loop-pool-count loop) 0
        (event-loop-ready-count loop) 0
        (event-loop-dirty-count loop) 0)
  (last-phase loop)
  t)

;;; Loops of simulated worlds, which the simulator runs turn by turn

(defun make-turn (loop)
  "Make one turn of LOOP, which runs in a simulated world, in this thread."
  (with-taken-loop (loop (take loop))
    (let ((done nil))
      (unwind-protect
           (progn (unless (event-loop-stopping loop) (run-turn loop))
                  (if (event-loop-stopping loop)
                      (end-running loop)
                      (hand-over loop))
                  (setf done t))
        (when (and (not done) (in-event-loop-p loop)) (pass-on loop)))))
  nil)

(defun next-turn-ns (loop)
  "Return the time at which LOOP, which no thread runs now, must make its next turn if its poller
has no events. Return 0 if LOOP has work, else the time when its next timer is due, or nil if it has
no timer."
  (if (or (event-loop-stopping loop)
          (plusp (event-loop-ready-count loop))
          (plusp (event-loop-dirty-count loop))
          (plusp (event-loop-ring-count loop))
          (not (inbox-empty-p (event-loop-inbox loop))))
      0
      (next-due-ns (event-loop-wheel loop))))

;;; Statistics of a loop

(defun event-loop-statistics (loop)
  "A plist of the counts of LOOP:
 :turns, that it has made;
 :connections, that it has now;
 :lent and :lost, how often its baton was lent to user code, and how often another thread took it
 from there;
 :octets-received and :octets-sent, by its connections;
 :waited-ns, the time it has waited for events while it was timed;
 :spun-ns, the time it has waited without sleeping, in which it used a processor (spinning.lisp);
 :reserve, the reserve whose threads run it when its own thread cannot, or nil;
 :busy-threads and :idle-threads, of the reserve.
The counts may change while they are read. From any thread."
  (let* ((reserve (event-loop-reserve loop))
         (threads (if reserve (reserve-thread-count reserve) 0))
         (busy (if reserve (min threads (reserve-busy reserve)) 0)))
    (list :turns (event-loop-turns loop)
          :connections (event-loop-connections loop)
          :lent (event-loop-lent loop)
          :lost (event-loop-lost loop)
          :octets-received (event-loop-octets-received loop)
          :octets-sent (event-loop-octets-sent loop)
          :waited-ns (event-loop-waited-ns loop)
          :spun-ns (let ((spin-state (event-loop-spin-state loop)))
                     (if spin-state (spin-state-spun-ns spin-state) 0))
          :reserve reserve :busy-threads busy :idle-threads (- threads busy))))

;;; Signals

;; Each loop may have one function for a signal; a signal calls the functions of all loops. The list
;; is replaced, never changed, since a signal may come while it is being read.
(defglobal **signal-takers** '())       ; elements (signal loop . function)
;; a property list: for each signal that loops take, the former function of OS:HANDLE-SIGNAL, or nil
(defglobal **suspended-functions** '())
(defglobal **signal-lock** (sb-thread:make-mutex :name "clgrpc signals"))

(defun pass-signal-on (signal)
  (loop for (taken loop . function) in **signal-takers**
        when (= taken signal) do (post loop function)))

(defun on-signal (loop signal function)
  "Call FUNCTION, without arguments, on LOOP whenever the process gets SIGNAL, a number such as
OS:+SIGTERM+; NIL for FUNCTION ends these calls. If several loops have functions for the same
signal, each function is called. When no loop has a function for SIGNAL any more, SIGNAL again has
its former function of OS:HANDLE-SIGNAL, or its default action. From any thread."
  (sb-thread:with-mutex (**signal-lock**)
    (let ((taken (find signal **signal-takers** :key #'first))
          (others (remove-if (lambda (taker)
                               (and (= signal (first taker)) (eq loop (second taker))))
                             **signal-takers**)))
      (setf **signal-takers** (if function
                                  (cons (list* signal loop function) others)
                                  others))
      (cond ((find signal **signal-takers** :key #'first)
             (let ((before (os:handle-signal signal (lambda () (pass-signal-on signal)))))
               (unless taken (setf (getf **suspended-functions** signal) before))))
            (taken
             (let ((before (getf **suspended-functions** signal)))
               (remf **suspended-functions** signal)
               (if before
                   (os:handle-signal signal before)
                   (os:reset-signal signal))))))))
