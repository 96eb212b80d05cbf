;;;; Sessions: workers, as long as their heartbeats come. A session is a lease of the store, whose
;;;; number begins its name, and a key that ends with the lease. If a certificate has proved the
;;;; owner of the session, the name contains that owner, too, and no other peer may use it. The
;;;; store's own clock decides whether a worker is alive, and a store that does not answer for a
;;;; while ends no session. When the key has been removed, some node gives the session's claims to
;;;; other workers.
;;;;
;;;; A job renews the leases of workers without tasks: the first at once, those whose heartbeats
;;;; follow soon after it together. Such a burst costs the store little more than one renewal. The
;;;; heartbeat of a worker with tasks is a request to the store of its own, since its claims are
;;;; read, too.

(in-package #:clgrpc.workflow)

(defconstant +default-session-seconds+ 10)
(defconstant +gathering-seconds+ 1/4
  "The seconds from one burst of renewals to the next, during which heartbeats are gathered.")
(defconstant +most-waiting-heartbeats+ 10000 "The most heartbeats that wait at a node.")

(defun session-number (session)
  "The number of the lease in the name SESSION. Signal SESSION-LOST if the name has no number."
  (let ((end (or (position #\. session) (length session))))
    (or (and (<= 1 end 16)
             (ignore-errors (parse-integer session :end end :radix 16)))
        (refuse :session-lost "there is no session ~A" session))))

(defun call-owner (call)
  "The owner in the names of the sessions of CALL's peer."
  (let ((identity (authority:call-identity call)))
    (if identity
        (format nil "~(~{~2,'0X~}~)" (coerce (subseq (sb-md5:md5sum-string
                                                      identity :external-format :utf-8)
                                                     0 8)
                                             'list))
        "")))

(defun check-owner (call session)
  "Signal ACCESS-DENIED unless SESSION belongs to CALL's peer."
  (unless (string= (call-owner call) (session-owner session))
    (refuse :access-denied "the session ~A is another's" session)))

(defun check-session (node session)
  "Signal SESSION-LOST unless SESSION exists."
  (unless (etcd:fetch (node-etcd node) (session-key node session))
    (refuse :session-lost "there is no session ~A" session)))

(defun check-session-seconds (node seconds)
  (let ((most (limits-max-session-seconds (node-limits node))))
    (unless (<= 2 seconds most)
      (refuse-size :too-large :max-session-seconds most seconds
                   "a session lasts 2 to ~D seconds" most))))

(defun open-session (node worker seconds &optional (owner ""))
  "Open a session of WORKER, a string, that lasts SECONDS without a heartbeat and belongs to OWNER.
Return its name and how long it lasts."
  (check-session-seconds node seconds)
  (let ((lease nil) (session nil) (open nil))
    (unwind-protect
         (progn
           ;; before a lease is granted
           (check-sessions node)
           (setf lease (etcd:grant-lease (node-etcd node) seconds :keep-alive nil)
                 session (format nil "~(~X~)~:[.~;~]~A" (etcd:lease-id lease)
                                 (string= "" owner) owner))
           (reserve-session node session)
           (etcd:put (node-etcd node) (session-key node session) (short-text worker) :lease lease)
           (setf open t)
           (when (session-known-p node session) (note-session node session))
           (values session (etcd:lease-seconds lease)))
      ;; if it was put all the same, the watch of the index reports it
      (unless (or open (null session)) (forget-session node session)))))

(defun session-lease (node session)
  "The lease of SESSION, renewed. Signal SESSION-LOST if it has ended, or if the lease is not that
of a session: a client that gives the number of another lease must not affect that lease."
  (flet ((refuse-session () (refuse :session-lost "the session ~A has ended" session)))
    (let ((number (session-number session))
          (entry (etcd:fetch (node-etcd node) (session-key node session))))
      (unless (and entry (eql number (etcd:entry-lease entry))) (refuse-session))
      (handler-case (etcd:adopt-lease (node-etcd node) number :keep-alive nil)
        (etcd:lease-not-found () (refuse-session))))))

(defun renew-session (node session)
  "Renew SESSION, and return how long it lasts. The watch of the index has reported most sessions;
for any other the store is asked whether it exists. Signal SESSION-LOST if SESSION has ended."
  (if (session-known-p node session)
      (or (first (etcd:renew-leases (list (etcd:lease-by-number (node-etcd node)
                                                                (session-number session)))))
          (refuse :session-lost "the session ~A has ended" session))
      (etcd:lease-seconds (session-lease node session))))

(defun session-claims (node session)
  "The ids of the workflows of which SESSION has claimed a task."
  (let ((prefix (node-key node "claims" session "")))
    (loop for entry in (etcd:fetch-entries (node-etcd node) :prefix prefix :keys-only t)
          collect (subseq (etcd:entry-key entry) (length prefix)))))

(defun claims-in-force (node session)
  "The claims of SESSION, a list of (ID . FENCE) and one of their times, in milliseconds since
1970."
  (let ((claims '()) (times '()) (ids (session-claims node session)))
    (loop while ids
          do (let ((some (loop repeat +most-payloads+ while ids collect (pop ids))))
               (loop for entry in (fetch-states node some)
                     for id in some
                     for state = (entry-state entry)
                     when (and state (held-by-p state session))
                       do (push (cons id (pb:workflow-state-fence state)) claims)
                          (push (pb:workflow-state-claimed-unix-ms state) times))))
    (values claims times)))

(defun drop-unheld (node session held-p seconds claims times)
  "Give those CLAIMS of SESSION, made at TIMES, that SESSION does not know to others. HELD-P, a
function, is true of a claim that it knows. SESSION learns of a claim by an answer. The answer may
still reach the worker until the claim is SECONDS old; after that it is lost."
  (loop for claim in claims
        for (id . fence) = claim
        for time in times
        do (when (and (not (funcall held-p claim))
                      (< (+ time (* 1000 seconds)) (node-now node)))
             (for-one (node id)
               (change-workflow node id (lambda (draft) (lose-claim draft session fence)))))))

(defun may-have-claims-p (node session)
  "False if SESSION has no claims as far as NODE knows: NODE has given it no task since its last
check, and the keeper has found no claim."
  (or (nth-value 1 (gethash session (node-claiming node)))
      (plusp (sb-thread:with-mutex ((node-lock node)) (gethash session (node-grants node) 0)))))

(defun look-at-claims (node session)
  "Return CLAIMS-IN-FORCE of SESSION, and note their number in NODE."
  (flet ((given () (sb-thread:with-mutex ((node-lock node))
                     (gethash session (node-grants node) 0))))
    (let ((before (given)))
      (multiple-value-bind (claims times) (claims-in-force node session)
        (sb-thread:with-mutex ((node-lock node))
          (let ((now (gethash session (node-grants node) 0)))
            (setf (gethash session (node-grants node)) (+ (length claims) (max 0 (- now before))))))
        (values claims times)))))

(defun end-long-attempts (node session claims times)
  "End those CLAIMS of SESSION, made at TIMES, whose attempts have taken too long. Return them."
  (let ((seconds (limits-attempt-seconds (node-limits node))) (now (node-now node)))
    (loop for claim in claims
          for (id . fence) = claim
          for time in times
          when (and seconds (<= (+ time (* 1000 seconds)) now)
                    (for-one (node id)
                      (nth-value 1 (change-workflow node id
                                                    (lambda (draft)
                                                      (end-long-attempt draft session fence))))))
            collect claim)))

(defun note-heartbeat (node session held)
  "Note that SESSION lives, and holds HELD. Return those of HELD that do not belong to it any more."
  (when (> (length held) +most-held+)
    (refuse-size :too-large :held +most-held+ (length held) "a worker has too many tasks"))
  (let ((known (make-hash-table :test 'equal)) (current (make-hash-table :test 'equal))
        (seconds (renew-session node session)))
    (when (zerop (length held)) (forget-load node session))
    (flet ((claim-of (held) (cons (pb:held-id held) (pb:held-fence held))))
      (map nil (lambda (held) (setf (gethash (claim-of held) known) t)) held)
      (when (or (plusp (length held)) (may-have-claims-p node session))
        (multiple-value-bind (claims times) (look-at-claims node session)
          (dolist (claim (set-difference claims (end-long-attempts node session claims times)))
            (setf (gethash claim current) t))
          (drop-unheld node session (lambda (claim) (gethash claim known)) seconds claims times)))
      (remove-if (lambda (held) (gethash (claim-of held) current)) held))))

;;; Heartbeats of workers without tasks

(defun idle-heartbeat-p (node session held)
  "True if a heartbeat of SESSION, which holds HELD, only has to renew its lease."
  (and (node-renewer node)
       (zerop (length held))
       (session-known-p node session)
       (not (may-have-claims-p node session))))

(defun queue-heartbeat (node session call)
  "Let CALL, a heartbeat of SESSION, wait until the session's lease is renewed with those of others.
Return false if too many heartbeats wait."
  (let ((queue (node-heartbeats node)) (number (session-number session)) (wake nil))
    (forget-load node session)
    (sb-thread:with-mutex ((heartbeat-queue-lock queue))
      (when (heartbeat-queue-closed queue) (error (stopping-condition)))
      (when (<= +most-waiting-heartbeats+ (heartbeat-queue-count queue))
        (return-from queue-heartbeat nil))
      (push (list* session number call) (heartbeat-queue-waiting queue))
      (incf (heartbeat-queue-count queue))
      (setf wake (not (heartbeat-queue-gathering queue))))
    (when wake (loop:wake-job (node-renewer node)))
    t))

(defun take-heartbeats (node)
  "Remove the heartbeats that wait at NODE, and return them, the oldest first. If there are any, the
next ones are gathered for a while."
  (let ((queue (node-heartbeats node)))
    (sb-thread:with-mutex ((heartbeat-queue-lock queue))
      (setf (heartbeat-queue-gathering queue) (plusp (heartbeat-queue-count queue))
            (heartbeat-queue-count queue) 0)
      (nreverse (shiftf (heartbeat-queue-waiting queue) '())))))

(defun fail-heartbeat (node call condition)
  "End CALL, a heartbeat, with CONDITION, a workflow error."
  (count-refusal node condition)
  (end-call call condition))

(defun answer-heartbeat (node session call seconds)
  "Answer CALL, a heartbeat of SESSION. SECONDS is the time of its lease, or nil if that has ended."
  (if seconds
      (handler-case (rpc:reply call (pb:make-heartbeat-reply))
        (status:rpc-error ()))          ; its caller has gone
      (fail-heartbeat node call
                      (make-condition 'session-lost
                                      :text (format nil "the session ~A has ended" session)))))

(defun answer-heartbeats (node waiting)
  "Renew the leases of the sessions WAITING, in the form of QUEUE-HEARTBEAT, and answer their
calls."
  (flet ((fail-all (condition)
           (loop for (nil nil . call) in waiting do (fail-heartbeat node call condition))))
    (handler-case
        (let ((leases (loop for (nil number) in waiting
                            collect (etcd:lease-by-number (node-etcd node) number))))
          (with-store-errors (etcd:renew-leases leases)))
      (workflow-error (condition) (fail-all condition))
      (error (condition)
        (log-event :error :workflow-heartbeat-error :condition (princ-to-string condition))
        (fail-all (make-condition 'store-unavailable :text (princ-to-string condition))))
      (:no-error (all-seconds)
        (loop for (session nil . call) in waiting
              for seconds in all-seconds
              do (answer-heartbeat node session call seconds))))))

(defun run-renewer (node)
  "Run the job that answers the heartbeats that wait at NODE. Return the seconds until it runs
again, nil if no heartbeat has arrived."
  (let* ((taken (take-heartbeats node))
         (waiting (remove-if (lambda (heartbeat) (rpc:call-status (cddr heartbeat))) taken))
         (again nil))
    (unwind-protect
         (progn (when waiting (answer-heartbeats node waiting))
                (setf again (and taken +gathering-seconds+)))
      (unless again                     ; the next heartbeat wakes the job
        (let ((queue (node-heartbeats node)))
          (sb-thread:with-mutex ((heartbeat-queue-lock queue))
            (setf (heartbeat-queue-gathering queue) nil)))))))

(defun end-heartbeats (node)
  "End all heartbeats that wait at NODE; later ones do not wait."
  (let ((queue (node-heartbeats node)))
    (sb-thread:with-mutex ((heartbeat-queue-lock queue)) (setf (heartbeat-queue-closed queue) t))
    (loop for (nil nil . call) in (take-heartbeats node)
          do (fail-heartbeat node call (stopping-condition)))))

(defun end-session-claims (node session)
  "Give the tasks claimed by SESSION, which has ended, to others."
  (change-together node (shuffled node (session-claims node session))
                   (lambda (draft) (lose-claim draft session nil))))

(defun close-session (node session)
  "End SESSION for its worker. Others get the tasks that it has not reported, and these do not count
as attempts."
  (let ((lease (session-lease node session)))
    (change-together node (session-claims node session)
                     (lambda (draft)
                       (let ((state (draft-state draft)))
                         (and (held-by-p state session)
                              (give-back draft (pb:workflow-state-fence state))))))
    ;; tasks that were claimed meanwhile are lost with the key
    (etcd:remove-entry (node-etcd node) (session-key node session))
    (etcd:revoke-lease lease)))
