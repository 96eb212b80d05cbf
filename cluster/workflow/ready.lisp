;;;; The tasks that can be claimed, as the watch of the index reports them to a node: so a claim
;;;; finds a task, or finds that there is none, without a request to the store. A task in this list
;;;; may have been removed from the store; the claim notices that.
;;;;
;;;; - An entry has the revision that made it, and only a change at a later revision removes it. So
;;;;   the watch may repeat tasks of its initial list, and a node may at once remove the tasks that
;;;;   it has claimed itself.
;;;; - The store is asked while there is no watch, and while more tasks can be claimed than are kept
;;;;   here.
;;;; - The shards are visited in turn, beginning with those whose timers are the node's, so that
;;;;   nodes do not try for the same tasks; within a shard the oldest task is first.

(in-package #:clgrpc.workflow)

(defconstant +most-ready+ 50000 "The maximum number of ready tasks that a node knows of.")

(defun drop-task (list task)
  "Remove TASK from LIST, whose lock the caller must hold."
  (let* ((kind (ready-task-kind task)) (rings (gethash kind (ready-list-kinds list))))
    (quit-ring task)
    (remhash (ready-task-id task) (ready-list-tasks list))
    (unless (some #'ring-first rings) (remhash kind (ready-list-kinds list)))))

(defun forget-ready-before (list id revision)
  "Forget the tasks of the workflow ID that could be claimed before REVISION. The caller must hold
LIST's lock. Return false if something newer is known."
  (let ((task (gethash id (ready-list-tasks list))))
    (cond ((null task) t)
          ((< (ready-task-revision task) revision)
           (drop-task list task)
           t))))

(defun shard-rings (list kind)
  (alexandria:ensure-gethash kind (ready-list-kinds list)
                             (coerce (loop repeat +shards+ collect (make-ring)) 'simple-vector)))

(defun add-ready (list kind shard id revision)
  "Note that the task of ID, of KIND, in SHARD, can be claimed since REVISION."
  (sb-thread:with-mutex ((ready-list-lock list))
    (when (forget-ready-before list id revision)
      (if (<= +most-ready+ (hash-table-count (ready-list-tasks list)))
          (setf (ready-list-partial list) t)
          (let ((task (make-ready-task id kind revision)))
            (isolate-ring task)
            (enter-ring task (svref (shard-rings list kind) shard))
            (setf (gethash id (ready-list-tasks list)) task))))))

(defun remove-ready (list id revision)
  "Note that the task of ID can no longer be claimed, since REVISION."
  (sb-thread:with-mutex ((ready-list-lock list)) (forget-ready-before list id revision)))

(defun shard-number (text)
  "The shard with the number TEXT, hexadecimal as in keys, or nil if TEXT names no shard."
  (let ((shard (and text (parse-integer text :radix 16 :junk-allowed t))))
    (and shard (< -1 shard +shards+) shard)))

(defun note-ready-entry (list kind parts revision)
  "Note that the store has the key of a task of KIND since REVISION; PARTS are the parts of the key
after the kind."
  (let ((shard (shard-number (first parts))))
    (when (and shard (third parts)) (add-ready list kind shard (third parts) revision))))

(defun end-ready-list (list)
  (sb-thread:with-mutex ((ready-list-lock list)) (setf (ready-list-watched list) nil)))

(defun fill-ready-list (node)
  "Fill NODE's list with the tasks that can be claimed now, up to its limit; its watch adds later
ones."
  (let ((list (node-ready-list node)) (prefix (node-key node "index/ready" "")))
    (sb-thread:with-mutex ((ready-list-lock list))
      (clrhash (ready-list-kinds list))
      (clrhash (ready-list-tasks list))
      (setf (ready-list-partial list) nil
            (ready-list-watched list) nil))
    (etcd:map-entries (lambda (entry)
                        (let ((parts (entry-parts entry prefix)))
                          (note-ready-entry list (first parts) (rest parts)
                                            (etcd:entry-changed entry))))
                      (node-etcd node) :prefix prefix :keys-only t :limit (1+ +most-ready+))
    (sb-thread:with-mutex ((ready-list-lock list)) (setf (ready-list-watched list) t))))

(defun refill-ready-list (node)
  "Fill NODE's list again, if it lacks tasks that can be claimed and has room for more."
  (let ((list (node-ready-list node)))
    (when (and (ready-list-partial list)
               (< (* 2 (hash-table-count (ready-list-tasks list))) +most-ready+))
      (fill-ready-list node))))

(defun shards-by-turns (node)
  "All shards in the order in which to visit them: those of NODE, then the others, each group
beginning at a random one."
  (let ((own (timer-queue-own (node-timer-queue node))) (start (below node +shards+)))
    (stable-sort (loop for i below +shards+ collect (mod (+ start i) +shards+))
                 #'> :key (lambda (shard) (if (member shard own) 1 0)))))

(defun known-ready (node kind count)
  "Two values: ids of at most COUNT tasks of KIND that can be claimed as far as NODE knows; and
false if the store may have more."
  (let ((list (node-ready-list node)) (shards (shards-by-turns node)) (ids '()))
    (sb-thread:with-mutex ((ready-list-lock list))
      (let ((rings (gethash kind (ready-list-kinds list))))
        (loop for shard in shards
              while (and rings (plusp count))
              do (loop for task in (ring-list (svref rings shard) count)
                       do (push (ready-task-id task) ids)
                          (decf count))))
      (values (nreverse ids)
              (and (ready-list-watched list) (not (ready-list-partial list)))))))

(defun note-ready-state (list state revision)
  "Note STATE, the state since REVISION of a workflow that this node has changed."
  (let ((id (pb:workflow-state-id state)) (step (and (running-p state) (state-step state))))
    (if (and step (eq :ready (pb:step-state-status step)))
        (add-ready list (pb:step-task (pb:step-state-step step))
                   (shard-number (shard-of id)) id revision)
        (remove-ready list id revision))))
