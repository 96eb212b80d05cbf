;;;; The subcommands of `cluster` for workflows: they start workflows, and show them as tables or
;;;; JSON.

(in-package #:clgrpc.tools)

(defun milliseconds-text (unix-ms)
  "UNIX-MS, milliseconds since 1970, as a time in UTC; \"\" for 0."
  (if (zerop unix-ms) "" (time-text (grpc:unix-time-timestamp (/ unix-ms 1000)))))

(defun workflow-row (summary)
  "The cells of a table about SUMMARY, of a workflow."
  (list (workflow-v1:workflow-summary-id summary) (workflow-v1:workflow-summary-type summary)
        (string-downcase (workflow-v1:workflow-summary-status summary))
        (format nil "~D/~D" (workflow-v1:workflow-summary-current summary)
                (workflow-v1:workflow-summary-steps summary))
        (workflow-v1:workflow-summary-step summary)
        (milliseconds-text (workflow-v1:workflow-summary-started-unix-ms summary))
        (milliseconds-text (workflow-v1:workflow-summary-ended-unix-ms summary))
        (workflow-v1:workflow-summary-reason summary)))

(defun parse-moment (string)
  "The time of STRING, in seconds since 1970: a time of RFC 3339, or a duration, which means that
long before now."
  (if (find #\T string)
      (handler-case (grpc:timestamp-unix-time
                     (grpc:parse-json-message 'google.protobuf:timestamp
                                              (format nil "~S" string)))
        (grpc:protobuf-error () (refuse "a time is expected, such as 2026-11-28T03:00:00Z or 2h, ~
                                         not ~S" string)))
      (- (grpc:timestamp-unix-time (grpc:universal-time-timestamp (get-universal-time)))
         (parse-duration string))))

(defun print-workflows (channel search json count timeout)
  "Print the workflows that SEARCH, arguments of MAP-WORKFLOWS, selects; at most COUNT of them,
unless that is nil."
  (let ((rows '()) (shown 0))
    (block listing
      (apply #'workflow:map-workflows
             (lambda (summary)
               (when (and count (< count (incf shown))) (return-from listing))
               (if json
                   (format t "~A~%" (grpc:message-json summary))
                   (push (workflow-row summary) rows)))
             channel :timeout timeout search))
    (unless json
      (write-table '("ID" "TYPE" "STATUS" "STEP" "NAME" "STARTED" "ENDED" "REASON")
                   (nreverse rows)))))

;;; One of them

(defun step-name (step)
  "The name of STEP, a Step, in tables."
  (or (find "" (list (workflow-v1:step-name step) (workflow-v1:step-task step)
                     (workflow-v1:step-signal step))
            :test #'string/=)
      (if (eq :children (workflow-v1:step-action-case step)) "children" "wait")))

(defun step-row (state)
  "The cells of a table about STATE, of a step."
  (list (workflow-v1:step-state-number state)
        (step-name (workflow-v1:step-state-step state))
        (string-downcase (workflow-v1:step-state-status state))
        (workflow-v1:step-state-attempts state) (workflow-v1:step-state-losses state)
        (milliseconds-text (workflow-v1:step-state-begun-unix-ms state))
        (milliseconds-text (workflow-v1:step-state-ended-unix-ms state))
        (workflow-v1:step-state-error state)))

(defun event-rows (change)
  "The cells of a table about CHANGE, a row for each of its events."
  (loop for event across (workflow-v1:change-events change)
        collect (list (workflow-v1:change-number change)
                      (milliseconds-text (workflow-v1:change-unix-ms change))
                      (string-downcase (workflow-v1:event-kind event))
                      (workflow-v1:event-step event)
                      (workflow-v1:event-text event))))

(defun write-workflow (reply)
  "Print the state in REPLY, a GetWorkflowStateReply."
  (let ((state (workflow-v1:get-workflow-state-reply-state reply)))
    (flet ((text (string) (and (string/= "" string) string)))
      (write-facts "id" (workflow-v1:workflow-state-id state)
                   "type" (text (workflow-v1:workflow-state-type state))
                   "status" (string-downcase (workflow-v1:workflow-state-status state))
                   "reason" (text (workflow-v1:workflow-state-reason state))
                   "started" (milliseconds-text (workflow-v1:workflow-state-started-unix-ms state))
                   "ended" (text (milliseconds-text
                                  (workflow-v1:workflow-state-ended-unix-ms state)))))
    (terpri)
    (write-table '("STEP" "NAME" "STATUS" "ATTEMPTS" "LOSSES" "BEGUN" "ENDED" "ERROR")
                 (map 'list #'step-row (workflow-v1:workflow-state-steps state)))
    (terpri)
    (write-table '("CHANGE" "TIME" "EVENT" "STEP" "TEXT")
                 (loop for change across (workflow-v1:get-workflow-state-reply-history reply)
                       append (event-rows change)))))

(defun show-workflow (channel id json timeout)
  (let ((reply (workflow:workflow-state channel id :history t :timeout timeout)))
    (if json
        (format t "~A~%" (grpc:message-json reply :indent 2))
        (write-workflow reply))))

;;; Requests about one workflow

(defun check-workflow-arguments (what id name tasks request)
  "Signal an error unless ID, NAME, TASKS and REQUEST are arguments that the subcommand WHAT needs."
  (when (and (not (member what '(:members :watch :workflows :schedules))) (null id))
    (refuse "the ID of a workflow or a schedule is missing"))
  (when (and (eq what :signal) (null name)) (refuse "the name of the signal is missing"))
  (when (and (member what '(:start :create-schedule)) (eq (null tasks) (null request)))
    (refuse "a workflow is started with --task or with --request")))

(defun argument-text (argument)
  "The text for ARGUMENT, a string or nil: the standard input if ARGUMENT is @, else ARGUMENT
itself."
  (if (equal argument "@") (read-standard-text) argument))

(defun start-request (tasks request)
  "The StartRequest for TASKS or, if REQUEST is not nil, the StartRequest in JSON that ARGUMENT-TEXT
reads from REQUEST."
  (if request
      (handler-case (grpc:parse-json-message 'workflow-v1:start-request (argument-text request))
        (grpc:protobuf-error (error) (refuse "--request: ~A" error)))
      (workflow-v1:make-start-request
       :steps (loop for task in tasks collect (workflow-v1:make-step :task task)))))

(defun start-a-workflow (channel id request input timeout)
  "Start the workflow ID by REQUEST, with INPUT unless that is nil. Print whether this request or an
earlier one has started the workflow."
  (let ((ms (workflow-v1:start-request-timeout-ms request)))
    (format t "~A ~:[was started before~;started~]~%" (shown id)
            (workflow:start-workflow channel id
                                     (coerce (workflow-v1:start-request-steps request) 'list)
                                     :type (workflow-v1:start-request-type request)
                                     :input (or input (workflow-v1:start-request-input request))
                                     :timeout (and (plusp ms) (/ ms 1000))
                                     :call-timeout timeout))))

(defun delete-a-workflow (channel id cancel reason timeout)
  "Delete the workflow ID, and print whether it existed. If CANCEL is true, cancel the workflow
first."
  (format t "~A ~:[was not there~;deleted~]~%" (shown id)
          (workflow:delete-workflow channel id :cancel cancel :reason reason :timeout timeout)))
