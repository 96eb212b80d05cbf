;;;; A run from begin to end, by the thread that calls PERFORM-RUN: it makes the generators, waits
;;;; until they are connected, begins them all at one time, reports their progress, stops them when
;;;; the user interrupts, and makes a RUN of their notes. The user's thread can be interrupted only
;;;; while it waits: if it were unwound while it posts to a loop, the loop would wait for it.

(in-package #:clgrpc.load)

(define-condition run-failed (clgrpc-error)
  ((text :initarg :text :reader run-failed-text)) ; the reason, in one line
  (:report (lambda (condition stream) (write-string (run-failed-text condition) stream)))
  (:documentation "A run could not be made; TEXT is the reason, in one line."))

(defconstant +interrupt-grace-seconds+ 2
  "The maximum number of seconds for which calls under way continue after the user has interrupted
the run.")

(defstruct (control (:copier nil))
  "The state that the thread of PERFORM-RUN waits for."
  (generators '() :type list)           ; all GENERATORs
  (terminated nil :type boolean)        ; the process has got SIGTERM
  (event (sb-thread:make-semaphore :name "clgrpc load")
         :read-only t)) ; a generator is ready, or done

(defun make-load-loop (number)
  (let ((loop (loop:make-event-loop
               :name (format nil "clgrpc load ~D" number)
               :poller (loop:make-epoll-poller :precise t))))
    (loop:launch-event-loop loop)
    (loop:post loop (lambda () (os:set-timer-slack 1)))
    loop))

(defun post-all (control function)
  "Call FUNCTION with each generator of CONTROL on its loop."
  (dolist (generator (control-generators control))
    (let ((generator generator))
         (loop:post (generator-loop generator) (lambda () (funcall function generator))))))

(defun await-generators (control test seconds)
  "Wait until TEST is true of all generators of CONTROL, or SECONDS have passed. Return true in the
first case."
  (let ((end (+ (monotonic-ns) (seconds-ns seconds))))
    (loop
      (when (every test (control-generators control)) (return t))
      (let ((left (- end (monotonic-ns))))
        (unless (plusp left) (return nil))
        (sb-sys:with-interrupts
          (sb-thread:wait-on-semaphore (control-event control) :timeout (/ left 1d9)))))))

(defun connect-all (control plan)
  "Connect all generators of CONTROL. Signal RUN-FAILED if no connection could be made, or if the
process has to end."
  (post-all control #'connect-generator)
  (await-generators control (lambda (generator)
                              (or (control-terminated control) (generator-ready-p generator)))
                    (+ 1 (ns-seconds (plan-connect-timeout-ns plan))))
  (when (control-terminated control) (error 'run-failed :text "ended by SIGTERM"))
  (let ((connection-slots (loop for generator in (control-generators control)
                                append (coerce (generator-connection-slots generator) 'list))))
    (unless (find :ready connection-slots :key #'connection-slot-state)
      (error 'run-failed :text (format nil "~A cannot be reached: ~A" (plan-target plan)
                                       (connection-slot-failure (first connection-slots)))))))

(defun cpu-ns ()
  "The CPU time that this process has used, in nanoseconds."
  (floor (* (get-internal-run-time) +ns-per-second+) internal-time-units-per-second))

(defconstant +twice-ns+ 250000000
  "The time within which two interrupts count as one, because timeout(1) sends two.")

(defun interrupted-p (function)
  "Call FUNCTION, which waits. Return true if the user has interrupted the wait."
  (handler-case (progn (funcall function) nil)
    (sb-sys:interactive-interrupt () t)))

(defun interrupt-run (control)
  "End the run of CONTROL in an orderly way: begin no more calls, and wait a while for the end of
the calls under way. If the user interrupts again, do not wait longer. Then drop the calls that have
not ended."
  (let ((begin (monotonic-ns)))
    (flet ((wait ()
             (await-generators control #'generator-done +interrupt-grace-seconds+)
             ;; the second of two interrupts may still come
             (sb-sys:with-interrupts
               (sleep (ns-seconds (max 0 (- (+ begin +twice-ns+) (monotonic-ns))))))))
      (post-all control #'stop-generator)
      (when (and (interrupted-p #'wait) (< (- (monotonic-ns) begin) +twice-ns+))
        (interrupted-p #'wait)))
    (unless (every #'generator-done (control-generators control))
      (post-all control (lambda (generator) (drop-calls generator t))))))

(defun terminate-run (control)
  "End the run of CONTROL as if the user had interrupted it, because the process must end."
  (setf (control-terminated control) t)
  (sb-thread:signal-semaphore (control-event control)))

(defun calls-ended (control)
  (loop for generator in (control-generators control) sum
        (tally-count (generator-tally generator))))

(defun await-run (control begin-ns measure-ns on-progress)
  "Wait until all generators of CONTROL are done. Return the CPU time at the beginning of the part
that counts, and
:INTERRUPTED if the user has interrupted the run, :TERMINATED if a signal to this process has, or
nil."
  (let ((cpu nil) (interrupted nil))
    (flet ((wait ()
             (loop until (or (await-generators control #'generator-done 1/10)
                             (and (control-terminated control) (null interrupted)))
                   do (when (and (null cpu) (<= measure-ns (monotonic-ns)))
                        (setf cpu (cpu-ns)))
                      (when (and on-progress (< begin-ns (monotonic-ns)))
                        (funcall on-progress control)))))
      (when (<= measure-ns begin-ns) (setf cpu (cpu-ns)))
      (when (or (interrupted-p #'wait) (control-terminated control))
        (setf interrupted (if (control-terminated control) :terminated :interrupted))
        (interrupt-run control)
        (wait)))
    (values (or cpu (cpu-ns)) interrupted)))

(defconstant +judged-ns+ 100000000
  "The minimum duration of a run whose CPU time shows whether the loops were busy.")

(defun busy-share (run plan)
  "The share of the time in which the event loops of RUN, made by PLAN, were busy; 0 if RUN was too
short. The CPU time of the process also includes the beginning and the end of the run."
  (if (< (run-duration-ns run) +judged-ns+)
      0
      (min 1 (/ (run-cpu-ns run) (* (plan-generators plan) (run-duration-ns run))))))

(defconstant +told-lateness-ns+ 1000000 "The minimum lateness of the tool that is reported.")
(defconstant +told-stall-ns+ 50000000
  "The maximum time for which a loop of the tool may stand still without a mention in the report.")

(defun streams-words (run plan generators)
  "A text about the calls of RUN that waited because of the server's limit of streams. Return nil if
they were fewer than one in a hundred of GENERATORS' calls."
  (let ((crowded (reduce #'+ generators :key #'generator-crowded)))
    (when (< (run-count run) (* 100 crowded))
      (format nil "the server's streams: ~D of ~D calls waited for a stream, because the server ~
                   allows ~D at once on each of ~D connection~:P; with more --connections more ~
                   calls can begin"
              crowded (run-count run)
              (reduce #'max generators :key #'generator-streams-allowed)
              (plan-connections plan)))))

(defun lateness-share (run share)
  "The largest fraction of RUN's latency at the quantile SHARE for which the tool's own lateness can
be the reason."
  (let ((latency (histogram-quantile (run-all-latency run) share)))
    (/ (histogram-quantile (run-lateness run) share) (max 1 latency))))

(defun late-words (run busy)
  "A text about the influence of the tool's own lateness on the latencies of RUN, an open loop, or
nil if it had no influence. BUSY is the share of the time in which the tool's loops were busy."
  (let ((late (histogram-quantile (run-lateness run) 99/100)))
    (when (and (< +told-lateness-ns+ late) (< 1/10 (lateness-share run 99/100)))
      (format nil "the tool, or its machine: one call in a hundred began ~,1F ms or more after its ~
                   time, a delay that is part of p99~:[ and beyond, but not of p50~; and of p50~]~
                   ~:[~;; its event loops were busy ~D % of the time, more --loops help~]"
              (/ late 1d6) (< 1/10 (lateness-share run 1/2))
              (< 9/10 busy) (round (* 100 busy))))))

(defun stall-words (run generators)
  "A text about the time for which a loop of GENERATORS stood still in RUN, or nil if the reported
latencies do not include that time."
  (let ((stall (reduce #'max generators :key #'generator-stall-ns)))
    (when (and (< +told-stall-ns+ stall)
               (< (histogram-max (run-all-latency run)) (* 10 stall)))
      (format nil "the tool, or its machine: one of the tool's event loops stood still for ~,1F ~
                   ms, and the slowest latencies include that time" (/ stall 1d6)))))

(defun why-limited (run plan generators)
  "The cause, other than the server's speed, that limited RUN, which GENERATORS made by PLAN. Return
a text that begins with the name of the limit, or nil if nothing else limited RUN."
  (let* ((capped (reduce #'+ generators :key #'generator-capped))
         (busy (busy-share run plan))
         (open (plan-rate plan))
         (reasons
           (list (streams-words run plan generators)
                 (and (plusp (run-count run)) ; otherwise there are no latencies to explain
                      (if open (late-words run busy) (stall-words run generators)))
                 (and open (< (run-count run) (* 100 capped))
                      (format nil "the workers: ~D of ~D calls waited because all workers were ~
                                   busy; their latencies include the wait, and with a larger -c ~
                                   more calls can begin" capped (run-count run)))
                 (and (not open) (< 19/20 busy)
                      (format nil "the tool: its event loops were busy ~D % of the time, more ~
                                   --loops may give more calls" (round (* 100 busy)))))))
    (and (some #'identity reasons)
         (format nil "~{~A~^. Besides, ~}" (remove nil reasons)))))

(defun intended-end-ns (plan generators measure-ns)
  "The end of the time in which GENERATORS make calls, in an open loop by PLAN: the time when the
next call would have been due. Ten calls at ten a second take a second, although the last call
begins after 0.9 seconds."
  (let ((rate (plan-rate plan))
        (counted (reduce #'+ generators :key #'generator-counted)))
    (if (and (eq :const (schedule-kind rate)) (eq :constant (plan-arrival plan)))
        (min +never-ns+
             (+ measure-ns
                (floor (* +ns-per-second+ counted) (rational (schedule-start rate)))))
        (reduce #'min generators
                :key (lambda (generator)
                       (let ((stopped (generator-stopped-ns generator)))
                         (min (generator-due-ns generator) (generator-end-ns generator)
                              (if (plusp stopped) stopped +never-ns+))))))))

(defun finish-run (control plan measure-ns cpu-begin interrupted)
  "The RUN with the data that CONTROL's generators have noted."
  (let* ((generators (control-generators control))
         (end-ns (reduce #'max generators :key #'generator-last-end-ns
                                          :initial-value
                                          (if (plan-rate plan)
                                              (max measure-ns
                                                   (intended-end-ns plan generators measure-ns))
                                              measure-ns)))
         (run (make-run :name (plan-name plan) :target (plan-target plan)
                        :method (format nil "~{~A~^, ~}"
                                        (mapcar #'request-name (plan-requests plan)))
                        :kind (request-kind (first (plan-requests plan)))
                        :options (plan-options plan)
                        :tags (plan-tags plan)
                        :started-unix-ns (+ measure-ns (tally-real-offset-ns
                                                        (generator-tally (first generators))))
                        :duration-ns (- end-ns measure-ns)
                        :loop-kind (if (plan-rate plan) :open :closed)
                        :connections (plan-connections plan)
                        :cpu-ns (- (cpu-ns) cpu-begin))))
    (fill-run run (mapcar #'generator-tally generators))
    (setf (run-ended-early run)
          (cond (interrupted)
                ((and (plan-total plan) (plan-duration-ns plan)
                      (< (run-count run) (plan-total plan)))
                 :deadline)))
    (when (plan-rate plan)
      (setf (run-intended-rps run) (mean-rate plan run)
            (run-burst run) (reduce #'max generators :key #'generator-burst)))
    (setf (run-limited run) (why-limited run plan generators))
    run))

(defun mean-rate (plan run)
  "The calls a second that PLAN intended on average over the time of RUN."
  (let ((rate (plan-rate plan)) (seconds (/ (run-duration-ns run) 1d9)))
    (if (eq :const (schedule-kind rate))
        (schedule-start rate)
        (/ (loop for i below 1000 sum (schedule-value rate (* seconds (/ i 1000)))) 1000))))

(defun prepare-generators (control plan)
  "Make the generators of PLAN for CONTROL, and start their loops."
  (dotimes (i (plan-generators plan))
    (let ((generator (prepare-generator plan i (make-load-loop i)
                                        (lambda (generator)
                                          (declare (ignore generator))
                                          (sb-thread:signal-semaphore (control-event control))))))
      (setf (control-generators control) (append (control-generators control) (list generator))))))

(defun perform-with (control plan on-progress)
  "Do the work of PERFORM-RUN with CONTROL. The caller must end CONTROL's generators."
  (prepare-generators control plan)
  (connect-all control plan)
  (let* ((begin-ns (+ (monotonic-ns) 2000000))
         (measure-ns (+ begin-ns (plan-warm-up-ns plan))))
    (post-all control (lambda (generator) (begin-generator generator begin-ns)))
    (multiple-value-bind (cpu interrupted) (await-run control begin-ns measure-ns on-progress)
      (when-let ((error (some #'generator-error (control-generators control))))
        (error 'run-failed :text (string-right-trim "." (princ-to-string error))))
      (finish-run control plan measure-ns cpu interrupted))))

(defun perform-run (plan &key on-progress)
  "Make the run of PLAN and return the RUN. ON-PROGRESS, a function of a CONTROL, is called about
ten times a second by this thread. If the user interrupts, or the process gets SIGTERM, the RUN
covers the finished part. Signal RUN-FAILED if no connection could be made, if SIGTERM comes before
the first is made, or if the text from a template was not a message."
  (call-terminable
   (lambda ()
     (let ((control (make-control)))
       (sb-sys:without-interrupts
         (unwind-protect
              (sb-sys:allow-with-interrupts
                (call-until-termination (lambda () (terminate-run control))
                                        (lambda () (perform-with control plan on-progress))))
           (dolist (generator (control-generators control))
             (loop:stop-event-loop (generator-loop generator)))
           (dolist (generator (control-generators control))
             (loop:join-event-loop (generator-loop generator)))))))))

(defun single-targets (target timeout-ns)
  "Look up the addresses of TARGET, a target, within TIMEOUT-NS, and return a list of targets, one
for each address. Signal RUN-FAILED if TARGET has no address. Do not call this on a loop."
  (let ((addresses (loop:target-addresses target)))
    (unless addresses
      (let ((loop (loop:make-event-loop :name "clgrpc load look-up"))
            (done (sb-thread:make-semaphore))
            (failure nil))
        (unwind-protect
             (progn
               (loop:launch-event-loop loop)
               (loop:lookup loop target timeout-ns
                            (lambda (found condition)
                              (setf addresses found
                                    failure condition)
                              (sb-thread:signal-semaphore done)))
               (sb-thread:wait-on-semaphore done))
          (loop:stop-event-loop loop)
          (loop:join-event-loop loop))
        (when failure
          (error 'run-failed :text (string-right-trim "." (princ-to-string failure))))))
    (mapcar (lambda (address) (loop:parse-target (os:address-text address))) addresses)))
