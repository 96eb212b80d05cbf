;;;; The hub of a node: it mirrors the members in the store, keeps the node's view of them, and
;;;; tells its listeners and the watchers of the service. One mirror of the store serves them all.
;;;;
;;;; A watcher is a call that has been told all changes before its NEXT revision. It is told what
;;;; the view remembers from there on, as far as its call takes it. If the view remembers no more
;;;; what it wants (it asks for what was before this node, or was slow), it gets a FEED, a watch of
;;;; the store of its own, until it has come to what the view has. If the mirror begins anew, since
;;;; changes were compacted that it was not told, or the store has lost its data or has older ones,
;;;; what watchers were told has no sequel: their calls end with OUT_OF_RANGE, and they begin anew.
;;;;
;;;; LOCK is of all of these. Nothing waits while it is held, and no code of users runs.

(in-package #:clgrpc.cluster)

(defconstant +most-watchers+ 1000 "Watchers of a node.")
(defconstant +most-feeds+ 32 "Watchers of a node that read the store.")
(defconstant +pause-seconds+ 1/2 "How long a hub waits before it asks a feed how far it is.")

(defstruct (watcher (:copier nil))
  "A call of Watch."
  (call nil :type rpc:call :read-only t) ; that watches
  (next 0 :type (signed-byte 64))       ; the revision it is to be told from; 0: all members first
  (feed nil :type (or null (eql :starting) etcd:watch))) ; of its own, while it has one

(defstruct (hub (:constructor %make-hub (store cluster)) (:copier nil))
  "What a node knows of its cluster, and who wants to be told."
  (store nil :type etcd:etcd :read-only t) ; a client
  (cluster "" :type string :read-only t) ; its name
  (view (make-view) :type view :read-only t) ; what is known
  (lock (sb-thread:make-mutex :name "clgrpc cluster") :read-only t) ; of all of it
  (bell (sb-thread:make-waitqueue :name "clgrpc cluster") :read-only t) ; the view has changed
  (listeners '() :type list)            ; functions of changes, called on the watch's thread
  (watchers '() :type list)             ; calls that are told
  (on-watchers nil :type (or null function)) ; of how many they are, whenever that changes
  (feeds 0 :type index)                 ; how many of them have feeds
  (refused '() :type list)              ; those that get none: their calls end once LOCK is free
  (mirror nil :type (or null etcd:mirror)) ; of the store
  ;; before a feed is asked how far it is
  (pauses (loop:make-pauses +pause-seconds+ +pause-seconds+) :type loop:pauses :read-only t)
  (closed nil :type boolean))           ; it is to end

(declaim (sb-ext:freeze-type watcher hub))

(defmethod print-object ((hub hub) stream)
  (print-unreadable-object (hub stream :type t)
    (format stream "~A, ~A, ~D watchers" (hub-cluster hub) (hub-view hub)
            (length (hub-watchers hub)))))

(defmacro with-hub ((hub) &body body)
  `(sb-thread:with-mutex ((hub-lock ,hub)) ,@body))

(defmacro telling-watchers ((hub) &body body)
  "Evaluate BODY, which may tell watchers, with the lock, and then end the calls of those that are
to have no feed: ON-CANCEL may be called on this thread, and takes the lock."
  `(multiple-value-prog1 (with-hub (,hub) ,@body)
     (end-refused ,hub)))

;;; Messages

(defun change-message (change)
  (pb:make-change :kind (ecase (change-kind change)
                          (:joined :change-kind-joined)
                          (:updated :change-kind-updated)
                          (:left :change-kind-left)
                          (:lost :change-kind-lost))
                  :member (member-message (change-member change))))

(defun changes-response (revision changes)
  (pb:make-watch-response :revision revision :changes (mapcar #'change-message changes)))

(defun snapshot-response (view)
  (pb:make-watch-response :revision (view-revision view) :snapshot t
                          :members (mapcar #'member-message (view-list view))))

;;; Watchers

(defun tell-watcher (hub watcher)
  "Tell WATCHER what it has not been told, as far as its call takes it now. The lock is held."
  (let ((call (watcher-call watcher)) (view (hub-view hub)))
    (unless (or (watcher-feed watcher) (rpc:call-status call))
      (handler-case
          (cond ((zerop (view-revision view))) ; it knows nothing yet
                ((zerop (watcher-next watcher))
                 (when (rpc:try-send call (snapshot-response view))
                   (setf (watcher-next watcher) (1+ (view-revision view)))))
                (t (let ((changes (changes-from view (watcher-next watcher))))
                     (if (eq :forgotten changes)
                         (feed-watcher hub watcher)
                         (loop for (revision . changes) in changes
                               while (rpc:try-send call (changes-response revision changes))
                               do (setf (watcher-next watcher) (1+ revision)))))))
        ;; it has ended meanwhile; ON-CANCEL follows
        (status:rpc-error ())))))

(defun end-watcher (watcher condition)
  "End the call of WATCHER by CONDITION. The lock is not held: ON-CANCEL may come on this thread."
  (handler-case (rpc:finish (watcher-call watcher) :status (condition-status condition)
                                                   :message (princ-to-string condition))
    ;; it has ended meanwhile
    (status:rpc-error ())))

(defun end-refused (hub)
  "End the calls of those that HUB has refused a feed."
  (dolist (watcher (with-hub (hub) (shiftf (hub-refused hub) '())))
    (end-watcher watcher (make-condition 'etcd:overloaded
                                         :text (format nil "~D watchers read the store already"
                                                       +most-feeds+)))))

(defun feed-watcher (hub watcher)
  "Begin a feed of WATCHER, or refuse it. The lock is held."
  (cond ((<= +most-feeds+ (hub-feeds hub)) (pushnew watcher (hub-refused hub)))
        (t (incf (hub-feeds hub))
           (setf (watcher-feed watcher) :starting)
           (etcd:run-in-background (hub-store hub) (lambda () (run-feed hub watcher))))))

(defun drop-feed (hub watcher)
  "WATCHER has its feed no more. The lock is held."
  (when (watcher-feed watcher)
    (decf (hub-feeds hub))
    (setf (watcher-feed watcher) nil)))

(defun end-feed (hub watcher condition)
  "WATCHER has its feed no more; by CONDITION, if that is not nil, its call ends."
  (with-hub (hub) (drop-feed hub watcher))
  (when condition (end-watcher watcher condition)))

(defun outrun-feed (hub watcher feed)
  "End FEED, which WATCHER has, if all is told that the view does not remember, though no change has
come that says so."
  ;; etcd before 3.4.25 and 3.5.8 may tell the progress of a watch before the changes that it is
  ;; about, until it has caught up
  (pause-hub hub)
  (let ((progress (handler-case (etcd:await-progress feed)
                    ;; it has ended, or ends with the next change
                    (etcd:etcd-error () nil))))
    (flet ((outrun-p ()
             (and progress (eq feed (watcher-feed watcher))
                  (<= (view-first (hub-view hub)) (1+ progress)))))
      (when (with-hub (hub) (outrun-p))
        ;; nobody else changes NEXT from here on
        (etcd:cancel-watch feed)
        (telling-watchers (hub)
          (when (eq feed (watcher-feed watcher))
            (drop-feed hub watcher)
            (setf (watcher-next watcher) (max (watcher-next watcher)
                                              (min (1+ progress) (view-first (hub-view hub)))))
            (tell-watcher hub watcher)))))))

(defun run-feed (hub watcher)
  "Begin a feed: wait for the store, and see that the feed ends."
  (handler-case
      (let ((feed (etcd:watch (hub-store hub)
                              (lambda (changes revision)
                                (take-feed hub watcher changes revision))
                              :prefix (members-prefix (hub-cluster hub)) :previous t
                              :revision (watcher-next watcher)
                              :on-end (lambda (condition) (end-feed hub watcher condition)))))
        (cond ((with-hub (hub)
                 (cond ((eq :starting (watcher-feed watcher))
                        (setf (watcher-feed watcher) feed)
                        ;; it may have ended while there was none to cancel
                        (rpc:call-status (watcher-call watcher)))
                       (t t)))
               (etcd:cancel-watch feed)
               (end-feed hub watcher nil))
              (t (outrun-feed hub watcher feed))))
    (etcd:etcd-error (condition) (end-feed hub watcher condition))))

(defun put-member (change cluster)
  "The member of CLUSTER that CHANGE of the store has put, or nil."
  (and (eq :put (etcd:change-kind change))
       (entry-member (etcd:change-entry change) cluster)))

(defun feed-changes (changes cluster)
  "The changes of CLUSTER that CHANGES of the store, each with what was before, are."
  (loop for change in changes
        append (member-changes (entry-member (etcd:change-previous change) cluster)
                               (put-member change cluster))))

(defun take-feed (hub watcher changes revision)
  "Tell WATCHER the CHANGES of the store at REVISION, waiting for room; end its feed once the view
has what follows."
  (let ((feed (with-hub (hub) (watcher-feed watcher))))
    ;; it may have been given up since
    (unless feed (return-from take-feed))
    (handler-case
        (progn
          (when (<= (watcher-next watcher) revision)
            (let ((changes (feed-changes changes (hub-cluster hub))))
              (when changes
                (rpc:send (watcher-call watcher) (changes-response revision changes))))
            (setf (watcher-next watcher) (1+ revision)))
          (when (with-hub (hub) (<= (view-first (hub-view hub)) (watcher-next watcher)))
            (telling-watchers (hub)
              (drop-feed hub watcher)
              (tell-watcher hub watcher))
            (when (typep feed 'etcd:watch) (etcd:cancel-watch feed))))
      (status:rpc-error ()
        (end-feed hub watcher nil)
        (when (typep feed 'etcd:watch) (etcd:cancel-watch feed))))))

(defun count-watchers (hub)
  "Tell who wants to know how many watch. The lock is held."
  (when (hub-on-watchers hub)
    (funcall (hub-on-watchers hub) (length (hub-watchers hub)))))

(defun add-watcher (hub watcher)
  "Tell WATCHER what it wants from now on. Signal OVERLOADED if there are as many as there may be."
  (telling-watchers (hub)
    (when (<= +most-watchers+ (length (hub-watchers hub)))
      (error 'etcd:overloaded :text (format nil "~D watch already" +most-watchers+)))
    ;; one that has ended may have been removed already
    (unless (rpc:call-status (watcher-call watcher))
      (push watcher (hub-watchers hub))
      (count-watchers hub)
      (tell-watcher hub watcher))))

(defun check-revision (hub revision)
  "If the view of HUB is before what comes before REVISION, it may be late. If the store is, too, it
has gone back: signal FUTURE-REVISION, since nothing would be told until it had been there again."
  (when (< (with-hub (hub) (view-revision (hub-view hub))) (1- revision))
    (let ((now (nth-value 2 (fetch-entry (hub-store hub) (hub-cluster hub) "-"))))
      (when (< now (1- revision))
        (error 'etcd:future-revision
               :text (format nil "the store is at revision ~D, before ~D" now revision))))))

(defun remove-watcher (hub watcher)
  "WATCHER's call has ended. From its loop, so this waits for nothing."
  (let ((feed (with-hub (hub)
                (setf (hub-watchers hub) (delete watcher (hub-watchers hub)))
                (count-watchers hub)
                (watcher-feed watcher))))
    (when (typep feed 'etcd:watch)
      (end-feed hub watcher nil)
      (etcd:run-in-background (hub-store hub) (lambda () (etcd:cancel-watch feed))))))

(defun dismiss-watchers (hub)
  "End the calls of all watchers, since the server stops."
  (dolist (watcher (with-hub (hub) (copy-list (hub-watchers hub))))
    (rpc:finish (watcher-call watcher) :status :unavailable :message "the node is stopping")))

;;; Following the store

(defun note-changed (hub changes &optional first)
  "The view of HUB has come by CHANGES: tell who waits, also for none if it is the FIRST. The lock
is held."
  (when (or changes first)
    (sb-thread:condition-broadcast (hub-bell hub))
    (dolist (watcher (hub-watchers hub)) (tell-watcher hub watcher))))

(defun tell-listeners (hub changes)
  (when changes
    (dolist (listener (with-hub (hub) (hub-listeners hub)))
      (loop:guarding (:cluster-listener-error) (funcall listener changes)))))

(defun take-changes (hub changes revision)
  "CHANGES of the store have made REVISION. What nobody may be called has not changed anything."
  (let* ((cluster (hub-cluster hub))
         (noted (telling-watchers (hub)
                  (let ((noted (loop for change in changes
                                     for name = (entry-name (etcd:change-entry change) cluster)
                                     when name
                                       append (note-event (hub-view hub) name
                                                          (put-member change cluster)
                                                          revision))))
                    (note-changed hub noted)
                    noted))))
    (tell-listeners hub noted)))

(defun turn-away-watchers (hub revision)
  "What became of the members behind REVISION is not known: have those begin anew who have been told
anything."
  (let ((condition (make-condition 'etcd:compacted
                                   :text (format nil "the changes behind revision ~D are ~
                                                      compacted, or the store has gone back"
                                                 revision)
                                   :revision revision)))
    (dolist (watcher (with-hub (hub)
                       (remove-if #'zerop (hub-watchers hub) :key #'watcher-next)))
      (end-watcher watcher condition))))

(defun take-entries (hub entries revision)
  "ENTRIES are all that the store has of members, at REVISION: at first, and whenever changes are
compacted that were not told, or the store has lost its data or has older ones."
  (let* ((members (entries-members entries (hub-cluster hub))) (view (hub-view hub))
         (before (view-revision view)))
    (when (plusp before) (turn-away-watchers hub before))
    (tell-listeners hub (telling-watchers (hub)
                          (let ((changes (note-snapshot view members revision)))
                            (note-changed hub changes (zerop before))
                            changes)))))

(defun pause-hub (hub)
  "Wait for about +PAUSE-SECONDS+ or until HUB is closed."
  (loop:await-until (hub-bell hub) (hub-lock hub)
                    (loop:notice-end (loop:next-pause (hub-pauses hub)))
                    (lambda () (hub-closed hub))))

(defun follow-store (hub)
  "Have HUB know, as soon as the store can be asked, what members there are and become."
  (setf (hub-mirror hub)
        (etcd:mirror (hub-store hub)
                     (lambda (kind items revision)
                       (ecase kind
                         (:entries (take-entries hub items revision))
                         (:changes (take-changes hub items revision))))
                     :prefix (members-prefix (hub-cluster hub))
                     :on-trouble (lambda (condition)
                                   (log-event :warning :cluster-watch-ended
                                              :cluster (hub-cluster hub)
                                              :condition (princ-to-string condition)))))
  hub)

(defun make-hub (store cluster)
  "Return a hub of CLUSTER in STORE, which knows nothing before FOLLOW-STORE."
  (%make-hub store (check-name cluster "cluster")))

(defun close-hub (hub)
  "Have HUB follow the store no longer. Not from its listeners."
  (with-hub (hub)
    (setf (hub-closed hub) t)
    (sb-thread:condition-broadcast (hub-bell hub)))
  (when (hub-mirror hub) (etcd:cancel-mirror (hub-mirror hub))))

(defun add-listener (hub function)
  "Have FUNCTION called with the changes of each revision, a list, on a thread that may wait a
little, and that nothing else is told by meanwhile."
  (with-hub (hub) (setf (hub-listeners hub) (append (hub-listeners hub) (list function)))))

(defun hub-members (hub)
  "The members that HUB knows, by name, and their revision."
  (with-hub (hub) (values (view-list (hub-view hub)) (view-revision (hub-view hub)))))

(defun hub-member (hub name)
  "The member NAME that HUB knows, or nil, and the revision of which that is so."
  (with-hub (hub) (values (view-member (hub-view hub) name) (view-revision (hub-view hub)))))

(defun hub-count (hub)
  "How many members HUB knows."
  (with-hub (hub) (hash-table-count (view-members (hub-view hub)))))

(defun await-view (hub predicate seconds)
  "Wait at most SECONDS until PREDICATE is true of the members of HUB, a list; return what it has
returned last."
  (let ((end (loop:notice-end seconds)))
    (loop
      (let* ((revision nil)
             (result (funcall predicate (multiple-value-bind (members at) (hub-members hub)
                                          (setf revision at)
                                          members))))
        (when (or result (<= end (loop:world-now))) (return result))
        (with-hub (hub)
          (when (= revision (view-revision (hub-view hub)))
            (loop:await-notice (hub-bell hub) (hub-lock hub) end)))))))
