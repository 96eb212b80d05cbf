;;;; What a node counts, if it is given metrics. It counts the changes that it has made itself; what
;;;; is of the store, such as how many workflows run, is the same at every node.

(in-package #:clgrpc.workflow)

(defstruct (instruments (:copier nil))
  "The instruments of a node."
  (workflows nil :read-only t)          ; workflows begun and ended, by what
  (steps nil :read-only t)              ; what came of steps, by what and kind
  (refused nil :read-only t)            ; what was refused, by why
  (changes nil :read-only t))           ; changes made, and those made again, by which

(defun make-node-instruments (metrics running ready waiting)
  "Instruments of METRICS, or nil if that is; RUNNING, READY and WAITING are functions that tell how
many workflows run, how many tasks can be claimed and how many claims wait for one."
  (when metrics
    (flet ((counter (name unit text &rest attributes)
             (metrics:make-counter metrics name :unit unit :text text :attributes attributes))
           (gauge (name unit text function)
             (metrics:make-gauge metrics name :unit unit :text text :function function)))
      (gauge "clgrpc.workflow.running" "{workflow}" "Workflows that have not ended." running)
      (gauge "clgrpc.workflow.ready" "{task}" "Tasks that nobody has claimed." ready)
      (gauge "clgrpc.workflow.waiting_claims" "{call}" "Claims that wait for a task here." waiting)
      (make-instruments
       :workflows (counter "clgrpc.workflow.workflows" "{workflow}"
                           "Workflows that were started and have ended through this node." "what")
       :steps (counter "clgrpc.workflow.steps" "{step}"
                       "What has happened to steps through this node." "what" "kind")
       :refused (counter "clgrpc.workflow.refused" "{call}" "Calls that were refused." "why")
       :changes (counter "clgrpc.workflow.changes" "{change}"
                         "Changes put into the store, and those that met another one."
                         "outcome")))))

(defun step-kind (draft number)
  "The kind of the step NUMBER of DRAFT."
  (let* ((step (find number (pb:workflow-state-steps (draft-state draft))
                     :key #'pb:step-state-number))
         (definition (and step (pb:step-state-step step))))
    (case (and definition (pb:step-action-case definition))
      (:task (pb:step-task definition))
      ((:wait-ms :until-unix-ms) "(time)")
      (:signal "(signal)")
      (t "(none)"))))

(defun count-draft (instruments draft)
  "Count what has happened in DRAFT, which is in the store."
  (when instruments
    (metrics:add (instruments-changes instruments) 1 "made")
    (dolist (event (draft-events draft))
      (let ((kind (pb:event-kind event)))
        (case kind
          (:started (metrics:add (instruments-workflows instruments) 1 "started"))
          (:ended (metrics:add (instruments-workflows instruments) 1
                               (pb:workflow-state-status (draft-state draft))))
          (:signalled)
          (t (metrics:add (instruments-steps instruments) 1
                          (substitute #\_ #\- (string-downcase kind))
                          (step-kind draft (pb:event-step event)))))))))

(defun count-conflict (instruments)
  (when instruments (metrics:add (instruments-changes instruments) 1 "met_another")))

(defun count-refusal (instruments condition)
  (when instruments
    (metrics:add (instruments-refused instruments) 1 (type-of condition))))
