;;;; The methods of the service. A refusal is the status of the call, with a Refusal in the details.

(in-package #:clgrpc.workflow)

(defun check-access (node role call &optional kind)
  "Signal ACCESS-DENIED unless the peer of CALL has ROLE at NODE, for tasks of KIND or, if that is
nil, of any."
  (let ((refusal (authority:access-refusal (node-authority node) role call :kind kind)))
    (when refusal (refuse :access-denied "~A" refusal))))

(defun call-answering (node role call function)
  "Call FUNCTION if the peer of CALL has ROLE. A workflow error, or an error of the store, ends
CALL."
  (handler-case (progn (check-access node role call)
                       (while-open (node) (with-store-errors (funcall function))))
    (workflow-error (condition)
      (count-refusal node condition)
      (multiple-value-bind (status refusal) (refusal-status condition)
        (status:fail status (bounded-text condition) :details (list refusal))))))

(defmacro define-answer (name role (node request &optional (call (gensym "CALL"))) &body body)
  "Define the method NAME of the service, for peers with ROLE: BODY, in which errors become
statuses."
  `(defmethod ,name ((,node workflow-service) ,request &key ((:call ,call)))
     (call-answering ,node ,role ,call (lambda () ,@body))))

;;; For users

(defun current-traceparent ()
  (let ((context (trace:current-trace)))
    (if context (trace:traceparent context) "")))

(defun started-reply (node entry request)
  "The answer to REQUEST, whose workflow exists, in ENTRY. Signal WORKFLOW-EXISTS if ENTRY belongs
to another workflow."
  (begun-alike-p (entry-state entry) request)
  (let ((now (see-state node (pb:start-request-id request))))
    (pb:make-start-reply :state (told-state (cached-state-state now)) :began nil)))

(defun start-anew (node request)
  "Start the workflow of REQUEST, unless it exists."
  (let ((draft (finish-draft (begin-workflow request (node-now node) (node-limits node)
                                             :traceparent (current-traceparent)))))
    (multiple-value-bind (done revision entry) (put-draft node draft)
      (declare (ignore revision))
      (cond (done (pb:make-start-reply :state (told-state (draft-state draft)) :began t))
            (entry (started-reply node entry request))
            (t (refuse :store-unavailable "~A was forgotten just now"
                       (pb:start-request-id request)))))))

(define-answer methods:start :start (node request)
  (let ((entry (and (backlog-full-p node) (fetch-entry node (pb:start-request-id request)))))
    ;; a repeated request for a workflow that was begun earlier gets the same answer
    (cond (entry (started-reply node entry request))
          (t (check-backlog node)
             (start-anew node request)))))

(defun see-result (node id)
  "The present state of the workflow ID, a cached state, and its last result. Signal
WORKFLOW-NOT-FOUND if the workflow does not exist."
  (loop repeat +most-tries+
        do (let* ((now (see-state node id)) (result (fetch-result node (cached-state-state now))))
             ;; otherwise the workflow has begun again, or was deleted, between the two reads
             (when result (return (values now result))))
        finally (refuse :store-unavailable "too many changes of ~A at once" id)))

(defun workflow-state-reply (node request now result)
  "The answer to REQUEST about the workflow with the cached state NOW; RESULT is its result, or
nil."
  (let* ((id (pb:get-workflow-state-request-id request))
         (state (cached-state-state now))
         (reply (pb:make-get-workflow-state-reply :state (told-state state)
                                                  :revision (cached-state-revision now))))
    (when (pb:get-workflow-state-request-history request)
      (let ((changes '()))
        (fetch-history node id :function (lambda (change) (push change changes)))
        (setf (pb:get-workflow-state-reply-history reply) (nreverse changes))))
    (when result (setf (pb:get-workflow-state-reply-result reply) result))
    (when (pb:get-workflow-state-request-input request)
      (setf (pb:get-workflow-state-reply-input reply)
            (fetch-payload node state (payload-key state "input"))))
    reply))

(define-answer methods:get-workflow-state :read (node request)
  (let ((id (pb:get-workflow-state-request-id request)))
    (multiple-value-bind (now result)
        (if (pb:get-workflow-state-request-result request)
            (see-result node id)
            (see-state node id))
      (workflow-state-reply node request now result))))

(defun new-signal-id (node)
  (format nil "~(~32,'0X~)" (below node (ash 1 128))))

(defun signal-key (request signal-id run)
  "The key of the payload of the signal that REQUEST gives to a workflow in its run RUN."
  (data-key "" (pb:signal-request-id request) (run-key run (format nil "signal/~A" signal-id))))

(defun signal-keys (request signal-id state)
  "Keys, one of which is in the store if the signal of REQUEST was given before, to the present run
of STATE or to a run since then."
  (mapcar (lambda (run) (signal-key request signal-id run))
          (adjoin (pb:workflow-state-run state)
                  (coerce (pb:workflow-state-signal-runs state) 'list))))

(defun given-before-p (node request)
  "True if the signal of REQUEST, which has an id, was given before."
  (when-let ((entry (fetch-entry node (pb:signal-request-id request))))
    (some (lambda (key) (etcd:fetch (node-etcd node) (node-key node key)))
          (signal-keys request (pb:signal-request-signal-id request) (entry-state entry)))))

(defun give-signal (node request)
  "Give the workflow the signal of REQUEST, unless it was given before."
  (let* ((id (pb:signal-request-id request))
         (name (check-name (pb:signal-request-name request) "the name of a signal"))
         (payload (pb:signal-request-payload request))
         (own-id (pb:signal-request-signal-id request))
         (signal-id (if (string= "" own-id)
                        (new-signal-id node)
                        (check-name own-id "the id of a signal"))))
    (check-payload (node-limits node) (length payload) "a signal")
    ;; the signal may have come before, and may itself be the reason for the refusal
    (handler-bind ((workflow-error
                     (lambda (condition)
                       (when (and (typep condition '(or workflow-closed backlog-full))
                                  (string/= "" own-id)
                                  (given-before-p node request))
                         (return-from give-signal)))))
      (change-workflow node id
                       (lambda (draft)
                         (let ((key (payload-key (draft-state draft)
                                                 (format nil "signal/~A" signal-id))))
                           (note-signal draft name key (length payload))
                           (push (cons key payload) (draft-payloads draft))))
                       :conditions (lambda (draft)
                                     (loop for key in (signal-keys request signal-id
                                                                   (draft-state draft))
                                           collect (list :absent (node-key node key))))
                       :on-refusal (lambda () (return-from give-signal))))))

(define-answer methods:signal :start (node request)
  (give-signal node request)
  (pb:make-signal-reply))

(define-answer methods:cancel :operate (node request)
  (change-workflow node (pb:cancel-request-id request)
                   (lambda (draft) (cancel-state draft (pb:cancel-request-reason request))))
  (pb:make-cancel-reply))

(defun cancel-if-running (node id reason)
  "Cancel the workflow ID, because of REASON, unless it has ended."
  (change-workflow node id
                   (lambda (draft)
                     (and (running-p (draft-state draft)) (cancel-state draft reason)))))

(define-answer methods:delete :operate (node request)
  (let ((id (pb:delete-request-id request)))
    (pb:make-delete-reply
     :deleted (handler-case
                  (progn (when (pb:delete-request-cancel request)
                           (cancel-if-running node id (pb:delete-request-reason request)))
                         (change-workflow node id #'delete-state)
                         t)
                (workflow-not-found () nil)))))

(define-answer methods:watch :read (node request call)
  (begin-watch node call request)
  call)

(define-answer methods:list :read (node request)
  (search-workflows node request))

;;; For workers

(define-answer methods:open-session :work (node request call)
  (let ((seconds (pb:open-session-request-seconds request)))
    (multiple-value-bind (session seconds)
        (open-session node (pb:open-session-request-worker request)
                      (if (zerop seconds)
                          (min +default-session-seconds+
                               (limits-max-session-seconds (node-limits node)))
                          seconds)
                      (call-owner call))
      (pb:make-open-session-reply :session session :seconds seconds))))

(define-answer methods:heartbeat :work (node request call)
  (pb:make-heartbeat-reply :lost (note-single-heartbeat node call request)))

(defmethod methods:heartbeats ((node workflow-service) requests &key call)
  (declare (ignore requests))
  (call-answering node :work call (lambda () (begin-heartbeats node call))))

(define-answer methods:close-session :work (node request call)
  (check-owner call (pb:close-session-request-session request))
  (close-session node (pb:close-session-request-session request))
  (pb:make-close-session-reply))

(defun checked-kinds (node call kinds)
  "Return KINDS, a vector, as a list without duplicates. Signal ACCESS-DENIED unless the peer of
CALL may work on tasks of all these kinds at NODE. Refuse too many kinds before anything else is
done, because a message has room for a million kinds."
  (let ((count (length kinds)))
    (when (> count +most-payloads+)
      (refuse-size :too-large :kinds +most-payloads+ count "too many kinds"))
    (map nil (lambda (kind)
               (check-name kind "a kind of tasks")
               (check-access node :work call kind))
         kinds)
    (remove-duplicates (coerce kinds 'list) :test #'string=)))

(defun kinds-claimed (node call request)
  "The kinds of tasks that REQUEST, the ClaimRequest of CALL, asks for, each once."
  (or (checked-kinds node call (pb:claim-request-kinds request))
      (refuse :invalid-request "a claim must name kinds of tasks")))

(define-answer methods:claim :work (node request call)
  (let* ((session (pb:claim-request-session request))
         (kinds (kinds-claimed node call request))
         (count (max 1 (min (pb:claim-request-max-tasks request)
                            (limits-max-tasks (node-limits node)))))
         ;; without a call, as when a handler calls this method itself, nothing can wait
         (wait (if call (min (pb:claim-request-wait-ms request) +longest-wait-ms+) 0)))
    (session-key node session)          ; checks that SESSION is a valid name
    (check-owner call session)
    (check-held node session)
    (let* ((seen (arrivals-now (node-task-queue node) kinds))
           (tasks (claim-tasks node session kinds count :ask (<= wait 0))))
      (cond ((or tasks (<= wait 0))
             (unless tasks (check-session node session))
             (pb:make-claim-reply :tasks tasks))
            (t (await-tasks node call session kinds count wait seen)
               call)))))

(defun report-outcome (draft request)
  "Apply REQUEST, a ReportRequest, to DRAFT."
  (let ((fence (pb:report-request-fence request)))
    (case (pb:report-request-outcome-case request)
      (:result (report-result draft fence (pb:report-request-result request)
                              (pb:report-request-then request)))
      (:failure (let ((failure (pb:report-request-failure request)))
                  (report-failure draft fence (pb:failure-text failure)
                                  (pb:failure-permanent failure))))
      (:give-back (give-back draft fence))
      (:continue-as-new (report-continuation draft fence
                                             (pb:report-request-continue-as-new request)))
      (t (refuse :invalid-request
                 "a report needs a result, a failure or a continuation, or gives the task back")))))

(defun next-claimed-p (state request)
  "True if the session of REQUEST, a recorded ReportRequest, got the next step with the report, and
still has it."
  (and (plusp (length (pb:report-request-next-kinds request)))
       (next-claim state (pb:report-request-fence request))
       (string= (pb:report-request-session request) (pb:workflow-state-session state))))

(defun check-reporter (node call draft request)
  "Signal ACCESS-DENIED if a peer other than CALL's has claimed the task that REQUEST, the
ReportRequest of CALL, reports. Signal ACCESS-DENIED also if the report is recorded already and
CALL's peer may not work on that task at NODE."
  (let* ((state (draft-state draft)) (fence (pb:report-request-fence request))
         (kind (recorded-kind state fence)))
    (when kind (check-access node :work call kind))
    (when (and (= fence (pb:workflow-state-fence state))
               (string/= "" (pb:workflow-state-session state)))
      (check-owner call (pb:workflow-state-session state)))))

;;; A worker whose report leaves it without a task gets another with the answer, if it asks for one
;;; and a task is ready. The next task is claimed while the report is put, often by the same request
;;; to the store, in a transaction of its own. A worker that does not get the answer does not say in
;;; its heartbeats that it holds the task, so other workers get the task, as with a lost answer to a
;;; claim.

(defun ready-known-p (node kinds)
  "True if NODE knows of a task of one of KINDS that can be claimed."
  (some (lambda (kind) (known-ready node kind 1)) kinds))

(defun begin-claim (node session kinds)
  "Begin to claim a task of KINDS for SESSION. Return a future, whose value is a list of the task,
or an empty list if there is none."
  (let ((future (loop:make-future)))
    (flet ((claim ()
             (let ((tasks '()))
               (unwind-protect
                    (handler-case (progn (check-held node session)
                                         (setf tasks (claim-tasks node session kinds 1)))
                      ((or workflow-error etcd:etcd-error) ()))
                 (loop:resolve-future future tasks)))))
      (if (node-commits node)
          (etcd:run-in-background (node-etcd node) #'claim)
          (claim)))
    future))

(defun tasks-claimed (future)
  "The value of FUTURE, of BEGIN-CLAIM, once it has one; the empty list if FUTURE is nil."
  (handler-case (and future (loop:await future :timeout +longest-commit-seconds+))
    ;; the store's client was closed meanwhile
    (loop:await-timeout () '())))

(define-answer methods:report :work (node request call)
  (let* ((session (pb:report-request-session request))
         (kinds (checked-kinds node call (pb:report-request-next-kinds request)))
         (wants-next (and (member (pb:report-request-outcome-case request)
                                  '(:result :continue-as-new))
                          kinds
                          (string/= "" session)
                          (progn (check-owner call session) t)))
         (claims nil)
         (worker "")                    ; the session that had the task
         (other nil)                    ; the future of a task of another workflow
         (next nil))
    (flet ((record ()
             (change-workflow
              node (pb:report-request-id request)
              (lambda (draft)
                (setf claims nil
                      worker (pb:workflow-state-session (draft-state draft)))
                (check-reporter node call draft request)
                (when (report-outcome draft request)
                  (when wants-next
                    (setf claims (claim-next draft (pb:report-request-fence request) session
                                             kinds)))
                  t))
              ;; a session that has ended gets no further task, but its report counts
              :conditions (lambda (draft)
                            (declare (ignore draft))
                            (cond (claims (list (list :present (session-key node session))))
                                  ((and wants-next (null other)
                                        (pb:report-request-next-of-any request)
                                        (ready-known-p node kinds))
                                   (setf other (begin-claim node session kinds))
                                   '())))
              :on-refusal (lambda () (setf wants-next nil)))))
      (unwind-protect
           (let* ((draft (record)) (state (draft-state draft)))
             (forget-load node worker)
             (when claims (note-granted node session 1))
             (cond ((and wants-next (next-claimed-p state request))
                    (setf next (task-of node state (draft-input node state draft)
                                        (node-now node))))
                   ((and other (not (and call (rpc:call-status call))))
                    (setf next (first (tasks-claimed other))
                          other nil)))
             (pb:make-report-reply :next next))
        ;; the report was refused, or its worker has gone, or the worker has the next step after all
        (return-tasks node (tasks-claimed other))))))

(defmethod server:note-server-started ((node workflow-service) server)
  (when-let ((warning (authority:authority-warning (node-authority node)
                                                   (server:server-credentials server)
                                                   "start, work, read and operate")))
    (log-event :warning :workflow-access :namespace (node-namespace node) :condition warning)))

(defmethod server:note-server-stopping ((node workflow-service) server)
  (declare (ignore server))
  (close-workflow-service node))
