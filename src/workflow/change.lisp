;;;; Changes of a workflow in the store: its state is read, a decision makes a draft of it, and the
;;;; draft is put in one transaction, if the state has not changed meanwhile. If it has, all is done
;;;; again with what it is now. Decisions know what has happened before, so that whoever does not
;;;; learn whether his change was made asks for it again.

(in-package #:clgrpc.workflow)

(defconstant +most-tries+ 30 "How often a change is tried that meets others.")

(defun entry-state (entry)
  "The WorkflowState in ENTRY, or nil if that is."
  (and entry (protobuf:parse-message 'pb:workflow-state (etcd:entry-value entry))))

(defun entry-revision (entry)
  (if entry (etcd:entry-changed entry) 0))

(defun fetch-state (node id)
  "The entry of the workflow ID. Signal WORKFLOW-NOT-FOUND if there is none."
  (check-name id "the id of a workflow")
  (or (etcd:fetch (node-etcd node) (state-key (node-root node) id))
      (refuse :workflow-not-found "there is no workflow ~A" id)))

(defun fetch-states (node ids)
  "The entries of the workflows IDS, a list of as many, nil for those that are not there."
  (and ids
       (nth-value 1 (etcd:transact (node-etcd node)
                                   :then (loop for id in ids
                                               collect (list :get (state-key (node-root node)
                                                                             id)))))))

(defun unchanged-p (node draft revision)
  "The comparison that the state of DRAFT is as it was at REVISION, 0 if it was not there."
  (list :changed (state-key (node-root node) (pb:workflow-state-id (draft-state draft)))
        '= revision))

(defun put-draft (node draft revision &key when)
  "Put DRAFT, a finished one, into the store if its workflow is as it was at REVISION and the
comparisons WHEN are so. Return whether they were; the revision of the store; and the entry of the
state as it is if they were not."
  (let ((state-key (state-key (node-root node) (pb:workflow-state-id (draft-state draft)))))
    (multiple-value-bind (done results now)
        (etcd:transact (node-etcd node)
                       :when (cons (unchanged-p node draft revision) when)
                       :then (draft-operations (node-root node) draft)
                       :else (list (list :get state-key)))
      (if done
          (count-draft (node-instruments node) draft)
          (count-conflict (node-instruments node)))
      (values done now (if done nil (first results))))))

(defun change-workflow (node id decision &key conditions on-refusal)
  "Have DECISION, a function of a draft, decide about the workflow ID, and put into the store what
it decides. Return the draft, and the revision that this made, or nil if nothing is to be changed.
Signal a workflow error. CONDITIONS is a function of the draft that returns further comparisons;
when they are not so, ON-REFUSAL is called, before all is tried again."
  (let ((entry (fetch-state node id)))
    (loop for tries from 1
          for draft = (draft-of (entry-state entry) (node-now node) (node-limits node)
                                :chance (below node 1.0))
          do (unless (funcall decision draft) (return (values draft nil)))
             (finish-draft draft)
             (multiple-value-bind (done revision now)
                 (put-draft node draft (entry-revision entry)
                          :when (and conditions (funcall conditions draft)))
               (when done (return (values draft revision)))
               (when (null now) (refuse :workflow-not-found "there is no workflow ~A" id))
               (when (and on-refusal (= (entry-revision now) (entry-revision entry)))
                 (funcall on-refusal))
               (when (= tries +most-tries+)
                 (refuse :store-unavailable "too many changes of ~A at once" id))
               (setf entry now)))))

(defun draft-input (node state draft)
  "The input of the task that is under way in STATE: of DRAFT's payloads, or out of the store."
  (let ((key (input-key state)))
    (cond ((string= "" key) (make-octets 0))
          ((cdr (assoc key (draft-payloads draft) :test #'string=)))
          (t (let ((entry (etcd:fetch (node-etcd node)
                                      (data-key (node-root node) (pb:workflow-state-id state)
                                                key))))
               (if entry (etcd:entry-value entry) (make-octets 0)))))))

(defun input-key (state)
  "Where the input of the task is that is under way in STATE, below data/ID/; empty if nowhere."
  (let ((step (state-step state)))
    (if (string/= "" (pb:step-state-input-key step))
        (pb:step-state-input-key step)
        (pb:workflow-state-data-key state))))

(defun input-octets (state)
  "How long the input is of the task that is under way in STATE."
  (let ((step (state-step state)))
    (if (string/= "" (pb:step-state-input-key step))
        (pb:step-state-input-octets step)
        (pb:workflow-state-data-octets state))))
