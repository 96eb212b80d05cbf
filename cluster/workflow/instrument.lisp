;;;; The metrics of a node. A node counts the changes that it has made itself; figures of the store,
;;;; such as how many workflows run, are the same at every node. Nodes that share an object of
;;;; metrics share the instruments; the namespace distinguishes them.

(in-package #:clgrpc.workflow)

(defstruct (instruments (:copier nil))
  "The instruments of the nodes that share one METRICS."
  (nodes '() :type list)                ; the open nodes; changed by ATOMIC-UPDATE
  (workflows nil :read-only t)          ; workflows begun and ended, by event
  (steps nil :read-only t)              ; outcomes of steps, by outcome and kind
  (refused nil :read-only t)            ; refusals, by reason
  (changes nil :read-only t))           ; counts of changes, and of repeated changes, by kind

(defun namespace-sums (instruments reader)
  "For each namespace with open nodes among INSTRUMENTS, a list of the sum of READER's values for
these nodes, and the namespace."
  (let ((sums '()))
    (dolist (node (instruments-nodes instruments) sums)
      (let ((sum (find (node-namespace node) sums :key #'second :test #'string=))
            (number (funcall (the function reader) node)))
        (if sum
            (incf (first sum) number)
            (push (list number (node-namespace node)) sums))))))

(defun store-counts (instruments reader)
  "For each namespace with open nodes among INSTRUMENTS, a list of READER's value for the node that
was opened last, and the namespace."
  (loop for node in (remove-duplicates (instruments-nodes instruments)
                                       :key #'node-namespace :test #'string= :from-end t)
        collect (list (funcall (the function reader) node) (node-namespace node))))

(defun new-instruments (metrics)
  (let ((instruments nil))
    (flet ((counter (name unit text &rest attributes)
             (metrics:make-counter metrics name
                                   :unit unit :text text
                                   :attributes (cons "clgrpc.workflow.namespace" attributes)))
           (gauge (name unit text summary reader)
             (metrics:make-gauge metrics name
                                 :unit unit :text text :attributes '("clgrpc.workflow.namespace")
                                 :function (lambda () (funcall summary instruments reader)))))
      (setf instruments
            (make-instruments
             :workflows (counter "clgrpc.workflow.workflows" "{workflow}"
                                 "Workflows that this node has started or ended, by outcome."
                                 "clgrpc.workflow.outcome")
             :steps (counter "clgrpc.workflow.steps" "{step}"
                             "Outcomes of steps that this node has recorded."
                             "clgrpc.workflow.event" "clgrpc.workflow.kind")
             :refused (counter "clgrpc.workflow.refused" "{call}" "Calls that were refused."
                               "clgrpc.workflow.reason")
             :changes (counter "clgrpc.workflow.changes" "{change}"
                               "Changes put into the store, and those that conflicted with others."
                               "clgrpc.workflow.outcome")))
      (gauge "clgrpc.workflow.running" "{workflow}" "Workflows that have not ended."
             #'store-counts #'node-running)
      (gauge "clgrpc.workflow.ready" "{task}" "Tasks that no worker has claimed."
             #'store-counts #'node-ready)
      (gauge "clgrpc.workflow.waiting_claims" "{call}"
             "Claims that wait for a task at this process."
             #'namespace-sums (lambda (node) (task-queue-parked (node-task-queue node))))
      (gauge "clgrpc.workflow.stuck" "{workflow}" "Workflows that this process cannot change."
             #'namespace-sums #'count-stuck)
      (gauge "clgrpc.workflow.store" "By" "Octets of the store that are in use."
             #'store-counts (lambda (node) (or (room-used node) 0)))
      (gauge "clgrpc.workflow.store_limit" "By"
             "Octets of the store above which no workflow is started."
             #'store-counts (lambda (node) (nth-value 1 (room-used node))))
      instruments)))

(defun begin-counting (node metrics)
  "Let NODE count in METRICS, unless that is nil, until END-COUNTING."
  (when-let ((instruments (metrics:ensure-instruments metrics 'instruments #'new-instruments)))
    (setf (node-instruments node) instruments)
    (sb-ext:atomic-push node (instruments-nodes instruments))))

(defun end-counting (node)
  "Stop the gauges from reading NODE."
  (when-let ((instruments (node-instruments node)))
    (sb-ext:atomic-update (instruments-nodes instruments) (lambda (nodes) (remove node nodes)))))

(defun note (node reader &rest values)
  "Add 1 to the counter of NODE that READER returns, if NODE has metrics."
  (when-let ((instruments (node-instruments node)))
    (apply #'metrics:add (funcall (the function reader) instruments) 1 (node-namespace node)
           values)))

(defun step-kind (draft number)
  "The kind of the step NUMBER of DRAFT."
  (let* ((step (find number (pb:workflow-state-steps (draft-state draft))
                     :key #'pb:step-state-number))
         (definition (and step (pb:step-state-step step))))
    (case (and definition (pb:step-action-case definition))
      (:task (pb:step-task definition))
      ((:wait-ms :until-unix-ms) "(time)")
      (:signal "(signal)")
      (:children "(children)")
      (t "(none)"))))

(defun count-draft (node draft)
  "Count the events in DRAFT, which NODE has put into the store."
  (note node #'instruments-changes "made")
  (dolist (event (draft-events draft))
    (let ((kind (pb:event-kind event)))
      (case kind
        (:started (note node #'instruments-workflows "started"))
        (:ended (note node #'instruments-workflows
                      (pb:workflow-state-status (draft-state draft))))
        (:signalled)
        (t (note node #'instruments-steps (substitute #\_ #\- (string-downcase kind))
                 (step-kind draft (pb:event-step event))))))))

(defun count-conflict (node)
  (note node #'instruments-changes "met_another"))

(defun count-refusal (node condition)
  (note node #'instruments-refused (type-of condition)))
