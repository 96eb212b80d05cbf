;;;; Generators: they begin calls, and end the run. In a closed loop each connection slot keeps as
;;;; many calls under way as it has workers; the next call begins when one has ended. In an open
;;;; loop a timer rings when the next calls are due, independent of earlier ones. A call waits in
;;;; its connection slot's queue while no stream, no connection or, if the number of workers is
;;;; limited, no worker is free; its latency counts from the time when it was due. Calls on a
;;;; connection whose peer does not read wait there, too: the unsent output of a connection is
;;;; bounded.

(in-package #:clgrpc.load)

(defconstant +tick-ns+ 100000000
             "The time between two ticks, which do the work that depends on time: quotas, seconds of
the tally, connection slots.")
(defconstant +most-at-once+ 4096
  "The maximum number of calls that begin before the loop checks its sockets again.")

(defun make-generator-connection-slots (plan number)
  (let ((addresses (plan-addresses plan)))
    (coerce (loop for connection-slot from number below (plan-connections plan) by
                  (plan-generators plan)
                  collect (make-connection-slot :number connection-slot
                                                :target (nth (mod connection-slot
                                                                  (length addresses)) addresses)))
            'simple-vector)))

(defun share-of (total number generators)
  "The number of calls that the generator NUMBER, one of GENERATORS, makes of TOTAL calls."
  (+ (floor total generators) (if (< number (mod total generators)) 1 0)))

(defun prepare-generator (plan number loop on-event)
  "Return a new generator on LOOP, which need not run yet."
  (let* ((random (sb-ext:seed-random-state (loop:event-loop-random loop)))
         (generator (make-generator :plan plan :number number :loop loop :on-event on-event
                                    :connection-slots (make-generator-connection-slots plan number)
                                    :data (make-call-data :random random)
                                    :tally (make-tally :most-samples (plan-samples plan)
                                                       :methods (method-rows
                                                                 (plan-requests plan)))
                                    :skip (share-of (plan-skip-first plan) number
                                                    (plan-generators plan)))))
    (when (plan-total plan)
      (setf (generator-left generator) (share-of (plan-total plan) number (plan-generators plan))))
    (when (plan-rate plan)
      (setf (generator-pacer generator)
            (make-pacer (plan-rate plan) :generators (plan-generators plan) :generator number
                                                                     :arrival (plan-arrival plan)
                                                                     :group-ns (plan-group-ns plan)
                                                                     :group-above
                                                                     (plan-group-above plan)
                                                                     :random random)))
    (setf (generator-pace-timer generator) (make-timer #'pace generator)
          (generator-tick-timer generator) (make-timer #'tick generator)
          (generator-expiry-timer generator) (make-timer #'expire generator))
    (loop for connection-slot across (generator-connection-slots generator)
          do (setf (connection-slot-generator connection-slot) generator))
    generator))

(defun connect-generator (generator)
  "Begin to connect all connection slots of GENERATOR. On its loop."
  (note-now generator)
  (loop:start-timer (generator-loop generator) (generator-tick-timer generator)
                    (+ (generator-now generator) +tick-ns+))
  (map nil #'connect-connection-slot (generator-connection-slots generator)))

;;; How many calls may be under way

(defun set-quotas (generator)
  "Set the maximum number of calls that each connection slot of GENERATOR may have under way at this
time."
  (let* ((plan (generator-plan generator))
         (workers (and (plan-workers plan)
                       (floor (schedule-value (plan-workers plan)
                                              (/ (max 0 (- (generator-now generator)
                                                           (generator-begin-ns generator)))
                                                 1d9))))))
    (loop for connection-slot across (generator-connection-slots generator)
          do (setf (connection-slot-quota connection-slot)
                   (if workers
                       (share-of workers (connection-slot-number connection-slot)
                                 (plan-connections plan))
                       most-positive-fixnum)))))

;;; Beginning calls

(define-hot (may-make-p :inline t) ((generator generator)) boolean
  (and (not (generator-stopping generator))
       (plusp (generator-left generator))
       (< (generator-now generator) (generator-end-ns generator))))

(defun all-made-p (generator)
  "True if the time of GENERATOR is over and each call that was due in this time has begun."
  (and (<= (generator-end-ns generator) (generator-now generator))
       (or (null (generator-pacer generator))
           (zerop (generator-left generator))
           (<= (generator-end-ns generator) (generator-due-ns generator)))))

(define-hot make-call ((connection-slot connection-slot) (intended-ns nanoseconds)) load-call
  "Make a call, with its requests, on CONNECTION-SLOT; it was to begin at INTENDED-NS."
  (let* ((generator (the generator (connection-slot-generator connection-slot)))
         (load-call (make-load-call connection-slot intended-ns)))
    (when (payload-maker (request-payload (the request (load-call-request load-call))))
      (handler-case (expand-frames generator load-call)
        (error (error) (give-generator-up generator error))))
    (unless (or (zerop (plan-timeout-ns (generator-plan generator)))
                (timer-pending-p (the timer (generator-expiry-timer generator))))
      (loop:start-timer (generator-loop generator) (generator-expiry-timer generator)
                        (logand most-positive-fixnum
                                (+ (load-call-made-ns load-call)
                                   (plan-timeout-ns (generator-plan generator))))))
    load-call))

(defun note-wait (connection-slot connection)
  "Count a call that must wait although CONNECTION-SLOT is ready, by the cause: all workers are
busy, or CONNECTION's peer allows no more streams."
  (let ((generator (connection-slot-generator connection-slot)))
    (cond ((<= (connection-slot-quota connection-slot) (connection-slot-begun connection-slot))
           (incf (generator-capped generator)))
          ((and connection (zerop (http2:available-streams (connection-http2 connection))))
           (incf (generator-crowded generator))
           (setf (generator-streams-allowed generator)
                 (http2:connection-peer-max-streams (connection-http2 connection)))))))

(define-hot launch ((connection-slot connection-slot) (load-call load-call)) null
  "Begin LOAD-CALL on CONNECTION-SLOT. If the slot's state does not allow that, LOAD-CALL waits or
fails."
  (let ((connection (connection-slot-connection connection-slot)))
    (ecase (connection-slot-state connection-slot)
      (:ready
       (unless (and connection
                    (null (connection-slot-queue-head connection-slot))
                    (< (connection-slot-begun connection-slot)
                       (connection-slot-quota connection-slot))
                    (begin-load-call connection load-call))
         (note-wait connection-slot connection)
         (queue-load-call connection-slot load-call)))
      (:connecting
       (setf (load-call-waited load-call) t)
       (queue-load-call connection-slot load-call))
      ((:waiting :closed)
       (end-load-call load-call +code-unavailable+ (connection-slot-failure connection-slot))))
    nil))

(define-hot pump-connection-slot ((connection-slot connection-slot)) null
  "Begin the calls that CONNECTION-SLOT may begin now: first the calls that wait, then a new call
for each idle worker."
  (let ((generator (the generator (connection-slot-generator connection-slot))))
    (loop
      (let ((connection (connection-slot-connection connection-slot))
            (load-call (queue-first connection-slot)))
        (unless (and load-call connection
                     (eq :ready (connection-slot-state connection-slot))
                     (< (connection-slot-begun connection-slot)
                        (connection-slot-quota connection-slot))
                     (plusp (http2:available-streams
                             (the http2:connection (connection-http2 connection))))
                     (not (output-full-p connection)))
          (return))
        (unqueue-first connection-slot)
        (begin-load-call connection load-call)))
    (unless (or (generator-pacer generator) (zerop (generator-begin-ns generator)))
      (let ((failed 0))
        (declare (type fixnum failed))
        (loop while (and (< (+ failed (connection-slot-flying connection-slot))
                            (connection-slot-quota connection-slot))
                         (may-make-p generator))
              do (let ((load-call (make-call connection-slot (generator-now generator))))
                   (launch connection-slot load-call)
                   ;; if calls fail at once the next ones wait for the tick, so that the loop does
                   ;; not spin
                   (when (load-call-ended load-call) (incf failed))))))
    nil))

(define-hot next-connection-slot-of ((generator generator)) connection-slot
  "The connection slot of GENERATOR that makes the next call of an open loop."
  (let* ((connection-slots (generator-connection-slots generator)) (count (length connection-slots))
         (connection-slot nil))
    (loop repeat count
          do
          (setf connection-slot (svref connection-slots (generator-next-connection-slot generator)))
             (setf (generator-next-connection-slot generator)
                   (mod (1+ (generator-next-connection-slot generator)) count))
          until (plusp (connection-slot-quota (the connection-slot connection-slot))))
    (the connection-slot connection-slot)))

(define-hot note-lateness ((generator generator) (late-ns nanoseconds)) null
  (let ((tally (generator-tally generator)))
    (record-value (tally-lateness tally) late-ns)
    (let ((second (tally-second tally)))
      (setf (second-row-lateness-max-ns second)
            (max late-ns (the nanoseconds (second-row-lateness-max-ns second)))))
    nil))

(define-hot pace ((generator generator)) null
  "Begin the calls of an open loop that are due by now; set the timer for the next one."
  (let ((now (note-now generator)) (count 0) (burst 1)
        (pacer (the pacer (generator-pacer generator))))
    (declare (type fixnum count burst))
    (loop while (and (<= (generator-due-ns generator) now)
                     (< count +most-at-once+)
                     (plusp (generator-left generator))
                     (not (generator-stopping generator))
                     (< (generator-due-ns generator) (generator-end-ns generator)))
          do (let* ((due (generator-due-ns generator))
                    (connection-slot (next-connection-slot-of generator))
                    (load-call (make-call connection-slot due)))
               (when (load-call-counted load-call) (note-lateness generator (- now due)))
               (launch connection-slot load-call)
               (incf count)
               (setf (generator-due-ns generator)
                     (min +never-ns+ (+ (generator-begin-ns generator) (next-due pacer))))
               (cond ((/= due (generator-due-ns generator)) (setf burst 1))
                     ((< (generator-burst generator) (incf burst))
                      (setf (generator-burst generator) burst)))))
    (if (or (generator-stopping generator) (zerop (generator-left generator))
            (<= (generator-end-ns generator) (generator-due-ns generator)))
        (setf (generator-left generator) 0)
        (loop:start-timer (generator-loop generator) (generator-pace-timer generator)
                          ;; in the next turn, if more calls are due than one turn can begin
                          (generator-due-ns generator)))
    (after-event generator)
    nil))

;;; Time

(defun expire (generator)
  "End the calls of GENERATOR whose deadline has passed."
  (let ((now (note-now generator)) (timeout-ns (plan-timeout-ns (generator-plan generator))))
    (loop for load-call = (generator-oldest generator)
          while (and load-call (<= (+ (load-call-made-ns load-call) timeout-ns) now))
          do (end-load-call load-call +code-deadline-exceeded+ "the deadline has passed"))
    (when (generator-oldest generator)
      (loop:start-timer (generator-loop generator) (generator-expiry-timer generator)
                        (+ (load-call-made-ns (generator-oldest generator)) timeout-ns)))
    (map nil #'pump-connection-slot (generator-connection-slots generator))
    (after-event generator)))

(defun note-stall (generator now)
  "If GENERATOR's tick, at NOW, is late, note the time for which its loop has stood still."
  (when (and (generator-measuring generator) (< (generator-tick-due-ns generator) now))
    (setf (generator-stall-ns generator)
          (max (generator-stall-ns generator) (- now (generator-tick-due-ns generator))))))

(defun tick (generator)
  "Do the work of GENERATOR that depends on time alone."
  (let ((now (note-now generator)))
    (note-stall generator now)
    (unless (generator-done generator)
      (setf (generator-tick-due-ns generator) (+ now +tick-ns+))
      (loop:start-timer (generator-loop generator) (generator-tick-timer generator)
                        (generator-tick-due-ns generator)))
    (loop for connection-slot across (generator-connection-slots generator)
          for connection = (connection-slot-connection connection-slot)
          when connection
            do (http2:advance-time (connection-http2 connection) now))
    (when (and (generator-measuring generator) (not (generator-done generator)))
          (keep-time (generator-tally generator) now))
    (when (plusp (generator-begin-ns generator))
      (set-quotas generator)
      (map nil #'pump-connection-slot (generator-connection-slots generator))
      (when (all-made-p generator) (end-generator-calls generator)))
    (after-event generator)))

;;; Begin and end

(defun begin-generator (generator begin-ns)
  "Begin the run of GENERATOR at BEGIN-NS. On its loop."
  (loop:start-timer (generator-loop generator)
                    (make-timer (lambda (generator) (begin-generator-now generator begin-ns))
                                generator)
                    begin-ns))

(defun begin-generator-now (generator begin-ns)
  "Begin the run of GENERATOR now; it was to begin at BEGIN-NS."
  (let ((plan (generator-plan generator)))
    (note-now generator)
    (setf (generator-begin-ns generator) begin-ns
          (generator-measure-ns generator) (+ begin-ns (plan-warm-up-ns plan))
          (generator-last-end-ns generator) (generator-measure-ns generator)
          (tally-real-offset-ns (generator-tally generator))
          (- (real-time-ns) (generator-now generator)))
    (when (plan-duration-ns plan)
      (setf (generator-end-ns generator)
            (+ (generator-measure-ns generator) (plan-duration-ns plan)))
      (loop:start-timer (generator-loop generator) (make-timer #'tick generator)
                        (generator-end-ns generator)))
    (set-quotas generator)
    (cond ((generator-pacer generator)
           (setf (generator-due-ns generator) (+ begin-ns (next-due (generator-pacer generator))))
           (loop:start-timer (generator-loop generator) (generator-pace-timer generator)
                             (generator-due-ns generator)))
          (t (map nil #'pump-connection-slot (generator-connection-slots generator))))
    (after-event generator)))

(defun end-generator-calls (generator)
  "Treat the calls of GENERATOR that are under way as the plan requires, because GENERATOR's time is
over."
  (setf (generator-stopping generator) t)
  (unless (eq :wait (plan-stop (generator-plan generator)))
    (drop-calls generator (eq :ignore (plan-stop (generator-plan generator))))))

(defun note-under-way (generator now)
  "Note the number of GENERATOR's calls that are under way at NOW, and the age of the oldest of
these calls."
  (let ((tally (generator-tally generator)))
    (loop for load-call = (generator-oldest generator) then (load-call-next load-call)
          while load-call
          when (load-call-counted load-call)
            do (when (zerop (tally-under-way tally))
                 (setf (tally-oldest-under-way-ns tally)
                       (max 0 (- now (load-call-intended-ns load-call)))))
               (incf (tally-under-way tally)))))

(defun drop-calls (generator uncounted)
  "End all calls of GENERATOR that are under way. If UNCOUNTED is true these calls are reported
without status and latency: the run contains only their number, and its duration is the time in
which calls began."
  (let ((now (note-now generator)))
    (when uncounted (note-under-way generator now))
    (setf (generator-dropping generator) uncounted
          (generator-last-end-ns generator) (if (and uncounted
                                                     (plusp (generator-stopped-ns generator)))
                                                (generator-stopped-ns generator)
                                                now)
          (generator-stopping generator) t))
  (loop for load-call = (generator-oldest generator)
        while load-call
        do (end-load-call load-call +code-unavailable+ "the run ended before the call"))
  (after-event generator))

(defun stop-generator (generator)
  "Stop beginning calls on GENERATOR."
  (unless (generator-stopping generator)
    (setf (generator-stopped-ns generator) (note-now generator)
          (generator-stopping generator) t))
  (after-event generator))

(defun give-generator-up (generator condition)
  "End the run of GENERATOR because of CONDITION, an error in this program."
  (unless (generator-error generator) (setf (generator-error generator) condition))
  (setf (generator-stopping generator) t))

(define-hot after-event ((generator generator)) null
  "After an event on GENERATOR: if GENERATOR has become ready or done, wake the thread that waits
for that."
  (when (or (and (zerop (generator-flying generator)) (plusp (generator-begin-ns generator)))
            (not (generator-ready-p generator)))
    (look-at-generator generator))
  nil)

(defun look-at-generator (generator)
  (flet ((tell () (funcall (generator-on-event generator) generator)))
    (unless (or (generator-ready-p generator)
                (find :connecting (generator-connection-slots generator)
                      :key #'connection-slot-state))
      (setf (generator-ready-p generator) t)
      (tell))
    (when (and (plusp (generator-begin-ns generator))
               (zerop (generator-flying generator))
               (not (generator-done generator))
               (or (generator-stopping generator)
                   (zerop (generator-left generator))
                   (all-made-p generator)))
      (setf (generator-done generator) t)
      (map nil #'close-connection-slot (generator-connection-slots generator))
      (tell))))
