;;;; Lanes: when calls begin, and when all is over. In a closed loop each line keeps as many calls
;;;; under way as it has workers; the next begins when one has ended. In an open loop a timer rings
;;;; when the next calls are due, whatever became of those before. Calls for which there is no
;;;; stream, no connection or, if their number is limited, no worker wait in their line's queue, and
;;;; their latency counts from when they were due.

(in-package #:clgrpc.load)

(defconstant +tick-ns+ 100000000 "Between two looks at time-dependent quotas, seconds and lines.")
(defconstant +most-at-once+ 4096 "How many calls begin before the loop looks at its sockets again.")

(defun make-lane-lines (plan number)
  "The lines of the lane NUMBER of PLAN."
  (let ((addresses (plan-addresses plan)))
    (coerce (loop for line from number below (plan-connections plan) by (plan-lanes plan)
                  collect (make-line :number line
                                     :target (nth (mod line (length addresses)) addresses)))
            'simple-vector)))

(defun share-of (total number lanes)
  "What of TOTAL calls the lane NUMBER of LANES makes."
  (+ (floor total lanes) (if (< number (mod total lanes)) 1 0)))

(defun prepare-lane (plan number loop on-event)
  "A lane on LOOP, which need not run yet, with nothing begun."
  (let* ((random (sb-ext:seed-random-state (loop:event-loop-random loop)))
         (lane (make-lane :plan plan :number number :loop loop :on-event on-event
                          :lines (make-lane-lines plan number)
                          :data (make-call-data :method (plan-method plan) :random random)
                          :skip (share-of (plan-skip-first plan) number (plan-lanes plan)))))
    (when (plan-total plan)
      (setf (lane-left lane) (share-of (plan-total plan) number (plan-lanes plan))))
    (when (plan-rate plan)
      (setf (lane-pacer lane) (make-pacer (plan-rate plan) :lanes (plan-lanes plan) :lane number
                                                           :arrival (plan-arrival plan)
                                                           :group-ns (plan-group-ns plan)
                                                           :random random)))
    (setf (lane-pace-timer lane) (make-timer #'pace lane)
          (lane-tick-timer lane) (make-timer #'tick lane)
          (lane-expiry-timer lane) (make-timer #'expire lane))
    (loop for line across (lane-lines lane)
          do (setf (line-lane line) lane))
    lane))

(defun connect-lane (lane)
  "Begin to connect all lines of LANE. On its loop."
  (note-now lane)
  (schedule-timer (lane-wheel lane) (lane-tick-timer lane) (+ (lane-now lane) +tick-ns+))
  (map nil #'connect-line (lane-lines lane)))

;;; How many calls may be under way

(defun set-quotas (lane)
  "Give the lines of LANE the workers that they have at this time."
  (let* ((plan (lane-plan lane))
         (workers (and (plan-workers plan)
                       (floor (schedule-value (plan-workers plan)
                                              (/ (max 0 (- (lane-now lane) (lane-begin-ns lane)))
                                                 1d9))))))
    (loop for line across (lane-lines lane)
          do (setf (line-quota line)
                   (if workers
                       (share-of workers (line-number line) (plan-connections plan))
                       most-positive-fixnum)))))

;;; Beginning calls

(define-hot (may-make-p :inline t) ((lane lane)) boolean
  (and (not (lane-stopping lane))
       (plusp (lane-left lane))
       (< (lane-now lane) (lane-end-ns lane))))

(defun all-made-p (lane)
  "True if the time of LANE is over and each call that was due before has begun."
  (and (<= (lane-end-ns lane) (lane-now lane))
       (or (null (lane-pacer lane))
           (zerop (lane-left lane))
           (<= (lane-end-ns lane) (lane-due-ns lane)))))

(define-hot make-call ((line line) (intended-ns nanoseconds)) flight
  "A call on LINE that was to begin at INTENDED-NS, with its requests."
  (let* ((lane (the lane (line-lane line)))
         (flight (make-flight line intended-ns)))
    (when (payload-maker (plan-payload (lane-plan lane)))
      (handler-case (expand-frames lane flight)
        (error (error) (give-lane-up lane error))))
    (unless (or (zerop (plan-timeout-ns (lane-plan lane)))
                (timer-pending-p (the timer (lane-expiry-timer lane))))
      (schedule-timer (lane-wheel lane) (lane-expiry-timer lane)
                      (logand most-positive-fixnum
                              (+ (flight-made-ns flight) (plan-timeout-ns (lane-plan lane))))))
    flight))

(define-hot launch ((line line) (flight flight)) null
  "Begin FLIGHT on LINE, or have it wait or fail, as LINE is."
  (let ((connection (line-connection line)))
    (ecase (line-state line)
      (:ready
       (unless (and connection
                    (null (line-queue-head line))
                    (< (line-begun line) (line-quota line))
                    (begin-flight connection flight))
         (when (<= (line-quota line) (line-begun line))
           (incf (lane-capped (the lane (line-lane line)))))
         (queue-flight line flight)))
      (:connecting
       (setf (flight-waited flight) t)
       (queue-flight line flight))
      ((:waiting :closed) (end-flight flight +code-unavailable+ (line-failure line))))
    nil))

(define-hot pump-line ((line line)) null
  "Begin what LINE may begin now: calls that wait, then those of workers without one."
  (let ((lane (the lane (line-lane line))))
    (loop
      (let ((connection (line-connection line)) (flight (queue-first line)))
        (unless (and flight connection
                     (eq :ready (line-state line))
                     (< (line-begun line) (line-quota line))
                     (plusp (http2:available-streams
                             (the http2:connection (connection-http2 connection)))))
          (return))
        (unqueue-first line)
        (begin-flight connection flight)))
    (unless (or (lane-pacer lane) (zerop (lane-begin-ns lane)))
      (let ((failed 0))
        (declare (type fixnum failed))
        (loop while (and (< (+ failed (line-flying line)) (line-quota line))
                         (may-make-p lane))
              do (let ((flight (make-call line (lane-now lane))))
                   (launch line flight)
                   ;; those that fail at once wait for the next tick, not to spin
                   (when (flight-ended flight) (incf failed))))))
    nil))

(define-hot next-line-of ((lane lane)) line
  "The line of LANE that has the next call of an open loop."
  (let* ((lines (lane-lines lane)) (count (length lines)) (line nil))
    (loop repeat count
          do (setf line (svref lines (lane-next-line lane)))
             (setf (lane-next-line lane) (mod (1+ (lane-next-line lane)) count))
          until (plusp (line-quota (the line line))))
    (the line line)))

(define-hot note-lateness ((lane lane) (late-ns nanoseconds)) null
  (let ((tally (lane-tally lane)))
    (record-value (tally-lateness tally) late-ns)
    (let ((second (tally-second tally)))
      (setf (second-row-lateness-max-ns second)
            (max late-ns (the nanoseconds (second-row-lateness-max-ns second)))))
    nil))

(define-hot pace ((lane lane)) null
  "Begin the calls of an open loop that are due by now; have the timer ring for the next."
  (let ((now (note-now lane)) (count 0) (pacer (the pacer (lane-pacer lane))))
    (declare (type fixnum count))
    (loop while (and (<= (lane-due-ns lane) now)
                     (< count +most-at-once+)
                     (plusp (lane-left lane))
                     (not (lane-stopping lane))
                     (< (lane-due-ns lane) (lane-end-ns lane)))
          do (let* ((due (lane-due-ns lane))
                    (line (next-line-of lane))
                    (flight (make-call line due)))
               (when (flight-counted flight) (note-lateness lane (- now due)))
               (launch line flight)
               (incf count)
               (setf (lane-due-ns lane)
                     (min +never-ns+ (+ (lane-begin-ns lane) (next-due pacer))))))
    (if (or (lane-stopping lane) (zerop (lane-left lane))
            (<= (lane-end-ns lane) (lane-due-ns lane)))
        (setf (lane-left lane) 0)
        (schedule-timer (lane-wheel lane) (lane-pace-timer lane)
                        ;; in the next turn, if there is more than one turn can begin
                        (lane-due-ns lane)))
    (after-event lane)
    nil))

;;; Time

(defun expire (lane)
  "End the calls of LANE that have had their time."
  (let ((now (note-now lane)) (timeout-ns (plan-timeout-ns (lane-plan lane))))
    (loop for flight = (lane-oldest lane)
          while (and flight (<= (+ (flight-made-ns flight) timeout-ns) now))
          do (end-flight flight +code-deadline-exceeded+ "the deadline has passed"))
    (when (lane-oldest lane)
      (schedule-timer (lane-wheel lane) (lane-expiry-timer lane)
                      (+ (flight-made-ns (lane-oldest lane)) timeout-ns)))
    (map nil #'pump-line (lane-lines lane))
    (after-event lane)))

(defun tick (lane)
  "Look after what depends on time alone."
  (let ((now (note-now lane)))
    (unless (lane-done lane)
      (schedule-timer (lane-wheel lane) (lane-tick-timer lane) (+ now +tick-ns+)))
    (loop for line across (lane-lines lane)
          for connection = (line-connection line)
          when connection
            do (http2:advance-time (connection-http2 connection) now))
    (when (and (lane-measuring lane) (not (lane-done lane))) (keep-time (lane-tally lane) now))
    (when (plusp (lane-begin-ns lane))
      (set-quotas lane)
      (map nil #'pump-line (lane-lines lane))
      (when (all-made-p lane) (end-lane-calls lane)))
    (after-event lane)))

;;; Begin and end

(defun begin-lane (lane begin-ns)
  "Have LANE begin its run at BEGIN-NS. On its loop."
  (schedule-timer (lane-wheel lane)
                  (make-timer (lambda (lane) (begin-lane-now lane begin-ns)) lane)
                  begin-ns))

(defun begin-lane-now (lane begin-ns)
  "The run of LANE, which was to begin at BEGIN-NS, begins."
  (let ((plan (lane-plan lane)))
    (note-now lane)
    (setf (lane-begin-ns lane) begin-ns
          (lane-measure-ns lane) (+ begin-ns (plan-warm-up-ns plan))
          (lane-last-end-ns lane) (lane-measure-ns lane)
          (tally-real-offset-ns (lane-tally lane)) (- (real-time-ns) (lane-now lane)))
    (when (plan-duration-ns plan)
      (setf (lane-end-ns lane) (+ (lane-measure-ns lane) (plan-duration-ns plan)))
      (schedule-timer (lane-wheel lane) (make-timer #'tick lane) (lane-end-ns lane)))
    (set-quotas lane)
    (cond ((lane-pacer lane)
           (setf (lane-due-ns lane) (+ begin-ns (next-due (lane-pacer lane))))
           (schedule-timer (lane-wheel lane) (lane-pace-timer lane) (lane-due-ns lane)))
          (t (map nil #'pump-line (lane-lines lane))))
    (after-event lane)))

(defun end-lane-calls (lane)
  "The time of LANE is over: end the calls under way as the plan says."
  (setf (lane-stopping lane) t)
  (unless (eq :wait (plan-stop (lane-plan lane)))
    (drop-calls lane (eq :ignore (plan-stop (lane-plan lane))))))

(defun drop-calls (lane uncounted)
  "End all calls of LANE that are under way now; UNCOUNTED ones count no more."
  (setf (lane-stopping lane) t
        (lane-dropping lane) uncounted
        (lane-last-end-ns lane) (note-now lane)) ; the run has lasted until now
  (loop for flight = (lane-oldest lane)
        while flight
        do (end-flight flight +code-unavailable+ "the run ended before the call"))
  (after-event lane))

(defun stop-lane (lane)
  "Begin no more calls on LANE."
  (note-now lane)
  (setf (lane-stopping lane) t)
  (after-event lane))

(defun give-lane-up (lane condition)
  "An error of ours, CONDITION, ends the run."
  (unless (lane-trouble lane) (setf (lane-trouble lane) condition))
  (setf (lane-stopping lane) t))

(define-hot after-event ((lane lane)) null
  "Something has happened on LANE: tell who waits if that makes it ready or done."
  (when (or (and (zerop (lane-flying lane)) (plusp (lane-begin-ns lane)))
            (not (lane-ready-p lane)))
    (look-at-lane lane))
  nil)

(defun look-at-lane (lane)
  (flet ((tell () (funcall (lane-on-event lane) lane)))
    (unless (or (lane-ready-p lane)
                (find :connecting (lane-lines lane) :key #'line-state))
      (setf (lane-ready-p lane) t)
      (tell))
    (when (and (plusp (lane-begin-ns lane))
               (zerop (lane-flying lane))
               (not (lane-done lane))
               (or (lane-stopping lane)
                   (zerop (lane-left lane))
                   (all-made-p lane)))
      (setf (lane-done lane) t)
      (map nil #'close-line (lane-lines lane))
      (tell))))
