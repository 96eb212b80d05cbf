;;;; The leases of sessions. A session is a key, and the key ends with a lease of the node that
;;;; receives its worker's heartbeats. So all sessions that a node keeps cost the store the renewals
;;;; of a few leases. A worker sends its heartbeats on one stream, which stays at one node:
;;;;
;;;; 1. The first heartbeat on a stream moves the key to a lease of the node, by one put. Further
;;;;    heartbeats on that stream change the node's memory alone.
;;;; 2. A lease lasts as long as the session, or up to a fifth less, so that a node has few: see
;;;;    LEASE-CLASS. A job renews each lease eight times in its duration. If the last renewal was a
;;;;    third of that duration ago, a heartbeat is answered only after another renewal; if this
;;;;    fails, the heartbeat is refused, and the worker asks another node.
;;;; 3. A session whose stream breaks, or that has sent no heartbeat for half of its time, gets a
;;;;    lease of its own for the rest of its time, by a put; the store ends the session unless a
;;;;    heartbeat takes it back, as in 1. So the end of a session is always that of a lease: no node
;;;;    deletes a session that its worker has not closed.
;;;;
;;;; Each of these puts succeeds only if the key was last changed at the revision that the node
;;;; knows. So of several simultaneous changes of a key one is first, and the others read the key
;;;; again. Meanwhile a session's key stays in the store, and claims compare nothing else.
;;;;
;;;; For a session of S seconds with a lease of L, 4/5 S < L <= S, this means:
;;;;
;;;; - The worker dies: its key gets a lease for the rest of its time, rounded up to a second,
;;;;   within half a second after its stream has broken, or S/2 after its last heartbeat. Other
;;;;   workers get its tasks after S seconds, one more at most, and the time that the store takes to
;;;;   end leases (etcd: half a second).
;;;; - The node dies: the streams of its workers break at once. The lease was renewed L/8 before at
;;;;   most, so the workers have 7/8 L to reach another node.
;;;; - The node hangs or is stopped: a worker's channel notices within two seconds, and the rest is
;;;;   as if it had died. When the node continues it finds other revisions, and gives up the
;;;;   sessions that other nodes keep. If the node's leases have ended, a renewal reports this, and
;;;;   the node drops all sessions that it kept by them. Heartbeats may have waited in its sockets,
;;;;   so a session that seems over gets two more seconds by 3, to handle these heartbeats.
;;;; - Worker and node die together: the lease ends by itself after L. If a worker hangs, and its
;;;;   node dies before step 3, the session lasts 3/2 S at most. This case and the next are the only
;;;;   ones in which a session exceeds its time by more than two seconds while the store works.
;;;; - The node hangs, goes on for a moment, in which it renews its leases, and hangs again: the
;;;;   sessions that end with these leases, even those of dead workers, last for their time from
;;;;   that moment on.
;;;; - The node loses the store, but not its workers: their heartbeats are refused L/3 later, and
;;;;   they have L/3 at least to reach another node.
;;;; - The store stalls: when it continues, it may end leases, as it always may. A new leader of
;;;;   etcd gives each lease its whole time again; leases are renewed until the store says that they
;;;;   have ended, so an outage ends no session by itself.
;;;; - A put gets no answer: if it was done all the same, the watch of the index reports it. A node
;;;;   that sees a key with one of the node's own leases keeps that session as if a heartbeat had
;;;;   come at that moment. A put that reaches the store late, after other changes, finds another
;;;;   revision. If there were no other changes, and its node hangs by then, the session may end
;;;;   before a heartbeat at another node takes it back, since the lease is as old as the put.
;;;; - The watch of the index is late, or ends: a stream that has taken its session does not need
;;;;   the watch. After a new watch, which may be of a store that has lost data, each session is
;;;;   taken again, by its next heartbeat.
;;;; - A session ends during a claim: the transaction compares that its key is there. A worker that
;;;;   drains keeps its stream until it closes its session.
;;;; - No date is used: times are those of STEADY-MS and of the store.

