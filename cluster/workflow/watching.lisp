;;;; Watches of changes. Of one workflow, they are read out of its history, and those that follow
;;;; come by a watch of the store from there: it can go on from any number, as long as the workflow
;;;; is kept. So if the store has forgotten single changes meanwhile, its peer is told to ask again.
;;;; Of all workflows, they come by a watch of the store alone, in the order of its revisions.
;;;; Several may have changed at one revision, so each change says where the watch goes on that ends
;;;; behind it: at the same revision but for the last one of it. Each watch has a thread of its own,
;;;; which waits while its peer does not take what is sent.

(in-package #:clgrpc.workflow)

(defun change-of (entry)
  "The Change in ENTRY, of a history."
  (let ((change (protobuf:parse-message 'pb:change (etcd:entry-value entry))))
    (setf (pb:change-revision change) (etcd:entry-changed entry))
    change))

(defun fetch-history (node id &key (after 0) function)
  "Call FUNCTION with each Change of the workflow ID behind the number AFTER. Return the revision of
the store that they are of."
  (etcd:map-entries (lambda (entry) (funcall function (change-of entry)))
                    (node-etcd node)
                    :from (node-key node "history" id (number-text (1+ after)))
                    :to (node-key node "history" id "a")
                    :page 200))

(defun end-call (call condition)
  "End CALL, which watches: with CONDITION, or well if that is nil."
  (handler-case
      (etypecase condition
        (null (rpc:finish call))
        (workflow-error
         (multiple-value-bind (status refusal) (refusal-status condition)
           (rpc:finish call :status status :message (princ-to-string condition)
                            :details (list refusal)))))
    (status:rpc-error ())))

(defun watch-end-condition (condition one)
  "What a watch's peer is told when CONDITION has ended it; ONE is true if it is of one workflow,
whose history goes on."
  (flet ((lost (control &rest arguments)
           (make-condition 'changes-compacted :text (apply #'format nil control arguments))))
    (cond (one (make-condition 'store-unavailable :text (princ-to-string condition)))
          ((typep condition 'etcd:compacted)
           (lost "the changes are compacted up to revision ~A" (etcd:compacted-revision condition)))
          ((typep condition 'etcd:future-revision)
           (lost "the store is another one, or has lost its data"))
          (t (make-condition 'store-unavailable :text (princ-to-string condition))))))

(defun messages-of (changes revision)
  "What a watch tells of CHANGES, of the history, which have come at REVISION, one by one."
  (loop for (item . others) on changes
        collect (let ((change (change-of (etcd:change-entry item))))
                  (setf (pb:change-resume-revision change) (if others revision (1+ revision)))
                  change)))

(defun follow-changes (node call one function &rest range)
  "Send CALL the changes of a RANGE of the history from its :revision on; FUNCTION of each returns
true if it is the last one. ONE is true if they are of one workflow."
  (let* ((watch nil)
         (ended nil)
         (handler (lambda (changes revision)
                    (loop for change in (messages-of changes revision)
                          until ended
                          do (rpc:send call change)
                             (when (funcall function change)
                               (setf ended t)
                               (end-call call nil))))))
    (setf watch (apply #'etcd:watch (node-etcd node) handler
                       :only :puts
                       :on-end (lambda (condition)
                                 (unless (rpc:call-status call)
                                   (end-call call (watch-end-condition condition one))))
                       range))
    (rpc:on-end call (lambda ()
                       (forget-watch node call)
                       ;; it waits for the watch's thread, and this is a loop's
                       (etcd:run-in-background (node-etcd node)
                                               (lambda () (etcd:cancel-watch watch)))))))

(defun add-watch (node call)
  "CALL watches. Signal BACKLOG-FULL if too many do."
  (sb-thread:with-mutex ((node-lock node))
    (let ((count (1+ (length (node-watches node)))) (most (limits-max-watches (node-limits node))))
      (when (> count most) (refuse-size :backlog-full :max-watches most count "too many watches"))
      (push call (node-watches node)))))

(defun forget-watch (node call)
  (sb-thread:with-mutex ((node-lock node))
    (setf (node-watches node) (remove call (node-watches node)))))

(defun end-watches (node)
  "End the watches of NODE, which is closing."
  (dolist (call (sb-thread:with-mutex ((node-lock node)) (node-watches node)))
    (end-call call (make-condition 'store-unavailable :text "the node is stopping"))))

(defun watch-one (node call id after)
  "Send CALL the changes of the workflow ID behind the number AFTER; it ends with the workflow."
  (let* ((last nil)
         (known (pb:workflow-state-version (entry-state (fetch-state node id))))
         (revision (fetch-history node id :after after
                                          :function (lambda (change)
                                                      (rpc:send call change)
                                                      (setf last change)))))
    (when (< known after)
      (refuse :changes-compacted
              "~A has had ~D changes, not ~D: it is another one, or an older state" id known after))
    (flet ((over-p (change) (not (eq :running (pb:change-status change)))))
      (cond ((and last (over-p last)) (end-call call nil))
            ((let ((state (entry-state (fetch-state node id))))
               (and (not (running-p state)) (<= (pb:workflow-state-version state) after)))
             (end-call call nil))
            (t (follow-changes node call t #'over-p :prefix (node-key node "history" id "")
                                                    :revision (1+ revision)))))))

(defun store-revision (node)
  "The revision of the store as it is now."
  (etcd:map-entries (constantly nil) (node-etcd node)
                    :prefix (node-key node "index/none") :limit 1 :keys-only t))

(defun watch-all (node call revision)
  "Send CALL the changes of all workflows from REVISION on, 0 for what comes from now on. A store
that has not been at what is before REVISION has lost its data: nothing would be told until it was
there again."
  (let* ((now (store-revision node))
         (begin (if (plusp revision) revision (1+ now))))
    (when (< now (1- begin))
      (refuse :changes-compacted "the store is at revision ~D, before ~D: it has lost its data" now
              begin))
    (follow-changes node call nil (constantly nil)
                    :prefix (node-key node "history" "") :revision begin)
    ;; it has begun
    (rpc:send call (pb:make-change :resume-revision begin))))

(defun begin-watch (node call request)
  "Do what REQUEST, a WatchRequest, asks for on CALL."
  (add-watch node call)
  (handler-bind ((error (lambda (error)
                          (declare (ignore error))
                          (forget-watch node call))))
    (if (string= "" (pb:watch-request-id request))
        (watch-all node call (pb:watch-request-revision request))
        (watch-one node call (pb:watch-request-id request) (pb:watch-request-after request))))
  (when (rpc:call-status call) (forget-watch node call)))
