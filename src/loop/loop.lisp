;;;; The turn of a loop, and its life.
;;;;
;;;; A turn: wait for events → read every ready connection once → deferred functions → inbox →
;;;; timers → one send for each connection that has output → what is to come last, such as waking
;;;; those who wait for what this turn brought. Each phase takes what was there when it
;;;; began; what it causes is for later phases or the next turn, which then does not wait. Nothing
;;;; here allocates. Timers are looked at in the middle of a long turn as well.
;;;;
;;;; Life: :new → :running → :stopped, never back. A loop that stops closes all that it owns, tells
;;;; every owner, runs what was posted before, and refuses posts from then on.

(in-package #:clgrpc.loop)

(defconstant +flush-interval-ns+ 200000
  "In a long turn all output is sent after so long.")
(defconstant +longest-wait-ns+ (* 3600 +ns-per-second+)
  "Timers may be due in centuries; the loop looks up now and then.")
(defconstant +functions-per-look+ 16
  "After so many deferred functions the turn looks whether some output should be sent or a timer is
due; once the watchdog has found it long, after each.")
(defconstant +forever-seconds+ 1000000000)
(defconstant +join-seconds+ 10
  "How long JOIN-EVENT-LOOP waits: longer than any turn, unless user code holds the loop up for
good.")

;;; Phases

(define-hot wait-time-ns ((loop event-loop)) (signed-byte 62)
  "How long the turn that begins may wait for events: 0 if there is work, -1 if nothing is due.
Unless it is 0, the inbox counts as asleep."
  (if (or (plusp (event-loop-ready-count loop))
          (plusp (event-loop-dirty-count loop))
          (plusp (event-loop-ring-count loop)))
      0
      (let* ((due (next-due-ns (event-loop-wheel loop)))
             (wait (cond ((null due) -1)
                         (t (min (max 0 (- due (the nanoseconds
                                                    (funcall (event-loop-clock loop)))))
                                 +longest-wait-ns+)))))
        (declare (type (signed-byte 62) wait))
        (if (or (zerop wait) (doze-inbox (event-loop-inbox loop)))
            wait
            0))))

(define-hot dispatch-events ((loop event-loop) (count (integer 0 256))) null
  (let ((tokens (poller-tokens (event-loop-poller loop)))
        (flags (poller-flags (event-loop-poller loop))))
    (loop for i of-type (integer 0 256) below count
          do (let ((source (find-source loop (aref tokens i)))
                   (flags (aref flags i)))
               (typecase source
                 (null)
                 (connection (note-event source flags))
                 (t (guarding (:event-handler-error :source source)
                      (funcall (the function (source-on-event source)) source flags))))))
    nil))

(define-hot wait-and-dispatch ((loop event-loop)) boolean
  "Wait for events and note them. Return false if an interrupt has given the baton away meanwhile.
If one unwinds, what events were fetched is lost, and the next to wait asks for all anew."
  (when (event-loop-blind loop) (watch-anew loop))
  (let* ((poller (event-loop-poller loop))
         (wait (wait-time-ns loop))
         (count -1))
    (declare (type (integer -1 256) count))
    (unwind-protect
         (setf count (if (zerop wait)
                         (funcall (poller-wait poller) poller 0)
                         (sb-sys:with-interrupts (funcall (poller-wait poller) poller wait))))
      (when (minusp count) (setf (event-loop-blind loop) t)))
    (when (in-event-loop-p loop)
      (unless (zerop wait) (rouse-inbox (event-loop-inbox loop)))
      ;; woken by a post: others who are about to post get to do so, and share one send
      (when (and (zerop count) (event-loop-attended loop)
                 (not (inbox-empty-p (event-loop-inbox loop))))
        (sb-thread:thread-yield))
      (setf (event-loop-now loop) (funcall (event-loop-clock loop))
            (event-loop-flushed-at loop) (event-loop-now loop))
      (incf (event-loop-turns loop))
      (dispatch-events loop count)
      t)))

(defun watch-anew (loop)
  "Have the poller report again whatever it has to say of each source."
  (setf (event-loop-blind loop) nil)
  (let ((poller (event-loop-poller loop)))
    (loop for source across (event-loop-sources loop)
          when source
            do (funcall (poller-remove poller) poller (source-descriptor source))
               (funcall (poller-add poller) poller (source-descriptor source)
                        (source-token source)))))

(defmacro do-work ((connection loop list count spare) &body body)
  "Do BODY for each CONNECTION that is in the work list LIST of LOOP when this begins; what is added
meanwhile is for the next time. If BODY signals an error, it is logged, the connection is aborted,
and the rest has its turn."
  `(let ((work (,list ,loop))
         (work-count (,count ,loop))
         (i 0))
     (declare (type simple-vector work) (type index work-count i))
     (setf (,list ,loop) (,spare ,loop)
           (,spare ,loop) work
           (,count ,loop) 0)
     (loop while (< i work-count)
           do (let ((failure
                      (nth-value
                       1 (guarding (:connection-handler-error
                                    :connection (event-loop-current ,loop))
                           (loop while (< i work-count)
                                 do (let ((,connection (svref work i)))
                                      (declare (type connection ,connection))
                                      (setf (svref work i) 0
                                            (event-loop-current ,loop) ,connection)
                                      (incf i)
                                      ,@body))))))
                (when failure
                  (connection-failed (the connection (event-loop-current ,loop)) failure))))
     (setf (event-loop-current ,loop) nil)))

(defun connection-failed (connection condition)
  "The handler of CONNECTION signalled CONDITION."
  (setf (connection-dirty connection) nil) ; it may be on the list twice then, which does not matter
  (abort-connection connection condition))

(define-hot read-phase ((loop event-loop)) null
  (when (plusp (event-loop-ready-count loop))
    (do-work (connection loop event-loop-ready event-loop-ready-count event-loop-ready-spare)
      (setf (connection-queued connection) nil)
      (read-connection connection)
      (when (>= (connection-unsent connection) +flush-octets+)
        (flush-connection connection))))
  nil)

(define-hot flush-phase ((loop event-loop)) null
  (setf (event-loop-gathered-ns loop) 0)
  (when (plusp (event-loop-dirty-count loop))
    (do-work (connection loop event-loop-dirty event-loop-dirty-count event-loop-dirty-spare)
      (flush-and-close connection)))
  nil)

(define-hot flush-large ((loop event-loop)) null
  "In the middle of a turn: run the timers that are due, and send the output that has grown large,
or all if the last time was long ago."
  (let ((now (funcall (event-loop-clock loop))))
    (declare (type nanoseconds now))
    (run-timers loop now)
    (cond ((> (- now (event-loop-flushed-at loop)) +flush-interval-ns+)
           (flush-phase loop)
           (setf (event-loop-flushed-at loop) now))
          (t (loop for i of-type index below (event-loop-dirty-count loop)
                   do (let ((connection (svref (event-loop-dirty loop) i)))
                        (declare (type connection connection))
                        (when (>= (connection-unsent connection) +flush-octets+)
                          (let ((failure (nth-value
                                          1 (guarding (:connection-handler-error
                                                       :connection connection)
                                              (flush-connection connection)))))
                            (when failure (abort-connection connection failure))))))))
    nil))

(define-hot run-next-deferred ((loop event-loop)) null
  (let* ((ring (event-loop-ring loop))
         (at (event-loop-ring-start loop))
         (function (svref ring at))
         (argument (svref ring (1+ at))))
    (setf (svref ring at) 0
          (svref ring (1+ at)) 0
          (event-loop-ring-start loop) (logand (+ at 2) (1- (length ring))))
    (decf (event-loop-ring-count loop))
    (funcall (the function function) argument)
    nil))

(define-hot deferred-phase ((loop event-loop)) boolean
  "Run what was deferred. Return false if user code in it has lost the baton."
  (let ((count (event-loop-ring-count loop))
        (done 0))
    (declare (type index count done))
    (loop while (< done count)
          do (guarding (:deferred-function-error :loop loop)
               (loop while (< done count)
                     do (incf done)
                        (run-next-deferred loop)
                        (unless (in-event-loop-p loop) (return-from deferred-phase nil))
                        (when (or (zerop (mod done +functions-per-look+))
                                  (= (event-loop-long-turn loop) (event-loop-turns loop)))
                          (flush-large loop))))
             (unless (in-event-loop-p loop) (return-from deferred-phase nil)))
    t))

(defgeneric run-posted (item)
  (:documentation "Do what ITEM, which was given to POST, stands for. On the loop."))

(define-hot call-posted (item) t
  (if (functionp item)
      (funcall item)
      (run-posted item)))

(define-hot inbox-phase ((loop event-loop)) null
  (let ((inbox (event-loop-inbox loop)))
    (loop while (nth-value 1 (guarding (:posted-function-error :loop loop)
                               (drain-inbox inbox #'call-posted))))
    nil))

(define-hot run-timers ((loop event-loop) (now nanoseconds)) null
  "Run the timers that are due at NOW."
  (when (timers-due-p (event-loop-wheel loop) now)
    (loop while (nth-value 1 (guarding (:timer-function-error :loop loop)
                               (advance-wheel (event-loop-wheel loop) now)))))
  nil)

(define-hot timer-phase ((loop event-loop)) null
  (run-timers loop (event-loop-now loop)))

(define-hot last-phase ((loop event-loop)) null
  (let ((last (event-loop-last loop))
        (i 0))
    (declare (type index i))
    (loop while (< i (event-loop-last-count loop))
          do (let ((function (shiftf (svref last i) 0))
                   (argument (shiftf (svref last (1+ i)) 0)))
               (incf i 2)
               (guarding (:last-function-error :loop loop)
                 (funcall (the function function) argument))))
    (setf (event-loop-woke loop) (plusp i)
          (event-loop-last-count loop) 0)
    nil))

(define-hot run-turn ((loop event-loop)) boolean
  "One turn. Return false if the baton was lost in it."
  (when (wait-and-dispatch loop)
    (read-phase loop)
    (when (deferred-phase loop)
      (end-turn loop)
      t)))

(define-hot end-turn ((loop event-loop)) null
  "What comes in a turn after reading and deferred functions."
  (inbox-phase loop)
  (timer-phase loop)
  (flush-phase loop)
  (last-phase loop))

;;; What others call

(define-hot defer ((loop event-loop) (function function) (argument t)) null
  "Have FUNCTION called with ARGUMENT after the reading of this turn, or in the next turn if that is
over. First come, first served. On the loop."
  (let ((ring (event-loop-ring loop))
        (count (event-loop-ring-count loop)))
    (declare (type simple-vector ring))
    (when (= (* 2 count) (length ring))
      (setf ring (grow-ring loop)))
    (let ((at (logand (+ (event-loop-ring-start loop) (* 2 count)) (1- (length ring)))))
      (setf (svref ring at) function
            (svref ring (1+ at)) argument
            (event-loop-ring-count loop) (1+ count))
      nil)))

(define-hot read-clock ((loop event-loop)) nanoseconds
  "The time now by LOOP's clock, in nanoseconds: in the middle of a turn that is later than
EVENT-LOOP-NOW. From any thread."
  (funcall (event-loop-clock loop)))

(define-hot call-last ((loop event-loop) (function function) (argument t)) null
  "Have FUNCTION called with ARGUMENT at the end of the turn, after the flush. It is not user code
and calls nothing of the loop. By the holder of the baton."
  (let ((count (event-loop-last-count loop)))
    (when (= count (length (event-loop-last loop)))
      (setf (event-loop-last loop) (grow-vector (event-loop-last loop) (* 2 count))))
    (setf (svref (event-loop-last loop) count) function
          (svref (event-loop-last loop) (1+ count)) argument
          (event-loop-last-count loop) (+ 2 count))
    nil))

(defun call-after-closing (loop function)
  "Have FUNCTION called with LOOP at the end of each turn in which a connection of LOOP has gone, as
CALL-LAST does; one that is added again only once. On the loop, or before it is started."
  (pushnew function (event-loop-after-closing loop))
  nil)

(define-hot grow-ring ((loop event-loop)) simple-vector
  (let* ((old (event-loop-ring loop))
         (start (event-loop-ring-start loop))
         (new (make-array (* 2 (length old)) :initial-element 0)))
    (replace new old :start2 start)
    (replace new old :start1 (- (length old) start) :end2 start)
    (setf (event-loop-ring-start loop) 0
          (event-loop-ring loop) new)))

(define-hot post ((loop event-loop) item) boolean
  "Have ITEM, a function without arguments or what has a method for RUN-POSTED, called on LOOP;
those that one thread posts are called in order. Return false if LOOP has stopped, so that it will
not be called. From any thread."
  (let* ((inbox (event-loop-inbox loop))
         (answer (push-inbox inbox item)))
    (when (eq t answer)
      (wake-loop loop)
      (confirm-wake inbox))
    (not (eq :closed answer))))

(define-hot wake-loop ((loop event-loop)) null
  "Something was pushed while the consumer slept: wake it, or, if nobody runs LOOP, have somebody do
so."
  (unless (and (= +free+ (baton-state (event-loop-baton loop)))
               (request-runner loop))
    (funcall (poller-wake (event-loop-poller loop)) (event-loop-poller loop)))
  nil)

;; Each loop may have one function for a signal; all that have one are told. The list is replaced,
;; never changed, since a signal may come while it is being read.
(defglobal **signal-takers** '())       ; elements (signal loop . function)
(defglobal **signal-lock** (sb-thread:make-mutex :name "clgrpc signals"))

(defun pass-signal-on (signal)
  (loop for (taken loop . function) in **signal-takers**
        when (= taken signal) do (post loop function)))

(defun on-signal (loop signal function)
  "Have FUNCTION called, without arguments, on LOOP whenever the process gets SIGNAL, a number such
as OS:+SIGTERM+; with NIL for FUNCTION, no more. Other loops may ask for the same signal, and each
gets it; when none does, it has its default action again. From any thread."
  (sb-thread:with-mutex (**signal-lock**)
    (let ((others (remove-if (lambda (taker)
                               (and (= signal (first taker)) (eq loop (second taker))))
                             **signal-takers**)))
      (setf **signal-takers** (if function
                                  (cons (list* signal loop function) others)
                                  others))
      (if (find signal **signal-takers** :key #'first)
          (os:handle-signal signal (lambda () (pass-signal-on signal)))
          (os:reset-signal signal)))))

;;; Life

(defun make-event-loop (&key (name "clgrpc loop") (clock #'monotonic-ns)
                          (poller (make-poller-by-default))
                          (random (sb-ext:seed-random-state t))
                          reserve attended)
  "Return a loop that nobody runs yet. NAME is for people; CLOCK, a function that returns
nanoseconds, and POLLER are those of the machine unless they are given, and RANDOM, a random-state
for what is left to chance, is a new one. With a RESERVE, its threads take the loop over when user
code overstays or is about to wait. ATTENDED, which needs a RESERVE, means that no thread of its own
runs the loop: callers do, by turns (see DRIVE), and when they cannot a reserve thread does.
STOP-EVENT-LOOP must be called at some time, even if it was never started."
  (let ((loop (%make-event-loop name clock poller random)))
    (setf (event-loop-input loop) (make-octets (+ +copied-leftover-octets+ +read-octets+))
          (event-loop-now loop) (funcall clock)
          (poller-interest poller) (lambda (token)
                                     (let ((source (find-source loop token)))
                                       (if source (interest source) 0)))
          (event-loop-reserve loop) reserve
          (event-loop-attended loop) (and attended t))
    loop))

(defun leave-state (loop from to)
  "Change the state of LOOP if it is FROM; return true if it was."
  (sb-thread:with-mutex ((event-loop-lock loop))
    (when (eq from (event-loop-state loop))
      (setf (event-loop-state loop) to)
      (sb-thread:condition-broadcast (event-loop-stopped loop))
      t)))

(defun run-event-loop (loop)
  "Run LOOP in this thread until STOP-EVENT-LOOP, or until a non-local exit; either way it has
stopped then, unless the exit leaves it to its reserve. Signal MISUSE if it runs, or ran, already."
  (begin-running loop)
  (with-taken-loop (loop (take loop)) (run-as-holder loop))
  ;; overtaken, or stopped before it began
  (await-stop loop +forever-seconds+)
  nil)

(defun launch-event-loop (loop)
  "Run LOOP in a thread of its own, or, if it is attended, let callers drive it from now on. Signal
MISUSE if it runs, or ran, already."
  (begin-running loop)
  (if (event-loop-attended loop)
      (doze-inbox (event-loop-inbox loop)) ; the first post has somebody come
      (handler-bind ((error (lambda (error)
                              (declare (ignore error))
                              (stop-event-loop loop))))
        (setf (event-loop-runner loop)
              (sb-thread:make-thread #'run-in-thread :name (event-loop-name loop)
                                                     :arguments (list loop)))))
  nil)

(defun begin-running (loop)
  (unless (leave-state loop :new :running)
    (misuse "~A was started before." loop))
  (when (event-loop-reserve loop) (watch-loop loop)))

(defun end-running (loop)
  "LOOP is at its end. By the thread that holds the baton; if user code loses that, somebody else
goes on, and this returns false."
  (when (release-all loop)
    (retire loop)
    (leave-state loop :running :stopped)
    (when (event-loop-reserve loop) (unwatch-loop loop))
    t))

(defun run-in-thread (loop)
  (unwind-protect
       (when (eq :lost (with-taken-loop (loop (take loop)) (run-as-holder loop)))
         ;; overtaken while user code overstayed, this thread is one of the reserve
         (enlist (event-loop-reserve loop)))
    (os:protect-stack-end)))            ; user code may have run out of it

(defun run-as-holder (loop)
  "Run LOOP, whose baton this thread has just taken, until it stops or is deserted, and give the
baton up; or until that is lost: then return :LOST."
  (let ((done nil))
    ;; it may have been overtaken while a caller drove it
    (setf (event-loop-driven-for loop) nil
          (event-loop-yielding loop) nil)
    (rouse-inbox (event-loop-inbox loop))
    (unwind-protect
         (progn
           (inbox-phase loop)
           (loop until (event-loop-stopping loop)
                 while (run-turn loop)
                 until (or (deserted-p loop) (wanted-back-p loop)))
           (prog1 (cond ((not (in-event-loop-p loop)) :lost)
                        ((event-loop-stopping loop) (if (end-running loop) nil :lost))
                        (t (step-back loop)))
             (setf done t)))
      (when (and (not done) (in-event-loop-p loop)) (pass-on loop)))))

(defun pass-on (loop)
  "A non-local exit leaves LOOP, whose baton this thread holds: somebody else is to run it, or it
ends."
  (hand-over loop)
  (unless (request-runner loop)
    (when (take loop) (end-running loop))))

(defun stop-event-loop (loop)
  "Have LOOP stop after the current turn; closes every connection and descriptor it owns. Output
that its peers do not take at once is lost. Stopping again does nothing. From any thread."
  (setf (event-loop-stopping loop) t)
  (sb-thread:barrier (:memory))
  (leave-state loop :new :running)
  (unless (with-taken-loop (loop (take loop)) (run-as-holder loop) t)
    (post loop (constantly nil)))
  nil)

(defun await-stop (loop timeout-seconds)
  "Wait until LOOP has stopped; return false if that takes longer than TIMEOUT-SECONDS."
  (let ((end (+ (monotonic-ns) (seconds-ns timeout-seconds))))
    (sb-thread:with-mutex ((event-loop-lock loop))
      (loop until (eq :stopped (event-loop-state loop))
            always (await-notice (event-loop-stopped loop) (event-loop-lock loop) end)))))

(defun join-event-loop (loop &key (timeout-seconds +join-seconds+))
  "Wait until LOOP has stopped, TIMEOUT-SECONDS at most. Return true if it has; if not, something
that it called does not return. Not on the loop."
  (cond ((await-stop loop timeout-seconds)
         (or (event-loop-overtaken loop)
             (end-thread (event-loop-runner loop))))
        (t (log-event :error :loop-does-not-stop :loop loop)
           nil)))

(defun call-at-stop (loop function)
  "Have FUNCTION called with LOOP when that stops, before what it has is closed; the last one added
is called first, one that is added again only once. On the loop, or before it is started."
  (pushnew function (event-loop-at-stop loop))
  nil)

(defun run-stop-functions (loop)
  "LOOP is about to stop."
  (loop while (event-loop-at-stop loop)
        do (let ((function (pop (event-loop-at-stop loop))))
             (guarding (:stop-function-error :loop loop)
               (funcall (the function function) loop)))))

(defun release-all (loop)
  "Close what LOOP owns. Return false if user code has lost the baton meanwhile, so that somebody
else does the rest. On the loop."
  (run-stop-functions loop)
  (close-inbox (event-loop-inbox loop))
  (inbox-phase loop)
  (unless (deferred-phase loop) (return-from release-all nil))
  (flush-phase loop)
  (last-phase loop)
  (flet ((release (source)
           (if (typep source 'connection)
               (finish-connection source nil)
               (guarding (:release-error :source source)
                 (funcall (source-on-release source) source)))))
    (loop while (event-loop-unconnected loop)
          do (release (pop (event-loop-unconnected loop))))
    (loop for source = (find-if #'identity (event-loop-sources loop))
          while source
          do (release source)
             (remove-source source)))
  (funcall (poller-close (event-loop-poller loop)) (event-loop-poller loop))
  (release-area loop)
  (fill (event-loop-pool loop) nil)
  (setf (event-loop-pool-count loop) 0
        (event-loop-ready-count loop) 0
        (event-loop-dirty-count loop) 0)
  (last-phase loop)
  t)
