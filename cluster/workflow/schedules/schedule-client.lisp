;;;; The client's functions for schedules; see workflow-client.lisp.

(in-package #:clgrpc.workflow)

(defun create-schedule (channel id steps &key cron every (overlap :skip) (catch-up 1) input type
                                           timeout call-timeout)
  "Create the schedule ID, a string of the caller's choice, which starts workflows at times: by
CRON, five fields in UTC such as \"0 3 * * *\", each night at three; or every EVERY seconds, an
integer, at the multiples of that since 1970. Each workflow has the id ID.TIME, such as
nightly.20261128T030000Z, and STEPS, INPUT, TYPE and TIMEOUT as for START-WORKFLOW. While the last
workflow runs no further one is started, unless OVERLAP is :allow. Of the times that passed while no
node ran, the last CATCH-UP, 1 to 100, are made up for. Return true if this call has created the
schedule, false if the same schedule exists. Signal SCHEDULE-EXISTS if another schedule has this id,
TOO-LARGE for a wrong expression, BACKLOG-FULL, or another WORKFLOW-ERROR after CALL-TIMEOUT seconds
(10); MISUSE without CRON or EVERY. From any thread."
  (check-type overlap (member :skip :allow))
  (check-type catch-up (integer 1 100))
  (unless (eq (null cron) (not (null every)))
    (misuse "A schedule has either :cron or :every."))
  (let ((request (pb:make-create-schedule-request
                  :id id :overlap overlap :catch-up catch-up
                  :workflow (pb:make-start-request
                             :type (or type (type-of-steps steps)) :steps (steps-of steps)
                             :input (payload-octets input) :timeout-ms (duration-ms timeout)))))
    (if cron
        (setf (pb:create-schedule-request-cron request) cron)
        (setf (pb:create-schedule-request-interval-ms request) (duration-ms every)))
    (pb:create-schedule-reply-created
     (ask #'methods:create-schedule channel request call-timeout))))

(defun schedule-state (channel id &key timeout)
  "Return two values: the state of the schedule ID, a CLGRPC.WORKFLOW.V1:SCHEDULE-STATE, and the
request of its workflows, a CLGRPC.WORKFLOW.V1:START-REQUEST. Signal SCHEDULE-NOT-FOUND, or another
WORKFLOW-ERROR after TIMEOUT seconds (10). From any thread."
  (let ((reply (ask #'methods:get-schedule channel (pb:make-get-schedule-request :id id) timeout)))
    (values (pb:get-schedule-reply-state reply) (pb:get-schedule-reply-workflow reply))))

(defun map-schedules (function channel &key timeout)
  "Call FUNCTION with a CLGRPC.WORKFLOW.V1:SCHEDULE-STATE of each schedule, in the order of their
ids. The schedules are fetched in pages, each within TIMEOUT seconds (10). Signal a WORKFLOW-ERROR.
From any thread."
  (loop with after = ""
        for reply = (ask #'methods:list-schedules channel
                         (pb:make-list-schedules-request :after after) timeout)
        do (map nil function (pb:list-schedules-reply-schedules reply))
           (setf after (pb:list-schedules-reply-next reply))
        until (string= "" after)))

(defun pause-schedule (channel id &key timeout)
  "Make the schedule ID start nothing until RESUME-SCHEDULE; nothing happens if it is already
paused. Signal SCHEDULE-NOT-FOUND, or another WORKFLOW-ERROR after TIMEOUT seconds (10). From any
thread."
  (ask #'methods:pause-schedule channel (pb:make-pause-schedule-request :id id) timeout)
  nil)

(defun resume-schedule (channel id &key timeout)
  "Resume the paused schedule ID from now on: the times that passed meanwhile start no workflow.
Signal SCHEDULE-NOT-FOUND, or another WORKFLOW-ERROR after TIMEOUT seconds (10). From any thread."
  (ask #'methods:pause-schedule channel (pb:make-pause-schedule-request :id id :resume t) timeout)
  nil)

(defun delete-schedule (channel id &key timeout)
  "Remove the schedule ID. Workflows that the schedule has started continue. Return true if the
schedule existed; false if not, even if an earlier try of the same call has removed it. Signal a
WORKFLOW-ERROR after TIMEOUT seconds (10). From any thread."
  (pb:delete-schedule-reply-deleted
   (ask #'methods:delete-schedule channel (pb:make-delete-schedule-request :id id) timeout)))
