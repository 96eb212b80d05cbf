;;;; Claims: a worker asks for tasks of some kinds. The node examines a few more ready tasks than
;;;; are requested. Some of the ready tasks are chosen at random and claimed in one transaction or,
;;;; if another node was faster with one of them, each in a transaction of its own. A node never has
;;;; two claims for the same task under way.
;;;;
;;;; A claim that finds nothing waits at the task queue, without a thread. The watch of the index
;;;; reports each task that becomes ready. For such a task a claim of its kind is woken, and one of
;;;; a few jobs tries that claim again, with this task only. The woken claim is the first whose
;;;; worker was given no task since it last ended one; if there is no such claim, the woken claim is
;;;; that of the worker that was given the fewest tasks. So a worker that takes tasks and does none
;;;; leaves further tasks to others. Each task that becomes ready has one claim that is responsible
;;;; for it:
;;;;
;;;; - A woken waiter claims the task, or finds that it cannot be claimed any more, or that another
;;;;   claim of this node is about to claim it. If the waiter can do neither, because its call has
;;;;   ended or because of an error, the next waiter is woken for the task.
;;;; - A waiter that was about to claim a task and gives it up wakes the next waiter.
;;;; - Tasks that arrive between an unsuccessful search and the entry into the task queue are
;;;;   counted, so that no claim waits while there is a task.

