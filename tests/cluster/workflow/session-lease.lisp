;;;; The leases of sessions, from a seed, on the store of interleaving.lisp and by its clock: nodes
;;;; that die, hang, lose the store or are told of changes late, requests that fail, are lost or
;;;; come late, a store that stalls or elects a leader, workers that die or go to other nodes. No
;;;; session ends while its worker is heard of, and each ends in time once it is not.

(in-package #:clgrpc.tests.workflow)

;;; One node, step by step

(defun lease-of-session (node session)
  "The number of the lease that the key of SESSION ends with in NODE's store, and its seconds."
  (let ((lease (etcd:entry-lease (etcd:fetch (workflow::node-etcd node)
                                             (workflow::session-key node session)))))
    (values lease
            (etcd:lease-seconds-left (etcd:lease-by-number (workflow::node-etcd node) lease)))))

(test leases-are-few
  "Sessions of similar times share a lease that lasts no longer than they, and hardly less."
  (let ((classes (loop for seconds from 2 to 3600 collect (workflow::lease-class seconds))))
    (is (loop for seconds from 2
              for class in classes
              always (< (* 4/5 seconds) class (1+ seconds))))
    (is (= 42 (length (remove-duplicates classes))))
    (is (= 10 (workflow::lease-class 10)))))

(test sessions-share-the-lease-of-their-node
  "A heartbeat on a new stream is a put, others are nothing; a stream that breaks brings a lease of
its own for the rest of the session, and a heartbeat takes that back."
  (with-idle-node (node 1000000)
    (let ((sessions (loop repeat 40 collect (open-a-session node :seconds 20)))
          (streams (loop repeat 40 collect (workflow::make-heartbeat-stream))))
      (flet ((beat-all () (loop for session in sessions
                                for stream in streams
                                do (workflow::note-heartbeat node session #() stream)))
             (revision () (nth-value 1 (etcd:fetch (workflow::node-etcd node) "none")))
             (leases () (remove-duplicates (loop for session in sessions
                                                 collect (lease-of-session node session)))))
        (is (= 1 (length (leases))))
        (let ((before (revision)))
          (beat-all)
          (is (= 40 (- (revision) before)))
          (dotimes (i 10) (beat-all))
          (workflow::release-silent node)
          (is (= 40 (- (revision) before)) "nothing more was put")
          (is (= 1 (length (leases)))))
        (let ((before (revision)) (shared (first (leases))))
          (loop for session in sessions
                for stream in streams
                do (workflow::note-broken node session stream))
          (workflow::release-silent node)
          (is (= 2 (- (revision) before)) "many at once")
          (is (= 1 (length (leases))))
          (is (/= shared (first (leases))))
          (is (<= 15 (nth-value 1 (lease-of-session node (first sessions))) 20))
          (beat-all)
          (is (equal (list shared) (leases)) "they are taken back")
          (let ((record (workflow::find-record node (first sessions))))
            (loop for (milliseconds silent) in '((9999 nil) (10000 t))
                  do (is (eq silent (and (member record (workflow::silent-records
                                                         (workflow::session-record-session-lease
                                                          record)
                                                         (+ milliseconds
                                                            (workflow::session-record-heard-ms
                                                             record))))
                                         t))))))))))

(test heartbeats-end-with-their-stream
  "A worker that closes its stream has it closed by the node; the session then gets a lease of its
own."
  (with-memory-node (node)
    (let* ((session (open-a-session node :seconds 120)) (shared (lease-of-session node session))
           (heartbeats (open-heartbeats node)) (done (sb-thread:make-semaphore)))
      ;; the first is answered by a thread that looks at the stream's end as well
      (with-replaced (('workflow::do-heartbeat (lambda (function &rest arguments)
                                                 (apply function arguments)
                                                 (sb-thread:signal-semaphore done))))
        (send-beat heartbeats session)
        (is-true (sb-thread:wait-on-semaphore done :timeout 20)))
      (workflow::release-silent node)
      (is (= shared (lease-of-session node session)))
      (rpc:close-send heartbeats)
      (is (null (rpc:receive heartbeats)))
      (is (eq :ok (rpc:call-status heartbeats)))
      (is-true (wait-until (lambda ()
                             (workflow::release-silent node)
                             (/= shared (lease-of-session node session))))))))

(test a-job-of-leases-outlives-its-errors
  "Those of the store the keeper logs; others are logged here. It goes on in either case."
  (with-memory-node (node)
    (open-a-session node)
    (loop for (condition logged)
            in `((,(make-condition 'etcd:etcd-error) nil)
                 (,(make-condition 'workflow-error) nil)
                 (,(make-condition 'simple-error :format-control "odd") t))
          do (let ((events '()))
               (flet ((listen-to (level name &rest plist)
                        (when (eq :workflow-heartbeat-error name)
                          (push (list level (getf plist :condition)) events))))
                 (base:add-log-listener #'listen-to)
                 (unwind-protect
                      (without-log
                        (is (<= 1/8 (workflow::attend-session-leases
                                     node (fn (_node) (error condition)))
                                1/2)))
                   (base:remove-log-listener #'listen-to)))
               (is (equal (and logged '((:error "odd"))) events) "~S" condition)))))

(test a-node-that-is-not-certain-asks
  "A lease that was not renewed lately is renewed before a heartbeat is answered; one that has ended
is not used."
  (with-idle-node (node 1000000)
    (let ((session (open-a-session node)) (stream (workflow::make-heartbeat-stream)) (ahead 0))
      (flet ((beat () (workflow::note-heartbeat node session #() stream)))
        (with-replaced (('workflow::steady-ms
                         (lambda (function) (+ ahead (funcall function)))))
          (beat)
          (is-true (workflow::hear node session stream))
          (setf ahead 25000)
          (is-false (workflow::hear node session stream))
          (finishes (beat))
          (is-true (workflow::hear node session stream))
          (etcd:revoke-lease (etcd:lease-by-number (workflow::node-etcd node)
                                                   (lease-of-session node session)))
          (setf ahead 50000)
          (signals session-lost (beat))
          (is-true (open-a-session node)))))))

;;; Many nodes

(defclass late-place (place)
  ((delays-p :initform (constantly nil) :accessor place-delays-p) ; true if a transaction comes late
   (sender :initform nil :accessor place-sender) ; the node that acts now
   ;; transactions that are yet to come: functions, each with its node
   (late :initform '() :accessor place-late))
  (:documentation "A store of which a test decides who reaches it."))

(defstruct (lease-node (:copier nil))
  (service nil)
  (state :runs)                         ; or :apart, :stopped, :dead
  (until-ms 0)                          ; when it runs again
  (seen 0)                              ; the revision up to which its watch has told it
  (waiting '()))                        ; (session . stream) of heartbeats in its sockets

(defstruct (lease-worker (:copier nil))
  (session nil)                         ; or nil
  (node nil)                            ; a lease-node
  (stream nil)                          ; there
  (next-ms 0)                           ; when its next heartbeat is due
  (heard-ms 0)                          ; when one was answered last
  (dead-ms nil))                        ; when it has died

(defstruct (lease-case (:copier nil))
  (random nil)
  (place nil)
  (etcd nil)
  (faulty nil)                          ; more goes wrong than that workers die and move
  (seconds 10)                          ; of sessions
  (nodes '())
  (workers '())
  (lost 0)                              ; sessions of the living that have ended
  (ended 0)                             ; those of the dead
  (orphans (make-hash-table :test 'equal)) ; from keys that no worker knows to when they were seen
  (trouble nil))

(defun lease-luck (case percent) (< (random 100 (lease-case-random case)) percent))
(defun lease-pick (case list) (elt list (random (length list) (lease-case-random case))))
(defun lease-now (case) (floor (place-now (lease-case-place case)) 1000000))

(defun lease-complain (case control &rest arguments)
  (unless (lease-case-trouble case)
    (setf (lease-case-trouble case)
          (format nil "at ~D ms: ~?" (lease-now case) control arguments))))

(defun new-lease-node (case)
  (make-lease-node
   :service (make-instance 'workflow-service
                           :etcd (lease-case-etcd case) :root (workflow::root-of "case") :health nil
                           :clock (constantly 0) :limits (workflow::make-limits))))

(defun meddle-with (case when writes)
  "A request is about to be done, or was done."
  (cond ((place-apart (lease-case-place case)) (break-off))
        ((not (lease-case-faulty case)))
        ((lease-luck case (if (and writes (eq :after when)) 3 2)) (break-off))))

(defmethod etcdserverpb.kv:txn :around ((place late-place) request &key)
  (when (and (not (place-apart place)) (funcall (place-delays-p place)))
    (let ((request (protobuf:copy-message request)))
      (push (cons (lambda () (call-next-method place request)) (place-sender place))
            (place-late place)))
    (break-off))
  (call-next-method))

(defun do-late (place)
  "A transaction comes to PLACE that was sent a while ago. Those of a node that hangs since then are
lost, see the head of session-lease.lisp."
  (destructuring-bind (function . node) (pop (place-late place))
    (let ((meddler (shiftf (place-meddler place) (constantly nil))))
      (unless (eq :stopped (lease-node-state node))
        (handler-case (funcall function)
          ;; its lease has ended
          (clgrpc.status:rpc-error ())))
      (setf (place-meddler place) meddler))))

(defun new-lease-case (seed)
  (let* ((random (sb-ext:seed-random-state seed)) (place (make-instance 'late-place))
         (case (make-lease-case :random random :place place :faulty (oddp seed)
                                :seconds (elt '(2 3 5 8 10 11) (random 6 random)))))
    (setf (place-now place) (* 1000000 1000000000)
          (place-meddler place) (lambda (when writes) (meddle-with case when writes))
          (place-delays-p place) (lambda () (and (lease-case-faulty case) (lease-luck case 4)))
          (lease-case-etcd case) (etcd:make-etcd nil :timeout 60
                                                     :channel (clgrpc.inproc:service-channel place))
          (lease-case-nodes case) (loop repeat 3 collect (new-lease-node case))
          (lease-case-workers case) (loop repeat 4 collect (make-lease-worker)))
    case))

(defmacro at-node ((case node) &body body)
  "Evaluate BODY, in which NODE acts. Return its value, :failed or :lost."
  `(progn (setf (place-apart (lease-case-place ,case)) (eq :apart (lease-node-state ,node))
                (place-sender (lease-case-place ,case)) ,node)
          (unwind-protect (handler-case (workflow::with-store-errors ,@body)
                            (session-lost () :lost)
                            (workflow-error () :failed))
            (setf (place-apart (lease-case-place ,case)) nil))))

;;; What happens

(defun key-there-p (case worker)
  (and (lease-worker-session worker)
       (item-at (lease-case-place case)
                (workflow::key (workflow::root-of "case") "index/sessions"
                               (lease-worker-session worker)))))

(defun tell-node (case node)
  "The watch of NODE tells it what has changed."
  (let ((place (lease-case-place case)))
    (loop for revision from (1+ (max 1 (lease-node-seen node))) to (revision-of place)
          do (dolist (change (changes-at place revision))
               (workflow::note-index-change (lease-node-service node) change revision)))
    (setf (lease-node-seen node) (revision-of place))))

(defun move-worker (case worker)
  "WORKER goes to another node, whose state it does not know."
  (let ((node (lease-worker-node worker)))
    (when (and node (eq :runs (lease-node-state node)) (lease-luck case 70))
      (workflow::note-broken (lease-node-service node) (or (lease-worker-session worker) "")
                             (lease-worker-stream worker))))
  (setf (lease-worker-node worker) (lease-pick case (lease-case-nodes case))
        (lease-worker-stream worker) (workflow::make-heartbeat-stream)))

(defun beat-third (case)
  (floor (* 1000 (lease-case-seconds case)) 3))

(defun open-for-worker (case worker)
  (let* ((node (lease-pick case (lease-case-nodes case)))
         (session (if (member (lease-node-state node) '(:runs :apart))
                      (at-node (case node)
                        (values (workflow::open-session (lease-node-service node) "w"
                                                        (lease-case-seconds case))))
                      :failed)))
    (when (stringp session)
      (setf (lease-worker-session worker) session
            (lease-worker-heard-ms worker) (lease-now case))
      (move-worker case worker))))

(defun beat-at-node (case node session stream)
  (at-node (case node)
    (workflow::note-heartbeat (lease-node-service node) session #() stream)
    :kept))

(defun beat-of-worker (case worker)
  (let ((node (lease-worker-node worker)) (now (lease-now case)))
    (flet ((again (ms)
             (setf (lease-worker-next-ms worker) (+ now ms))))
      (ecase (lease-node-state node)
        (:dead (move-worker case worker)
         (again 250))
        ;; it gives up after two silent seconds, or as many as a short session leaves
        (:stopped (push (cons (lease-worker-session worker) (lease-worker-stream worker))
                        (lease-node-waiting node))
         (move-worker case worker)
         (again (min 2000 (beat-third case))))
        ((:runs :apart)
         (ecase (beat-at-node case node (lease-worker-session worker) (lease-worker-stream worker))
           (:kept (setf (lease-worker-heard-ms worker) now)
            (again (beat-third case)))
           (:failed (move-worker case worker)
            (again 250))
           (:lost (again 0))))))))       ; its key is gone, which is looked at elsewhere

(defun run-jobs-of (case node)
  (at-node (case node) (workflow::renew-due-leases (lease-node-service node)))
  (at-node (case node) (workflow::release-silent (lease-node-service node))))

(defun take-late-beat (case node session stream)
  "NODE gets a heartbeat of SESSION that has waited. Its worker may be dead since then, but the
session lasts from now on if NODE has taken it."
  (when (eq :kept (beat-at-node case node session stream))
    (dolist (worker (lease-case-workers case))
      (when (and (lease-worker-dead-ms worker) (equal session (lease-worker-session worker)))
        (setf (lease-worker-dead-ms worker) (lease-now case))))))

(defun halt-node (case node state)
  "NODE enters STATE for a while."
  (setf (lease-node-state node) state
        (lease-node-until-ms node) (+ (lease-now case) (random 15000 (lease-case-random case)))))

(defun excuse-kept (case node)
  "NODE, which stops again, may have renewed its leases, though it did nothing else: sessions of dead
workers whose keys end with these last from now on."
  (dolist (worker (lease-case-workers case))
    (let ((item (and (lease-worker-dead-ms worker) (key-there-p case worker))))
      (when (and item (workflow::find-session-lease
                       (lease-node-service node)
                       (mvccpb:key-value-lease (message-of item))))
        (setf (lease-worker-dead-ms worker) (lease-now case))))))

(defun run-node (case node)
  "NODE does what it does by itself, unless it does not run."
  (let ((now (lease-now case)))
    (when (and (<= (lease-node-until-ms node) now)
               (member (lease-node-state node) '(:apart :stopped)))
      (setf (lease-node-state node) :runs)
      (when (lease-luck case 50) (run-jobs-of case node))
      (loop for (session . stream) in (shiftf (lease-node-waiting node) '())
            do (take-late-beat case node session stream))
      ;; it goes on for this moment only
      (when (lease-luck case 30)
        (excuse-kept case node)
        (halt-node case node :stopped)))
    (when (member (lease-node-state node) '(:runs :apart))
      (when (and (eq :runs (lease-node-state node)) (lease-luck case 70)) (tell-node case node))
      (run-jobs-of case node))))

(defun excuse-all (case)
  "The store may end any session now, or keep any for its whole time again."
  (clrhash (lease-case-orphans case))
  (dolist (worker (lease-case-workers case))
    (setf (lease-worker-heard-ms worker) 0)
    (when (lease-worker-dead-ms worker) (setf (lease-worker-dead-ms worker) (lease-now case)))))

(defun go-wrong (case)
  "Something goes wrong."
  (let ((node (lease-pick case (lease-case-nodes case)))
        (store (place-store (lease-case-place case))))
    (ecase (random 8 (lease-case-random case))
      ((0 1) (halt-node case node :stopped))
      (2 (halt-node case node :apart))
      (3 (setf (lease-node-state node) :dead
               (lease-case-nodes case) (substitute (new-lease-node case) node
                                                   (lease-case-nodes case))))
      ;; it stalls
      (4 (incf (place-now (lease-case-place case))
               (* 1000000 (random 15000 (lease-case-random case))))
       (excuse-all case))
      ;; it has another leader, or a former one, which had hung, goes on
      ((5 6) (let ((end (lease-luck case 50)))
               (dolist (lease (alexandria:hash-table-values (memory::store-leases store)))
                 (if end
                     (memory::revoke-lease store lease)
                     (memory::renew-lease lease (place-now (lease-case-place case))))))
       (excuse-all case))
      ;; the node begins another watch
      (7 (when (eq :runs (lease-node-state node))
           (at-node (case node)
             (workflow::doubt-records (lease-node-service node))
             (setf (lease-node-seen node)
                   (workflow::note-sessions (lease-node-service node)))))))))

(defun end-worker (case worker)
  "WORKER dies; its node perhaps hears of it."
  (setf (lease-worker-dead-ms worker) (lease-now case))
  (let ((node (lease-worker-node worker)))
    (when (and node (eq :runs (lease-node-state node)) (lease-luck case 50))
      (workflow::note-broken (lease-node-service node) (lease-worker-session worker)
                             (lease-worker-stream worker)))))

(defun check-worker (case worker)
  (let* ((there (key-there-p case worker)) (dead (lease-worker-dead-ms worker))
         (now (lease-now case)) (seconds (lease-case-seconds case))
         (silence (- now (lease-worker-heard-ms worker))))
    (cond ((null (lease-worker-session worker)))
          ((and dead there)
           (when (< (if (lease-case-faulty case)
                        (+ 4000 (* 2000 seconds))
                        (+ 2000 (* 1000 seconds)))
                    (- now dead))
             (lease-complain case "the session of a dead worker lasts for ~D ms" (- now dead))))
          (dead (incf (lease-case-ended case))
                (setf (lease-case-workers case)
                      (substitute (make-lease-worker) worker (lease-case-workers case))))
          ((null there)
           (when (or (not (lease-case-faulty case))
                     (< silence (* 2/3 1000 (workflow::lease-class seconds))))
             (lease-complain case "a session ended ~D ms after it was heard of" silence))
           (incf (lease-case-lost case))
           (setf (lease-worker-session worker) nil)))))

(defun check-orphans (case)
  "A session that was opened, though no worker knows, ends as that of a dead worker does."
  (let ((orphans (lease-case-orphans case)) (now (lease-now case)) (there '()))
    (dolist (session (keys-in (lease-case-place case)
                              (workflow::key (workflow::root-of "case") "index/sessions" "")))
      (unless (find session (lease-case-workers case) :key #'lease-worker-session :test #'equal)
        (push session there)))
    (dolist (key (alexandria:hash-table-keys orphans))
      (unless (member key there :test #'string=) (remhash key orphans)))
    (dolist (key there)
      (when (< (+ 4000 (* 2000 (lease-case-seconds case)))
               (- now (alexandria:ensure-gethash key orphans now)))
        (lease-complain case "~A is there for ~D ms without a worker" key
                        (- now (gethash key orphans)))))))

(defun step-case (case)
  "A quarter of a second passes."
  (let ((place (lease-case-place case)))
    (incf (place-now place) 250000000)
    (end-of-leases place)
    (dolist (worker (lease-case-workers case)) (check-worker case worker))
    (check-orphans case)
    (when (and (place-late place) (lease-luck case 30)) (do-late place))
    (dolist (node (lease-case-nodes case)) (run-node case node))
    (dolist (worker (lease-case-workers case))
      (unless (lease-worker-dead-ms worker)
        (cond ((null (lease-worker-session worker)) (open-for-worker case worker))
              ((<= (lease-worker-next-ms worker) (lease-now case)) (beat-of-worker case worker)))
        (when (and (lease-worker-session worker) (lease-luck case 1)) (move-worker case worker))
        (when (and (lease-worker-session worker) (lease-luck case 1)) (end-worker case worker))))
    (when (and (lease-case-faulty case) (lease-luck case 3)) (go-wrong case))))

(defun run-lease-case (seed steps)
  "Run a case. Return what did not hold, or nil, and the case."
  (let ((case (new-lease-case seed)))
    (with-replaced (('workflow::steady-ms (fn (_function) (lease-now case))))
      (unwind-protect
           (progn
             (loop repeat steps
                   until (lease-case-trouble case)
                   do (step-case case))
             (values (lease-case-trouble case) case))
        (mapc #'close-workflow-service (mapcar #'lease-node-service (lease-case-nodes case)))
        (etcd:close-etcd (lease-case-etcd case))))))

(test (sessions-last-as-long-as-they-should :suite :clgrpc.workflow.seeds)
  "A session lasts while heartbeats come, at whatever nodes, and ends in time when they do not.
CLGRPC_SEED repeats a case, CLGRPC_CASES says how many there are."
  (let ((first (number-of-environment "CLGRPC_SEED" (random 1000000000 (make-random-state t))))
        (count (number-of-environment "CLGRPC_CASES" (support:at-length 40 400)))
        (ended 0) (lost 0))
    (loop for seed from first below (+ first count)
          do (multiple-value-bind (trouble case) (run-lease-case seed 400)
               (when trouble
                 (fail "CLGRPC_SEED=~D: ~A" seed trouble)
                 (return))
               (incf ended (lease-case-ended case))
               (incf lost (lease-case-lost case))))
    (when (<= 40 count)
      (is (< count ended) "~D sessions of dead workers" ended)
      (is (< (/ count 10) lost) "~D sessions of others" lost))))
