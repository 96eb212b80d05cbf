;;;; Schedules start workflows at given times. The functions here make decisions like those in
;;;; decision.lisp: a schedule's state, the nodes' date and the state of the last workflow determine
;;;; the next state, and perhaps a workflow. scheduler.lisp stores both by one transaction, so each
;;;; time starts exactly one workflow, even if nodes die.
;;;;
;;;; Of the times that passed while no node ran, the last CATCH_UP are done late; the others are
;;;; counted as missed. The times of a schedule are done one after the other.

(in-package #:clgrpc.workflow)

(defconstant +most-passed+ 1000 "How many of the times that have passed are examined one by one.")

;;; Times

(defun cron-of (state)
  "The cron of STATE, a ScheduleState, or nil if it has an interval."
  (and (string/= "" (pb:schedule-state-cron state)) (parse-cron (pb:schedule-state-cron state))))

(defun next-scheduled-time (state cron ms)
  "The first time of STATE after MS, where CRON is STATE's CRON-OF; 0 for never."
  (if cron
      (or (next-cron cron ms) 0)
      (let ((interval (pb:schedule-state-interval-ms state)))
        (* interval (1+ (floor ms interval))))))

(defun times-passed (state cron now)
  "Two values: the times of STATE from the next one to NOW, and the number of further times that
came before these. If there are more times than +MOST-PASSED+, the first value has only the last
ones, and with CRON the second is always +MOST-PASSED+."
  (let ((next (pb:schedule-state-next-unix-ms state)))
    (flet ((times (from)
             (loop repeat (1+ +most-passed+)
                   for time = from then (next-scheduled-time state cron time)
                   while (<= 1 time now)
                   collect time)))
      (let ((times (times next)))
        (if (<= (length times) +most-passed+)
            (values times 0)
            (let* ((unit (if cron 60000 (pb:schedule-state-interval-ms state)))
                   (late (or (times (next-scheduled-time state cron (- now (* unit +most-passed+))))
                             (last times))))
              (values late (if cron
                               +most-passed+
                               (floor (- (first late) next) unit)))))))))

(defun next-to-do (state now)
  "Two values: the time of STATE that must be done now, and how many missed times are before it."
  (multiple-value-bind (times missed) (times-passed state (cron-of state) now)
    (let ((extra (max 0 (- (length times) (max 1 (pb:schedule-state-catch-up state))))))
      (values (elt times extra) (+ missed extra)))))

(defun time-name (ms)
  "MS in UTC in the form of ids: 20261128T030000Z."
  (multiple-value-bind (second minute hour day month year)
      (decode-universal-time (+ (floor ms 1000) (* 86400 +epoch-days+)) 0)
    (format nil "~4,'0D~2,'0D~2,'0DT~2,'0D~2,'0D~2,'0DZ" year month day hour minute second)))

(defun scheduled-id (id ms)
  "The id of the workflow that the schedule ID starts for the time MS. Signal TOO-LARGE if the id is
too long."
  (check-name (format nil "~A.~A" id (time-name ms)) "the id of a scheduled workflow"))

;;; The next states of a schedule

(defun begin-schedule (request now limits)
  "The first ScheduleState of the schedule that REQUEST, a CreateScheduleRequest, makes."
  (let* ((id (check-name (pb:create-schedule-request-id request) "the id of a schedule"))
         (start (or (pb:create-schedule-request-workflow request) (pb:make-start-request)))
         (interval (pb:create-schedule-request-interval-ms request))
         (catch-up (pb:create-schedule-request-catch-up request))
         (overlap (pb:create-schedule-request-overlap request))
         (state (pb:make-schedule-state
                 :id id :cron (pb:create-schedule-request-cron request) :interval-ms interval
                 :overlap overlap :catch-up catch-up :type (pb:start-request-type start)
                 :created-unix-ms now :digest (digest request))))
    (case (pb:create-schedule-request-times-case request)
      (:cron (parse-cron (pb:schedule-state-cron state)))
      (:interval-ms (unless (and (<= 1000 interval +longest-ms+) (zerop (mod interval 1000)))
                      (refuse :invalid-request "an interval is a whole number of seconds, at least ~
                                                one")))
      (t (refuse :invalid-request "a schedule needs a cron expression or an interval")))
    (unless (keywordp overlap) (refuse :invalid-request "~A has no rule for overlaps" overlap))
    (when (> catch-up +most-catch-up+)
      (refuse-size :too-large :catch-up +most-catch-up+ catch-up
                   "too many missed times to make up for"))
    (when (string/= "" (pb:start-request-id start))
      (refuse :invalid-request
              "the workflow of a schedule must not have an id: it gets one from each time"))
    ;; can the workflow be started?
    (scheduled-workflow state start now limits)
    (setf (pb:schedule-state-next-unix-ms state) (next-scheduled-time state (cron-of state) now))
    state))

(defun scheduled-workflow (state start now limits &optional (due now))
  "The finished draft of the workflow that STATE starts for its time DUE; START is its
StartRequest."
  (let ((request (protobuf:copy-message start)))
    (setf (pb:start-request-id request) (scheduled-id (pb:schedule-state-id state) due))
    (finish-draft (begin-workflow request now limits))))

(defun pass-time (state due &key started (reason "") (missed 0))
  "STATE after its time DUE. The workflow with the id STARTED was started; if STARTED is nil, no
workflow was, because of REASON. MISSED earlier times were not done."
  (let ((state (protobuf:copy-message state)))
    (incf (pb:schedule-state-missed state) missed)
    (cond (started (incf (pb:schedule-state-started state))
                   (setf (pb:schedule-state-last-id state) started))
          (t (incf (pb:schedule-state-skipped state))))
    (setf (pb:schedule-state-last-unix-ms state) due
          (pb:schedule-state-reason state) (short-text reason)
          (pb:schedule-state-next-unix-ms state) (next-scheduled-time state (cron-of state) due))
    state))

(defun due-p (state now)
  "True if a time of STATE is due by NOW."
  (and (not (pb:schedule-state-paused state))
       (<= 1 (pb:schedule-state-next-unix-ms state) now)))

(defun pause-schedule-state (state resume now)
  "STATE paused or, with RESUME, resumed at NOW; nil if that was its state already."
  (unless (eq (pb:schedule-state-paused state) (not resume))
    (let ((state (protobuf:copy-message state)))
      (setf (pb:schedule-state-paused state) (not resume)
            (pb:schedule-state-next-unix-ms state)
            (if resume (next-scheduled-time state (cron-of state) now) 0))
      state)))