(in-package #:clgrpc.workflow)

(defconstant +spare-candidates+ 8 "How many more tasks are examined than are requested.")
(defconstant +claim-octets+ 2000000 "The maximum number of octets of inputs of the tasks that one
claim gets, unless a single task has more.")
(defconstant +claim-state-octets+ 1000000 "The maximum number of octets of states that one claim
puts; etcd accepts 1.5 MB.")
(defconstant +longest-wait-ms+ 60000 "Of a claim.")
(defconstant +claimers+ 4 "The number of jobs that try claims again.")
(defconstant +passed-claims+ 256
  "The maximum number of waiting claims that are skipped in the search for the claim of a worker
with fewer tasks.")
(defconstant +claim-rounds+ 5 "How often a claim looks for other tasks if the tasks that it has
found were taken.")

;;; Looking for tasks

(defun find-ready (node kind count ask)
  "Ids of at most COUNT tasks of KIND that can be claimed, the oldest of each shard first. If NODE
knows of no such task, and the store may have some, ask the store. If ASK is true, also ask it if
NODE knows of fewer than COUNT, since the watch may not have reported the newest tasks yet."
  (multiple-value-bind (ids all) (known-ready node kind count)
    (if (if ask (<= count (length ids)) (or ids all))
        ids
        (fetch-ready node kind count))))

(defun fetch-ready (node kind count)
  "As FIND-READY, for the tasks in the store."
  (let* ((prefix (node-key node "index/ready" kind ""))
         (start (format nil "~A~(~X~)" prefix (below node +shards+)))
         (ids '()))
    (flet ((gather (from to)
             (etcd:map-entries (lambda (entry)
                                 (let ((name (entry-name entry prefix)))
                                   (when name (push (first (last (key-parts "" name))) ids))))
                               (node-etcd node) :from from :to to :keys-only t
                                                :limit (- count (length ids)))))
      (gather start (format nil "~Ag" prefix))
      (when (< (length ids) count) (gather prefix start)))
    (nreverse ids)))

(defun take-ids (node kind ids count)
  "Choose at random at most COUNT of IDS, of tasks of KIND, that this node is not about to claim.
Note that the node is about to claim these, and return them."
  (let* ((task-queue (node-task-queue node)) (taken (task-queue-taken task-queue))
         (ids (remove-if (lambda (id) (stuck-p node id)) (shuffled node ids))))
    (sb-thread:with-mutex ((task-queue-lock task-queue))
      (loop for id in ids
            while (plusp count)
            unless (nth-value 1 (gethash id taken))
              collect (progn (setf (gethash id taken) kind)
                             (decf count)
                             id)))))

(defun leave-ids (node ids claimed)
  "Note that IDS are no longer about to be claimed. Release IDS, which this node was about to claim.
Other claims have skipped the tasks of IDS: wake these claims for the tasks that are not in
CLAIMED."
  (let ((task-queue (node-task-queue node)))
    (sb-thread:with-mutex ((task-queue-lock task-queue))
      (dolist (id ids)
        (let ((kind (gethash id (task-queue-taken task-queue))))
          (remhash id (task-queue-taken task-queue))
          (when (and kind (not (member id claimed :test #'string=)))
            (wake-claim task-queue kind id)))))))

(defun settle-id (node id)
  "Note that ID, which this node was about to claim, cannot be claimed in its present state: no
other claim need be woken for it."
  (let ((task-queue (node-task-queue node)))
    (sb-thread:with-mutex ((task-queue-lock task-queue))
                          (setf (gethash id (task-queue-taken task-queue)) nil))))

(defun settled-p (node id)
  "True if no other claim need be woken for ID, which this node was about to claim."
  (let ((task-queue (node-task-queue node)))
    (sb-thread:with-mutex ((task-queue-lock task-queue))
      (multiple-value-bind (kind about) (gethash id (task-queue-taken task-queue))
        (and about (null kind))))))

(defun candidates-of (node kind count ask)
  "Take at most COUNT ids of tasks of KIND to be claimed, and return them. If other claims are about
to take all tasks that a search has found, this continues the search. ASK is as for FIND-READY."
  (loop for most = (+ count +spare-candidates+) then (* 4 most)
        for ids = (find-ready node kind most ask)
        for taken = (take-ids node kind ids count)
        until (or taken (< (length ids) most))
        finally (return taken)))

(defun candidates (node kinds count ask)
  "Reserve at most COUNT ids of tasks of KINDS to be claimed, and return them; LEAVE-IDS releases
them. ASK is as for FIND-READY."
  (let ((found '()) (done nil))
    (unwind-protect
         (dolist (kind (shuffled node kinds) (progn (setf done t) found))
           (let ((missing (- count (length found))))
             (when (plusp missing)
               (setf found (append (candidates-of node kind missing ask) found)))))
      ;; the store has failed with a later kind
      (unless done (leave-ids node found '())))))

;;; Claiming them

(defun task-of (node state input now)
  "The Task of the current step of STATE, which has been claimed, with INPUT, octets."
  (let* ((step (state-step state)) (definition (pb:step-state-step step))
         (due (pb:step-state-due-unix-ms step)))
    (pb:make-task :id (pb:workflow-state-id state) :fence (pb:workflow-state-fence state)
                  :kind (pb:step-task definition) :name (step-text step)
                  :step (pb:step-state-number step) :attempt (pb:step-state-attempts step)
                  :input input :timeout-ms (if (plusp due)
                                                 (max 1 (- due now))
                                                 (or (attempt-limit-ms step (node-limits node)) 0))
                  :losses (pb:step-state-losses step)
                  :given-back (pb:step-state-given-back step)
                  :traceparent (pb:workflow-state-traceparent state))))

(defun claim-draft (node session kinds state revision)
  "The finished draft in which SESSION claims the task of STATE, of REVISION; nil if SESSION cannot
claim it, or STATE is nil."
  (let ((draft (and state
                    (draft-of state (node-now node) (node-limits node) :revision revision))))
    (and draft (claim-step draft session kinds) (finish-draft draft))))

(defun likely-drafts (node session kinds ids)
  "For each of IDS the draft in which SESSION claims its task; nil if SESSION cannot claim it. Such
a draft is made from a cached state or, if that leads to no claim, from a stale read."
  (flet ((draft-of-cached (cached-state)
           (and cached-state
                (claim-draft node session kinds (cached-state-state cached-state)
                             (cached-state-revision cached-state)))))
    (let* ((drafts (loop for id in ids collect (draft-of-cached (gethash id (node-recent node)))))
           (entries (read-stale-states node (loop for id in ids
                                              for draft in drafts
                                              unless draft collect id))))
      (loop for draft in drafts
            collect (or draft (draft-of-cached (entry-cached-state node (pop entries))))))))

(defun possible-drafts (node session kinds ids)
  "For each of IDS the draft in which SESSION claims the workflow's task; nil if SESSION cannot
claim it. The draft is made from the state that the node remembers or, if that state leads to no
claim, from the stored state."
  (let* ((drafts (likely-drafts node session kinds ids))
         (entries (fetch-states node (loop for id in ids
                                           for draft in drafts
                                           unless draft collect id))))
    (loop for draft in drafts
          collect (or draft
                      (when-let ((now (entry-cached-state node (pop entries))))
                        (or (claim-draft node session kinds (cached-state-state now)
                                         (cached-state-revision now))
                            (note-not-ready node now)))))))

(defun note-not-ready (node cached-state)
  "Note that CACHED-STATE has no task to claim. Return false."
  (remove-ready (node-ready-list node) (pb:workflow-state-id (cached-state-state cached-state))
                (1+ (cached-state-revision cached-state)))
  nil)

(defun claim-drafts (node session kinds ids)
  "Drafts in which SESSION claims those tasks of IDS that it can claim and that fit into one
answer."
  (let ((claims '()) (octets 0) (state-octets 0))
    (loop for draft in (possible-drafts node session kinds ids)
          for id in ids
          do (cond ((null draft) (settle-id node id))
                   (t (incf octets (input-octets (draft-state draft)))
                      (incf state-octets (length (draft-octets draft)))
                      (when (and claims (or (> octets +claim-octets+)
                                            (> state-octets +claim-state-octets+)))
                        (loop-finish))
                      (push draft claims))))
    claims))

(defun claimed-tasks (node drafts results)
  "The Tasks that DRAFTS have claimed at NODE; RESULTS are the transaction's values, whose last
elements are the inputs. A workflow that has failed by this change gives no task."
  (let ((inputs (last results (count-if #'wants-input-p drafts))))
    (loop for draft in drafts
          for entry = (and (wants-input-p draft) (pop inputs))
          when (running-p (draft-state draft))
            collect (task-of node (draft-state draft)
                             (cond (entry (etcd:entry-value entry))
                                   ((small-payload (draft-state draft)
                                                   (input-key (draft-state draft))))
                                   (t (make-octets 0)))
                             (draft-now draft)))))

(defun wants-input-p (draft)
  "True if the input of the task of DRAFT has a key of its own."
  (let* ((state (draft-state draft)) (key (input-key state)))
    (and (string/= "" key) (not (small-payload state key)))))

;;; How many tasks a session has. A node counts the tasks that it gives, and asks the store only
;;; when these might be too many: by then most tasks have been reported.

(defun note-granted (node session count)
  "Note that NODE has given SESSION tasks; COUNT is their number."
  (sb-thread:with-mutex ((node-lock node)) (incf (gethash session (node-grants node) 0) count))
  (note-load node session count))

(defun check-held (node session)
  "Signal BACKLOG-FULL if SESSION already has as many tasks as it may have."
  (let ((most (limits-max-held (node-limits node))))
    (when (<= most (sb-thread:with-mutex ((node-lock node)) (gethash session (node-grants node) 0)))
      (let ((count (etcd:count-entries (node-etcd node)
                                       :prefix (node-key node "claims" session ""))))
        (sb-thread:with-mutex ((node-lock node)) (setf (gethash session (node-grants node)) count))
        (when (<= most count)
          (refuse-size :backlog-full :max-held most count "the session has too many tasks"))))))

(defun put-claims (node session drafts)
  "Put DRAFTS, in which SESSION claims tasks, into the store. Return two values: true if that was
done, and the Tasks. Signal SESSION-LOST if SESSION has ended."
  (let ((root (node-root node)) (session-key (session-key node session)))
    (multiple-value-bind (done results revision)
        (transact node (mapcar (lambda (draft) (pb:workflow-state-id (draft-state draft))) drafts)
                  :when (cons (list :present session-key)
                              (mapcar (lambda (draft) (unchanged-p node draft)) drafts))
                  :then (append
                         (loop for draft in drafts append (draft-operations root draft))
                         (loop for draft in drafts
                               for state = (draft-state draft)
                               when (wants-input-p draft)
                                 collect (list :get (data-key root (pb:workflow-state-id state)
                                                              (input-key state)))))
                  :else (list (list :get session-key)))
      (cond (done (note-put node drafts revision)
                  (note-granted node session (length drafts))
                  (values t (claimed-tasks node drafts results)))
            ((null (first results)) (refuse :session-lost "the session ~A has ended" session))
            (t (note-conflict node drafts)
               nil)))))

(defun claim-together (node session kinds ids)
  "In one transaction claim for SESSION those tasks of IDS that suit it. Return two values: true if
the transaction was done or if no task could be claimed; and the Tasks."
  (if-let ((drafts (claim-drafts node session kinds ids)))
    (put-claims node session drafts)
    (values t '())))

(defun claim-singly (node session kinds ids)
  "Claim the tasks of IDS for SESSION one by one, while they fit into one answer. Return the claimed
tasks; an error with a later task loses none of them."
  (let ((tasks '()) (octets 0)
        (most (- +claim-octets+ (limits-max-payload-octets (node-limits node)))))
    (dolist (id ids tasks)
      (when (> octets most) (return tasks))
      (handler-case
          (for-one (node id)
            (dolist (task (nth-value 1 (claim-together node session kinds (list id))))
              (incf octets (length (pb:task-input task)))
              (push task tasks)))
        (error (condition)
          (if tasks (return tasks) (error condition)))))))

(defun claim-ids (node session kinds ids)
  "Claim the tasks of IDS for SESSION. Return the claimed tasks."
  (multiple-value-bind (done tasks)
      (and (rest ids)
           (handler-case (claim-together node session kinds ids)
             (workflow-refusal () nil)))
    (if done tasks (claim-singly node session kinds ids))))

(defun claim-one-task (node session kinds kind id)
  "Claim for SESSION the task of the workflow ID, of KIND, which is ready as far as this node knows.
Return a list of the task, or an empty list."
  (when (take-ids node kind (list id) 1)
    (let ((tasks '()))
      (unwind-protect
           (loop repeat +claim-rounds+
                 until (or tasks (settled-p node id) (stuck-p node id))
                 do (setf tasks (claim-ids node session kinds (list id))))
        (leave-ids node (list id) (mapcar #'pb:task-id tasks)))
      tasks)))

(defun claim-tasks (node session kinds count &key ask)
  "Claim up to COUNT tasks of KINDS for SESSION. Return the list of the tasks, empty if there are
none. ASK is as for FIND-READY."
  (loop repeat +claim-rounds+
        do (let ((ids (candidates node kinds count ask)) (tasks '()))
             (when (null ids) (return '()))
             (unwind-protect (setf tasks (claim-ids node session kinds ids))
               (leave-ids node ids (mapcar #'pb:task-id tasks)))
             (when tasks (return tasks)))))

;;; Waiting for them

(defstruct (waiting (:copier nil))
  "A claim that waits for a task."
  (call nil :read-only t)               ; the call that must be answered
  (session "" :type string :read-only t) ; the session that claims
  (kinds '() :type list :read-only t)   ; the kinds of tasks that the claim claims
  (count 1 :type (integer 1) :read-only t) ; the most tasks for the claim
  ;; the kind and the id of the task for which the claim was woken, and the value of ARRIVALS at
  ;; that time; or nil
  (woken nil :type list)
  ;; under the lock
  (queue-entries '() :type list)        ; the claim's places in the queues while the claim is parked
  ;; the place in the session's queue until the claim is over
  (queue-entry nil :type (or null queue-entry))
  (over nil :type boolean))             ; true once the claim is answered or its call has ended

(defun arrival-place (kind)
  "The place of KIND in the arrivals of a task queue. Kinds that share a place only cause useless
searches."
  (mod (sxhash kind) 256))

(defun arrivals (task-queue kinds)
  "The counts of arrived tasks of KINDS, which may include tasks of other kinds that share their
counters. The caller must hold the task queue's lock."
  (loop for kind in kinds collect (svref (task-queue-arrivals task-queue) (arrival-place kind))))

(defun arrivals-now (task-queue kinds)
  (sb-thread:with-mutex ((task-queue-lock task-queue)) (arrivals task-queue kinds)))

(defun task-queue-queue-entry (task-queue waiting &optional name table)
  "Add an entry for WAITING to the end of the queue of NAME in TABLE, or of the queue of all claims
of TASK-QUEUE."
  (let ((queue-entry (make-queue-entry waiting name table)))
    (isolate-ring queue-entry)
    (enter-ring queue-entry (cond ((null table) (task-queue-queue task-queue))
                                  ((gethash name table))
                                  (t (setf (gethash name table) (make-ring)))))
    queue-entry))

(defun quit-queue (queue-entry)
  "Remove QUEUE-ENTRY from its queue, and forget the queue if it becomes empty."
  (quit-ring queue-entry)
  (let ((name (queue-entry-queue queue-entry)) (table (queue-entry-table queue-entry)))
    (unless (or (null table) (ring-first (gethash name table)))
      (remhash name table))))

(defun enter-task-queue (task-queue waiting)
  (incf (task-queue-parked task-queue))
  (setf (waiting-queue-entries waiting)
        (cons (task-queue-queue-entry task-queue waiting)
              (loop for kind in (waiting-kinds waiting)
                    collect (task-queue-queue-entry task-queue waiting kind
                                                    (task-queue-queues task-queue))))))

(defun quit-task-queue (task-queue waiting)
  "Remove WAITING from the queues if it is in any."
  (when (waiting-queue-entries waiting)
    (decf (task-queue-parked task-queue))
    (mapc #'quit-queue (shiftf (waiting-queue-entries waiting) '()))))

(defun next-in-turn (task-queue queue)
  "Return the entry whose turn it is in QUEUE, a queue of claims for a kind: of the first
+PASSED-CLAIMS+ entries, the first whose worker has the fewest tasks. Claims that are skipped are
moved to the end of QUEUE."
  (loop with first = (ring-first queue) and best = nil and least = 0
        repeat +passed-claims+
        for queue-entry = (ring-first queue)
        for load = (gethash (load-key (waiting-session (queue-entry-waiting queue-entry)))
                            (task-queue-loads task-queue) 0)
        until (and best (eq queue-entry first)) ; once round
        do (when (or (null best) (< load least))
             (setf best queue-entry
                   least load))
           (when (zerop load) (return best))
           (quit-ring queue-entry)
           (enter-ring queue-entry queue)
        finally (return best)))

(defun take-first (task-queue &optional kind)
  "Remove and return the first claim in the queue or, if KIND is given, the claim for KIND whose
turn it is; nil if no claim waits."
  (let* ((queue (if kind (gethash kind (task-queue-queues task-queue))
                    (task-queue-queue task-queue)))
         (queue-entry (and queue (if kind (next-in-turn task-queue queue) (ring-first queue)))))
    (when queue-entry
      (quit-task-queue task-queue (queue-entry-waiting queue-entry))
      (queue-entry-waiting queue-entry))))

;;; Waking claims

(defun retry-waiting (task-queue waiting &optional kind id)
  "Plan another try of WAITING, for the task of the workflow ID, of KIND, or for any task. The
caller must hold the lock."
  (setf (waiting-woken waiting)
        (and kind (list kind id (arrivals task-queue (waiting-kinds waiting)))))
  (enqueue waiting (task-queue-retries task-queue))
  (let ((claimer (pop (task-queue-idle task-queue))))
    (when claimer (loop:wake-job claimer))))

(defun wake-claim (task-queue kind id)
  "Let the first claim that waits for KIND try the task of the workflow ID, which may be claimable.
The caller must hold the task queue's lock."
  (incf (svref (task-queue-arrivals task-queue) (arrival-place kind)))
  (let ((waiting (take-first task-queue kind)))
    (when waiting (retry-waiting task-queue waiting kind id))))

(defun pass-wake-up (task-queue waiting)
  "Wake another claim for the task that WAITING was woken for and does not claim."
  (sb-thread:with-mutex ((task-queue-lock task-queue))
    (let ((woken (shiftf (waiting-woken waiting) '())))
      (when woken (wake-claim task-queue (first woken) (second woken))))))

(defun park-claim (node waiting seen)
  "Let WAITING wait at NODE, or try it again if tasks have arrived since SEEN, see ARRIVALS. Signal
BACKLOG-FULL if too many claims wait."
  (let ((task-queue (node-task-queue node)) (most (limits-max-waiting-claims (node-limits node))))
    (sb-thread:with-mutex ((task-queue-lock task-queue))
      (cond ((waiting-over waiting))
            ((task-queue-closed task-queue) (error (stopping-condition)))
            ((not (equal seen (arrivals task-queue (waiting-kinds waiting))))
             (retry-waiting task-queue waiting))
            ((<= most (task-queue-parked task-queue))
             (refuse-size :backlog-full :max-waiting-claims most nil "too many claims wait"))
            (t (enter-task-queue task-queue waiting))))))

(defun note-ready (node kind id)
  "Note that the task of ID, of KIND, can be claimed."
  (let ((task-queue (node-task-queue node)))
    (sb-thread:with-mutex ((task-queue-lock task-queue)) (wake-claim task-queue kind id))))

(defun retry-all-claims (node)
  "Try all claims that wait or are about to wait, since some tasks have arrived and it is unknown
which."
  (let ((task-queue (node-task-queue node)))
    (sb-thread:with-mutex ((task-queue-lock task-queue))
      (map-into (task-queue-arrivals task-queue) #'1+ (task-queue-arrivals task-queue))
      (loop for waiting = (take-first task-queue)
            while waiting
            do (retry-waiting task-queue waiting)))))

(defun end-waiting (task-queue waiting)
  "End WAITING, because it is being answered or its call has ended. Return true for the first caller
only."
  (sb-thread:with-mutex ((task-queue-lock task-queue))
    (quit-task-queue task-queue waiting)
    (when (waiting-queue-entry waiting)
      (count-waiting task-queue (waiting-session waiting) -1)
      (quit-queue (shiftf (waiting-queue-entry waiting) nil)))
    (not (shiftf (waiting-over waiting) t))))

(defun return-tasks (node tasks)
  "Give TASKS to other workers, because the answer cannot reach the worker that has claimed them."
  (dolist (task tasks)
    (handler-case
        (let ((fence (pb:task-fence task)))
          (change-workflow node (pb:task-id task) (lambda (draft) (give-back draft fence))))
      ((or workflow-error etcd:etcd-error) ()))))

(defun answer-waiting (node waiting tasks)
  "Answer WAITING with TASKS, or return them if it has ended."
  (unless (and (end-waiting (node-task-queue node) waiting)
               (handler-case
                   (unless (rpc:call-status (waiting-call waiting))
                     (rpc:reply (waiting-call waiting) (pb:make-claim-reply :tasks tasks))
                     t)
                 (status:rpc-error () nil)))
    (return-tasks node tasks)))

(defun fail-waiting (node waiting condition)
  "End WAITING with CONDITION, a workflow error."
  (count-refusal node condition)
  (when (end-waiting (node-task-queue node) waiting)
    (end-call (waiting-call waiting) condition)))

(defun try-waiting (node waiting)
  "Try WAITING, and answer it or let it wait again. Return false if WAITING cannot take
responsibility for the task for which it was woken."
  (handler-case
      (with-store-errors
        (destructuring-bind (&optional kind id (seen (arrivals-now (node-task-queue node)
                                                                   (waiting-kinds waiting))))
            (waiting-woken waiting)
          (let* ((session (waiting-session waiting)) (kinds (waiting-kinds waiting))
                 (tasks (if (progn (check-held node session) id)
                            (claim-one-task node session kinds kind id)
                            (claim-tasks node session kinds (waiting-count waiting)))))
            (if tasks
                (answer-waiting node waiting tasks)
                (park-claim node waiting seen))
            t)))
    (workflow-error (condition)
      (fail-waiting node waiting condition)
      nil)))

(defun next-retry (task-queue claimer)
  "The claim to try now. If no claim is left, nil: CLAIMER, a job, is idle from now on."
  (sb-thread:with-mutex ((task-queue-lock task-queue))
    (or (dequeue (task-queue-retries task-queue))
        (not (push claimer (task-queue-idle task-queue))))))

(defun run-claimer (node claimer)
  "Run CLAIMER, a job: try claims until none is left to try."
  (loop with task-queue = (node-task-queue node)
        for waiting = (next-retry task-queue claimer)
        while waiting
        unless (and (not (waiting-over waiting))
                    (loop:guarding (:workflow-claim-error) (try-waiting node waiting)))
          do (pass-wake-up task-queue waiting)))

(defun new-claimer (node)
  (let ((claimer nil))
    (setf claimer (etcd:add-job (node-etcd node) (lambda () (run-claimer node claimer))))))

(defun waiting-sessions (task-queue)
  (sb-thread:with-mutex ((task-queue-lock task-queue))
                        (alexandria:hash-table-keys (task-queue-sessions task-queue))))

(defun end-claims-of (node session)
  "End the claims of SESSION, which has ended, that wait at NODE. The claims end with SESSION-LOST."
  (let* ((task-queue (node-task-queue node))
         (queue (sb-thread:with-mutex ((task-queue-lock task-queue))
                                      (gethash session (task-queue-sessions task-queue)))))
    (loop for queue-entry = (and queue
                                 (sb-thread:with-mutex ((task-queue-lock task-queue))
                                                       (ring-first queue)))
          while queue-entry
          do (fail-waiting node (queue-entry-waiting queue-entry)
                           (make-condition 'session-lost
                                           :text (format nil "the session ~A has ended"
                                                         session))))))

(defun check-waiting (task-queue session limits)
  "Signal BACKLOG-FULL if as many claims of SESSION, or of its identity, wait in TASK-QUEUE as
LIMITS allow. The caller must hold the task queue's lock."
  (let ((most (limits-max-waiting-claims-per-session limits))
        (most-of-owner (limits-max-waiting-claims-per-identity limits))
        (owner (session-owner session))
        (queue (gethash session (task-queue-sessions task-queue))))
    (when (and queue
               (<= most (task-queue-parked task-queue))
               (<= most (length (ring-list queue))))
      (refuse-size :backlog-full :max-waiting-claims-per-session most nil
                   "too many claims of one session are waiting"))
    (when (and (string/= "" owner)
               (<= most-of-owner (gethash owner (task-queue-owners task-queue) 0)))
      (refuse-size :backlog-full :max-waiting-claims-per-identity most-of-owner nil
                   "too many claims of one identity are waiting"))))

(defun count-waiting (task-queue session by)
  "Add BY to the count of claims of SESSION in TASK-QUEUE. The caller must hold the task queue's
lock."
  (let ((owners (task-queue-owners task-queue)) (owner (session-owner session)))
    (when (zerop (incf (gethash owner owners 0) by)) (remhash owner owners))))

(defun note-waiting (task-queue waiting limits)
  "Note WAITING, by its session, among the claims in TASK-QUEUE that wait for a task or for the
session's end. Signal BACKLOG-FULL if LIMITS do not allow one more."
  (sb-thread:with-mutex ((task-queue-lock task-queue))
    (check-waiting task-queue (waiting-session waiting) limits)
    (count-waiting task-queue (waiting-session waiting) 1)
    (setf (waiting-queue-entry waiting)
          (task-queue-queue-entry task-queue waiting (waiting-session waiting)
                                  (task-queue-sessions task-queue)))))

(defun await-tasks (node call session kinds count wait-ms seen)
  "Let CALL wait for tasks. After WAIT-MS the claim is answered without tasks. Signal SESSION-LOST
if SESSION does not exist. The session is checked only after the claim is noted as waiting, so no
end of the session is missed."
  (let ((waiting (make-waiting :call call :session session :kinds kinds :count count))
        (task-queue (node-task-queue node))
        (done nil))
    (note-waiting task-queue waiting (node-limits node))
    (unwind-protect
         (progn
           ;; if the watch of the index has reported the session, it will report its end, too
           (unless (session-known-p node session) (check-session node session))
           (rpc:on-cancel call (lambda () (end-waiting task-queue waiting)))
           (rpc:after call (/ wait-ms 1000) (lambda () (answer-waiting node waiting '())))
           (park-claim node waiting seen)
           (setf done t))
      (unless done (end-waiting task-queue waiting)))))

(defun close-task-queue (node)
  "Close the task queue of NODE: waiting claims end, and no other claim can wait there."
  (let* ((task-queue (node-task-queue node))
         (all (sb-thread:with-mutex ((task-queue-lock task-queue))
                (setf (task-queue-closed task-queue) t)
                (append (loop for waiting = (take-first task-queue)
                              while waiting
                              collect waiting)
                        (clear-fifo (task-queue-retries task-queue))))))
    (dolist (waiting all) (answer-waiting node waiting '()))))
