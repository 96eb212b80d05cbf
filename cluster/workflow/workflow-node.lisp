;;;; A node serves the service. A workflow node has the store, the limits, and the data that its
;;;; jobs share: the task queue, where claims wait for tasks; the wakeup of its keeper; the timer
;;;; queue. None of these data are needed for decisions about a workflow: a node may die at any
;;;; moment, and others continue.

(in-package #:clgrpc.workflow)

(defstruct (queue-entry (:include ring) (:constructor make-queue-entry (waiting queue table))
                        (:copier nil))
  "The place of a claim that waits in a queue of the task queue."
  (waiting nil :read-only t)            ; the claim
  ;; the kind or session whose queue this is; nil: the queue of all claims
  (queue nil :type (or null string) :read-only t)
  (table nil :type (or null hash-table) :read-only t)) ; the table that has the queue

(defstruct (task-queue (:copier nil))
  "The queues in which claims wait. LOCK guards the other slots. A claim is in the queue of all
claims and in that of each of its kinds, so that the first of a kind is found at once, and a claim
that stops waiting is removed at once."
  ;; guards all slots below
  (lock (sb-thread:make-mutex :name "clgrpc workflow task queue") :read-only t)
  (idle '() :type list)                 ; jobs of claimers that have nothing to do
  (parked 0 :type index)                ; how many claims wait for a task
  (queue (make-ring) :type ring :read-only t) ; the head of the QUEUE-ENTRYs of all, first to last
  ;; from a kind for which claims wait to the head of the claims' QUEUE-ENTRYs
  (queues (make-hash-table :test 'equal) :type hash-table :read-only t)
  ;; from a session to the head of the QUEUE-ENTRYs of its claims without an answer, parked or not
  (sessions (make-hash-table :test 'equal) :type hash-table :read-only t)
  ;; from owners in names of sessions to how many of their claims wait
  (owners (make-hash-table :test 'equal) :type hash-table :read-only t)
  ;; how many tasks workers were given since they ended one, by LOAD-KEY of their sessions
  (loads (make-hash-table :test 'equal) :type hash-table :read-only t)
  (retries (make-fifo) :type fifo :read-only t) ; claims for which there may be a task now
  ;; how often tasks of some kinds could be claimed, by ARRIVAL-PLACE of the kind
  (arrivals (make-array 256 :initial-element 0) :type simple-vector :read-only t)
  ;; ids that this node is about to claim, and the kind of each; nil once it cannot be claimed any
  ;; more
  (taken (make-hash-table :test 'equal) :read-only t)
  (closed nil :type boolean))           ; true: no claim may wait here any more

(defstruct (wakeup (:copier nil))
  "The wakeup of the keeper. LOCK guards the rest."
  (lock (sb-thread:make-mutex :name "clgrpc workflow wakeup") :read-only t) ; guards all slots below
  (ended '() :type list)                ; sessions that have ended, to be looked at
  (newcomer nil :type boolean)          ; a node has come, which does not know our date
  (lost-watch t :type boolean))         ; true while there is no watch of the index

(defstruct (timer-queue (:copier nil))
  "The next due time of each shard."
  ;; guards all slots below
  (lock (sb-thread:make-mutex :name "clgrpc workflow timer queue") :read-only t)
  ;; by shard: the next due time by the nodes' date, as far as the watch of the index has reported
  ;; it; nil for never
  (times (make-array +shards+ :initial-element nil) :type simple-vector :read-only t)
  ;; by shard: true while a job handles its due events
  (busy (make-array +shards+ :initial-element nil) :type simple-vector :read-only t)
  (own '() :type list))                 ; the numbers of the shards that this node has

(defstruct (membership (:copier nil))
  "A node's membership among the nodes of its namespace. Only the keeper uses this structure."
  (lease nil :type (or null etcd:lease)) ; the lease of the node's entry, once there is one
  (told-ms nil :type (or null integer)) ; its machine's date when the node last reported it,
  (told-steady-ms 0 :type integer))     ; when the node last reported it

(defstruct (commit-group (:copier nil))
  "The transactions, or reads, that wait for the store, see commit.lisp. LOCK guards the rest."
  ;; guards all slots below
  (lock (sb-thread:make-mutex :name "clgrpc workflow commits") :read-only t)
  (queue (make-fifo) :type fifo :read-only t) ; COMMITs
  (flying 0 :type index))               ; requests that are under way

(defstruct (session-lease (:constructor make-session-lease (lease renewed-ms)) (:copier nil))
  "A lease of a node: the keys of sessions that the node keeps end with it, see session-lease.lisp.
The node's lock guards the slots that change."
  (lease nil :type etcd:lease :read-only t) ; the lease in the store
  (renewed-ms 0 :type integer)          ; when the renewal that was answered last was requested
  ;; heads of the SESSION-RECORDs of the sessions: first that of which was heard least recently;
  (records (make-ring) :type ring :read-only t)
  ;; and the records of sessions that must get leases of their own
  (silent (make-ring) :type ring :read-only t))

(defstruct (heartbeat-stream (:constructor make-heartbeat-stream (&optional call)) (:copier nil))
  "A stream of heartbeats at a node."
  (call nil :read-only t)               ; the call, or nil in tests
  (session "" :type string)             ; the session whose heartbeats came on the stream
  (busy nil :type boolean))             ; true while a heartbeat on the stream is being answered

(defstruct (session-record (:include ring) (:constructor %make-session-record (name))
                           (:copier nil))
  "A session that is open, or about to be, as far as a node knows. The record is in the ring of the
lease with which the session's key ends, if that is one of this node's leases. The node's lock
guards the slots that change."
  (name "" :type string :read-only t)   ; the name of the session
  ;; true: the session is in the store; false: it is being opened here
  (open nil :type boolean)
  (revision 0 :type (integer 0))        ; the revision of the last change of its key
  ;; the node's SESSION-LEASE with which the session's key ends, or nil
  (session-lease nil :type (or null session-lease))
  ;; the stream of the heartbeat for which this node has begun to keep the session; nil if that is
  ;; uncertain
  (stream nil :type (or null heartbeat-stream))
  ;; the time of the worker's last heartbeat at this node, by STEADY-MS
  (heard-ms 0 :type integer))

(defstruct (ready-task (:include ring) (:constructor make-ready-task (id kind revision))
                       (:copier nil))
  "A task that can be claimed."
  (id "" :type string :read-only t)     ; the id of its workflow
  (kind "" :type string :read-only t)   ; the kind of the task
  (revision 0 :type (integer 0) :read-only t)) ; the revision since which the task can be claimed

(defstruct (ready-list (:copier nil))
  "The tasks that can be claimed. LOCK guards the rest."
  (lock (sb-thread:make-mutex :name "clgrpc workflow ready") :read-only t) ; guards all slots below
  ;; from kinds to vectors that have, by shard, the head of a ring of READY-TASKs
  (kinds (make-hash-table :test 'equal) :type hash-table :read-only t)
  (tasks (make-hash-table :test 'equal) :type hash-table :read-only t) ; the tasks by ID
  (watched nil :type boolean)           ; the watch of the index reports new tasks
  (partial nil :type boolean))          ; the store has more tasks than this list

(defstruct (usage (:copier nil))
  "How much of the store is in use, as far as a node knows. LOCK guards the rest."
  (lock (sb-thread:make-mutex :name "clgrpc workflow usage") :read-only t) ; guards all slots below
  ;; octets in use when the store was last asked; nil: unknown
  (octets nil :type (or null (integer 0)))
  (quota nil :type (or null (integer 1))) ; the quota that the store reports, or nil
  (added 0 :type (integer 0)))          ; octets that this node has put since

(defstruct (retention (:copier nil))
  "The octets of the workflows that have ended, at the node that limits them, see retention.lisp.
LOCK guards SUMS and LOST."
  ;; guards some slots below
  (lock (sb-thread:make-mutex :name "clgrpc workflow retention") :read-only t)
  ;; by period: the sum of the octets of the workflows that began in it
  (sums (make-hash-table :test 'equal) :type hash-table :read-only t)
  (lost nil :type boolean)              ; SUMS do not follow the store any more
  (watch nil)                           ; the watch that SUMS follow, or nil; the keeper's
  (vain-checks 0 :type index))          ; checks in a row without progress of WATCH; the keeper's

(defstruct (feed (:copier nil))
  "The source of changes for the watches at a node, see watching.lisp. LOCK guards the slots that
change."
  (lock (sb-thread:make-mutex :name "clgrpc workflow feed") :read-only t) ; guards all slots below
  ;; held while a watch is started
  (start-lock (sb-thread:make-mutex :name "clgrpc workflow feed start") :read-only t)
  (watch nil)                           ; the watch of the store, once a client has watched, or nil
  ;; SUBSCRIPTIONs by the id of their workflow; "" for all
  (subscriptions (make-hash-table :test 'equal) :type hash-table :read-only t)
  (count 0 :type index)                 ; the number of these subscriptions
  (senders 0 :type index)               ; threads that wait for room to send earlier changes
  ;; from peers, without a port, to the number of their subscriptions
  (peers (make-hash-table :test 'equal) :type hash-table :read-only t))

(defclass workflow-service (pb:workflow)
  ((etcd :initarg :etcd :reader node-etcd) ; the store
   (namespace :initarg :namespace :reader node-namespace) ; a string
   (root :initarg :root :reader node-root) ; the beginning of all keys
   (limits :initarg :limits :reader node-limits) ; the limits of workflows and calls
   (dates :reader node-dates)           ; the dates of its clock, and of other nodes'
   ;; the roles of peers, which give them rights
   (authority :initarg :authority :initform (authority:make-authority '()) :reader node-authority)
   (health :initarg :health :reader node-health) ; a health service that shows the state, or nil
   (instruments :initform nil :accessor node-instruments) ; the instruments, or nil
   (task-queue :initform (make-task-queue) :reader node-task-queue) ; the queue where claims wait
   (wakeup :initform (make-wakeup) :reader node-wakeup) ; wakes the keeper
   (keeper :initform nil :accessor node-keeper) ; the job that looks after sessions and nodes
   (timer-queue :initform (make-timer-queue) :reader node-timer-queue) ; the queue of the timers
   (timers :initform '() :accessor node-timers) ; jobs that do due items
   ;; the membership of the namespace's nodes
   (membership :initform (make-membership) :reader node-membership)
   (running :initform 0 :accessor node-running) ; the number of running workflows at the last count
   (ready :initform 0 :accessor node-ready) ; the number of unclaimed tasks at the last count
   (count-seconds :initform 0 :accessor node-count-seconds) ; how many seconds the last count took
   (usage :initform (make-usage) :reader node-usage) ; how full the store is
   ;; the sums of ended workflows, see retention.lisp
   (retention :initform (make-retention) :reader node-retention)
   (commits :initform nil :accessor node-commits) ; a COMMIT-GROUP, once it has jobs
   (stale-reads :initform nil :accessor node-stale-reads) ; the same for stale reads
   ;; the list of tasks that can be claimed
   (ready-list :initform (make-ready-list) :reader node-ready-list)
   ;; from names to the SESSION-RECORDs of all open sessions, as the watch of the index reports
   ;; them, and of those that are being opened here; under the lock
   (session-records :initform (make-hash-table :test 'equal) :reader node-session-records)
   ;; from the seconds of a lease to the SESSION-LEASE; under the lock
   (session-leases :initform (make-hash-table) :reader node-session-leases)
   ;; from owners, which certificates prove, to how many sessions each has; under the lock
   (owners :initform (make-hash-table :test 'equal) :reader node-owners)
   ;; from sessions to how many tasks this node has given them since they were counted in the store
   (grants :initform (make-hash-table :test 'equal) :reader node-grants) ; under the lock
   ;; the keys are the sessions that had claims when the keeper looked last; never changed
   (claiming :initform (make-hash-table :test 'equal) :accessor node-claiming)
   ;; ids of workflows that could not be changed, and until when they are left alone, as WORLD-NOW
   (stuck :initform (make-hash-table :test 'equal :synchronized t) :reader node-stuck)
   ;; CACHED-STATEs
   (recent :initform (make-hash-table :test 'equal :synchronized t) :reader node-recent)
   ;; the octets of all of RECENT, under its lock
   (recent-octets :initform 0 :accessor node-recent-octets)
   (renewers :initform '() :accessor node-renewers) ; jobs for its SESSION-LEASEs
   (feed :initform (make-feed) :reader node-feed) ; the feed of the watches
   (index-watch :initform nil :accessor node-index-watch) ; the watch of the index, or nil
   (jobs :initform '() :accessor node-jobs) ; all jobs of the node
   ;; a random state; guarded by the lock
   (random :initform (loop:new-random-state) :reader node-random)
   ;; guards the slots above
   (lock :initform (sb-thread:make-mutex :name "clgrpc workflow") :reader node-lock))
  (:documentation "The service clgrpc.workflow.v1.Workflow, see MAKE-WORKFLOW-SERVICE."))

(define-printer (node workflow-service)
  "~A~:[~; closed~], ~D running, ~D ready" (node-root node)
  (task-queue-closed (node-task-queue node)) (node-running node) (node-ready node))

(defmethod server:min-ping-seconds ((node workflow-service))
  1/2)

(defmethod initialize-instance :after ((node workflow-service) &key (clock #'loop:unix-ns))
  "CLOCK is a function that returns the machine's date, in nanoseconds since 1970."
  (setf (slot-value node 'dates) (make-dates clock)))

(defun ensure-date (node)
  "Read the nodes' date from NODE's store. Signal an ETCD-ERROR."
  (let ((dates (node-dates node)) (prefix (node-key node "index/nodes" "")))
    (unless (dates-offset dates)
      (let ((stored (etcd:fetch (node-etcd node) (node-key node "date")))
            (others (etcd:fetch-entries (node-etcd node) :prefix prefix)))
        (begin-date dates
                    (loop for entry in others
                          for name = (node-entry-name entry prefix)
                          for (machine common) = (entry-dates entry)
                          when (and name machine common)
                            collect (list name machine common))
                    (and stored (first (entry-dates stored))))))))

(defun entry-dates (entry)
  "The dates in ENTRY's value, a list, with nil for each part of it that is not a date."
  (flet ((date (text)
           (let ((ms (parse-integer text :junk-allowed t)))
             (and ms (<= 0 ms +longest-ms+) ms))))
    (mapcar #'date (uiop:split-string (entry-text entry)))))

(defun node-now (node)
  "The nodes' date at NODE, in milliseconds since 1970."
  ;; a node without jobs is alone
  (when (node-keeper node) (ensure-date node))
  (date-now (node-dates node)))

(defun node-sessions (node)
  "How many sessions are open, as far as NODE knows; it knows of its own at once."
  (sb-thread:with-mutex ((node-lock node)) (hash-table-count (node-session-records node))))

(defun session-owner (session)
  "The owner in the name of SESSION; empty if the peer has no certificate."
  (let ((dot (position #\. session)))
    (if dot (subseq session (1+ dot)) "")))

(defun count-session (node session by)
  "Add BY to the number of sessions of SESSION's owner. The caller must hold the node's lock."
  (let ((owner (session-owner session)) (owners (node-owners node)))
    (unless (string= "" owner)
      (when (zerop (incf (gethash owner owners 0) by)) (remhash owner owners)))))

(defun find-record (node session)
  "The SESSION-RECORD of SESSION at NODE; nil if NODE has none. The caller must hold the node's
lock."
  (values (gethash session (node-session-records node))))

(defun ensure-record (node session)
  "The SESSION-RECORD of SESSION at NODE. The caller must hold the node's lock."
  (or (find-record node session)
      (let ((record (%make-session-record session)))
        (isolate-ring record)
        (count-session node session 1)
        (setf (gethash session (node-session-records node)) record))))

(defun session-known-p (node session)
  "True if SESSION is open, or being opened, as far as NODE knows."
  (sb-thread:with-mutex ((node-lock node)) (and (find-record node session) t)))

(defun map-records (function node)
  "Call FUNCTION, which waits for nothing, with each SESSION-RECORD of NODE, under the lock of
NODE."
  (sb-thread:with-mutex ((node-lock node))
    (loop for record being the hash-values of (node-session-records node)
          do (funcall (the function function) record))))

(defun open-sessions (node)
  "A table whose keys are the sessions that are open as far as NODE knows, without those that are
about to be opened."
  (let ((open (make-hash-table :test 'equal)))
    (map-records (lambda (record)
                   (when (session-record-open record)
                     (setf (gethash (session-record-name record) open) t)))
                 node)
    open))

(defun forget-session (node session)
  "SESSION has ended."
  (sb-thread:with-mutex ((node-lock node))
    (remhash session (node-grants node))
    (when-let ((record (find-record node session)))
      (quit-ring record)
      (remhash session (node-session-records node))
      (count-session node session -1)))
  (forget-load node session))

(defun load-key (session)
  "The key of SESSION in the loads of a task queue: its owner's name, if a certificate has proved
one."
  (let ((owner (session-owner session)))
    (if (string= "" owner) session owner)))

(defun note-load (node session count)
  "Add COUNT to the number of tasks that the worker of SESSION was given."
  (let ((task-queue (node-task-queue node)))
    (sb-thread:with-mutex ((task-queue-lock task-queue))
      (incf (gethash (load-key session) (task-queue-loads task-queue) 0) count)))
  nil)

(defun forget-load (node session)
  "Remove the load of the worker of SESSION, which has ended a task, has no task, or has ended."
  (let ((task-queue (node-task-queue node)))
    (sb-thread:with-mutex ((task-queue-lock task-queue))
      (remhash (load-key session) (task-queue-loads task-queue))))
  nil)

(defun check-sessions-of (node owner)
  "Signal BACKLOG-FULL if OWNER, unless it is empty, already has as many sessions as it may have.
The caller must hold the node's lock."
  (let ((most (limits-max-sessions-per-identity (node-limits node)))
        (count (gethash owner (node-owners node) 0)))
    (when (<= most count)
      (refuse-size :backlog-full :max-sessions-per-identity most count
                   "too many sessions of one identity are open"))))

(defun check-sessions (node)
  "Signal BACKLOG-FULL if the limit of open sessions is reached. The lock need not be held."
  (let ((most (limits-max-sessions (node-limits node)))
        (count (hash-table-count (node-session-records node))))
    (when (<= most count)
      (refuse-size :backlog-full :max-sessions most count "too many sessions"))))

(defun reserve-session (node session)
  "Note SESSION, which is about to be opened. Signal BACKLOG-FULL if the limit is reached."
  (sb-thread:with-mutex ((node-lock node))
    (check-sessions node)
    (check-sessions-of node (session-owner session))
    (ensure-record node session)))

(defun below (node limit)
  "A random number from 0 to below LIMIT, an integer or a float."
  (sb-thread:with-mutex ((node-lock node)) (random limit (node-random node))))

(defun node-key (node &rest parts)
  (apply #'key (node-root node) parts))

(defun shuffled (node list)
  "LIST in a random order."
  (mapcar #'cdr (sort (mapcar (lambda (item) (cons (below node 1.0) item)) list) #'< :key #'car)))

(defmacro with-store-errors (&body body)
  "Evaluate BODY; signal an ETCD-ERROR in it as the corresponding workflow error."
  `(handler-case (progn ,@body)
     (etcd:invalid-request (error) (refuse :too-large "the store refuses this change: ~A" error))
     (etcd:space-exceeded (error) (refuse :store-full "~A" error))
     (etcd:access-denied (error) (refuse :store-forbids "~A" error))
     (etcd:etcd-error (error) (refuse :store-unavailable "~A" error))))

(defun map-though-full (function list)
  "Call FUNCTION with each element of LIST, even after the store was too full for one; in that case
signal SPACE-EXCEEDED at the end. So removals that follow a put are done, and make room for it."
  (let ((full nil))
    (dolist (item list)
      (handler-case (funcall function item)
        (etcd:space-exceeded (condition) (setf full condition))))
    (when full (error full))))

(defmacro each-though-full (&body forms)
  "Evaluate each of FORMS, as MAP-THOUGH-FULL calls its function."
  `(map-though-full #'funcall (list ,@(loop for form in forms collect `(lambda () ,form)))))

;;; A workflow that cannot be changed, because of its data in the store or for a fault of ours,
;;; delays no other: it is left alone for a while, and tried again.

(defconstant +stuck-seconds+ 10 "How long a workflow that could not be changed is left alone.")
(defconstant +most-stuck+ 10000 "How many workflows that could not be changed a node remembers.")

(defun note-stuck (node id condition)
  "Note that the workflow ID cannot be changed at NODE, because of CONDITION."
  (log-event :error :workflow-stuck :workflow id :condition (bounded-text condition))
  (let ((stuck (node-stuck node)))
    (when (<= +most-stuck+ (hash-table-count stuck)) (clrhash stuck))
    (setf (gethash id stuck) (+ (loop:world-now) (seconds-ns +stuck-seconds+)))))

(defun stuck-p (node id)
  "True if NODE must leave the workflow ID alone for now."
  (when-let ((until (gethash id (node-stuck node))))
    (or (< (loop:world-now) until)
        (progn (remhash id (node-stuck node)) nil))))

(defun count-stuck (node)
  "The number of workflows that NODE leaves alone."
  (let ((stuck (node-stuck node)) (now (loop:world-now)))
    (sb-ext:with-locked-hash-table (stuck)
      (loop for until being the hash-values of stuck count (< now until)))))

(deftype workflow-refusal ()
  "Conditions that concern one workflow alone, not the store as a whole or all workflows of this
session."
  '(or etcd:invalid-request (and error (not (or etcd:etcd-error session-lost)))))

(defmacro for-one ((node id) &body body)
  "Evaluate BODY, which changes the workflow ID, unless NODE must leave that workflow alone for now.
An error of this workflow is logged, and nil returned; an error of the store is signalled."
  (alexandria:once-only (node id)
    `(unless (stuck-p ,node ,id)
       (handler-case (progn ,@body)
         (workflow-not-found () nil)
         (workflow-refusal (condition) (note-stuck ,node ,id condition) nil)))))

(defun stopping-condition ()
  "The condition that ends calls which a node does not answer because it stops."
  (make-condition 'store-unavailable :text "the node is stopping"))

(defmacro while-open ((node) &body body)
  "Evaluate BODY; if NODE is closed, signal STORE-UNAVAILABLE instead."
  `(progn (when (task-queue-closed (node-task-queue ,node)) (error (stopping-condition)))
          ,@body))
