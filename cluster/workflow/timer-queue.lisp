;;;; Timers: events that come due without a call. The timers' keys are in shards, each of which
;;;; belongs to one living node. The owner of a shard follows from the names of the nodes. For a
;;;; moment two nodes may both take a shard for theirs: this does no harm, since the store accepts
;;;; only one of their changes. A few jobs handle due events, each job one shard at a time, several
;;;; workflows in one transaction. The jobs read a shard from the store only when an event is due
;;;; there, which the watch of the index reports.
;;;;
;;;; The other nodes check a shard, too, if the node that has it falls behind, see SWEEP-TIMERS.

(in-package #:clgrpc.workflow)

(defconstant +longest-sleep-seconds+ 1
  "The longest sleep of a node's timers, in seconds: the nodes' date may be set meanwhile.")
(defconstant +full-seconds+ 5
  "The time, in seconds, for which timers pause while the store is full.")
(defconstant +timer-jobs+ 4 "The number of shards whose timers a node handles at once.")
(defconstant +due-page+ 100 "The number of due keys that are fetched at once.")
(defconstant +overdue-ms+ 5000
  "The delay, in milliseconds, after which a node handles timers of other nodes as well.")

;;; Times of shards

(defun wake-timers (node)
  (mapc #'loop:wake-job (node-timers node)))

(defun note-due (node shard ms)
  "Note that an item of SHARD is due at MS."
  (let* ((timer-queue (node-timer-queue node)) (times (timer-queue-times timer-queue)))
    (when (sb-thread:with-mutex ((timer-queue-lock timer-queue))
            (when (and (member shard (timer-queue-own timer-queue))
                       (< ms (or (svref times shard) (1+ ms))))
              (setf (svref times shard) ms)))
      (wake-timers node))))

(defun own-shards (node shards)
  "Make SHARDS, and no others, the shards of NODE."
  (let ((timer-queue (node-timer-queue node)))
    (sb-thread:with-mutex ((timer-queue-lock timer-queue))
      (dolist (shard (set-difference shards (timer-queue-own timer-queue)))
        (setf (svref (timer-queue-times timer-queue) shard) 0))
      (dolist (shard (set-difference (timer-queue-own timer-queue) shards))
        (setf (svref (timer-queue-times timer-queue) shard) nil))
      (setf (timer-queue-own timer-queue) shards))
    (wake-timers node)))

(defun look-at-all-timers (node)
  "Make NODE check all of its shards, since their due times are unknown."
  (dolist (shard (timer-queue-own (node-timer-queue node))) (note-due node shard 0)))

(defun take-shard (node)
  "Reserve a shard in which something is due at NODE, and which no other job handles; nil if there
is none."
  (let ((timer-queue (node-timer-queue node)) (now (node-now node)))
    (sb-thread:with-mutex ((timer-queue-lock timer-queue))
      (loop for shard below +shards+
            for time = (svref (timer-queue-times timer-queue) shard)
            when (and time (<= time now) (not (svref (timer-queue-busy timer-queue) shard)))
              do (setf (svref (timer-queue-busy timer-queue) shard) t
                       (svref (timer-queue-times timer-queue) shard) nil)
                 (return shard)))))

(defun leave-shard (node shard)
  (let ((timer-queue (node-timer-queue node)))
    (sb-thread:with-mutex ((timer-queue-lock timer-queue))
      (setf (svref (timer-queue-busy timer-queue) shard) nil))))

(defun sleep-seconds (node)
  "How long the job of NODE's timers may wait until it runs again."
  (let* ((timer-queue (node-timer-queue node))
         (next (sb-thread:with-mutex ((timer-queue-lock timer-queue))
                 (loop with next = nil
                       for time across (timer-queue-times timer-queue)
                       for busy across (timer-queue-busy timer-queue)
                       when (and time (not busy))
                         do (setf next (min time (or next time)))
                       finally (return next)))))
    (if next
        (max 0 (min +longest-sleep-seconds+ (/ (- next (node-now node)) 1000)))
        +longest-sleep-seconds+)))

;;; Errands that are due

(defun handle-errand (node errand)
  "Do ERRAND, if it is of a kind that is done one by one."
  (alexandria:switch ((errand-name errand) :test #'string=)
    ("start" (start-children node (errand-id errand)))
    ("cancel" (cancel-children node errand))
    ("schedule" (run-schedule node errand))))

(defun handle-errands (node errands)
  "Do all ERRANDS, even if one of them fails. Return the ids of the workflows that were changed."
  (flet ((end-p (errand) (string= "end" (errand-name errand))))
    (let ((parents (tell-parents node (remove-if-not #'end-p errands)))
          (others (remove-if #'end-p errands)))
      (dolist (errand others)
        (for-one (node (errand-id errand)) (handle-errand node errand)))
      (append parents (mapcar #'errand-id others)))))

;;; Due events

(defun due-item (node entry parts)
  "The item that is due by the key of ENTRY, whose parts after its time are PARTS: the id of a
workflow, a string, or an ERRAND; nil if the key or its value has another form."
  (destructuring-bind (&optional first second &rest more) parts
    (cond (more nil)
          (second (entry-errand node entry first second))
          ((and first (name-p first)) first))))

(defun due-page (node shard from before)
  "Three values for a page of SHARD's keys that begins at FROM: the items due before BEFORE, see
DUE-ITEM; the time of the first later item, or nil; and the key, octets, at which the next page
begins, if more items may be due there."
  (let ((prefix (node-key node "index/due" (shard-text shard) ""))
        (count 0) (items '()) (next nil) (last nil))
    (etcd:map-entries (lambda (entry)
                        (let* ((parts (entry-parts entry prefix))
                               (time (and parts (text-time (first parts))))
                               (item (due-item node entry (rest parts))))
                          (incf count)
                          (setf last entry)
                          (cond ((or (null time) (null item)))
                                ((<= time before) (push item items))
                                ((null next) (setf next time)))))
                      (node-etcd node) :from (or from prefix) :to (key-behind prefix)
                                       :limit +due-page+)
    (values (nreverse items) next
            (and (null next) (= count +due-page+) (key-after last)))))

(defun handle-items (node items)
  "Do ITEMS, of DUE-PAGE. Return true if some must be done later."
  (let ((ids (remove-if-not #'stringp items)) (others '()))
    (each-though-full
      (setf others (handle-errands node (remove-if #'stringp items)))
      (change-together node ids #'handle-due-event))
    (some (lambda (id) (stuck-p node id)) (append ids others))))

(defun handle-shard (node shard &key (late-ms 0))
  "Do the items of SHARD that have been due for LATE-MS at least. Return the time of the shard's
next item, in milliseconds since 1970; nil if it has none. Signal SPACE-EXCEEDED after the last item
if the store was full."
  (let ((from nil) (again nil) (full nil))
    (flet ((note-again (ms) (setf again (min ms (or again ms)))))
      (loop
        (multiple-value-bind (items next more)
            (due-page node shard from (- (node-now node) late-ms))
          (handler-case (when (handle-items node items)
                          (note-again (+ (node-now node) (* 1000 +stuck-seconds+))))
            ;; later items may delete ended workflows, which makes room
            (etcd:space-exceeded (condition) (setf full condition)))
          (when next (note-again next))
          (when (or (null more) (task-queue-closed (node-task-queue node)))
            (when full (error full))
            (return again))
          (setf from more))))))

(defun handle-due (node &key (late-ms 0))
  "Do the items of all shards that have been due for LATE-MS at least."
  (map-though-full (lambda (shard) (handle-shard node shard :late-ms late-ms))
                   (alexandria:iota +shards+)))

(defun sweep-timers (node)
  "Check all that is due in every shard, since the node that has a shard may have fallen behind."
  (look-at-all-timers node)
  (handle-due node :late-ms +overdue-ms+))

;;; The jobs

(defun handle-own-shards (node)
  "Do the due items of NODE's own shards, one shard after the other."
  (loop for shard = (take-shard node)
        while shard
        do (let ((again (+ (node-now node) (* 1000 +longest-sleep-seconds+)))) ; after an error
             (unwind-protect
                  (handler-case (setf again (handle-shard node shard))
                    ;; other shards may have items that make room
                    (etcd:space-exceeded ()
                      (setf again (+ (node-now node) (* 1000 +full-seconds+)))))
               (leave-shard node shard)
               (when again (note-due node shard again))))))

(defun run-timers (node)
  "Run a job of the timers once. Return the seconds until the job runs again."
  (handler-case (progn (handle-own-shards node)
                       (sleep-seconds node))
    ((or etcd:etcd-error workflow-error) ()
      +longest-sleep-seconds+)
    (error (condition)
      (log-event :error :workflow-clock-error :condition (bounded-text condition))
      +longest-sleep-seconds+)))
