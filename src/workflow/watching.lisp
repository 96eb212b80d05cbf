;;;; Watches of changes. Of one workflow, they are read out of its history, and those that follow
;;;; come by a watch of the store from there: it can go on from any number, as long as the workflow
;;;; is kept. Of all workflows, they come by a watch of the store alone, in the order of its
;;;; revisions. Each of them has a thread of the watch's own, which waits while its peer does not
;;;; take what is sent.

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

(defun watch-end-condition (condition)
  "What a watch's peer is told when CONDITION has ended it."
  (typecase condition
    (etcd:compacted
     (make-condition 'changes-compacted
                     :text (format nil "the changes are compacted up to revision ~A"
                                   (etcd:compacted-revision condition))))
    (etcd:future-revision
     (make-condition 'changes-compacted :text "the store is another one, or has lost its data"))
    (t (make-condition 'store-unavailable :text (princ-to-string condition)))))

(defun follow-changes (node call function &rest range)
  "Send CALL the changes of a RANGE of the history from its :revision on; FUNCTION of each returns
true if it is the last one."
  (let* ((watch nil)
         (ended nil)
         (handler (lambda (changes revision)
                    (declare (ignore revision))
                    (loop for item in changes
                          until ended
                          do (let ((change (change-of (etcd:change-entry item))))
                               (rpc:send call change)
                               (when (funcall function change)
                                 (setf ended t)
                                 (end-call call nil)))))))
    (setf watch (apply #'etcd:watch (node-etcd node) handler
                       :only :puts
                       :on-end (lambda (condition)
                                 (unless (rpc:call-status call)
                                   (end-call call (watch-end-condition condition))))
                       range))
    (rpc:on-end call (lambda ()
                       (forget-watch node call)
                       ;; it waits for the watch's thread, and this is a loop's
                       (sb-thread:make-thread #'etcd:cancel-watch :name "clgrpc workflow watch end"
                                                                  :arguments (list watch))))))

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
  (let ((last nil))
    (fetch-state node id)
    (let ((revision (fetch-history node id :after after
                                           :function (lambda (change)
                                                       (rpc:send call change)
                                                       (setf last change)))))
      (if (and last (not (eq :running (pb:change-status last))))
          (end-call call nil)
          (let ((state (entry-state (fetch-state node id))))
            (if (and (not (running-p state)) (<= (pb:workflow-state-version state) after))
                (end-call call nil)
                (follow-changes node call
                                (lambda (change) (not (eq :running (pb:change-status change))))
                                :prefix (node-key node "history" id "")
                                :revision (1+ revision))))))))

(defun watch-all (node call revision)
  "Send CALL the changes of all workflows from REVISION on, 0 for what comes from now on."
  (follow-changes node call (constantly nil)
                  :prefix (node-key node "history" "")
                  :revision (if (plusp revision) revision nil)))

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
