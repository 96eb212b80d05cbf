;;;; Sessions: workers, as long as their heartbeats come. A session is a lease of the store, whose
;;;; number begins its name, and a key that ends with the lease. If a certificate has proved the
;;;; owner of the session, the name contains that owner, too, and no other peer may use it. The
;;;; store's own clock decides whether a worker lives, and a store that does not answer for a while
;;;; ends no session. When the key is gone, some node gives the session's claims to other workers.

(in-package #:clgrpc.workflow)

(defconstant +default-session-seconds+ 10)

(defun session-number (session)
  "The number of the lease that SESSION names. Signal SESSION-LOST if it names none."
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
  "Signal ACCESS-DENIED unless SESSION is one of CALL's peer."
  (unless (string= (call-owner call) (session-owner session))
    (refuse :access-denied "the session ~A is another's" session)))

(defun check-session (node session)
  "Signal SESSION-LOST unless there is SESSION."
  (unless (etcd:fetch (node-etcd node) (session-key node session))
    (refuse :session-lost "there is no session ~A" session)))

(defun check-session-seconds (node seconds)
  (let ((most (limits-max-session-seconds (node-limits node))))
    (unless (<= 2 seconds most)
      (refuse-size :too-large :max-session-seconds most seconds
                   "a session lasts 2 to ~D seconds" most))))

(defun open-session (node worker seconds &optional (owner ""))
  "Open a session of WORKER, a string, that lasts SECONDS without a heartbeat and is OWNER's. Return
its name and how long it lasts."
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
  "The lease of SESSION, renewed. Signal SESSION-LOST if it has ended, or is not the lease of a
session: a client that gives the number of another lease does nothing to that lease."
  (flet ((refuse-session () (refuse :session-lost "the session ~A has ended" session)))
    (let ((number (session-number session))
          (entry (etcd:fetch (node-etcd node) (session-key node session))))
      (unless (and entry (eql number (etcd:entry-lease entry))) (refuse-session))
      (handler-case (etcd:adopt-lease (node-etcd node) number :keep-alive nil)
        (etcd:lease-not-found () (refuse-session))))))

(defun renew-session (node session)
  "Renew SESSION, and return how long it lasts. One that the watch of the index has told of is one;
of another the store is asked whether it is. Signal SESSION-LOST if it has ended."
  (if (session-known-p node session)
      (handler-case (etcd:renew-lease (etcd:lease-by-number (node-etcd node)
                                                            (session-number session)))
        (etcd:lease-not-found () (refuse :session-lost "the session ~A has ended" session)))
      (etcd:lease-seconds (session-lease node session))))

(defun session-claims (node session)
  "Ids of the workflows of which SESSION has claimed a task."
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
  "Give CLAIMS of SESSION that it does not know to others. They were claimed at TIMES; HELD-P is
true of a claim that SESSION knows. The answer that announced an unknown claim is lost if the claim
is older than SECONDS."
  (loop for claim in claims
        for (id . fence) = claim
        for time in times
        do (when (and (not (funcall held-p claim))
                      (< (+ time (* 1000 seconds)) (node-now node)))
             (for-one (node id)
               (change-workflow node id (lambda (draft) (lose-claim draft session fence)))))))

(defun may-have-claims-p (node session)
  "True unless SESSION has no claims as far as NODE knows: it has given it none since it looked, and
the keeper has found none."
  (or (nth-value 1 (gethash session (node-claiming node)))
      (plusp (sb-thread:with-mutex ((node-lock node)) (gethash session (node-grants node) 0)))))

(defun look-at-claims (node session)
  "CLAIMS-IN-FORCE of SESSION, which NODE counts by it."
  (flet ((given () (sb-thread:with-mutex ((node-lock node))
                     (gethash session (node-grants node) 0))))
    (let ((before (given)))
      (multiple-value-bind (claims times) (claims-in-force node session)
        (sb-thread:with-mutex ((node-lock node))
          (let ((now (gethash session (node-grants node) 0)))
            (setf (gethash session (node-grants node)) (+ (length claims) (max 0 (- now before))))))
        (values claims times)))))

(defun end-long-attempts (node session claims times)
  "End those of CLAIMS, claimed by SESSION at TIMES, that have taken as long as they may. Return
them."
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
  "SESSION lives, and has HELD. Return those of HELD that are no longer its own."
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

(defun end-session-claims (node session)
  "SESSION has ended: others get the tasks that it has claimed."
  (change-together node (shuffled node (session-claims node session))
                   (lambda (draft) (lose-claim draft session nil))))

(defun close-session (node session)
  "SESSION ends by itself: others get the tasks that it has not reported; these do not count as
attempts."
  (let ((lease (session-lease node session)))
    (change-together node (session-claims node session)
                     (lambda (draft)
                       (let ((state (draft-state draft)))
                         (and (held-by-p state session)
                              (give-back draft (pb:workflow-state-fence state))))))
    ;; tasks that were claimed meanwhile are lost with the key
    (etcd:remove-entry (node-etcd node) (session-key node session))
    (etcd:revoke-lease lease)))
