;;;; The subcommands of `cluster` for schedules of workflows.

(in-package #:clgrpc.tools)

(defun schedule-times (state)
  "A text about the times at which the schedule of STATE is due."
  (if (string/= "" (workflow-v1:schedule-state-cron state))
      (workflow-v1:schedule-state-cron state)
      (format nil "each ~D s" (/ (workflow-v1:schedule-state-interval-ms state) 1000))))

(defun schedule-row (state)
  "The cells of a table about STATE, of a schedule."
  (list (workflow-v1:schedule-state-id state) (schedule-times state)
        (workflow-v1:schedule-state-type state)
        (if (workflow-v1:schedule-state-paused state)
            "paused"
            (milliseconds-text (workflow-v1:schedule-state-next-unix-ms state)))
        (milliseconds-text (workflow-v1:schedule-state-last-unix-ms state))
        (workflow-v1:schedule-state-started state) (workflow-v1:schedule-state-skipped state)
        (workflow-v1:schedule-state-missed state) (workflow-v1:schedule-state-reason state)))

(defun write-schedules (states)
  (write-table '("ID" "TIMES (UTC)" "TYPE" "NEXT" "LAST" "STARTED" "SKIPPED" "MISSED" "REASON")
               (mapcar #'schedule-row states)))

(defun show-schedules (channel json timeout)
  (let ((states '()))
    (workflow:map-schedules (lambda (state) (push state states)) channel :timeout timeout)
    (if json
        (dolist (state (reverse states)) (format t "~A~%" (grpc:message-json state)))
        (write-schedules (reverse states)))))

(defun show-schedule (channel id json timeout)
  "Print the state of the schedule ID; in JSON also the request of its workflows."
  (multiple-value-bind (state start) (workflow:schedule-state channel id :timeout timeout)
    (if json
        (format t "~A~%" (grpc:message-json (workflow-v1:make-get-schedule-reply
                                             :state state :workflow start)
                                            :indent 2))
        (write-schedules (list state)))))

(defun create-a-schedule (channel id request input times timeout)
  "Create the schedule ID, which starts workflows by REQUEST, a StartRequest, with INPUT unless that
is nil, at TIMES, arguments of CREATE-SCHEDULE. Print whether this call or an earlier one created
it."
  (let ((ms (workflow-v1:start-request-timeout-ms request)))
    (unless (eq (null (getf times :cron)) (not (null (getf times :every))))
      (refuse "a schedule has either --cron or --every"))
    (format t "~A ~:[was created before~;created~]~%" (shown id)
            (apply #'workflow:create-schedule channel id
                   (coerce (workflow-v1:start-request-steps request) 'list)
                   :type (workflow-v1:start-request-type request)
                   :input (or input (workflow-v1:start-request-input request))
                   :timeout (and (plusp ms) (/ ms 1000)) :call-timeout timeout times))))

(defun delete-a-schedule (channel id timeout)
  (format t "~A ~:[was not there~;deleted~]~%" (shown id)
          (workflow:delete-schedule channel id :timeout timeout)))
