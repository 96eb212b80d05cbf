;;;; Changes of a workflow in the store: the state is read, a decision makes a draft of it, and one
;;;; transaction puts the draft if the state has not changed meanwhile. If the state has changed,
;;;; all is done again with the present state. Decisions recognize events that have happened before,
;;;; so a caller that does not learn whether its change was made can ask for it again.

(in-package #:clgrpc.workflow)

(defconstant +most-tries+ 30 "The maximum number of tries of a change that conflicts with others.")
(defconstant +most-cached-states+ 10000 "The maximum number of states that a node remembers.")
(defconstant +most-cached-state-octets+ 16777216 "The maximum number of octets of all cached states,
in their stored form.")

(defun entry-state (entry)
  "The WorkflowState in ENTRY, or nil if ENTRY is nil."
  (and entry (protobuf:parse-message 'pb:workflow-state (etcd:entry-value entry))))

(defun read-sound (function sound-p event entry)
  "The message that FUNCTION reads from ENTRY, or nil if it reads none. If the value of ENTRY is not
such a message, or SOUND-P is false for it, log EVENT, a warning, and return nil."
  (declare (type function function sound-p))
  (flet ((warn-of (condition)
           (log-event :warning event :entry entry :condition condition)
           nil))
    (handler-case (let ((message (funcall function entry)))
                    (cond ((or (null message) (funcall sound-p message)) message)
                          (t (warn-of "the entry has no changes, or no id"))))
      (protobuf:protobuf-error (condition) (warn-of (bounded-text condition))))))

(defun readable-state (entry)
  "Return the value of ENTRY-STATE for ENTRY. If the value of ENTRY is not a state of a workflow,
log a warning and return nil."
  (read-sound #'entry-state
              (lambda (state) (plusp (length (pb:workflow-state-changes state))))
              :workflow-unreadable entry))

(defun entry-revision (entry)
  (if entry (etcd:entry-changed entry) 0))

(defstruct (cached-state (:constructor make-cached-state (state revision &optional (octets 0)))
                         (:copier nil))
  "A state at some revision, which ENTRY-STATE has read or a draft has stored; it is never changed."
  (state nil :type pb:workflow-state :read-only t) ; the state as it was at REVISION
  (revision 0 :type (integer 0) :read-only t) ; the revision of this state
  (octets 0 :type (integer 0) :read-only t)) ; the length of the state; 0 unless it is cached

(declaim (sb-ext:freeze-type cached-state))

(defun fetch-whole (node id)
  "The present state of the workflow ID, a cached state that is whole, or nil if there is no such
workflow. The head and the chunks belong to one revision."
  (destructuring-bind (entry chunks)
      (nth-value 1 (transact node '()
                             :then (list (list :get (state-key (node-root node) id))
                                         (list :get-all :prefix (node-key node "steps" id "")))))
    (and entry
         (make-cached-state (join-state (entry-state entry)
                                        (loop for chunk in chunks
                                              collect (protobuf:parse-message
                                                       'pb:stored-steps
                                                       (etcd:entry-value chunk))))
                            (etcd:entry-changed entry)))))

(defun entry-cached-state (node entry)
  "The state in ENTRY as a cached state, which is whole; nil if ENTRY is nil. If ENTRY lacks some of
the steps, read the whole present state."
  (let ((head (entry-state entry)))
    (cond ((null head) nil)
          ((whole-p head) (make-cached-state head (etcd:entry-changed entry)))
          (t (fetch-whole node (pb:workflow-state-id head))))))

(defun check-id (id)
  "Return ID if it is valid for a workflow."
  (check-name id "the id of a workflow"))

(defun fetch-entry (node id)
  "The entry of the workflow ID, or nil if the workflow does not exist."
  (fetch-together node (state-key (node-root node) (check-id id))))

(defun fetch-state (node id)
  "The entry of the workflow ID. Signal WORKFLOW-NOT-FOUND if the workflow does not exist."
  (or (fetch-entry node id) (refuse :workflow-not-found "no workflow has the id ~A" id)))

(defun see-state (node id)
  "The present state of the workflow ID, a cached state. Signal WORKFLOW-NOT-FOUND if the workflow
does not exist."
  (or (entry-cached-state node (fetch-state node id))
      (refuse :workflow-not-found "no workflow has the id ~A" id)))

;;; A node keeps the states that it has put. The next change often comes to the same node, which
;;; then need not read the state: its transaction checks that the state has not changed. No call is
;;; refused because of an old cached state.

(defun forget-state (node id)
  (let ((recent (node-recent node)))
    (sb-ext:with-locked-hash-table (recent)
      (when-let ((cached-state (gethash id recent)))
        (decf (node-recent-octets node) (cached-state-octets cached-state))
        (remhash id recent)))))

(defun forget-states (node)
  (let ((recent (node-recent node)))
    (sb-ext:with-locked-hash-table (recent)
      (clrhash recent)
      (setf (node-recent-octets node) 0))))

(defun remember-state (node state revision)
  "Keep STATE, which NODE has stored at REVISION, in memory. If there is no room for STATE, drop all
kept states first."
  (let ((recent (node-recent node)) (id (pb:workflow-state-id state))
        (octets (protobuf:serialized-size state)))
    (sb-ext:with-locked-hash-table (recent)
      (forget-state node id)
      (when (running-p state)
        (when (or (<= +most-cached-states+ (hash-table-count recent))
                  (< +most-cached-state-octets+ (+ octets (node-recent-octets node))))
          (forget-states node))
        (setf (gethash id recent) (make-cached-state state revision octets))
        (incf (node-recent-octets node) octets)))))

(defun read-stale-states (node ids)
  "Return the value of FETCH-STATES by a stale read; if NODE has no jobs, return nil for each
workflow."
  (or (read-stale node (loop for id in ids collect (state-key (node-root node) id)))
      (make-list (length ids))))

(defun fetch-states (node ids)
  "The entries of the workflows IDS, a list of the same length, with nil for each that does not
exist."
  (and ids
       (nth-value 1 (transact node '()
                              :then (loop for id in ids
                                          collect (list :get (state-key (node-root node) id)))))))

(defun unchanged-p (node draft)
  "The comparison that is true if the state from which DRAFT was made has not changed or, if there
was none, still does not exist."
  (list :changed (state-key (node-root node) (pb:workflow-state-id (draft-state draft)))
        '= (draft-revision draft)))

(defun note-conflict (node drafts)
  "Note that DRAFTS were not put, since the store had changed."
  (count-conflict node)
  (dolist (draft drafts)
    (forget-state node (pb:workflow-state-id (draft-state draft)))))

(defun note-put (node drafts revision)
  (note-added node (reduce #'+ drafts :key #'put-octets))
  (dolist (draft drafts)
    (count-draft node draft)
    (note-ready-state (node-ready-list node) (draft-state draft) revision)
    (remember-state node (draft-state draft) revision)))

(defun put-draft (node draft &key when)
  "Put DRAFT, a finished one, into the store if its workflow has not changed and the comparisons
WHEN are true. Return three values: true if DRAFT was put; the revision of the store; and, if DRAFT
was not put, the present entry of the state."
  (let ((id (pb:workflow-state-id (draft-state draft))))
    (multiple-value-bind (done results now)
        (transact node (list id)
                  :when (cons (unchanged-p node draft) when)
                  :then (draft-operations (node-root node) draft)
                  :else (list (list :get (state-key (node-root node) id))))
      (cond (done (note-put node (list draft) now)
                  (values t now nil))
            (t (note-conflict node (list draft))
               (values nil now (first results)))))))

(defun decide (node cached-state decision)
  "Two values: the draft that DECISION makes of CACHED-STATE, finished, and true; or, if DECISION
changes nothing, the unfinished draft and nil."
  (let ((draft (draft-of (cached-state-state cached-state) (node-now node) (node-limits node)
                         :chance (below node 1.0) :revision (cached-state-revision cached-state))))
    (if (funcall decision draft)
        (values (finish-draft draft) t)
        (values draft nil))))

(defun likely-states (node id)
  "A list of functions that may return the probable state of the workflow ID, a cached state or nil,
the cheapest first."
  (list (lambda () (gethash id (node-recent node)))
        (lambda ()
          (entry-cached-state node (first (read-stale-states node (list (check-id id))))))))

(defun first-draft (node id decision)
  "Two values: the draft that DECISION makes of the workflow ID, and true if the draft changes
anything. The draft is made from the probable state or, if that leads to no change, from the present
state."
  (dolist (state (likely-states node id) (decide node (see-state node id) decision))
    (when-let ((cached-state (funcall state)))
      (multiple-value-bind (draft changes) (handler-case (decide node cached-state decision)
                                             (workflow-error () nil))
        (when changes (return (values draft t)))))))

(defun change-workflow (node id decision &key conditions on-refusal)
  "Change the workflow ID by DECISION, a function of a draft, and put the draft into the store.
Return two values: the draft, and the revision of the change, or nil if nothing had to be changed.
Signal a workflow error. CONDITIONS is a function of the draft that returns further comparisons;
when one of these is false, ON-REFUSAL is called, and then the change is tried again."
  (multiple-value-bind (draft changes) (first-draft node id decision)
    (loop for tries from 1
          do (unless changes (return (values draft nil)))
             (multiple-value-bind (done revision now)
                 (put-draft node draft :when (and conditions (funcall conditions draft)))
               (when done (return (values draft revision)))
               (when (null now) (refuse :workflow-not-found "no workflow has the id ~A" id))
               (when (and on-refusal (= (etcd:entry-changed now) (draft-revision draft)))
                 (funcall on-refusal))
               (when (= tries +most-tries+)
                 (refuse :store-unavailable "too many changes of ~A at once" id))
               (setf (values draft changes)
                     (decide node (or (entry-cached-state node now) (see-state node id))
                             decision))))))

(defun fetch-payload (node state key)
  "The payload at KEY, below data/ID/, of the workflow of STATE, a whole state or a head; no octets
if KEY is empty or has no entry."
  (or (small-payload state key)
      (let ((entry (and (string/= "" key)
                        (fetch-together node (data-key (node-root node)
                                                       (pb:workflow-state-id state) key)))))
        (if entry (etcd:entry-value entry) (make-octets 0)))))

(defun fetch-result (node state)
  "The last result of STATE; nil if it was removed with its workflow after STATE was read."
  (let ((octets (fetch-payload node state (result-key state))))
    (and (= (length octets)
            (if (pb:workflow-state-brought state) (pb:workflow-state-data-octets state) 0))
         octets)))

(defun draft-input (node state draft)
  "The input of the current task of STATE, from DRAFT's payloads or from the store."
  (let ((key (input-key state)))
    (or (cdr (assoc key (draft-payloads draft) :test #'string=))
        (fetch-payload node state key))))

(defun result-key (state)
  "The key of the last result of STATE, below data/ID/; empty without a result."
  (if (pb:workflow-state-brought state) (pb:workflow-state-data-key state) ""))

(defun input-key (state)
  "The key, below data/ID/, of the input of the current task of STATE; empty without an input."
  (let ((step (state-step state)))
    (if (string/= "" (pb:step-state-input-key step))
        (pb:step-state-input-key step)
        (pb:workflow-state-data-key state))))

(defun input-octets (state)
  "The length, in octets, of the input of the task under way in STATE."
  (let ((step (state-step state)))
    (if (string/= "" (pb:step-state-input-key step))
        (pb:step-state-input-octets step)
        (pb:workflow-state-data-octets state))))
