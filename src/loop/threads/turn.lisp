;;;; The turn of a loop: wait for events → read every ready connection once → deferred functions →
;;;; inbox → timers → functions of CALL-BEFORE-FLUSH → one send for each connection that has output
;;;; → functions of CALL-LAST, such as those that wake threads whose answers have come in this turn.
;;;; Each phase does the work that existed when it began. Work that a phase causes is left to later
;;;; phases, or to the next turn, which then does not wait. But if a few deferred functions defer a
;;;; few others, and functions deferred in this way have been quick lately, they run in the same
;;;; turn: a handler that has just begun answers the messages that came with its call, and the
;;;; answer shares the send. Nothing here allocates. In the middle of a long turn timers run as
;;;; well, and newcomers are admitted: connections with new input are read, and the functions
;;;; deferred for them run before those that were deferred earlier. The newcomers get at most half
;;;; of the time, so neither they nor the earlier functions wait until all of the others have run.
;;;; Output is sent in the middle of a long turn, too. But output that reading has caused, such as
;;;; the answer to a PING, waits some milliseconds for the output of the functions, since one more
;;;; send costs as much as the other work for many messages.

(in-package #:clgrpc.loop)

(defconstant +flush-interval-ns+ 200000
  "The time in nanoseconds after which output is sent in a long turn.")
(defconstant +hold-ns+ 5000000
  "The time in nanoseconds that output, if reading has caused it, waits in the middle of a turn for
the answers to calls.")
(defconstant +longest-wait-ns+ (* 3600 +ns-per-second+)
  "The maximum time in nanoseconds of a wait for events. Timers may be due much later.")
(defconstant +inbox-ns+ 2000000
  "The time in nanoseconds that a turn spends on posted functions. It is limited because threads may
post a hundred thousand functions at once.")
(defconstant +posts-per-look+ 64
  "The number of posted functions after which the turn reads the clock.")
(defconstant +functions-per-look+ 16
  "The maximum number of deferred functions between two checks whether output should be sent, a
timer is due or newcomers should be admitted. The number begins with +FUNCTIONS-BEFORE-LOOK+ and
doubles while the functions are quick. Once the watchdog has found the turn long, the loop checks
after each function.")
(defconstant +functions-caused+ 16
  "When deferred functions defer further functions, these run in the same turn if the number of all
these functions is at most this.")
(defconstant +caused-ns+ 50000
  "If functions that other functions have deferred take longer than this, in nanoseconds, such
functions wait for the next turn during +APART-TIMES+ times that duration. Otherwise finished output
would wait for them.")
(defconstant +apart-times+ 20
  "If functions that other functions have deferred were slow (+CAUSED-NS+), such functions wait for
the next turn during this many times that duration. Finished output therefore waits for them at most
a twentieth of the time. A thread that was interrupted once for 100 µs sends separately for 2 ms.")
(defconstant +apart-ns+ +ns-per-second+
  "The maximum duration in nanoseconds that is recorded for functions that other functions have
deferred. It is also the maximum time for which such functions then wait for the next turn. Until
the functions have returned, this is their recorded duration.")
(defconstant +functions-before-look+ 2
  "The number of deferred functions of a turn that run before the first check of the clock.")
(defconstant +slow-function-ns+ 62500
  "If the functions between two checks have taken longer than this on average, in nanoseconds, the
next check follows after a single function.")
(defconstant +admission-ns+ 5000000
  "If deferred functions take longer than this, in nanoseconds, newcomers are admitted between them.
This is also the maximum time of one admission of newcomers. After an admission the next newcomers
wait for the same time, or as long as the admission has taken if that is longer.")

;;; Phases

(define-hot wait-time-ns ((loop event-loop)) (signed-byte 62)
  "Return the time in nanoseconds that the turn that begins now may wait for events: 0 if LOOP has
work, -1 if it has no timer. Unless the value is 0, the inbox counts as asleep."
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

(defun watch-anew (loop)
  "Make LOOP's poller report the state of each source again."
  (setf (event-loop-blind loop) nil)
  (let ((poller (event-loop-poller loop)))
    (loop for source across (event-loop-sources loop)
          when source
            do (funcall (poller-remove poller) poller (source-descriptor source))
               (funcall (poller-add poller) poller (source-descriptor source)
                        (source-token source)))))

(defconstant +slice-ns+ +ns-per-second+
  "The maximum time in nanoseconds that a driver sleeps. If another thread overtakes a driver
immediately before it sleeps, no event wakes the driver, which notices this only after this time.")

(define-hot sleep-for-events ((loop event-loop) (poller poller) (wait (signed-byte 62)))
    (integer 0 256)
  "Wait at most WAIT nanoseconds for events with POLLER, the poller of LOOP, with interrupts on.
This thread must have lent the baton of LOOP. Return the number of events fetched."
  (let* ((driving (event-loop-driving loop))
         (driven (and driving (driving-owner driving) t))
         (left wait))
    (declare (type (signed-byte 62) left))
    (loop
      (let* ((slice (cond ((not driven) left)
                          ((minusp left) +slice-ns+)
                          (t (min left +slice-ns+))))
             (count (with-user-interrupts ()
                      (values (funcall (poller-wait poller) poller slice)))))
        (declare (type (signed-byte 62) slice) (type (integer 0 256) count))
        (when (or (= slice left)
                  (plusp count)
                  (not (inbox-asleep-p (event-loop-inbox loop)))
                  (not (in-event-loop-p loop)))
          (return count))
        (when (plusp left) (decf left slice))))))

(define-hot sleep-as-lender ((loop event-loop) (wait (signed-byte 62))) (integer 0 256)
  "Do the work of FETCH-EVENTS with a wait. The events that this thread has fetched are lost in
three cases: an interrupt unwinds the thread, another thread has taken LOOP, or this thread has run
LOOP within an interrupt. In these cases LOOP asks for all events again. A thread that was overtaken
closes its poller."
  (let ((poller (event-loop-poller loop))
        (turns (event-loop-turns loop))
        (count -1))
    (declare (type (integer -1 256) count))
    (lend-to-wait loop)
    (unwind-protect (setf count (sleep-for-events loop poller wait))
      (cond ((resume loop)
             (unless (and (<= 0 count) (= turns (event-loop-turns loop)))
               (setf (event-loop-blind loop) t
                     count 0)))
            ((and (leave-poller loop poller) (/= 0 count))
             (setf (event-loop-blind loop) t)
             (post loop (constantly nil))))) ; the thread that runs LOOP now may sleep
    (max 0 count)))

(define-hot fetch-events ((loop event-loop) (wait (signed-byte 62))) (integer 0 256)
  "Fetch events with the poller of LOOP, waiting at most WAIT for the first event; return the number
of events. After a wait this thread may have lost the baton."
  (when (event-loop-blind loop) (watch-anew loop))
  (let ((poller (event-loop-poller loop)))
    (if (zerop wait)
        (the (values (integer 0 256) &optional) (funcall (poller-wait poller) poller 0))
        (sleep-as-lender loop wait))))

(define-hot note-events ((loop event-loop) (count (integer 0 256))) null
  "Begin a turn with the COUNT events that were fetched."
  (setf (event-loop-now loop) (funcall (event-loop-clock loop))
        (event-loop-flushed-at loop) (event-loop-now loop)
        (event-loop-began-at loop) (event-loop-now loop))
  (incf (event-loop-turns loop))
  (let ((postponed (event-loop-ready-count loop)))
    (dispatch-events loop count)
    (when (< 0 postponed (event-loop-ready-count loop))
      (put-newcomers-first loop postponed))))

(define-hot look-for-events ((loop event-loop) (spin-ns (integer 0 100000)))
    (values (integer 0 256) (or null (integer 0 100000)) nanoseconds)
  "Look for events of LOOP for SPIN-NS without sleeping. Return three values: the number of events;
the number of nanoseconds until an event or a post arrived, or nil if neither arrived; and the
duration of the look in nanoseconds. If another thread, perhaps the peer's, has used this thread's
processor meanwhile, the second value is so large that spinning does not appear useful."
  (let* ((begin (monotonic-ns)) (now begin))
    (declare (type nanoseconds begin now))
    (loop
      (let ((count (fetch-events loop 0))
            (before (shiftf now (monotonic-ns))))
        (declare (type nanoseconds before))
        (cond ((or (plusp count) (not (inbox-asleep-p (event-loop-inbox loop))))
               (return (values count
                               (if (< (- now before) +longest-look-ns+)
                                   (min (- now begin) spin-ns)
                                   (* 2 +trial-ns+))
                               (- now begin))))
              ((>= (- now begin) spin-ns) (return (values 0 nil (- now begin)))))))))

(define-hot spin-or-sleep ((loop event-loop) (spin-state spin-state) (wait (signed-byte 62)))
    (integer 0 256)
  "Do what FETCH-EVENTS does, with a wait; spin before the wait if spinning is useful."
  (let* ((driving (event-loop-driving loop))
         (driven (and driving (driving-owner driving) t))
         (sent (event-loop-octets-sent loop))
         (octets (- sent (shiftf (spin-state-sent spin-state) sent)))
         (spin-ns (if (or (zerop octets)              ; no answer is expected
                          (and driving (not driven))) ; for many callers
                      0
                      (spin-time-ns spin-state driven (ldb (byte 40 0) octets)))))
    (if (or (zerop spin-ns) (<= 0 wait (* 2 spin-ns)))
        (fetch-events loop wait)
        (multiple-value-bind (count waited-ns spun-ns) (look-for-events loop spin-ns)
          (note-spin spin-state driven waited-ns)
          (incf (spin-state-spun-ns spin-state) spun-ns)
          (cond (waited-ns count)
                ;; the kernel may have kept the thread from running for long
                ((plusp wait) (fetch-events loop (max 0 (- wait spun-ns))))
                (t (fetch-events loop wait)))))))

(define-hot wait-and-dispatch ((loop event-loop)) boolean
  "Wait for events and note them. Return false if the baton was lost meanwhile."
  (let* ((wait (wait-time-ns loop))
         (begin (if (and (event-loop-timed loop) (/= 0 wait))
                    (funcall (event-loop-clock loop))
                    0))
         (spin-state (and (/= 0 wait) (event-loop-spin-state loop)))
         (count (if spin-state (spin-or-sleep loop spin-state wait) (fetch-events loop wait))))
    (declare (type nanoseconds begin))
    (when (in-event-loop-p loop)
      (unless (zerop wait) (rouse-inbox (event-loop-inbox loop)))
      (when spin-state
        (note-source spin-state (if (= 1 count)
                                    (aref (poller-tokens (event-loop-poller loop)) 0)
                                    0)))
      ;; after a post has woken this thread, let others that are about to post do so and share the
      ;; send
      (when (and (zerop count) (event-loop-driving loop)
                 (not (inbox-empty-p (event-loop-inbox loop))))
        (sb-thread:thread-yield))
      (note-events loop count)
      (when (plusp begin)               ; the turn began, and all output was sent, at FLUSHED-AT
        (incf (event-loop-waited-ns loop) (max 0 (- (event-loop-flushed-at loop) begin))))
      t)))

(defmacro do-work ((connection loop list count spare) &body body)
  "Do BODY for each CONNECTION that is in the work list LIST of LOOP at the start; connections that
are added meanwhile wait until the list is processed again. If BODY signals an error, the error is
logged, its connection is aborted, and the loop continues with the other connections."
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
  ;; then a connection may be on the list twice, which is harmless
  (setf (connection-dirty connection) nil)
  (abort-connection connection condition))

(define-hot read-phase ((loop event-loop)) null
  (when (plusp (event-loop-ready-count loop))
    (do-work (connection loop event-loop-ready event-loop-ready-count event-loop-ready-spare)
      (setf (connection-queued connection) nil)
      (read-connection connection)
      (when (>= (connection-unsent connection) +flush-octets+)
        (flush-connection connection))))
  nil)

(defmacro with-newcomers ((newcomers count) loop postponed &body body)
  "Do BODY with NEWCOMERS, a vector whose first COUNT elements are the ready connections of LOOP
except the first POSTPONED connections, which remain in the list. If these are more than 256
connections, the rest remains in the list as well."
  `(let* ((,newcomers (make-array 256)) ; the number of events that are fetched at once
          (ready (event-loop-ready ,loop))
          (,count (min 256 (- (event-loop-ready-count ,loop) ,postponed)))
          (rest (- (event-loop-ready-count ,loop) ,count)))
     (declare (dynamic-extent ,newcomers) (type index ,count rest) (type simple-vector ready))
     (replace ,newcomers ready :start2 rest :end2 (+ rest ,count))
     (fill ready 0 :start rest :end (+ rest ,count))
     (setf (event-loop-ready-count ,loop) rest)
     ,@body))

(define-hot put-newcomers-first ((loop event-loop) (postponed index)) null
  "Move the ready connections after the first POSTPONED connections to the places before these. The
input of the first POSTPONED connections was left from an earlier turn. Connections in a TLS
handshake stay after the postponed connections, because a turn does only some handshakes, and
otherwise the oldest handshakes would wait as long as new connections arrive."
  (with-newcomers (newcomers count) loop postponed
    (let* ((at 0)
           (ahead (count-if-not #'connection-handshaking-p newcomers :end count))
           (behind (+ ahead rest)))
      (declare (type index at behind))
      (replace ready ready :start1 ahead :end2 rest)
      (dotimes (i count)
        (let ((newcomer (svref newcomers i)))
          (cond ((connection-handshaking-p newcomer)
                 (setf (svref ready behind) newcomer)
                 (incf behind))
                (t (setf (svref ready at) newcomer)
                   (incf at))))))
    (setf (event-loop-ready-count loop) (+ rest count)))
  nil)

(define-hot read-newcomers ((loop event-loop) (postponed index)) null
  "Read the ready connections after the first POSTPONED."
  (with-newcomers (newcomers count) loop postponed
    (loop for i of-type index below count
          do (let ((connection (svref newcomers i)))
               (declare (type connection connection))
               (setf (connection-queued connection) nil
                     (event-loop-current loop) connection)
               (let ((failure (nth-value 1 (guarding (:connection-handler-error
                                                      :connection connection)
                                             (read-connection connection)))))
                 (when failure (connection-failed connection failure)))))
    (setf (event-loop-current loop) nil))
  nil)

(define-hot flush-phase ((loop event-loop)) null
  (run-early-functions loop)
  (let ((driving (event-loop-driving loop)))
    (when driving (setf (driving-coalesced-ns driving) 0)))
  (when (plusp (event-loop-dirty-count loop))
    (do-work (connection loop event-loop-dirty event-loop-dirty-count event-loop-dirty-spare)
      (flush-and-close connection)))
  nil)

(define-hot answer-may-follow-p ((connection connection)) boolean
  "True if CONNECTION has output that does not answer a message yet, and its owner has nothing to
add. DATA counts as an answer if it waited for a window that the peer has sent in this turn."
  (and (plusp (connection-unsent connection))
       (answers-nothing-p connection)
       (eq :open (connection-state connection))
       (not (connection-blocked connection))
       (or (connection-filled connection)
           (progn (funcall (handler-fill (connection-handler connection)) connection)
                  (setf (connection-filled connection) t)
                  (answers-nothing-p connection)))))

(define-hot flush-answers ((loop event-loop)) null
  "Do what FLUSH-PHASE does, but leave a connection whose output does not answer a message yet in
the list, because functions that are due in this turn may answer, and then one send suffices for
both."
  (run-early-functions loop)
  (do-work (connection loop event-loop-dirty event-loop-dirty-count event-loop-dirty-spare)
    (cond ((answer-may-follow-p connection)
           (setf (connection-dirty connection) nil)
           (mark-dirty connection))
          (t (flush-and-close connection))))
  (let ((driving (event-loop-driving loop)))
    (when (and driving (zerop (event-loop-dirty-count loop)))
      (setf (driving-coalesced-ns driving) 0)))
  nil)

(define-hot flush-large ((loop event-loop)) nanoseconds
  "In the middle of a turn, run the timers that are due and send output. Send for all connections if
the turn began, or output was last sent for all connections, more than +FLUSH-INTERVAL-NS+ ago; but
in the first +HOLD-NS+ of the turn send only by FLUSH-ANSWERS. Otherwise send only for connections
with +FLUSH-OCTETS+ or more. Return the time."
  (let ((now (funcall (event-loop-clock loop))))
    (declare (type nanoseconds now))
    (run-timers loop now)
    (cond ((> (- now (event-loop-flushed-at loop)) +flush-interval-ns+)
           (if (< (- now (event-loop-began-at loop)) +hold-ns+)
               (flush-answers loop)
               (flush-phase loop))
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
    now))

(define-hot (take-deferred :inline t) ((loop event-loop)) (values function t)
  "Take the first deferred function and its argument."
  (let* ((ring (event-loop-ring loop))
         (at (event-loop-ring-start loop)))
    (setf (event-loop-ring-start loop) (logand (+ at 2) (1- (length ring))))
    (decf (event-loop-ring-count loop))
    (values (the function (shiftf (svref ring at) 0)) (shiftf (svref ring (1+ at)) 0))))

(define-hot run-next-deferred ((loop event-loop)) null
  (multiple-value-bind (function argument) (take-deferred loop)
    (funcall function argument)
    nil))

(define-hot rotate-deferred ((loop event-loop)) null
  "Move the first deferred function to the end."
  (multiple-value-bind (function argument) (take-deferred loop)
    (defer loop function argument)))

(define-hot admit-newcomers ((loop event-loop) (now nanoseconds)) index
  "In the middle of a turn, at NOW: read the connections that have new input, so that the functions
that are deferred for them run next. Return the number of these functions."
  (let ((waiting (event-loop-ring-count loop))
        (postponed (event-loop-ready-count loop)))
    (setf (event-loop-now loop) now)
    (dispatch-events loop (fetch-events loop 0))
    (read-newcomers loop postponed)
    (let ((admitted (- (event-loop-ring-count loop) waiting)))
      (when (plusp admitted)
        (loop repeat waiting do (rotate-deferred loop)))
      admitted)))

(define-hot note-caused ((loop event-loop) (caused-at nanoseconds)) null
  "Note that the functions that other functions have deferred have returned. The first of them began
at CAUSED-AT."
  (let* ((now (funcall (event-loop-clock loop)))
         (taken (max 0 (- now caused-at))))
    (declare (type nanoseconds now taken))
    (setf (event-loop-apart-until-ns loop)
          (if (< taken +caused-ns+)
              0
              (+ now (min +apart-ns+ (* +apart-times+ (min taken +apart-ns+)))))))
  nil)

(define-hot deferred-phase ((loop event-loop)) boolean
  "Run the deferred functions. Return false if user code in these functions has lost the baton."
  (let ((count (event-loop-ring-count loop))
        (done 0)
        ;; the time when the functions that others have deferred in this phase began, or 0
        (caused-at 0)
        ;; until DONE reaches this number, the functions are those of newcomers
        (admitted 0)
        (admitted-at 0)                 ; when the newcomers' functions began, or 0
        (admission (+ (event-loop-now loop) +admission-ns+)) ; when other newcomers may be admitted
        (step +functions-before-look+)
        (look +functions-before-look+)  ; read the clock when DONE reaches this number
        (looked-at (event-loop-now loop))) ; the time of the last look
    (declare (type index count done admitted look) (type (integer 1 #.+functions-per-look+) step)
             (type nanoseconds caused-at admitted-at admission looked-at))
    (flet ((look-around ()
             (let ((now (flush-large loop)))
               (setf step (if (< (- now (shiftf looked-at now)) (* step +slow-function-ns+))
                              (min +functions-per-look+ (* 2 step))
                              1)
                     look (+ done step))
               (cond ((or (< done admitted) (event-loop-stopping loop)))
                     ((plusp admitted-at)
                      (setf admission (+ now (max +admission-ns+ (- now admitted-at)))
                            admitted-at 0))
                     ((<= admission now)
                      (let ((more (admit-newcomers loop now)))
                        (setf count (+ count more)
                              admitted (+ done more)
                              admitted-at now)))))))
      (declare (inline look-around))
      (loop
        (loop while (< done count)
              do (guarding (:deferred-function-error :loop loop)
                   (loop while (< done count)
                         do (incf done)
                            (run-next-deferred loop)
                            (unless (in-event-loop-p loop) (return-from deferred-phase nil))
                            (when (and (or (<= look done) ; greater after an error
                                           (= (event-loop-long-turn loop) (event-loop-turns loop)))
                                       (< done count))
                              (look-around))))
                 (unless (in-event-loop-p loop) (return-from deferred-phase nil)))
        (let ((caused (event-loop-ring-count loop)))
          (when (plusp caused-at) (note-caused loop caused-at))
          (when (or (plusp caused-at)
                    (zerop caused)
                    (< +functions-caused+ (+ done caused))
                    (< (event-loop-now loop) (event-loop-apart-until-ns loop)))
            (return t))
          (setf caused-at (max 1 (the nanoseconds (funcall (event-loop-clock loop))))
                ;; unless the functions turn out to be quick
                (event-loop-apart-until-ns loop) (+ caused-at +apart-ns+)
                count (+ done caused)))))))

(define-hot inbox-phase ((loop event-loop)) null
  "Call the posted functions."
  (let ((inbox (event-loop-inbox loop)))
    (loop while (nth-value 1 (guarding (:posted-function-error :loop loop)
                               (drain-inbox inbox #'call-posted))))
    nil))

(define-hot call-some-posted ((loop event-loop)) null
  "Do what INBOX-PHASE does, but stop when +INBOX-NS+ have passed since the first reading of the
clock, which is read after each +POSTS-PER-LOOK+ functions. The remaining functions wait for the
next turn."
  (let ((count 0) (began 0))
    (declare (type index count) (type nanoseconds began))
    (flet ((call (item)
             (call-posted item)
             (when (zerop (mod (incf count) +posts-per-look+))
               (let ((now (funcall (event-loop-clock loop))))
                 (declare (type nanoseconds now))
                 (cond ((zerop began) (setf began now) nil)
                       ((< +inbox-ns+ (- now began)) :enough))))))
      (declare (dynamic-extent #'call))
      (let ((inbox (event-loop-inbox loop)))
        (loop while (nth-value 1 (guarding (:posted-function-error :loop loop)
                                   (drain-inbox inbox #'call))))))
    nil))

(define-hot run-timers ((loop event-loop) (now nanoseconds)) null
  (when (timers-due-p (event-loop-wheel loop) now)
    (loop while (nth-value 1 (guarding (:timer-function-error :loop loop)
                               (advance-wheel (event-loop-wheel loop) now)))))
  nil)

(define-hot timer-phase ((loop event-loop)) null
  (run-timers loop (event-loop-now loop)))

(define-hot last-phase ((loop event-loop)) null
  (run-early-functions loop)
  (let ((some (run-queued-functions loop (event-loop-last loop)))
        (driving (event-loop-driving loop)))
    (when driving (setf (driving-woke driving) some)))
  nil)

(define-hot run-turn ((loop event-loop)) boolean
  "Make one turn of LOOP. Return false if the baton was lost in the turn."
  (when (wait-and-dispatch loop)
    (read-phase loop)
    (when (deferred-phase loop)
      (end-turn loop)
      t)))

(define-hot end-turn ((loop event-loop)) null
  "Run the phases of a turn after the deferred functions."
  (call-some-posted loop)
  (timer-phase loop)
  (flush-phase loop)
  (last-phase loop))
