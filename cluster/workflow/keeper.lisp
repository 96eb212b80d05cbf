;;;; The keeper: a job of each node that looks after sessions and nodes. The keeper gives the claims
;;;; of sessions that have ended to other workers, before all other work and apart from timers. The
;;;; keeper keeps the watch of the index, which informs the node of tasks, times, sessions and
;;;; nodes. The keeper maintains the node's entry among the nodes, with its date; and it counts
;;;; workflows and tasks. The keeper runs at each event of the watch, and every second.
;;;;
;;;; All nodes look after sessions, in different orders. If two nodes do one thing, the store
;;;; accepts one of the changes, and the other node finds that nothing is left to do.

(in-package #:clgrpc.workflow)

(defconstant +sweep-seconds+ 30 "The time between searches for claims of sessions that have ended.")
(defconstant +retention-seconds+ 60
  "How often the keeper compares the octets of ended workflows with their limit.")
(defconstant +count-seconds+ 2 "How often workflows and ready tasks are counted.")
(defconstant +longest-count-seconds+ 60
  "The longest time from one count to the next, for a large store.")
(defconstant +node-lease-seconds+ 4
  "The time after which other nodes take over the timers of a node that hangs.")
(defconstant +ending-seconds+ 1
  "The longest time for which a closing node waits for its jobs, whose store may hang, and for its
lease to end.")
(defconstant +least-leaving-seconds+ 1/4
  "The minimum time for which a closing node waits for its lease to end.")
(defconstant +date-seconds+ 10 "How often a node reports its machine's date.")

(defun wake-keeper (node function)
  "Call FUNCTION, which changes the wakeup of NODE, under its lock, and wake the keeper."
  (let ((wakeup (node-wakeup node)))
    (sb-thread:with-mutex ((wakeup-lock wakeup)) (funcall function wakeup))
    (when (node-keeper node) (loop:wake-job (node-keeper node)))))

;;; The watch of the index

(defun note-ready-change (node parts put revision)
  "Note that the key of a task was put, if PUT is true, or removed at REVISION. PARTS are the parts
of the key below index/ready."
  (let ((list (node-ready-list node)) (kind (first parts)) (id (fourth parts)))
    (cond ((null id))                   ; none of ours
          (put (note-ready-entry list kind (rest parts) revision)
               (note-ready node kind id))
          (t (remove-ready list id revision)))))

(defun note-index-change (node change revision)
  (let* ((put (eq :put (etcd:change-kind change)))
         (parts (rest (entry-parts (etcd:change-entry change) (node-root node))))
         (name (first parts)) (what (second parts)))
    (cond ((null what))                 ; none of ours
          ((string= "ready" name) (note-ready-change node (rest parts) put revision))
          ((and put (string= "due" name))
           (let ((shard (shard-number what))
                 (time (and (third parts) (text-time (third parts)))))
             (when (and shard time) (note-due node shard time))))
          ((string= "nodes" name) (note-node-change node what put (etcd:change-entry change)))
          ((string/= "sessions" name))
          (put (let ((entry (etcd:change-entry change)))
                 (note-session node what (etcd:entry-lease entry) revision)))
          (t (forget-session node what)
             (end-claims-of node what)
             (wake-keeper node (lambda (wakeup) (push what (wakeup-ended wakeup))))))))

(defun note-sessions (node)
  "Note the sessions that are open now. Return the revision at which the sessions were read."
  (let* ((prefix (node-key node "index/sessions" "")) (over (open-sessions node))
         (revision
           (etcd:map-entries (lambda (entry)
                               (when-let ((session (entry-name entry prefix)))
                                 (remhash session over)
                                 (note-session node session (etcd:entry-lease entry)
                                               (etcd:entry-changed entry))))
                             (node-etcd node) :prefix prefix :keys-only t)))
    (loop for session being the hash-keys of over do (forget-session node session))
    revision))

(defun end-claims-of-lost-sessions (node)
  "End the waiting claims of sessions whose end no watch has reported."
  (dolist (session (waiting-sessions (node-task-queue node)))
    (unless (etcd:fetch (node-etcd node) (session-key node session))
      (end-claims-of node session))))

(defun watch-index (node)
  "Watch the index from now on, and read its present entries."
  (sb-thread:with-mutex ((wakeup-lock (node-wakeup node)))
    (setf (wakeup-lost-watch (node-wakeup node)) nil))
  ;; the store may have gone back
  (forget-states node)
  (doubt-records node)
  (note-nodes node)
  (let ((after (note-sessions node)))
    (fill-ready-list node)
    (setf (node-index-watch node)
          (etcd:watch (node-etcd node)
                      (lambda (changes revision)
                        (dolist (change changes) (note-index-change node change revision)))
                      :prefix (node-key node "index/") :after after
                      :on-end (lambda (condition)
                                (declare (ignore condition))
                                (end-ready-list (node-ready-list node))
                                (wake-keeper node (lambda (wakeup)
                                                    (setf (wakeup-lost-watch wakeup) t))))))))

(defun end-index-watch (node)
  "End the watch of the index, and that of workflows that have ended, if NODE has them."
  (let ((watch (shiftf (node-index-watch node) nil)))
    (when watch (etcd:cancel-watch watch)))
  (forget-ended node))

(defun ensure-index-watch (node)
  "Watch the index unless it is watched. Return true if the index was not watched before."
  (when (wakeup-lost-watch (node-wakeup node))
    (handler-bind ((error
                     (lambda (error)
                       (declare (ignore error))
                       (end-ready-list (node-ready-list node))
                       (sb-thread:with-mutex ((wakeup-lock (node-wakeup node)))
                         (setf (wakeup-lost-watch (node-wakeup node)) t)))))
      (watch-index node))
    ;; the next two calls cannot fail, so changes that came while there was no watch are handled
    (retry-all-claims node)
    (look-at-all-timers node)
    (end-claims-of-lost-sessions node)
    t))

;;; Sessions that have ended

(defun do-ended-sessions (node)
  "Give to other sessions the claims of the sessions whose end the watch has reported."
  (let ((wakeup (node-wakeup node)))
    (flet ((next-ended ()
             (sb-thread:with-mutex ((wakeup-lock wakeup)) (pop (wakeup-ended wakeup)))))
      (loop for session = (next-ended)
            while session
            do (handler-bind ((etcd:etcd-error ; until the store is back
                                (lambda (error)
                                  (declare (ignore error))
                                  (sb-thread:with-mutex ((wakeup-lock wakeup))
                                    (push session (wakeup-ended wakeup))))))
                 (end-session-claims node session))))))

(defun claiming-sessions (node)
  (let ((prefix (node-key node "claims" "")) (sessions '()))
    (etcd:map-entries (lambda (entry)
                        (let ((session (first (entry-parts entry prefix))))
                          (when (and session
                                     (name-p session)
                                     (not (equal session (first sessions))))
                            (push session sessions))))
                      (node-etcd node) :prefix prefix :keys-only t)
    sessions))

(defun forget-ended-sessions (node)
  "Remove the counts of sessions that have ended. A claim that was under way at the end of its
session has counted tasks since then."
  (let* ((task-queue (node-task-queue node))
         (known (sb-thread:with-mutex ((node-lock node))
                  (alexandria:hash-table-keys (node-session-records node))))
         (counted (sb-thread:with-mutex ((node-lock node))
                    (loop for session being the hash-keys of (node-grants node)
                          unless (find-record node session)
                            collect session)))
         (loads (make-hash-table :test 'equal)))
    (dolist (session counted)
      ;; the watch may not have reported the session's beginning yet
      (unless (etcd:fetch (node-etcd node) (session-key node session))
        (forget-session node session)))
    (dolist (session known) (setf (gethash (load-key session) loads) t))
    (sb-thread:with-mutex ((task-queue-lock task-queue))
      (dolist (key (alexandria:hash-table-keys (task-queue-loads task-queue)))
        (unless (gethash key loads) (remhash key (task-queue-loads task-queue)))))))

(defun sweep-sessions (node)
  "Give to other sessions the claims of sessions that have ended while no node watched."
  (forget-ended-sessions node)
  (let ((sessions (claiming-sessions node)) (claiming (make-hash-table :test 'equal)))
    (dolist (session sessions) (setf (gethash session claiming) t))
    (setf (node-claiming node) claiming)
    (dolist (session sessions)
      (unless (etcd:fetch (node-etcd node) (session-key node session))
        (end-session-claims node session)))))

;;; The nodes

(defun own-name (node)
  "The name of NODE's entry among the nodes, or nil while it has none."
  (let ((lease (membership-lease (node-membership node))))
    (and lease (lease-name (etcd:lease-id lease)))))

(defun share-out-shards (node)
  "Take the shards that are NODE's when all shards are dealt out in turn to the names of all nodes."
  (let ((own (own-name node)))
    (own-shards node
                (and own
                     (let ((names (sort (cons own (other-nodes (node-dates node))) #'string<)))
                       (loop for shard from (position own names :test #'string=) below +shards+
                               by (length names)
                             collect shard))))))

(defun note-node (node name entry)
  "Note that the node NAME exists, with the dates in ENTRY, or has ended if ENTRY is nil."
  (let ((dates (node-dates node)) (ms nil))
    (cond ((equal name (own-name node)) (return-from note-node))
          ((null entry) (forget-machine dates name))
          ((setf ms (first (entry-dates entry)))
           (unless (note-machine dates name ms) (return-from note-node)))
          (t (return-from note-node)))
    (wake-keeper node (lambda (wakeup) (setf (wakeup-newcomer wakeup) t)))))

(defun note-node-change (node name put entry)
  "Note that the ENTRY of the node NAME was stored, if PUT is true, or removed. An entry without the
node's lease, as in a restored store, would remain after the node has gone, so it counts as
removed."
  (note-node node name (and put (node-entry-p entry name) entry)))

(defun note-nodes (node)
  "Note the nodes that exist now."
  (let* ((prefix (node-key node "index/nodes" ""))
         (entries (etcd:fetch-entries (node-etcd node) :prefix prefix))
         (names (loop for entry in entries collect (node-entry-name entry prefix))))
    (dolist (name (set-difference (other-nodes (node-dates node)) names :test #'equal))
      (note-node node name nil))
    (loop for entry in entries
          for name in names
          when name do (note-node node name entry))))

(defun drop-lease (node seconds)
  "End the lease of NODE's entry, if it has one; at once if the store answers within SECONDS. End it
even if it seems to have ended, because it may have been renewed after all: then the entry of a node
that does not exist would remain, and would get a share of the timers."
  (when-let ((lease (shiftf (membership-lease (node-membership node)) nil)))
    (handler-case (etcd:revoke-lease lease :timeout seconds)
      (etcd:etcd-error ()))))

(defun ensure-lease (node)
  "Get a lease for the entry of NODE. Return true if the lease is new."
  (let* ((membership (node-membership node)) (lease (membership-lease membership)))
    (unless (and lease (etcd:lease-alive-p lease))
      (drop-lease node +ending-seconds+)
      (setf (membership-lease membership)
            (etcd:grant-lease (node-etcd node) +node-lease-seconds+))
      (share-out-shards node)
      t)))

(defun date-changed-p (node)
  "True if NODE's last report of its machine's date has become wrong, or is old."
  (let* ((membership (node-membership node)) (told (membership-told-ms membership)))
    (or (null told)
        (let ((passed (- (steady-ms) (membership-told-steady-ms membership))))
          (or (<= (* 1000 +date-seconds+) passed)
              (< +date-slack-ms+
                 (abs (- (machine-ms (node-dates node)) told passed))))))))

(defun tell-date (node)
  "Report the date of NODE's machine to the other nodes. The first of all nodes also stores the date
that the nodes share."
  (let* ((membership (node-membership node)) (own (own-name node)) (now (node-now node))
         (machine (machine-ms (node-dates node))))
    (etcd:put (node-etcd node) (node-key node "index/nodes" own) (format nil "~D ~D" machine now)
              :lease (membership-lease membership))
    (when (every (lambda (name) (string< own name)) (other-nodes (node-dates node)))
      (etcd:put (node-etcd node) (node-key node "date") (princ-to-string now)))
    (setf (membership-told-ms membership) machine
          (membership-told-steady-ms membership) (steady-ms))))

(defun keep-membership (node)
  "Enter NODE among the nodes, and report its date to them when that is due. After a failed report
the next report is due at once, because until it succeeds NODE may have no entry, and a new node
would not learn NODE's date."
  (let* ((wakeup (node-wakeup node))
         (newcomer (sb-thread:with-mutex ((wakeup-lock wakeup))
                     (shiftf (wakeup-newcomer wakeup) nil))))
    (when newcomer (share-out-shards node))
    (when (or (ensure-lease node) newcomer)
      (setf (membership-told-ms (node-membership node)) nil))
    (when (date-changed-p node) (tell-date node))))

;;; The job

(defun count-seconds (node)
  "The seconds between two counts: more for a larger store, so that counts cost little."
  (max +count-seconds+ (min +longest-count-seconds+ (* 100 (node-count-seconds node)))))

(defun count-node (node)
  (let ((begin (loop:world-now)))
    (count-workflows node)
    (measure-usage node)
    (setf (node-count-seconds node) (ns-seconds (- (loop:world-now) begin)))))

(defun count-workflows (node)
  (setf (node-running node) (etcd:count-entries (node-etcd node)
                                                :prefix (node-key node "by" "running" ""))
        (node-ready node) (etcd:count-entries (node-etcd node)
                                              :prefix (node-key node "index/ready" ""))))

(defun report-health (node status)
  (when (node-health node)
    (services:set-health-status (node-health node) "clgrpc.workflow.v1.Workflow" status)))

(defun run-keeper (node due)
  "Do the work of NODE's keeper. DUE is a function of a name and a number of seconds; it returns
true if that time has passed since it last returned true for that name."
  (ensure-date node)
  (let ((new (ensure-index-watch node)))
    ;; a full store refuses changes of tasks and entries, but accepts all that make room
    (each-though-full
      (do-ended-sessions node)
      (keep-membership node)
      (when (or new (funcall due :sweep +sweep-seconds+))
        (sweep-sessions node)
        (refill-ready-list node))
      (when (funcall due :retention +retention-seconds+) (limit-retention node))
      (when (or new (funcall due :count (count-seconds node))) (count-node node)))))

(defun make-due ()
  "Return a function that can be the argument DUE of RUN-KEEPER."
  (let ((times '()))
    (lambda (name seconds)
      (let ((now (loop:world-now)) (last (getf times name)))
        (when (or (null last) (<= (+ last (seconds-ns seconds)) now))
          (setf (getf times name) now)
          t)))))

(defun attend-keeper (node due)
  "Run the keeper once; DUE is for RUN-KEEPER. Return the seconds until the keeper runs again. Work
that the store does not do now is done when it answers again."
  (handler-case (progn (run-keeper node due)
                       (loop:tell-recovery (node-keeper node) :workflow-store-back)
                       (report-health node :serving))
    ((or etcd:etcd-error workflow-error) (condition)
      (loop:tell-failure (node-keeper node) :workflow-store-failed condition)
      (report-health node :not-serving))
    (error (condition)
      (log-event :error :workflow-clock-error :condition (bounded-text condition))))
  +longest-sleep-seconds+)

(defun sweep-workflows-now-and-then (node)
  "Run the job that looks after other nodes' timers. Return the seconds until the sweep runs again."
  (handler-case (when (node-keeper node) (sweep-timers node))
    ((or etcd:etcd-error workflow-error) ())
    (error (condition)
      (log-event :error :workflow-clock-error :condition (bounded-text condition))))
  +sweep-seconds+)

(defun begin-jobs (node)
  "Start the jobs of NODE that work without a call."
  (let ((etcd (node-etcd node)) (due (make-due)))
    (setf (node-commits node) (make-commit-group)
          (node-stale-reads node) (make-commit-group)
          (task-queue-idle (node-task-queue node)) (loop repeat +claimers+
                                                         collect (new-claimer node))
          (node-timers node) (loop repeat +timer-jobs+
                                   collect (etcd:add-job etcd (lambda () (run-timers node))))
          (node-keeper node) (etcd:add-job etcd (lambda () (attend-keeper node due)))
          (node-jobs node) (list* (node-keeper node)
                                  (etcd:add-job etcd (lambda ()
                                                       (sweep-workflows-now-and-then node)))
                                  (append (begin-renewing node)
                                          (node-timers node)
                                          (task-queue-idle (node-task-queue node)))))
    (mapc #'loop:wake-job (subseq (node-jobs node) 0 2))))

(defun make-workflow-service (etcd &rest limits
                              &key (namespace "default") allow metrics health clock
                              &allow-other-keys)
  "Return a service of workflows, for START-SERVER. Any number of nodes serve the workflows of one
namespace. Calls within the image may do everything.
ETCD       the client of the service's store, which need not be reachable yet
NAMESPACE  a string that is part of every key; \"default\" by default
ALLOW      a list of permissions, (ROLE . PATTERN): a peer whose identity matches PATTERN, see
           START-NODE, has ROLE. With the role :start a peer may start workflows, signal them and
           create schedules; with :work it may do all tasks, with (:work KIND) tasks of the kind
           KIND; with :read it may read their states; with :operate it may cancel and delete
           workflows, and pause and delete schedules. If no permissions are given, a peer may do all
           of this without TLS, and nothing with TLS
METRICS    an object that MAKE-METRICS returned, which counts the service's events
HEALTH     a HEALTH-SERVICE, in which the service reports whether the store answers
CLOCK      a function that returns the time in nanoseconds since 1970, by default the machine's;
           timers and deadlines follow it
The other keywords are limits of this node, such as :MAX-RUNNING; LIMIT-NAMES returns their names,
and doc/cluster/workflows.md explains them and has their defaults. The service starts threads now;
CLOSE-WORKFLOW-SERVICE ends them, and so does STOP-SERVER of the service's server. Signal MISUSE for
a wrong namespace. From any thread."
  (let* ((node (make-instance 'workflow-service
                              :etcd etcd :namespace namespace :root (root-of namespace)
                              :health health
                              :authority (authority:make-authority allow)
                              :clock (or clock #'loop:unix-ns)
                              :limits (apply #'make-limits
                                             (alexandria:remove-from-plist
                                              limits :namespace :allow :metrics :health :clock)))))
    (begin-counting node metrics)
    (begin-jobs node)
    node))

(defun end-jobs (node)
  "End the jobs of NODE, and its membership among the nodes. This returns soon even if jobs wait for
a store that hangs: they end when it has answered or is closed."
  (let* ((end (loop:notice-end +ending-seconds+))
         (ended (loop for job in (node-jobs node)
                      ;; each job gets the order to end
                      count (not (loop:end-job job :seconds (loop:seconds-until end 0))) into left
                      finally (return (zerop left)))))
    (if ended
        (drop-lease node (loop:seconds-until end +least-leaving-seconds+))
        (etcd:run-in-background (node-etcd node)
                                (lambda ()
                                  (mapc #'loop:end-job (node-jobs node))
                                  (drop-lease node +ending-seconds+)
                                  ;; the keeper may have begun the watch meanwhile
                                  (end-index-watch node))))))

(defun close-workflow-service (service)
  "End SERVICE, of MAKE-WORKFLOW-SERVICE: claims and watches that wait end, its threads end.
SERVICE's store is not closed; threads that wait for a store that hangs end when it answers or its
client is closed. The workflows remain; other nodes continue them. From any thread but its own."
  (end-counting service)
  (close-task-queue service)
  (end-heartbeats service)
  (end-watches service)
  (stop-feed (node-feed service))
  (end-jobs service)
  (end-index-watch service)
  ;; the channel for calls with the service object itself
  (let ((channel (method:direct-channel service)))
    (when channel (calling:close-channel channel)))
  nil)
