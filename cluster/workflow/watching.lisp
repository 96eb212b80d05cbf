;;;; Watches of changes. All watches at a node get their changes from one watch of the store, the
;;;; feed's, in the order of its revisions. Earlier changes are read from the store for each watch.
;;;; So a watch costs the store nothing while nothing happens, and needs no thread.
;;;;
;;;; 1. A watch joins the feed, which from then on queues changes for it.
;;;; 2. Earlier changes are sent first. Earlier changes of one workflow come from its history, so
;;;;    the watch can begin at any number as long as the workflow is kept. Earlier changes of all
;;;;    workflows come from a separate watch of the store, which ends with the first change that the
;;;;    feed also has.
;;;; 3. Then the queue is sent, and later changes are sent at once, as fast as the peer accepts
;;;;    them. The others wait. A watch with too many waiting changes is ended; its peer, which knows
;;;;    its position, may ask again.
;;;;
;;;; Several workflows may have changed at one revision. So each change has the revision from which
;;;; a watch of all workflows continues if it ends after that change: the revision of the change or,
;;;; for the last change of a revision, the next revision.

(in-package #:clgrpc.workflow)

(defconstant +most-waiting-changes+ 1000 "The maximum number of changes that wait in a watch whose
peer does not accept them.")
(defconstant +most-waiting-of-all+ 1000000
  "The maximum number of waiting changes of all watches of a node; each watch may have its share.")
(defconstant +most-early-changes+ 20000
  "The maximum number of changes that wait in a watch that still gets earlier changes.")
(defconstant +most-senders+ 32
  "The maximum number of threads of a node that wait for room to send earlier changes. It is limited
because other jobs of the store's client also need threads.")

(defstruct (subscription (:constructor make-subscription (call id peer)) (:copier nil))
  "A client's watch at a node. A watch is a call."
  (call nil :read-only t)               ; the call that gets the changes
  (id "" :type string :read-only t)     ; the id of the workflow; empty: all workflows
  (peer "" :type string :read-only t)   ; the peer that has it, without a port
  ;; guards all slots below
  (lock (sb-thread:make-mutex :name "clgrpc workflow subscription") :read-only t)
  (number 0 :type (integer 0)) ; for a watch of one workflow: the number of the last change sent
  ;; for a watch of all workflows: changes up to this revision are sent otherwise
  (revision 0 :type (integer 0))
  (queue (make-fifo) :type fifo :read-only t) ; changes that must be sent
  (waiting 0 :type index)               ; the length of QUEUE
  (live nil :type boolean)              ; true once the earlier changes were sent
  (ended nil :type boolean))            ; true: no more changes are sent

(declaim (sb-ext:freeze-type subscription))

(define-printer (subscription subscription)
  "~A, ~D waiting~:[~;, live~]~:[~;, ended~]" (subscription-id subscription)
  (subscription-waiting subscription) (subscription-live subscription)
  (subscription-ended subscription))

(defun newest-change (entry)
  "The Change that has made the state in ENTRY; nil if no node has put ENTRY."
  (let* ((state (readable-state entry)) (changes (and state (pb:workflow-state-changes state))))
    (and state (told-change state (elt changes (1- (length changes))) (etcd:entry-changed entry)))))

(defun told-change (state change revision)
  "CHANGE, of the history of STATE, in the form for users; REVISION is that of STATE."
  (setf (pb:change-id change) (pb:workflow-state-id state))
  (when (zerop (pb:change-revision change)) (setf (pb:change-revision change) revision))
  change)

(defun map-stored-changes (function node id after before)
  "Call FUNCTION with the Changes of the workflow ID that have keys of their own and a number above
AFTER and below BEFORE."
  (etcd:map-entries (lambda (entry)
                      (map nil function
                           (pb:stored-changes-changes
                            (protobuf:parse-message 'pb:stored-changes
                                                    (etcd:entry-value entry)))))
                    (node-etcd node) :from (history-key (node-root node) id (1+ after))
                                     :to (history-key (node-root node) id before) :page 100))

(defun fetch-history (node id &key (after 0) function)
  "Call FUNCTION with each Change of the workflow ID after the number AFTER."
  (when-let ((entry (fetch-entry node id)))
    (let* ((state (entry-state entry)) (newest (pb:workflow-state-changes state))
           (first (pb:change-number (elt newest 0))))
      (flet ((tell (change)
               (when (< after (pb:change-number change))
                 (funcall function (told-change state change (etcd:entry-changed entry))))))
        (when (< (1+ after) first) (map-stored-changes #'tell node id after first))
        (map nil #'tell newest)))))

(defun end-call (call condition)
  "End CALL, a watch: with CONDITION or, if that is nil, without an error."
  (handler-case
      (etypecase condition
        (null (rpc:finish call))
        (workflow-error
         (multiple-value-bind (status refusal) (refusal-status condition)
           (rpc:finish call :status status :message (bounded-text condition)
                       :details (list refusal)))))
    (status:rpc-error ())))

(defun watch-end-condition (condition one)
  "The condition for a watch's peer when CONDITION has ended the watch. ONE is true for a watch of
one workflow, whose history remains."
  (flet ((lost (control &rest arguments)
           (make-condition 'changes-compacted :text (apply #'format nil control arguments))))
    (cond (one (make-condition 'store-unavailable :text (bounded-text condition)))
          ((typep condition 'etcd:compacted)
           (lost "the changes are compacted up to revision ~A" (etcd:compacted-revision condition)))
          ((typep condition 'etcd:future-revision)
           (lost "this is another store, or the store has lost its data"))
          (t (make-condition 'store-unavailable :text (bounded-text condition))))))

(defun watch-message (entry others revision)
  "The message of a watch about ENTRY, a state of REVISION, or nil if no node has put ENTRY; OTHERS
are later entries of the same revision."
  (when-let ((change (newest-change entry)))
    (setf (pb:change-resume-revision change) (if others revision (1+ revision)))
    change))

(defun messages-of (changes revision)
  "The messages of a watch about CHANGES, of states, all of REVISION."
  (loop for (change . others) on changes
        for message = (watch-message (etcd:change-entry change) others revision)
        when message collect message))

;;; A subscription

(defun for-all-p (subscription)
  (string= "" (subscription-id subscription)))

(defun end-subscription (subscription condition)
  "End SUBSCRIPTION with CONDITION, or with status ok if that is nil."
  (unless (sb-thread:with-mutex ((subscription-lock subscription))
            (shiftf (subscription-ended subscription) t))
    (end-call (subscription-call subscription) condition)))

(defun wanted-p (subscription change)
  "True if SUBSCRIPTION must still send CHANGE."
  (if (for-all-p subscription)
      (< (subscription-revision subscription) (pb:change-revision change))
      (< (subscription-number subscription) (pb:change-number change))))

(defun send-waiting (subscription)
  "Send the waiting changes of SUBSCRIPTION, as many as its peer accepts. Return true if
SUBSCRIPTION has ended with one of them, the end of its workflow. The caller must hold
SUBSCRIPTION's lock."
  (loop with queue = (subscription-queue subscription)
        while (and (fifo-items queue)
                   (not (subscription-ended subscription)))
        do (let ((change (first (fifo-items queue))))
             (when (wanted-p subscription change)
               (unless (rpc:try-send (subscription-call subscription) change) (return nil))
               (unless (for-all-p subscription)
                 (setf (subscription-number subscription) (pb:change-number change))))
             (dequeue queue)
             (decf (subscription-waiting subscription))
             (when (and (not (for-all-p subscription))
                        (not (eq :running (pb:change-status change))))
               (return t)))))

(defun flush-subscription (subscription)
  "Send the waiting changes of SUBSCRIPTION if they may be sent now. From any thread."
  (handler-case
      (when (sb-thread:with-mutex ((subscription-lock subscription))
              (and (subscription-live subscription) (send-waiting subscription)))
        (end-subscription subscription nil))
    (status:rpc-error ())))             ; the end of the call is reported otherwise

(defun most-waiting (feed)
  "How many changes may wait for a watch of FEED."
  (min +most-waiting-changes+ (floor +most-waiting-of-all+ (max 1 (feed-count feed)))))

(defun queue-change (feed subscription change)
  "Queue CHANGE, of FEED, for SUBSCRIPTION."
  (let* ((most (most-waiting feed))
         (full (sb-thread:with-mutex ((subscription-lock subscription))
                 (enqueue change (subscription-queue subscription))
                 (incf (subscription-waiting subscription))
                 (< (if (subscription-live subscription) most +most-early-changes+)
                    (subscription-waiting subscription)))))
    (flush-subscription subscription)
    (when (and full (< most (subscription-waiting subscription)))
      (end-subscription subscription
                        (make-condition 'store-unavailable
                                        :text "the watch's client does not read")))))

(defun go-live (subscription)
  "Begin to send current changes to SUBSCRIPTION, which has got the earlier ones."
  (sb-thread:with-mutex ((subscription-lock subscription))
    (setf (subscription-live subscription) t))
  (rpc:on-writable (subscription-call subscription) (lambda () (flush-subscription subscription)))
  (flush-subscription subscription))

;;; The feed

(defun subscriptions-for (feed id)
  "The subscriptions to changes of the workflow ID, a fresh list. The caller must hold FEED's lock."
  (append (gethash id (feed-subscriptions feed)) (gethash "" (feed-subscriptions feed)) '()))

(defun subscriptions (feed)
  "All subscriptions of FEED, whose lock the caller must hold."
  (loop for subscriptions being the hash-values of (feed-subscriptions feed)
        append subscriptions))

(defun tell-subscriptions (feed changes revision)
  "Queue CHANGES of states, made at REVISION, for the subscriptions that want them."
  (loop for (change . others) on changes
        for entry = (etcd:change-entry change)
        for name = (entry-name entry "")
        for subscriptions = (and name
                                 (sb-thread:with-mutex ((feed-lock feed))
                                   (subscriptions-for feed (key-id name))))
        for message = (and subscriptions (watch-message entry others revision))
        when message
          do (dolist (subscription subscriptions) (queue-change feed subscription message))))

(defun end-subscriptions (subscriptions condition)
  "Note that the watch of the store that served SUBSCRIPTIONS has ended with CONDITION."
  (dolist (subscription subscriptions)
    (end-subscription subscription
                      (watch-end-condition condition (not (for-all-p subscription))))))

(defun start-feed (node)
  "Start the watch of the store that feeds NODE, unless it runs."
  (let* ((feed (node-feed node)) (watch nil) (ended nil))
    (flet ((end (condition)
             (end-subscriptions (sb-thread:with-mutex ((feed-lock feed))
                                  (setf ended t)
                                  (when (eq watch (feed-watch feed)) (setf (feed-watch feed) nil))
                                  (subscriptions feed))
                                condition)))
      (sb-thread:with-mutex ((feed-start-lock feed))
        (unless (feed-watch feed)
          (setf watch (etcd:watch (node-etcd node)
                                  (lambda (changes revision)
                                    (tell-subscriptions feed changes revision))
                                  :prefix (node-key node "state" "") :only :puts
                                  :after (store-revision node) :on-end #'end))
          (sb-thread:with-mutex ((feed-lock feed))
            ;; the watch may have ended before this thread had it
            (unless ended (setf (feed-watch feed) watch))))))
    ;; a node that closed meanwhile has not seen the watch
    (when (task-queue-closed (node-task-queue node))
      (stop-feed feed)
      (error (stopping-condition)))))

(defun stop-feed (feed)
  "End FEED. The function may wait for FEED's watch."
  (let ((watch (sb-thread:with-mutex ((feed-lock feed)) (shiftf (feed-watch feed) nil))))
    (when watch (etcd:cancel-watch watch))))

(defun peer-name (call)
  "The client of CALL, for limits: the address of its peer without the port."
  (let* ((peer (or (rpc:call-peer call) "")) (end (position #\: peer :from-end t)))
    (if end (subseq peer 0 end) peer)))

(defun add-watch (node subscription)
  "Add SUBSCRIPTION. Signal BACKLOG-FULL if NODE, or SUBSCRIPTION's peer, has too many watches."
  (let* ((feed (node-feed node))
         (limits (node-limits node))
         (peer (subscription-peer subscription)))
    (sb-thread:with-mutex ((feed-lock feed))
      (flet ((check (limit most count)
               (when (> count most) (refuse-size :backlog-full limit most count
                                                 "too many watches"))))
        (check :max-watches (limits-max-watches limits) (1+ (feed-count feed)))
        (check :max-watches-per-peer (limits-max-watches-per-peer limits)
               (1+ (gethash peer (feed-peers feed) 0))))
      (incf (feed-count feed))
      (incf (gethash peer (feed-peers feed) 0))
      (push subscription (gethash (subscription-id subscription) (feed-subscriptions feed))))))

(defun forget-watch (node subscription)
  "Forget SUBSCRIPTION, which has ended."
  (let* ((feed (node-feed node)) (subscriptions (feed-subscriptions feed))
         (id (subscription-id subscription)) (peer (subscription-peer subscription)))
    (sb-thread:with-mutex ((feed-lock feed))
      (when (member subscription (gethash id subscriptions))
        (unless (setf (gethash id subscriptions) (delete subscription (gethash id subscriptions)))
          (remhash id subscriptions))
        (decf (feed-count feed))
        (when (zerop (decf (gethash peer (feed-peers feed)))) (remhash peer (feed-peers feed)))))))

(defun end-watches (node)
  "End the watches of NODE, which is closing."
  (dolist (subscription (let ((feed (node-feed node)))
                          (sb-thread:with-mutex ((feed-lock feed)) (subscriptions feed))))
    (end-subscription subscription (stopping-condition))))

;;; Earlier changes

(defun watch-one (node subscription after)
  "Send SUBSCRIPTION, of one workflow, its changes after the number AFTER. SUBSCRIPTION ends when
the workflow ends."
  (let* ((id (subscription-id subscription)) (call (subscription-call subscription)) (last nil)
         (known (pb:workflow-state-version (entry-state (fetch-state node id)))))
    (when (< known after)
      (refuse :changes-compacted
              "~A has had ~D changes, not ~D: it is another workflow, or an older state of it" id
               known after))
    (fetch-history node id :after after
                   :function (lambda (change)
                               (rpc:send call change)
                               (setf last change)))
    (flet ((over-p (change) (not (eq :running (pb:change-status change)))))
      (cond ((and last (over-p last)) (end-subscription subscription nil))
            ((let ((state (entry-state (fetch-state node id))))
               (and (not (running-p state)) (<= (pb:workflow-state-version state) after)))
             (end-subscription subscription nil))
            (t (sb-thread:with-mutex ((subscription-lock subscription))
                 (setf (subscription-number subscription)
                       (if last (pb:change-number last) after)))
               (go-live subscription))))))

(defun store-revision (node)
  "The revision of the store as it is now."
  (etcd:map-entries (constantly nil) (node-etcd node)
                    :prefix (node-key node "index/none") :limit 1 :keys-only t))

(defun reserve-sender (feed)
  "Count one more thread of FEED that waits for room on a call, and return true; return false if no
more may wait."
  (sb-thread:with-mutex ((feed-lock feed))
    (when (< (feed-senders feed) +most-senders+) (incf (feed-senders feed)))))

(defun send-former (feed subscription change)
  "Send CHANGE, an earlier one, to SUBSCRIPTION; wait for room if necessary. Return false if
SUBSCRIPTION has ended, or if this has ended it because too many threads wait for room."
  (let ((call (subscription-call subscription)))
    (handler-case
        (cond ((rpc:try-send call change) t)
              ((reserve-sender feed)
               (unwind-protect (progn (rpc:send call change) t)
                 (sb-thread:with-mutex ((feed-lock feed)) (decf (feed-senders feed)))))
              (t (end-subscription subscription
                                   (make-condition 'store-unavailable
                                                   :text "too many watches wait for room to send"))
                 nil))
      (status:rpc-error () nil))))

(defun tell-former (node subscription from now)
  "Send SUBSCRIPTION the changes of all workflows from the revision FROM on, by a separate watch.
The watch ends with the first change at or after NOW, the revision from which the feed has queued
changes."
  (let ((watch nil) (over nil) (call (subscription-call subscription)))
    (labels ((tell (changes revision)
               (unless over
                 (setf over (notevery (lambda (change)
                                        (send-former (node-feed node) subscription change))
                                      (messages-of changes revision)))
                 (when (and (not over) (<= now revision))
                   (setf over t)
                   (sb-thread:with-mutex ((subscription-lock subscription))
                     (setf (subscription-revision subscription) revision))
                   (go-live subscription)
                   (cancel))))
             (cancel ()
               (setf over t)
               ;; stopping waits for the watch's thread
               (etcd:run-in-background (node-etcd node)
                                       (lambda () (when watch (etcd:cancel-watch watch))))))
      (setf watch (etcd:watch (node-etcd node) #'tell
                              :prefix (node-key node "state" "") :only :puts :revision from
                              :on-end (lambda (condition)
                                        (unless over
                                          (end-subscription subscription
                                                            (watch-end-condition condition nil))))))
      (rpc:on-end call (lambda ()
                         (forget-watch node subscription)
                         (cancel)))
      (when over (cancel)))))

(defun watch-all (node subscription revision)
  "Send SUBSCRIPTION the changes of all workflows from REVISION on or, if that is 0, from now on. A
store that has not reached the revision before REVISION has lost its data, and would report no
change until it reaches that revision again."
  (let* ((now (store-revision node))
         (begin (if (plusp revision) revision (1+ now))))
    (when (< now (1- begin))
      (refuse :changes-compacted "the store is at revision ~D, before ~D: it has lost its data" now
              begin))
    (sb-thread:with-mutex ((subscription-lock subscription))
      (setf (subscription-revision subscription) now))
    ;; it has begun
    (rpc:send (subscription-call subscription) (pb:make-change :resume-revision begin))
    (if (<= begin now)
        (tell-former node subscription begin now)
        (go-live subscription))))

(defun begin-watch (node call request)
  "Do REQUEST, a WatchRequest, on CALL."
  (let ((subscription (make-subscription call (pb:watch-request-id request) (peer-name call))))
    (add-watch node subscription)
    (handler-bind ((error (lambda (error)
                            (declare (ignore error))
                            (forget-watch node subscription))))
      (start-feed node)
      (rpc:on-end call (lambda () (forget-watch node subscription)))
      (if (for-all-p subscription)
          (watch-all node subscription (pb:watch-request-revision request))
          (watch-one node subscription (pb:watch-request-after request))))
    (when (rpc:call-status call) (forget-watch node subscription))))
