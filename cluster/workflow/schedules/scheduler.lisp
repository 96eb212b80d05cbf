;;;; Schedules in the store: their states, the requests of their workflows, and their errands. A
;;;; schedule that has a next time has an errand at that time. The transaction that does an errand
;;;; compares the schedule's state, and puts the next state, the next errand and the workflow. So an
;;;; errand is done once.

(in-package #:clgrpc.workflow)

(defun schedule-key (root id)
  (key root "schedules" (check-name id "the id of a schedule")))

(defun scheduled-key (root id)
  (key root "scheduled" id))

(defun schedule-errands (root state)
  "The keys that STATE, a ScheduleState or nil, has besides its own, a list."
  (and state
       (plusp (pb:schedule-state-next-unix-ms state))
       (list (errand-due-key root (pb:schedule-state-next-unix-ms state) "schedule"
                         (pb:schedule-state-id state)))))

(defun schedule-operations (root old new)
  "The operations that replace OLD, a ScheduleState or nil, by NEW in the store."
  (cons (list :put (schedule-key root (pb:schedule-state-id new)) (protobuf:serialize new))
        (let ((before (schedule-errands root old)) (after (schedule-errands root new)))
          (unless (equal before after)
            (append (loop for key in before collect (list :remove key))
                    (loop for key in after collect (list :put key "")))))))

(defun entry-schedule (entry)
  (and entry (protobuf:parse-message 'pb:schedule-state (etcd:entry-value entry))))

(defun readable-schedule (entry)
  "Return the value of ENTRY-SCHEDULE for ENTRY. If the value of ENTRY is not a schedule, log a
warning and return nil."
  (read-sound #'entry-schedule (lambda (state) (string/= "" (pb:schedule-state-id state)))
              :schedule-unreadable entry))

(defun fetch-schedule (node id)
  "The entry of the schedule ID, or nil if the schedule does not exist."
  (etcd:fetch (node-etcd node) (schedule-key (node-root node) id)))

(defun fetch-scheduled (node id)
  "The StartRequest of the workflows that the schedule ID starts."
  (let ((entry (etcd:fetch (node-etcd node) (scheduled-key (node-root node) id))))
    (protobuf:parse-message 'pb:start-request (if entry (etcd:entry-value entry) (make-octets 0)))))

(defun unchanged-schedule-p (node id entry)
  "The comparison that the schedule ID still has ENTRY, or no entry if that is nil."
  (list :changed (schedule-key (node-root node) id) '= (entry-revision entry)))

(defun refuse-schedule (id)
  (refuse :schedule-not-found "no schedule has the id ~A" id))

(defun change-schedule (node id function)
  "Apply the operations that FUNCTION returns for the entry of the schedule ID; change nothing if it
returns nil. Signal SCHEDULE-NOT-FOUND."
  (loop repeat +most-tries+
        do (let* ((entry (or (fetch-schedule node id) (refuse-schedule id)))
                  (operations (funcall function (entry-schedule entry))))
             (when (or (null operations)
                       (etcd:transact (node-etcd node)
                                      :when (list (unchanged-schedule-p node id entry))
                                      :then operations))
               (return)))
        finally (refuse :store-unavailable "too many changes of the schedule ~A at once" id)))

;;; The errand

(defun overlap-reason (node state)
  "The reason why STATE starts no workflow now, in view of the last one that it started; nil if it
may start one."
  (let ((last (pb:schedule-state-last-id state)))
    (and (eq :skip (pb:schedule-state-overlap state))
         (string/= "" last)
         (let ((entry (fetch-entry node last)))
           (and entry (running-p (entry-state entry)) (format nil "~A runs" last))))))

(defun draft-of-schedule (node state due)
  "The finished draft of the workflow that STATE starts for its time DUE; or nil and the reason, a
text, why it starts none."
  (let ((reason (overlap-reason node state)) (id (pb:schedule-state-id state)))
    (if reason
        (values nil reason)
        (handler-case
            (progn (check-backlog node)
                   (let ((draft (scheduled-workflow state (fetch-scheduled node id) (node-now node)
                                                    (node-limits node) due)))
                     (if (fetch-entry node (scheduled-id id due))
                         (values nil "another workflow has the id")
                         draft)))
          ((or too-large invalid-request backlog-full) (condition)
            (values nil (bounded-text condition)))))))

(defun start-scheduled (node entry)
  "Do the next time of the schedule in ENTRY, which is due."
  (let* ((state (entry-schedule entry)) (id (pb:schedule-state-id state)) (now (node-now node))
         (root (node-root node)))
    (multiple-value-bind (due missed) (next-to-do state now)
      (multiple-value-bind (draft reason) (draft-of-schedule node state due)
        (let ((new (pass-time state due :missed missed :reason (or reason "")
                                            :started (and draft (scheduled-id id due)))))
          (multiple-value-bind (done results revision)
              (etcd:transact (node-etcd node)
                             :when (cons (unchanged-schedule-p node id entry)
                                         (and draft (list (unchanged-p node draft))))
                             :then (append (schedule-operations root state new)
                                           (and draft (draft-operations root draft))))
            (declare (ignore results))
            (when (and done draft) (note-put node (list draft) revision))))))))

(defun run-schedule (node errand)
  "Do the due times of ERRAND's schedule."
  (loop for entry = (fetch-schedule node (errand-id errand))
        for state = (entry-schedule entry)
        while (and state (due-p state (node-now node)))
        do (start-scheduled node entry)
        finally (unless (member (node-key node (errand-key errand))
                                (schedule-errands (node-root node) state) :test #'string=)
                  (forget-errand node errand))))

;;; Requests of users

(defun create-schedule-of (node request)
  "Put the schedule that REQUEST describes. Return true unless the same schedule exists."
  (let* ((id (pb:create-schedule-request-id request)) (root (node-root node))
         (state (begin-schedule request (node-now node) (node-limits node)))
         (entry (fetch-schedule node id)) (most (limits-max-schedules (node-limits node))))
    (flet ((check-same (entry)
             (unless (equalp (pb:schedule-state-digest (entry-schedule entry))
                             (pb:schedule-state-digest state))
               (refuse :schedule-exists "another schedule has the id ~A" id))
             nil))
      (if entry
          (check-same entry)
          (let ((count (etcd:count-entries (node-etcd node)
                                           :prefix (node-key node "schedules" ""))))
            (when (<= most count)
              (refuse-size :backlog-full :max-schedules most count "too many schedules"))
            (multiple-value-bind (done results)
                (etcd:transact (node-etcd node)
                               :when (list (unchanged-schedule-p node id nil))
                               :then (cons (list :put (scheduled-key root id)
                                                 (protobuf:serialize
                                                  (pb:create-schedule-request-workflow request)))
                                           (schedule-operations root nil state))
                               :else (list (list :get (schedule-key root id))))
              (or done (check-same (first results)))))))))
