;;;; The times at which calls begin. A SCHEDULE is a quantity, a rate or a number of workers, as a
;;;; function of the time since the run began, in ghz's terms: const, step and line. A PACER gives
;;;; the times of an open loop one by one: evenly spaced, or random like those of a Poisson process.
;;;; Times are planned in advance and never depend on the progress of calls: that makes the loop
;;;; open.
;;;;
;;;; For evenly spaced calls the tool wakes up once a call, for a burst of calls only once. But in a
;;;; burst each call except the first waits, in the server, for those before it. So calls are
;;;; grouped only above a rate at which waking up for each would take too much of a core, or if the
;;;; user asks for it. In that case calls that are due within the same GROUP, a period of time,
;;;; begin together, at the end of the period: at 5,000 calls a second and a group of a millisecond,
;;;; five calls.
;;;;
;;;; All functions here are pure.

(in-package #:clgrpc.load)

(defstruct (schedule (:copier nil))
  "A quantity that may change with time."
  (kind :const :type (member :const :step :line)) ; how it changes
  (start 0d0 :type double-float)        ; the first rate; the only rate of :CONST
  (step 0d0 :type double-float)         ; the increase in a step, or in a second of a line
  (end nil :type (or null double-float)) ; the last rate; NIL for no limit
  (step-seconds 1d0 :type double-float) ; how long a step takes
  (max-seconds nil :type (or null double-float))) ; the time after which the rate stays the same

(declaim (sb-ext:freeze-type schedule))

(defun schedule-value (schedule seconds)
  "The value of SCHEDULE, a double float, SECONDS after its beginning."
  (let* ((max (schedule-max-seconds schedule))
         (end (schedule-end schedule))
         (step (schedule-step schedule))
         (at (float (if max (min seconds max) seconds) 1d0))
         (value (ecase (schedule-kind schedule)
                  (:const (schedule-start schedule))
                  (:step (+ (schedule-start schedule)
                            (* step (ffloor at (schedule-step-seconds schedule)))))
                  (:line (+ (schedule-start schedule) (* step at))))))
    (cond ((eq :const (schedule-kind schedule)) value)
          ((null end) (max 0d0 value))
          ((and max (<= max seconds)) end)
          ((minusp step) (max 0d0 end value))
          (t (max 0d0 (min end value))))))

(defconstant +never-ns+ (ash 1 61) "A time that never comes.")

(defstruct (pacer (:copier nil) (:constructor %make-pacer))
  "The times of one generator's calls."
  (schedule nil :type schedule)         ; the rate of all generators together, in calls a second
  (share 1d0 :type double-float)        ; the share of SCHEDULE for this generator
  (arrival :constant :type (member :constant :poisson)) ; how calls are spread
  (group-ns 0 :type (unsigned-byte 40)) ; calls due within this time begin together
  (group-above 0d0 :type double-float)  ; if the rate of all generators is above this
  (group 1 :type (and quantity (integer 1))) ; how many calls begin together, at a constant rate
  (interval-ns 0d0 :type double-float)  ; the time between two calls, if the rate is constant
  ;; the offset of this generator's calls among those of all generators
  (offset-ns 0d0 :type double-float)
  (count 0 :type quantity) ; calls so far
  (at 0d0 :type double-float)           ; the time of the next call in seconds, if the rate changes
  (random nil :type (or null random-state))) ; the random state of a Poisson process

(declaim (sb-ext:freeze-type pacer))

(defconstant +longest-interval-ns+ 4d17
  "The maximum interval between calls, twelve years; a rate with a longer interval counts as 0.")

(defun make-pacer (schedule &key (generators 1) (generator 0) (arrival :constant) (group-ns 0)
                              (group-above 0) (random (sb-ext:seed-random-state 1)))
  "Return a pacer for the generator with the number GENERATOR, one of GENERATORS that share the rate
SCHEDULE. While the rate is above GROUP-ABOVE, all calls within GROUP-NS are due together."
  (let* ((even (and (eq :constant arrival) (eq :const (schedule-kind schedule))))
         (rate (/ (schedule-start schedule) generators))
         (pacer (%make-pacer :schedule schedule :share (/ 1d0 generators) :arrival arrival
                             :group-ns group-ns :group-above (float group-above 1d0)
                             :random random)))
    (when even
      (setf (pacer-interval-ns pacer) (min +longest-interval-ns+ (/ 1d9 rate))
            (pacer-group pacer) (if (< group-above (schedule-start schedule))
                                    (max 1 (floor (* rate group-ns) +ns-per-second+))
                                    1)
            (pacer-offset-ns pacer) (min +longest-interval-ns+
                                         (* generator (/ 1d9 (schedule-start schedule))))))
    (when (eq :poisson arrival) (advance-pacer pacer))
    pacer))

(defconstant +look-seconds+ 0.01d0 "The time for which a changing rate counts as constant.")
(defconstant +most-looks+ 360000 "The maximum number of steps of a search, in a changing rate, for
the time of the next call: the steps of an hour. After these the search is given up.")

(defun advance-pacer (pacer)
  "Advance AT to the time of the next call: the time at which the integral of the rate has grown by
1 or, if calls are spread by chance, by a number drawn from the exponential distribution of mean 1."
  (let ((wanted (if (eq :poisson (pacer-arrival pacer))
                    (- (log (- 1d0 (random 1d0 (pacer-random pacer)))))
                    1d0)))
    (loop repeat +most-looks+
          do (let* ((rate (* (pacer-share pacer)
                             (schedule-value (pacer-schedule pacer) (pacer-at pacer))))
                    (given (* rate +look-seconds+)))
               (when (<= wanted given)
                 (incf (pacer-at pacer) (/ wanted rate))
                 (return))
               (decf wanted given)
               (incf (pacer-at pacer) +look-seconds+))
          finally (setf (pacer-at pacer) 2d9))
    nil))

(define-hot next-due ((pacer pacer)) nanoseconds
  "The time at which the next call of PACER is due, in nanoseconds after the beginning."
  (let ((count (pacer-count pacer)))
    (setf (pacer-count pacer) (1+ count))
    (if (plusp (pacer-interval-ns pacer))
        (let ((last (logand most-positive-fixnum
                            (+ (- count (mod count (pacer-group pacer)))
                               (1- (pacer-group pacer))))))
          (values (truncate (the (double-float 0d0 1d18)
                                 (+ (pacer-offset-ns pacer)
                                    (* (pacer-interval-ns pacer) (float last 1d0)))))))
        (due-by-chance pacer))))

(defun due-by-chance (pacer)
  "The value of NEXT-DUE for a rate that changes, or for calls that are spread by chance."
  (when (and (eq :constant (pacer-arrival pacer)) (< 1 (pacer-count pacer)))
    (advance-pacer pacer))
  (let* ((ns (min +never-ns+ (floor (* 1d9 (pacer-at pacer)))))
         (group (pacer-group-ns pacer)))
    (when (eq :poisson (pacer-arrival pacer)) (advance-pacer pacer))
    (if (zerop group)
        ns
        (let ((rate (schedule-value (pacer-schedule pacer) (* 1d-9 ns))))
          (if (or (<= rate (pacer-group-above pacer))
                  (< (* 1d-9 group (pacer-share pacer) rate) 1d0))
              ns
              (* group (ceiling ns group)))))))
