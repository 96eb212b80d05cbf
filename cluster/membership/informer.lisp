;;;; The informer of a node: it mirrors the members in the store, keeps the node's view of them, and
;;;; passes changes to its listeners and to the watchers of the service. One mirror of the store
;;;; serves all watchers.
;;;;
;;;; A watcher is a call that has got all changes before its NEXT revision. The watcher gets the
;;;; changes that the view remembers from there on, as many as the call accepts. The view may have
;;;; forgotten changes that the watcher needs: they are older than this node, or the watcher was
;;;; slow. Such a watcher gets a CATCH-UP, a separate watch of the store, until the watcher has come
;;;; to the view's first change. The mirror reads all members again when changes were compacted
;;;; before they reached the mirror, or when the store has lost its data or has older data. After
;;;; that the watchers cannot get the next changes: their calls end with OUT_OF_RANGE, and the
;;;; watchers begin again.
;;;;
;;;; LOCK guards all slots of the informer. A thread that holds LOCK waits for nothing, and runs no
;;;; code of users.

(in-package #:clgrpc.cluster)

(defconstant +most-watchers+ 1000 "The maximum number of watchers of a node.")
(defconstant +most-catch-ups+ 32
  "The maximum number of watchers of a node that read the store at once.")
(defconstant +pause-seconds+ 1/2
             "How long an informer waits before it asks for the progress of a catch-up.")

(defstruct (watcher (:copier nil))
  "A call of Watch."
  (call nil :type rpc:call :read-only t) ; the call that watches
  ;; the first revision that it has not received; 0: all members first
  (next 0 :type (signed-byte 64))
  ;; a separate watch while the watcher catches up
  (catch-up nil :type (or null (eql :starting) etcd:watch)))

(defstruct (informer (:constructor %make-informer (store cluster)) (:copier nil))
  "A node's view of its cluster, and its listeners and watchers."
  (store nil :type etcd:etcd :read-only t) ; a client
  (cluster "" :type string :read-only t) ; the cluster's name
  (view (make-view) :type view :read-only t) ; the members and recent changes
  (lock (sb-thread:make-mutex :name "clgrpc cluster") :read-only t) ; guards all slots
  (waitqueue (sb-thread:make-waitqueue :name "clgrpc cluster") :read-only t) ; the view has changed
  (listeners '() :type list)            ; functions of changes, called on the watch's thread
  (watchers '() :type list)             ; calls that get the changes
  ;; a function of the number of watchers, called when it changes
  (on-watchers nil :type (or null function))
  (catch-ups 0 :type index)             ; how many watchers have catch-ups
  ;; watchers that get no catch-up: their calls end once LOCK is free
  (refused '() :type list)
  (mirror nil :type (or null etcd:mirror)) ; the mirror of the store, or nil
  ;; the pauses before a catch-up's progress is requested
  (pauses (loop:make-pauses +pause-seconds+ +pause-seconds+) :type loop:pauses :read-only t)
  (closed nil :type boolean))           ; true: the informer must end

(declaim (sb-ext:freeze-type watcher informer))

(define-printer (informer informer)
  "~A, ~A, ~D watchers" (informer-cluster informer) (informer-view informer)
  (length (informer-watchers informer)))

(defmacro with-informer ((informer) &body body)
  `(sb-thread:with-mutex ((informer-lock ,informer)) ,@body))

(defmacro telling-watchers ((informer) &body body)
  "Evaluate BODY, which may send to watchers, with the lock. Then, without the lock, end the calls
of the watchers that were refused a catch-up, because ON-CANCEL also takes the lock and may be
called on this thread."
  `(multiple-value-prog1 (with-informer (,informer) ,@body)
     (end-refused-informer ,informer)))

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

(defun tell-watcher (informer watcher)
  "Send WATCHER the changes that it has not received, as many as its call accepts now. The caller
must hold the lock."
  (let ((call (watcher-call watcher)) (view (informer-view informer)))
    (unless (or (watcher-catch-up watcher) (rpc:call-status call))
      (handler-case
          (cond ((zerop (view-revision view))) ; the view has no data yet
                ((zerop (watcher-next watcher))
                 (when (rpc:try-send call (snapshot-response view))
                   (setf (watcher-next watcher) (1+ (view-revision view)))))
                (t (let ((changes (changes-from view (watcher-next watcher))))
                     (if (eq :forgotten changes)
                         (catch-up-watcher informer watcher)
                         (loop for (revision . changes) in changes
                               while (rpc:try-send call (changes-response revision changes))
                               do (setf (watcher-next watcher) (1+ revision)))))))
        ;; the call has ended meanwhile; ON-CANCEL follows
        (status:rpc-error ())))))

(defun end-watcher (watcher condition)
  "End the call of WATCHER by CONDITION. Call this without the informer's lock, because ON-CANCEL
may be called on this thread."
  (handler-case (rpc:finish (watcher-call watcher) :status (condition-status condition)
                                                   :message (bounded-text condition))
    ;; the call has ended meanwhile
    (status:rpc-error ())))

(defun end-refused-informer (informer)
  "End the calls of the watchers that INFORMER has refused a catch-up."
  (dolist (watcher (with-informer (informer) (shiftf (informer-refused informer) '())))
    (end-watcher watcher (make-condition 'etcd:overloaded
                                         :text (format nil "~D watchers read the store already"
                                                       +most-catch-ups+)))))

(defun catch-up-watcher (informer watcher)
  "Begin a catch-up of WATCHER, or refuse it. The caller must hold the informer's lock."
  (cond ((<= +most-catch-ups+ (informer-catch-ups informer))
         (pushnew watcher (informer-refused informer)))
        (t (incf (informer-catch-ups informer))
           (setf (watcher-catch-up watcher) :starting)
           (etcd:run-in-background (informer-store informer)
                                   (lambda () (run-catch-up informer watcher))))))

(defun drop-catch-up (informer watcher)
  "Drop the catch-up of WATCHER. The caller must hold the informer's lock."
  (when (watcher-catch-up watcher)
    (decf (informer-catch-ups informer))
    (setf (watcher-catch-up watcher) nil)))

(defun end-catch-up (informer watcher condition)
  "Drop the catch-up of WATCHER. If CONDITION is not nil, end WATCHER's call with it."
  (with-informer (informer) (drop-catch-up informer watcher))
  (when condition (end-watcher watcher condition)))

(defun finish-catch-up (informer watcher catch-up)
  "End CATCH-UP of WATCHER if WATCHER has got all changes that the view does not remember. Otherwise
only another change would end the catch-up, and perhaps no other change occurs."
  ;; until the watch has caught up, etcd before 3.4.25 and 3.5.8 may report its progress before the
  ;; changes that this progress includes
  (pause-informer informer)
  (let ((progress (handler-case (etcd:await-progress catch-up)
                    ;; the watch has ended, or ends with the next change
                    (etcd:etcd-error () nil))))
    (flet ((outrun-p ()
             (and progress (eq catch-up (watcher-catch-up watcher))
                  (<= (view-first (informer-view informer)) (1+ progress)))))
      (when (with-informer (informer) (outrun-p))
        ;; no other thread changes NEXT from here on
        (etcd:cancel-watch catch-up)
        (telling-watchers (informer)
          (when (eq catch-up (watcher-catch-up watcher))
            (drop-catch-up informer watcher)
            (setf (watcher-next watcher) (max (watcher-next watcher)
                                              (min (1+ progress)
                                                   (view-first (informer-view informer)))))
            (tell-watcher informer watcher)))))))

(defun run-catch-up (informer watcher)
  "Begin a catch-up: wait for the store, and make sure that the catch-up ends."
  (handler-case
      (let ((catch-up (etcd:watch (informer-store informer)
                                  (lambda (changes revision)
                                    (take-catch-up informer watcher changes revision))
                                  :prefix (members-prefix (informer-cluster informer)) :previous t
                                  :revision (watcher-next watcher)
                                  :on-end (lambda (condition)
                                                  (end-catch-up informer watcher condition)))))
        (cond ((with-informer (informer)
                 (cond ((eq :starting (watcher-catch-up watcher))
                        (setf (watcher-catch-up watcher) catch-up)
                        ;; the call may have ended before it had a catch-up to cancel
                        (rpc:call-status (watcher-call watcher)))
                       (t t)))
               (etcd:cancel-watch catch-up)
               (end-catch-up informer watcher nil))
              (t (finish-catch-up informer watcher catch-up))))
    (etcd:etcd-error (condition) (end-catch-up informer watcher condition))))

(defun put-member (change cluster)
  "The member of CLUSTER that CHANGE of the store has put; nil if CHANGE has put none."
  (and (eq :put (etcd:change-kind change))
       (entry-member (etcd:change-entry change) cluster)))

(defun catch-up-changes (changes cluster)
  "The changes of CLUSTER that CHANGES of the store mean. Each change of the store contains the
previous entry."
  (loop for change in changes
        append (member-changes (entry-member (etcd:change-previous change) cluster)
                               (put-member change cluster))))

(defun take-catch-up (informer watcher changes revision)
  "Send WATCHER the CHANGES of the store at REVISION, waiting for room; end its catch-up once the
view has the changes that follow."
  (let ((catch-up (with-informer (informer) (watcher-catch-up watcher))))
    ;; the catch-up may have been given up meanwhile
    (unless catch-up (return-from take-catch-up))
    (handler-case
        (progn
          (when (<= (watcher-next watcher) revision)
            (when-let ((changes (catch-up-changes changes (informer-cluster informer))))
              (rpc:send (watcher-call watcher) (changes-response revision changes)))
            (setf (watcher-next watcher) (1+ revision)))
          (when (with-informer (informer)
                               (<= (view-first (informer-view informer)) (watcher-next watcher)))
            (telling-watchers (informer)
              (drop-catch-up informer watcher)
              (tell-watcher informer watcher))
            (when (typep catch-up 'etcd:watch) (etcd:cancel-watch catch-up))))
      (status:rpc-error ()
        (end-catch-up informer watcher nil)
        (when (typep catch-up 'etcd:watch) (etcd:cancel-watch catch-up))))))

(defun count-watchers (informer)
  "Report the number of watchers to the function ON-WATCHERS, if there is one. The caller must hold
the informer's lock."
  (when (informer-on-watchers informer)
    (funcall (informer-on-watchers informer) (length (informer-watchers informer)))))

(defun add-watcher (informer watcher)
  "Send WATCHER the changes from now on. Signal OVERLOADED if there are +MOST-WATCHERS+ already."
  (telling-watchers (informer)
    (when (<= +most-watchers+ (length (informer-watchers informer)))
      (error 'etcd:overloaded :text (format nil "~D watch already" +most-watchers+)))
    ;; a watcher whose call has ended may have been removed already
    (unless (rpc:call-status (watcher-call watcher))
      (push watcher (informer-watchers informer))
      (count-watchers informer)
      (tell-watcher informer watcher))))

(defun check-revision (informer revision)
  "Signal FUTURE-REVISION if the store has not reached the revision before REVISION, because the
store has then gone back to older data, and would report no change until it reaches that revision
again. The store is asked only if the view of INFORMER has not reached that revision, since the view
may merely be late."
  (when (< (with-informer (informer) (view-revision (informer-view informer))) (1- revision))
    (let ((now (nth-value 2
                          (fetch-entry (informer-store informer) (informer-cluster informer) "-"))))
      (when (< now (1- revision))
        (error 'etcd:future-revision
               :text (format nil "the store is at revision ~D, before ~D" now revision))))))

(defun remove-watcher (informer watcher)
  "Remove WATCHER, whose call has ended. This is called on the call's loop, so it must not wait."
  (let ((catch-up (with-informer (informer)
                    (setf (informer-watchers informer)
                          (delete watcher (informer-watchers informer)))
                    (count-watchers informer)
                    (watcher-catch-up watcher))))
    (when (typep catch-up 'etcd:watch)
      (end-catch-up informer watcher nil)
      (etcd:run-in-background (informer-store informer) (lambda () (etcd:cancel-watch catch-up))))))

(defun dismiss-watcher (watcher)
  "End the call of WATCHER, since the server stops."
  (rpc:finish (watcher-call watcher) :status :unavailable :message "the node is stopping"))

(defun dismiss-watchers (informer)
  "As DISMISS-WATCHER, for all watchers of INFORMER."
  (mapc #'dismiss-watcher (with-informer (informer) (copy-list (informer-watchers informer)))))

;;; Following the store

(defun note-changed (informer changes &optional first)
  "Wake the threads that wait for changes of INFORMER's view, which has got CHANGES, and send
CHANGES to the watchers; if this is the FIRST view, do both even without changes. The caller must
hold the informer's lock."
  (when (or changes first)
    (sb-thread:condition-broadcast (informer-waitqueue informer))
    (dolist (watcher (informer-watchers informer)) (tell-watcher informer watcher))))

(defun tell-listeners (informer changes)
  (when changes
    (dolist (listener (with-informer (informer) (informer-listeners informer)))
      (loop:guarding (:cluster-listener-error) (funcall listener changes)))))

(defun take-changes (informer changes revision)
  "Take CHANGES, which have made REVISION of the store. Changes of keys that are not valid names are
ignored."
  (let* ((cluster (informer-cluster informer))
         (noted (telling-watchers (informer)
                  (let ((noted (loop for change in changes
                                     for name = (entry-name (etcd:change-entry change) cluster)
                                     when name
                                       append (note-event (informer-view informer) name
                                                          (put-member change cluster)
                                                          revision))))
                    (note-changed informer noted)
                    noted))))
    (tell-listeners informer noted)))

(defun refuse-watchers (informer revision)
  "End the calls of all watchers that have received something, so that they begin again, since the
changes of the members after REVISION are unknown."
  (let ((condition (make-condition 'etcd:compacted
                                   :text (format nil "the changes after revision ~D are compacted, ~
                                                      or the store has gone back"
                                                 revision)
                                   :revision revision)))
    (dolist (watcher (with-informer (informer)
                       (remove-if #'zerop (informer-watchers informer) :key #'watcher-next)))
      (end-watcher watcher condition))))

(defun take-entries (informer entries revision)
  "Take ENTRIES, all entries of members in the store at REVISION. Entries are read at the beginning,
and again when changes were compacted before they arrived, or when the store has lost data or has
older data."
  (let* ((members (entries-members entries (informer-cluster informer)))
         (view (informer-view informer))
         (before (view-revision view)))
    (when (plusp before) (refuse-watchers informer before))
    (tell-listeners informer (telling-watchers (informer)
                               (let ((changes (note-snapshot view members revision)))
                                 (note-changed informer changes (zerop before))
                                 changes)))))

(defun pause-informer (informer)
  "Wait for about +PAUSE-SECONDS+ or until INFORMER is closed."
  (loop:await-until (informer-waitqueue informer) (informer-lock informer)
                    (loop:notice-end (loop:next-pause (informer-pauses informer)))
                    (lambda () (informer-closed informer))))

(defun follow-store (informer)
  "Start INFORMER. When the store can be reached, it reads the members and then their changes."
  (setf (informer-mirror informer)
        (etcd:mirror (informer-store informer)
                     (lambda (kind items revision)
                       (ecase kind
                         (:entries (take-entries informer items revision))
                         (:changes (take-changes informer items revision))))
                     :prefix (members-prefix (informer-cluster informer))
                     :on-error (lambda (condition)
                                 (log-event :warning :cluster-watch-ended
                                            :cluster (informer-cluster informer)
                                            :condition (bounded-text condition)))))
  informer)

(defun make-informer (store cluster)
  "Return an informer of CLUSTER in STORE, which knows no members until FOLLOW-STORE."
  (%make-informer store (check-name cluster "cluster")))

(defun close-informer (informer)
  "End INFORMER, which stops following the store. INFORMER's listeners must not call
CLOSE-INFORMER."
  (with-informer (informer)
    (setf (informer-closed informer) t)
    (sb-thread:condition-broadcast (informer-waitqueue informer)))
  (when (informer-mirror informer) (etcd:cancel-mirror (informer-mirror informer))))

(defun add-listener (informer function)
  "Add FUNCTION, which is called with the list of the changes of each revision. FUNCTION may wait
briefly; meanwhile no other listener gets changes."
  (with-informer (informer) (setf (informer-listeners informer)
                                  (append (informer-listeners informer) (list function)))))

(defun informer-members (informer)
  "The members that INFORMER knows, by name, and their revision."
  (with-informer (informer) (values (view-list (informer-view informer))
                                    (view-revision (informer-view informer)))))

(defun informer-member (informer name)
  "The member NAME that INFORMER knows, or nil, and the revision of this knowledge."
  (with-informer (informer) (values (view-member (informer-view informer) name)
                                    (view-revision (informer-view informer)))))

(defun informer-count (informer)
  "How many members INFORMER knows."
  (with-informer (informer) (hash-table-count (view-members (informer-view informer)))))

(defun await-view (informer predicate seconds)
  "Wait at most SECONDS until PREDICATE is true of the members of INFORMER, a list; return its last
value."
  (let ((end (loop:notice-end seconds)))
    (loop
      (let* ((revision nil)
             (result (funcall predicate
                              (multiple-value-bind (members at) (informer-members informer)
                                (setf revision at)
                                members))))
        (when (or result (<= end (loop:world-now))) (return result))
        (with-informer (informer)
          (when (= revision (view-revision (informer-view informer)))
            (loop:await-notice (informer-waitqueue informer) (informer-lock informer) end)))))))