(in-package #:clgrpc.workflow)

(defconstant +renewals+ 8 "How often a lease is renewed within its duration.")
(defconstant +certain-share+ 1/3
  "The share of a lease's time after which the lease is renewed before a heartbeat is answered.")
(defconstant +moved-together+ 32
  "The maximum number of sessions that one request moves to leases of their own.")

(defun session-seconds (session)
  "The seconds in the name SESSION. Signal SESSION-LOST for a name that is not a session's."
  (let* ((end (or (position #\. session) (length session)))
         (dash (position #\- session :end end))
         (seconds (and dash
                       (< dash end (+ dash 6))
                       (ignore-errors (parse-integer session :start (1+ dash) :end end)))))
    (if (and seconds (<= 2 seconds 3600))
        seconds
        (refuse :session-lost "the session ~A does not exist" session))))

(defun session-key (node session)
  (node-key node "index/sessions" (check-name session "a session")))

;;; Leases

(defun lease-class (seconds)
  "The seconds of a lease for sessions of SECONDS: SECONDS with all but the three first binary
digits set to 0."
  (let ((unit (expt 2 (max 0 (- (integer-length seconds) 3)))))
    (* unit (floor seconds unit))))

(defun lease-ms (session-lease)
  "How long SESSION-LEASE lasts unless it is renewed."
  (* 1000 (etcd:lease-seconds (session-lease-lease session-lease))))

(defun lease-number (session-lease)
  (etcd:lease-id (session-lease-lease session-lease)))

(defun certain-p (session-lease)
  "True if SESSION-LEASE was renewed lately."
  (<= (- (steady-ms) (session-lease-renewed-ms session-lease))
      (* +certain-share+ (lease-ms session-lease))))

(defun session-leases (node)
  "The SESSION-LEASEs of NODE, a list. The caller must hold the node's lock."
  (alexandria:hash-table-values (node-session-leases node)))

(defun find-session-lease (node number)
  "The SESSION-LEASE of NODE with the lease NUMBER; nil if NODE has none. The caller must hold the
node's lock."
  (find number (session-leases node) :key #'lease-number))

(defun place-record (record session-lease)
  "Note that the key of RECORD's session ends with SESSION-LEASE or, if that is nil, with a lease
that is not the node's. The caller must hold the node's lock."
  (unless (eq session-lease (session-record-session-lease record))
    (quit-ring record)
    (setf (session-record-session-lease record) session-lease
          (session-record-stream record) nil)
    (when session-lease
      (setf (session-record-heard-ms record) (steady-ms))
      (enter-ring record (session-lease-records session-lease)))))

(defun drop-session-lease (node session-lease)
  "Drop SESSION-LEASE, of NODE, which has ended in the store, and with it all sessions that NODE
kept by it."
  (sb-thread:with-mutex ((node-lock node))
    (loop for seconds being the hash-keys of (node-session-leases node) using (hash-value present)
          when (eq present session-lease)
            do (remhash seconds (node-session-leases node)))
    (dolist (head (list (session-lease-records session-lease) (session-lease-silent session-lease)))
      (dolist (record (ring-list head)) (place-record record nil)))))

(defun renew-session-lease (node session-lease)
  "Renew SESSION-LEASE, of NODE. Return false if the lease has ended. Signal an ETCD-ERROR."
  (renew-session-leases node (list session-lease))
  (sb-thread:with-mutex ((node-lock node))
    (find-session-lease node (lease-number session-lease))))

(defun renew-session-leases (node session-leases)
  "Renew SESSION-LEASES, of NODE, and drop those that have ended. Signal an ETCD-ERROR."
  (when session-leases
    (let* ((asked (steady-ms))
           (patience (/ (reduce #'min session-leases :key #'lease-ms) 4000))
           (all-seconds (etcd:renew-leases (mapcar #'session-lease-lease session-leases)
                                           :timeout (max 1/2 patience))))
      (loop for session-lease in session-leases
            for seconds in all-seconds
            do (if seconds
                   (sb-thread:with-mutex ((node-lock node))
                     (setf (session-lease-renewed-ms session-lease) asked))
                   (drop-session-lease node session-lease))))))

(defun grant-session-lease (node class)
  "A new SESSION-LEASE of NODE for sessions of CLASS, or the lease that another thread has made
meanwhile."
  (let* ((asked (steady-ms))
         (new (make-session-lease (etcd:grant-lease (node-etcd node) class :keep-alive nil) asked)))
    (prog1 (sb-thread:with-mutex ((node-lock node))
             (alexandria:ensure-gethash class (node-session-leases node) new))
      (mapc #'loop:wake-job (node-renewers node)))))

(defun ensure-session-lease (node seconds)
  "A SESSION-LEASE of NODE for sessions of SECONDS that is certain to last."
  (let* ((class (lease-class seconds))
         (present (sb-thread:with-mutex ((node-lock node))
                    (values (gethash class (node-session-leases node))))))
    (if (and present (or (certain-p present) (renew-session-lease node present)))
        present
        (grant-session-lease node class))))

;;; A node's knowledge of sessions

(defun note-heard (record)
  "Note that RECORD's worker has sent a sign of life now. The caller must hold the node's lock."
  (setf (session-record-heard-ms record) (steady-ms))
  (quit-ring record)
  (enter-ring record (session-lease-records (session-record-session-lease record))))

(defun note-change-of-key (node record lease revision)
  "Note that the key of RECORD's session ends with the lease number LEASE since REVISION, unless
NODE knows a later change. The caller must hold the node's lock."
  (let ((before (session-record-revision record)))
    (when (< before revision)
      (setf (session-record-revision record) revision)
      (place-record record (find-session-lease node lease))
      ;; only a heartbeat at this node puts the key with a lease of NODE
      (when (and (plusp before) (session-record-session-lease record))
        (note-heard record)))))

(defun note-session (node session &optional (lease 0) (revision 0))
  "Note that SESSION is open, and that its key ends with the lease number LEASE since REVISION."
  (sb-thread:with-mutex ((node-lock node))
    (let ((record (ensure-record node session)))
      (setf (session-record-open record) t)
      (note-change-of-key node record lease revision))))

(defun note-entry (node session entry)
  "Note ENTRY, which was read as the entry of SESSION's key. ENTRY may be old, so a session that
NODE does not know remains unknown."
  (sb-thread:with-mutex ((node-lock node))
    (when-let ((record (find-record node session)))
      (note-change-of-key node record (etcd:entry-lease entry) (etcd:entry-changed entry)))))

(defun doubt-records (node)
  "Treat NODE's knowledge of the keys of sessions as uncertain from now on."
  (map-records (lambda (record)
                 (setf (session-record-revision record) 0
                       (session-record-stream record) nil))
               node))

(defun note-kept (node session session-lease revision stream)
  "Note that NODE has put the key of SESSION with SESSION-LEASE at REVISION, because of a heartbeat
on STREAM or, if STREAM is nil, because SESSION was opened."
  (sb-thread:with-mutex ((node-lock node))
    (let ((record (find-record node session)))
      (when (and record (<= (session-record-revision record) revision))
        (setf (session-record-open record) t
              (session-record-revision record) revision)
        (place-record record (find-session-lease node (lease-number session-lease)))
        (when (session-record-session-lease record)
          (setf (session-record-stream record) stream)
          (note-heard record))))))

;;; Heartbeats

(defun hear (node session stream)
  "Note a heartbeat of SESSION on STREAM at NODE, if NODE keeps SESSION because of an earlier
heartbeat on STREAM. Return true if NODE is certain that it keeps SESSION."
  (sb-thread:with-mutex ((node-lock node))
    (let ((record (find-record node session)))
      (when (and record
                 (session-record-session-lease record)
                 (eq stream (session-record-stream record))
                 (certain-p (session-record-session-lease record)))
        (note-heard record)
        t))))

(defun known-revision (node session)
  "The revision at which the key of SESSION was changed last, as far as NODE knows; nil if NODE does
not know the session."
  (sb-thread:with-mutex ((node-lock node))
    (let ((record (find-record node session))) (and record (session-record-revision record)))))

(defun fetch-revision (node session)
  "Return the revision at which the key of SESSION was changed last, read from the store. Signal
SESSION-LOST if SESSION does not exist."
  (if-let ((entry (etcd:fetch (node-etcd node) (session-key node session))))
    (etcd:entry-changed entry)
    (refuse :session-lost "the session ~A does not exist" session)))

(defun move-key (node session number revision)
  "The operations of TRANSACT that let the key of SESSION end with the lease NUMBER, if the key was
last changed at REVISION, and otherwise return its entry."
  (let ((key (session-key node session)))
    (list :when (list (list :present key) (list :changed key '= revision))
          :then (list (list :put key "" :lease number :keep-value t))
          :else (list (list :get key)))))

(defun try-to-keep (node session stream revision)
  "Let the key of SESSION end with a lease of NODE, if the key was last changed at REVISION. Return
true if the key has the lease. If not, return false and the entry of the key, which is nil if the
lease has ended. Signal SESSION-LOST if the session has ended."
  (let ((session-lease (ensure-session-lease node (session-seconds session))))
    (handler-case
        (multiple-value-bind (done results now)
            (apply #'transact node (list session)
                   (move-key node session (lease-number session-lease) revision))
          (cond (done (note-kept node session session-lease now stream)
                      t)
                ((first results) (values nil (first results)))
                (t (refuse :session-lost "the session ~A has ended" session))))
      (etcd:lease-not-found ()
        (drop-session-lease node session-lease)
        (values nil nil)))))

(defun keep-session-here (node session stream)
  "Make NODE keep SESSION alive from now on, since a heartbeat has arrived on STREAM. Signal
SESSION-LOST if SESSION has ended."
  (loop with revision = (or (known-revision node session) (fetch-revision node session))
        repeat +most-tries+
        do (multiple-value-bind (done entry) (try-to-keep node session stream revision)
             (when done (return))
             (when entry
               (note-entry node session entry)
               (setf revision (etcd:entry-changed entry))))
        finally (refuse :store-unavailable "too many changes of ~A at once" session)))

;;; Sessions without heartbeats

(defun note-broken (node session stream)
  "Note that STREAM of SESSION's heartbeats has ended: unless another stream begins, the worker
sends no further heartbeats."
  (sb-thread:with-mutex ((node-lock node))
    (let ((record (find-record node session)))
      (when (and record (eq stream (session-record-stream record)))
        (fall-silent record)))))

(defun fall-silent (record)
  "Note that RECORD's session must get a lease of its own. A heartbeat from now on takes the session
back. The caller must hold the node's lock."
  (setf (session-record-stream record) nil)
  (quit-ring record)
  (enter-ring record (session-lease-silent (session-record-session-lease record))))

(defun silent-records (session-lease now)
  "The records of SESSION-LEASE whose sessions must get leases of their own at NOW. The caller must
hold the lock."
  (loop with head = (session-lease-records session-lease)
        with silence = (* 1000 (ceiling (etcd:lease-seconds (session-lease-lease session-lease)) 2))
        for record = (ring-first head)  ; the record whose worker was heard least recently
        while (and record (<= (+ silence (session-record-heard-ms record)) now))
        do (fall-silent record))
  (ring-list (session-lease-silent session-lease)))

(defun take-silent (node)
  "The sessions of NODE that must get leases of their own now: lists of the seconds of that lease,
the session, and the revision of its key."
  (let ((now (steady-ms)))
    (sb-thread:with-mutex ((node-lock node))
      (loop for session-lease in (session-leases node)
            append (loop for record in (silent-records session-lease now)
                         for session = (session-record-name record)
                         for end = (+ (session-record-heard-ms record)
                                      (* 1000 (session-seconds session)))
                         collect (list (max 2 (ceiling (- end now) 1000)) session
                                       (session-record-revision record)))))))

(defun move-together (node lease silent)
  "Let the keys of the sessions in SILENT, elements of a list from TAKE-SILENT, end with LEASE. Keys
that have changed are left alone."
  (let ((number (etcd:lease-id lease)))
    (multiple-value-bind (done all-results now)
        (etcd:transact (node-etcd node)
                       :then (loop for (nil session revision) in silent
                                   collect (cons :transact
                                                 (move-key node session number revision))))
      (declare (ignore done))
      (loop for (nil session) in silent
            for (done . results) in all-results
            do (cond (done (sb-thread:with-mutex ((node-lock node))
                             (let ((record (find-record node session)))
                               (when record (note-change-of-key node record number now)))))
                     ((first results) (note-entry node session (first results)))
                     (t (forget-session node session)))))))

(defun release-silent (node)
  "Give leases of their own to the sessions of NODE that have sent no heartbeat for too long."
  (let ((groups '()))
    (dolist (silent (take-silent node)) (push silent (getf groups (first silent))))
    (loop for (seconds group) on groups by #'cddr
          for lease = (etcd:grant-lease (node-etcd node) seconds :keep-alive nil)
          do (loop while group
                   do (move-together node lease (loop repeat +moved-together+
                                                      while group collect (pop group)))))))

;;; The job

(defun due-leases (node)
  "The SESSION-LEASEs of NODE that must be renewed now."
  (let ((now (steady-ms)))
    (sb-thread:with-mutex ((node-lock node))
      (remove-if (lambda (session-lease)
                   (< (* +renewals+ (- now (session-lease-renewed-ms session-lease)))
                      (lease-ms session-lease)))
                 (session-leases node)))))

(defun renewer-seconds (node)
  "The seconds until NODE looks at its SESSION-LEASEs again; nil if it has none."
  (when-let ((all (sb-thread:with-mutex ((node-lock node)) (session-leases node))))
    (clamp (/ (reduce #'min all :key #'lease-ms) 16000) 1/8 1/2)))

(defun attend-session-leases (node function)
  "Call FUNCTION, the work of a job of NODE. Return the seconds until the job runs again, or nil."
  (handler-case (funcall function node)
    ;; the keeper logs that the store does not answer
    ((or etcd:etcd-error workflow-error) ())
    (error (condition)
      (log-event :error :workflow-heartbeat-error :condition (bounded-text condition))))
  (renewer-seconds node))

(defun renew-due-leases (node)
  (renew-session-leases node (due-leases node)))

(defun begin-renewing (node)
  "Start the two jobs for the SESSION-LEASEs of NODE, and return them. A request of one job does not
delay the other."
  (setf (node-renewers node)
        (loop for function in '(renew-due-leases release-silent)
              collect (let ((function function))
                        (etcd:add-job (node-etcd node)
                                      (lambda () (attend-session-leases node function)))))))
