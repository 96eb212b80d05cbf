;;;; The clock: a job of each node that does what nobody calls for. It does what has come due, by
;;;; the keys of the index, of whatever workflow; gives to others what sessions that have ended had
;;;; claimed; keeps the watch of the index; counts. It looks when the next thing is due, when the
;;;; watch tells of something sooner, and every second in any case, since clocks can be set.
;;;;
;;;; All nodes do the same, in different orders. Where two do one thing, the store takes one of the
;;;; changes, and the other node finds that there is nothing left to do.

(in-package #:clgrpc.workflow)

(defconstant +longest-sleep-seconds+ 1)
(defconstant +sweep-seconds+ 30 "How often claims of sessions are looked for that have ended.")
(defconstant +count-seconds+ 2 "How often workflows and ready tasks are counted.")
(defconstant +due-page+ 64 "So many keys that are due are fetched at once.")

;;; The wakeup

(defun wake-timer-queue (node function)
  "Call FUNCTION, which changes the wakeup of NODE, under its lock; the clock's job looks at it."
  (let ((wakeup (node-wakeup node)))
    (sb-thread:with-mutex ((wakeup-lock wakeup)) (funcall function wakeup))
    (when (node-ticker node) (loop:wake-job (node-ticker node)))))

(defun note-due (node ms)
  "Something is due at MS, in milliseconds since 1970."
  (let* ((wakeup (node-wakeup node)) (next (wakeup-next-ms wakeup)))
    (when (or (null next) (< ms next))
      (wake-timer-queue node (lambda (wakeup) (setf (wakeup-next-ms wakeup) ms))))))

(defun sleep-seconds (node)
  "How long the clock of NODE may sleep."
  (let* ((wakeup (node-wakeup node))
         (next (sb-thread:with-mutex ((wakeup-lock wakeup)) (wakeup-next-ms wakeup))))
    (if next
        (max 0 (min +longest-sleep-seconds+ (/ (- next (node-now node)) 1000)))
        +longest-sleep-seconds+)))

;;; The watch of the index

(defun note-index-change (node change)
  "CHANGE is one of the index."
  (let* ((put (eq :put (etcd:change-kind change)))
         (parts (rest (key-parts (node-root node) (etcd:entry-key (etcd:change-entry change)))))
         (name (first parts)) (what (second parts)) (id (first (last parts))))
    (cond ((null what))                 ; none of ours
          ((and put (string= "ready" name)) (note-ready node what id))
          ((and put (string= "due" name))
           (let ((time (text-time what))) (when time (note-due node time))))
          ((string/= "sessions" name))
          (put (note-session node what))
          (t (forget-session node what)
             (end-claims-of node what)
             (wake-timer-queue node (lambda (wakeup) (push what (wakeup-ended wakeup))))))))

(defun note-sessions (node)
  "Note which sessions are open now. Return the revision at which they are."
  (let ((prefix (node-key node "index/sessions" "")))
    (sb-thread:with-mutex ((node-lock node)) (clrhash (node-session-names node)))
    (etcd:map-entries (lambda (entry)
                        (note-session node (subseq (etcd:entry-key entry) (length prefix))))
                      (node-etcd node) :prefix prefix :keys-only t)))

(defun end-claims-of-lost-sessions (node)
  "End claims that wait whose sessions ended while no watch told it."
  (dolist (session (waiting-sessions (node-task-queue node)))
    (unless (etcd:fetch (node-etcd node) (session-key node session))
      (end-claims-of node session))))

(defun watch-index (node)
  "Watch the index from now on, and look at what has come before."
  (sb-thread:with-mutex ((wakeup-lock (node-wakeup node)))
    (setf (wakeup-lost-watch (node-wakeup node)) nil))
  ;; the store may have gone back
  (forget-states node)
  (setf (node-index-watch node)
        (etcd:watch (node-etcd node)
                    (lambda (changes revision)
                      (declare (ignore revision))
                      (dolist (change changes) (note-index-change node change)))
                    :prefix (node-key node "index/") :after (note-sessions node)
                    :on-end (lambda (condition)
                              (declare (ignore condition))
                              (wake-timer-queue node (lambda (wakeup)
                                                       (setf (wakeup-lost-watch wakeup) t)))))))

(defun ensure-index-watch (node)
  "Watch the index unless it is watched. Return true if it was not."
  (when (wakeup-lost-watch (node-wakeup node))
    (handler-bind ((etcd:etcd-error
                     (lambda (error)
                       (declare (ignore error))
                       (sb-thread:with-mutex ((wakeup-lock (node-wakeup node)))
                         (setf (wakeup-lost-watch (node-wakeup node)) t)))))
      (watch-index node))
    (retry-all-claims node)
    (end-claims-of-lost-sessions node)
    t))

;;; What is due

(defun due-page (node from)
  "Ids of what is due now at NODE, of a page of keys that begins at FROM; when the first thing is
due that is not, or nil; and the last key of the page if there may be more that is due behind it."
  (let ((prefix (node-key node "index/due" "")) (now (node-now node))
        (count 0) (ids '()) (next nil) (last nil))
    (etcd:map-entries (lambda (entry)
                        (let* ((parts (key-parts prefix (etcd:entry-key entry)))
                               (time (text-time (first parts))))
                          (incf count)
                          (setf last (etcd:entry-key entry))
                          (cond ((or (null time) (null (second parts)))) ; none of ours
                                ((<= time now) (push (second parts) ids))
                                ((null next) (setf next time)))))
                      (node-etcd node) :from from :to (key-behind prefix) :keys-only t
                                       :limit +due-page+)
    (values ids next (and (null next) (= count +due-page+) last))))

(defun do-due (node)
  "Do what is due at NODE, and note when something will be."
  (let ((wakeup (node-wakeup node)) (from (node-key node "index/due" "")))
    (sb-thread:with-mutex ((wakeup-lock wakeup)) (setf (wakeup-next-ms wakeup) nil))
    (loop
      (multiple-value-bind (ids next last) (due-page node from)
        (dolist (id (shuffled node ids))
          (for-one (node id) (change-workflow node id #'note-time)))
        (when next (note-due-quietly wakeup next))
        (when (or (null last) (task-queue-closed (node-task-queue node))) (return))
        (setf from (format nil "~A~C" last (code-char 0)))))))

(defun note-due-quietly (wakeup ms)
  "Something is due at MS; this is the clock itself."
  (sb-thread:with-mutex ((wakeup-lock wakeup))
    (setf (wakeup-next-ms wakeup) (min ms (or (wakeup-next-ms wakeup) ms)))))

;;; Sessions that have ended

(defun do-ended-sessions (node)
  "Give to others what the sessions had claimed that the watch says have ended."
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
  "The sessions that have claimed tasks."
  (let ((prefix (node-key node "claims" "")) (sessions '()))
    (etcd:map-entries (lambda (entry)
                        (let ((session (first (key-parts prefix (etcd:entry-key entry)))))
                          (unless (equal session (first sessions)) (push session sessions))))
                      (node-etcd node) :prefix prefix :keys-only t)
    sessions))

(defun sweep-sessions (node)
  "Give to others what sessions had claimed that ended when no node watched."
  (dolist (session (claiming-sessions node))
    (unless (etcd:fetch (node-etcd node) (session-key node session))
      (end-session-claims node session))))

;;; The job

(defun count-node (node)
  (setf (node-running node) (etcd:count-entries (node-etcd node)
                                                :prefix (node-key node "by" "running" ""))
        (node-ready node) (etcd:count-entries (node-etcd node)
                                              :prefix (node-key node "index/ready" ""))))

(defun report-health (node status)
  (when (node-health node)
    (services:set-health-status (node-health node) "clgrpc.workflow.v1.Workflow" status)))

(defun run-timers (node due)
  "Do what there is to do at NODE. DUE is a function of a name and seconds: true if so many have
passed since it was last so."
  (let ((new (ensure-index-watch node)))
    (do-ended-sessions node)
    (when (or new (funcall due :sweep +sweep-seconds+)) (sweep-sessions node))
    (when (or new (funcall due :count +count-seconds+)) (count-node node))
    (do-due node)))

(defun make-due ()
  "A function as RUN-TIMERS takes it."
  (let ((times '()))
    (lambda (name seconds)
      (let ((now (loop:world-now)) (last (getf times name)))
        (when (or (null last) (<= (+ last (seconds-ns seconds)) now))
          (setf (getf times name) now)
          t)))))

(defun run-timer-queue (node due)
  "What the clock's job does; DUE is for RUN-TIMERS. Return the seconds until it looks again. What
the store does not do now is done when it is back."
  (handler-case (progn (run-timers node due)
                       (loop:tell-recovery (node-ticker node) :workflow-store-back)
                       (report-health node :serving))
    ((or etcd:etcd-error workflow-error) (condition)
      (loop:tell-failure (node-ticker node) :workflow-store-trouble condition)
      (report-health node :not-serving))
    (error (condition)
      (log-event :error :workflow-clock-error :condition (princ-to-string condition))))
  (sleep-seconds node))

(defun make-workflow-service (etcd &rest limits &key (namespace "default") metrics health clock
                              &allow-other-keys)
  "Return a service of workflows, to be given to START-SERVER, whose store is ETCD, of MAKE-ETCD.
Any number of nodes serve the workflows of one NAMESPACE, a string, which is part of every key.
METRICS are what MAKE-METRICS returned, to be counted in; HEALTH is a HEALTH-SERVICE, told whether
the store answers. CLOCK is a function that returns the time in nanoseconds since 1970, by default
the machine's: timers and deadlines are kept by it.
Limits, for this node: :max-payload-octets (1000000) of inputs, a result, a signal; :max-steps
(256), :max-changes (5000), :max-state-octets (400000), which its steps and what is known of them
take, and :max-signals (100), which wait, of a workflow; :max-running (1000000) workflows;
:max-sessions (100000); :max-waiting-claims (10000); :max-watches (256); :max-tasks (16) of a claim;
:retention-seconds (a week; nil for ever) for which a workflow that has ended is kept.
It has threads from now on; end them with CLOSE-WORKFLOW-SERVICE, or by stopping its server. ETCD
need not be reachable yet. Signal MISUSE for a wrong namespace. From any thread."
  (let* ((node (make-instance 'workflow-service
                              :etcd etcd :namespace namespace :root (root-of namespace)
                              :health health
                              :clock (or clock #'loop:unix-ns)
                              :limits (apply #'make-limits
                                             (alexandria:remove-from-plist
                                              limits :namespace :metrics :health :clock)))))
    (begin-counting node metrics)
    (let ((due (make-due)))
      (setf (node-ticker node) (etcd:add-job etcd (lambda () (run-timer-queue node due)))
            (task-queue-idle (node-task-queue node))
            (loop repeat +claimers+ collect (new-claimer node))
            (node-jobs node) (cons (node-ticker node) (task-queue-idle (node-task-queue node)))))
    (loop:wake-job (node-ticker node))
    node))

(defun close-workflow-service (service)
  "End SERVICE, of MAKE-WORKFLOW-SERVICE: claims and watches that wait end, its threads end. Its
store is not closed. Nothing of its workflows is lost; other nodes go on with them. From any thread
but its own."
  (end-counting service)
  (close-task-queue service)
  (end-watches service)
  (mapc #'loop:end-job (node-jobs service))
  (when (node-index-watch service)
    (etcd:cancel-watch (shiftf (node-index-watch service) nil)))
  ;; by which the service was called as an object
  (let ((channel (method:direct-channel service)))
    (when channel (calling:close-channel channel)))
  nil)
