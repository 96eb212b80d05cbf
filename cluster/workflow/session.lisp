;;;; Sessions: workers, as long as their heartbeats come. A session is a key of the store, which
;;;; ends with a lease (session-lease.lisp). A session's name begins with a random number and its
;;;; seconds; if a certificate has proved its owner, the name contains that owner, too, and no other
;;;; peer may use it. When the key is gone, some node gives the session's claims to other workers.
;;;;
;;;; Heartbeats come on a stream and are answered one by one: from memory, on the loop of the call,
;;;; if the worker has no tasks; else by a thread, since its claims are read. Each heartbeat says
;;;; which tasks the worker has, and its answer says which of these belong to other workers.

(in-package #:clgrpc.workflow)

(defconstant +default-session-seconds+ 10)

(defun call-owner (call)
  "The owner in the names of the sessions of CALL's peer."
  (if-let ((identity (authority:call-identity call)))
    (format nil "~(~{~2,'0X~}~)" (coerce (subseq (sb-md5:md5sum-string
                                                  identity :external-format :utf-8)
                                                 0 8)
                                         'list))
    ""))

(defun check-owner (call session)
  "Signal ACCESS-DENIED unless SESSION belongs to CALL's peer."
  (unless (string= (call-owner call) (session-owner session))
    (refuse :access-denied "the session ~A belongs to another identity" session)))

(defun check-session (node session)
  "Signal SESSION-LOST unless SESSION exists."
  (unless (etcd:fetch (node-etcd node) (session-key node session))
    (refuse :session-lost "the session ~A does not exist" session)))

(defun check-session-seconds (node seconds)
  (let ((most (limits-max-session-seconds (node-limits node))))
    (unless (<= 2 seconds most)
      (refuse-size :too-large :max-session-seconds most seconds
                   "a session lasts 2 to ~D seconds" most))))

(defun new-session (node seconds owner)
  "A name for a session of SECONDS that belongs to OWNER. The name is short, since each change of a
task contains it."
  (format nil "~(~36R~)-~D~:[.~;~]~A" (below node (ash 1 62)) seconds (string= "" owner) owner))

(defun open-session (node worker seconds &optional (owner ""))
  "Open a session of WORKER, a string, that lasts SECONDS without a heartbeat and belongs to OWNER.
Return the session's name and its duration."
  (check-session-seconds node seconds)
  ;; sessions are checked before a lease is granted
  (check-sessions node)
  (let ((session-lease (ensure-session-lease node seconds))
        (session (new-session node seconds owner))
        (open nil))
    (unwind-protect
         (progn
           (reserve-session node session)
           (note-kept node session session-lease
                      (etcd:put (node-etcd node) (session-key node session) (short-text worker)
                                :lease (lease-number session-lease))
                      nil)
           (setf open t)
           (values session seconds))
      ;; if the key was put all the same, the watch of the index reports it
      (unless open (forget-session node session)))))

(defun session-claims (node session)
  "The ids of the workflows of which SESSION has claimed a task."
  (let ((prefix (node-key node "claims" session "")))
    (loop for entry in (etcd:fetch-entries (node-etcd node) :prefix prefix :keys-only t)
          for id = (entry-name entry prefix)
          when id collect id)))

(defun claims-in-force (node session)
  "Return two lists: the claims that SESSION still holds, each (ID . FENCE), and the times at which
they were made, in milliseconds since 1970."
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
  "Give to other workers those CLAIMS of SESSION, made at TIMES, of which SESSION does not know.
HELD-P is a function that returns true for a claim that SESSION knows. A worker learns of its claim
by the answer to its request, which may still arrive until the claim is SECONDS old; after that time
an unknown claim is lost."
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

(defun check-claims (node session held)
  "Check which claims SESSION has, and return the tasks in HELD that no longer belong to SESSION.
Claims of which the worker does not know are given to other workers after a while."
  (let ((known (make-hash-table :test 'equal)) (current (make-hash-table :test 'equal)))
    (flet ((claim-of (held) (cons (pb:held-id held) (pb:held-fence held))))
      (map nil (lambda (held) (setf (gethash (claim-of held) known) t)) held)
      (multiple-value-bind (claims times) (look-at-claims node session)
        (dolist (claim (set-difference claims (end-long-attempts node session claims times)))
          (setf (gethash claim current) t))
        (drop-unheld node session (lambda (claim) (gethash claim known)) (session-seconds session)
                     claims times))
      (remove-if (lambda (held) (gethash (claim-of held) current)) held))))

(defun note-heartbeat (node session held stream)
  "Note that SESSION lives and has the tasks HELD, since a heartbeat has arrived on STREAM. Return
the tasks in HELD that no longer belong to the session. Signal SESSION-LOST."
  (unless (hear node session stream) (keep-session-here node session stream))
  (when (zerop (length held)) (forget-load node session))
  (if (or (plusp (length held)) (may-have-claims-p node session))
      (check-claims node session held)
      '()))

(defun check-heartbeat (call request)
  "Return the session and the held tasks of REQUEST, a HeartbeatRequest on CALL. Signal
ACCESS-DENIED unless the session belongs to the peer, or TOO-LARGE if REQUEST has too many tasks."
  (let ((session (pb:heartbeat-request-session request)) (held (pb:heartbeat-request-held request)))
    (check-owner call session)
    (when (> (length held) +most-held+)
      (refuse-size :too-large :held +most-held+ (length held) "a worker has too many tasks"))
    (values session held)))

(defun note-single-heartbeat (node call request)
  "Note REQUEST, a heartbeat that is a CALL of its own, as the only heartbeat of its stream. Return
the held tasks that no longer belong to its session."
  (multiple-value-bind (session held) (check-heartbeat call request)
    (note-heartbeat node session held (make-heartbeat-stream))))

;;; Streams of heartbeats

(defun heard-at-once-p (node session held stream)
  "Handle a heartbeat on STREAM of SESSION, which holds HELD, if that needs no request to the store;
return true if it was handled."
  (when (and (zerop (length held))
             (not (may-have-claims-p node session))
             (hear node session stream))
    (forget-load node session)
    t))

(defun fail-heartbeats (node stream condition)
  "End STREAM with CONDITION, a workflow error."
  (count-refusal node condition)
  (when (heartbeat-stream-call stream) (end-call (heartbeat-stream-call stream) condition)))

(defun answer-heartbeat (stream lost)
  "Answer a heartbeat on STREAM: the tasks LOST no longer belong to its worker. From then on the
next heartbeat is accepted."
  (setf (heartbeat-stream-busy stream) nil)
  (handler-case (rpc:try-send (heartbeat-stream-call stream) (pb:make-heartbeat-reply :lost lost))
    (status:rpc-error ())))             ; the worker of STREAM has gone

(defun do-heartbeat (node session held stream)
  "Do the heartbeat on STREAM of SESSION, which holds the claims HELD. The function may wait for the
store."
  (handler-case (while-open (node)
                  (answer-heartbeat stream (with-store-errors
                                             (note-heartbeat node session held stream))))
    (workflow-error (condition) (fail-heartbeats node stream condition))
    (error (condition)
      (log-event :error :workflow-heartbeat-error :condition (bounded-text condition))
      (fail-heartbeats node stream (make-condition 'store-unavailable
                                                   :text (bounded-text condition)))))
  ;; the stream may have ended before this node kept its session
  (when (rpc:call-status (heartbeat-stream-call stream)) (note-broken node session stream)))

(defun take-heartbeat (node stream request)
  "Answer REQUEST, a HeartbeatRequest received on STREAM; if that may have to wait, another thread
answers."
  (handler-case
      (while-open (node)
        (multiple-value-bind (session held) (check-heartbeat (heartbeat-stream-call stream) request)
          (cond ((heartbeat-stream-busy stream)
                 (refuse :invalid-request "a heartbeat arrived before the answer to another one"))
                ((heard-at-once-p node session held stream) (answer-heartbeat stream '()))
                (t (setf (heartbeat-stream-busy stream) t
                         (heartbeat-stream-session stream) session)
                   (etcd:run-in-background (node-etcd node)
                                           (lambda () (do-heartbeat node session held stream)))))))
    (workflow-error (condition) (fail-heartbeats node stream condition))))

(defun begin-heartbeats (node call)
  (let ((stream (make-heartbeat-stream call)))
    (rpc:on-half-close call (lambda () (rpc:finish call)))
    (rpc:on-end call (lambda () (note-broken node (heartbeat-stream-session stream) stream)))
    (rpc:on-message call (lambda (request) (take-heartbeat node stream request)))))

(defun end-heartbeats (node)
  "End the streams of heartbeats at NODE, which is closing."
  (let ((streams '()))
    (map-records (lambda (record)
                   (when (session-record-stream record)
                     (push (session-record-stream record) streams)))
                 node)
    (dolist (stream streams) (fail-heartbeats node stream (stopping-condition)))))

;;; The end of sessions

(defun end-session-claims (node session)
  "Give the tasks claimed by SESSION, which has ended, to others."
  (change-together node (shuffled node (session-claims node session))
                   (lambda (draft) (lose-claim draft session nil))))

(defun close-session (node session)
  "End SESSION at the request of its worker. Other workers get the tasks that this worker has not
reported; their claims do not count as attempts. Signal SESSION-LOST if SESSION has ended."
  (check-session node session)
  (change-together node (session-claims node session)
                   (lambda (draft)
                     (let ((state (draft-state draft)))
                       (and (held-by-p state session)
                            (give-back draft (pb:workflow-state-fence state))))))
  ;; tasks that were claimed meanwhile are lost with the key
  (etcd:remove-entry (node-etcd node) (session-key node session)))
