;;;; The command `cluster`: a node's data of its cluster, as tables or as JSON. All texts that a
;;;; node sends go through SHOWN, which removes control sequences of terminals.

(in-package #:clgrpc.tools)

(defun labels-text (labels)
  (format nil "~{~A~^,~}" (loop for (name . value) in labels
                                collect (format nil "~A=~A" name value))))

(defun member-row (member)
  "The cells of a table about MEMBER."
  (list (cluster:member-name member) (cluster:member-generation member)
        (cluster:member-state member) (cluster:member-address member)
        (time-text (grpc:unix-time-timestamp (cluster:member-joined member)))
        (labels-text (cluster:member-labels member))))

(defun write-members (members)
  (write-table '("NAME" "GENERATION" "STATE" "ADDRESS" "JOINED" "LABELS")
               (loop for member in members
                     collect (loop for cell in (member-row member)
                                   collect (if (keywordp cell) (string-downcase cell) cell)))))

(defun show-members (channel stale json timeout)
  "Print the members of the cluster that CHANNEL's server belongs to."
  (let ((response (membership-methods:members
                   channel (membership:make-members-request :stale stale) :timeout timeout)))
    (if json
        (format t "~A~%" (grpc:message-json response :indent 2))
        (write-members (cluster:response-members response)))))

(defun write-change (change revision)
  (let ((member (cluster:change-member change)))
    (format t "~D ~(~A~) ~A generation ~D at ~A~@[ ~A~]~%" revision (cluster:change-kind change)
            (shown (cluster:member-name member)) (cluster:member-generation member)
            (shown (cluster:member-address member))
            (and (cluster:member-labels member)
                 (shown (labels-text (cluster:member-labels member)))))))

(defun watch-cluster (channel revision json count timeout)
  "Print the changes, since REVISION, of the cluster to which CHANNEL's server belongs; at most
COUNT of them, if that is not nil. Give up when no node could be reached for TIMEOUT seconds."
  (block watching
    (cluster:follow-cluster
     (lambda (kind items revision)
       (cond (json
              (format t "~A~%" (grpc:message-json (cluster:told-response kind items revision))))
             ((eq :members kind)
              (format t "~D members~%" revision)
              (write-members items))
             (t (dolist (change items) (write-change change revision))))
       (finish-output)
       (when (and count (eq :changes kind) (<= (decf count (length items)) 0))
         (return-from watching)))
     channel :revision revision :patience-seconds timeout)))

(define-command "cluster"
    (((what "WHAT"
            (choice-parser :members :watch :workflows :show :start :signal :cancel :delete
                           :schedules :schedule :create-schedule :pause-schedule :resume-schedule
                           :delete-schedule)
            "members lists the members; watch prints their changes from now on, a line for each;
      workflows lists the workflows of the node's namespace, the newest first; show prints one
      of these with its steps and its history; start, signal and cancel act on one, as does
      delete when it has ended; schedules lists the schedules; schedule prints one, and
      create-schedule, pause-schedule, resume-schedule and delete-schedule act on one.")
      (address "ADDRESS" (address-parser 1)
               "The address of a node, or of several: ipv4:10.0.0.1:50051,10.0.0.2:50051.")
      (id "[ID]" #'identity "The id of the workflow or of the schedule.")
      (name "[SIGNAL]" #'identity "The name of the signal."))
     ((json "[true|false]" #'parse-boolean nil
            "Print the answers in JSON, those of watch and each workflow in a line of its own.")
      (stale "[true|false]" #'parse-boolean nil
             "Show the members as the node knows them, without asking the store.")
      (revision "N" (integer-parser 0 (1- (expt 2 63))) 0
                "Watch from this revision on, instead of beginning with all members.")
      (status "STATUS" (choice-parser :any :running :completed :failed :cancelled) :any
              "Show workflows of this status.")
      (type "TYPE" #'identity "" "Show workflows of this type.")
      (started-from "TIME" #'parse-moment nil
                    "Show workflows that began at TIME or later: a time such as
      2026-11-28T03:00:00Z, or how long ago, such as 2h.")
      (started-before "TIME" #'parse-moment nil "Show workflows that began before TIME.")
      (ended-from "TIME" #'parse-moment nil "Show workflows that ended at TIME or later.")
      (ended-before "TIME" #'parse-moment nil "Show workflows that ended before TIME.")
      ((task "--task") "KIND" #'identity '()
       "Start a workflow of this task; may be given several times, for tasks one after another.")
      (request "JSON" #'identity nil
               "What to start instead of --task: a clgrpc.workflow.v1.StartRequest without id; @
      reads it from the standard input.")
      (input "TEXT" #'identity nil
             "The input of the first step, or the payload of the signal; @ reads it from the
      standard input.")
      (reason "TEXT" #'identity "" "Why the workflow is cancelled.")
      (cancel "[true|false]" #'parse-boolean nil "With delete, cancel the workflow first if it
      runs.")
      (cron "TIMES" #'identity nil
            "When the schedule starts a workflow, in UTC: minute, hour, day of the month, month, day
      of the week, such as \"0 3 * * *\".")
      (every "DURATION" #'parse-seconds nil "The interval at which the schedule starts workflows,
      instead of --cron.")
      (overlap "skip|allow" (choice-parser :skip :allow) :skip
               "Whether the schedule starts a workflow while its last workflow runs.")
      (catch-up "N" (integer-parser 1 100) 1
                "The maximum number of times that passed while no node ran and that start a workflow
      late.")
      (count "N" (integer-parser 1 (expt 10 9)) nil
             "The number of changes after which to stop watching; the maximum number of workflows to
      show.")
      (timeout "DURATION" #'parse-seconds 10
               "The time to wait for an answer or, with watch, for a node that can be reached.")
      client-tls))
    "Show the members of a cluster, its workflows or its schedules, or watch the members: each
change is printed once, even if the node that is asked ends and another of ADDRESS takes its place.
Start, signal, cancel, delete and show one workflow; create, pause, resume, delete and show one
schedule. Exits with 0, even if an equal request had started the workflow before; with 1 if no node
has answered in time, or the request was refused; with 2 if the arguments are wrong."
  (check-workflow-arguments what id name task request)
  (grpc:with-channel (channel address
                      :credentials (client-credentials tls-ca tls-cert tls-key tls-name)
                      ;; so that a node that hangs is given up while another may be reached
                      :keepalive-seconds 10)
    (ecase what
      (:members (show-members channel stale json timeout))
      (:watch (watch-cluster channel revision json count timeout))
      (:workflows (print-workflows channel
                                   (list :status status :type type :started-from started-from
                                         :started-before started-before :ended-from ended-from
                                         :ended-before ended-before)
                                   json count timeout))
      (:show (show-workflow channel id json timeout))
      (:start (start-a-workflow channel id (start-request task request) (argument-text input)
                                timeout))
      (:signal (workflow:signal-workflow channel id name (argument-text input) :timeout timeout))
      (:cancel (workflow:cancel-workflow channel id :reason reason :timeout timeout))
      (:delete (delete-a-workflow channel id cancel reason timeout))
      (:schedules (show-schedules channel json timeout))
      (:schedule (show-schedule channel id json timeout))
      (:create-schedule (create-a-schedule channel id (start-request task request)
                                           (argument-text input)
                                           (list :cron cron :every every :overlap overlap
                                                 :catch-up catch-up)
                                           timeout))
      (:pause-schedule (workflow:pause-schedule channel id :timeout timeout))
      (:resume-schedule (workflow:resume-schedule channel id :timeout timeout))
      (:delete-schedule (delete-a-schedule channel id timeout))))
  0)
