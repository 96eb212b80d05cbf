;;;; A node: a member of the group. Its state is under one lock. Handlers change it on the server's
;;;; threads; all that it does of its own accord one thread does, its driver, which also gets what
;;;; loops bring: they only put it in the inbox, since they must not wait for a disk.
;;;;
;;;; 1. Whatever an answer stands on is on the disk before the answer goes: SYNC-JOURNAL.
;;;; 2. The driver makes a turn when its bell rings or a time has come: it takes the inbox, appends
;;;;    what clients want with one sync for all, commits and applies, leaves the lock and sends.
;;;; 3. After an error of the disk nobody knows what is on it: the node is broken and silent.
;;;;
;;;; Time is the clock of the loops; how long an election waits is decided by chance.

(in-package #:clgrpc.examples.raft)

(defparameter *timing* '(:election 150/1000 :heartbeat 50/1000 :abdication 300/1000 :patience 2)
  "In seconds: how long a follower waits for a sign of life at least, twice that at most; how often
a leader gives one; after how long without a majority it leads no longer; how long a client's
command may take.")

(defclass node ()
  ((name :initarg :name :reader node-name)
   (group :initarg :group :reader node-group)
   (names :initarg :names :reader node-names) ; of all members, its own among them
   (disk :initarg :disk :reader node-disk)
   (timing :initarg :timing :reader node-timing) ; see *TIMING*
   (most-entries :initarg :most-entries :reader node-most-entries) ; applied ones that the log keeps
   (request-entries :initarg :request-entries :reader node-request-entries) ; in one, at most
   (clock :initarg :clock :reader node-clock) ; a function: the time in nanoseconds
   (observer :initarg :observer :reader node-observer) ; (node event . arguments), or nil
   (random :initform (loop:new-random-state) :reader node-random)
   (lock :initform (sb-thread:make-mutex :name "raft node") :reader node-lock) ; of what follows
   ;; on the disk
   (term :initform 0 :accessor node-term)
   (vote :initform nil :accessor node-vote) ; the candidate that has it in this term
   (log :initform (make-log) :accessor node-log)
   (dirty :initform nil :accessor node-dirty) ; something was appended to the disk since its sync
   ;; what it knows
   (role :initform :follower :accessor node-role) ; :pre-candidate, :candidate or :leader
   (leader :initform nil :accessor node-leader) ; of this term, by name
   (votes :initform '() :accessor node-votes) ; names, of a candidate
   (deadline-ns :initform 0 :accessor node-deadline-ns) ; an election begins then
   (heard-ns :initform nil :accessor node-heard-ns) ; when the leader gave a sign of life
   (told :initform nil :accessor node-told) ; the leader has told it to begin an election
   (commit :initform 0 :accessor node-commit)
   (applied :initform 0 :accessor node-applied)
   (store :initform (make-store) :accessor node-store)
   (chunks :initform '() :accessor node-chunks) ; of a snapshot that comes, the last first
   ;; of a leader
   (progress :initform '() :accessor node-progress) ; a PROGRESS for each other member
   (round :initform 0 :accessor node-round) ; of the last read
   (reads :initform '() :accessor node-reads) ; that wait
   (proposals :initform '() :accessor node-proposals) ; not yet in the log, the last first
   (waiting :initform (make-hash-table) :reader node-waiting) ; from an index to its proposal
   ;; the driver
   (inbox :initform '() :accessor node-inbox) ; functions, the last first; under INBOX-LOCK
   (inbox-lock :initform (sb-thread:make-mutex :name "raft inbox") :reader node-inbox-lock)
   (bell :initform (sb-thread:make-semaphore :name "raft node") :reader node-bell)
   (background :initform nil :accessor node-background) ; whose threads drive and send snapshots
   (peers :initform '() :accessor node-peers)
   (ended :initform nil :accessor node-ended) ; :stopped, or the condition that broke it
   )
  (:documentation "A member of a group: see MAKE-NODE."))

(defmethod print-object ((node node) stream)
  (print-unreadable-object (node stream :type t)
    (format stream "~A ~(~A~), term ~D, log ~A, committed ~D" (node-name node) (node-role node)
            (node-term node) (node-log node) (node-commit node))))

(defstruct (proposal (:constructor make-proposal (command future)) (:copier nil))
  "A command that a client waits for."
  (command nil :read-only t)            ; octets
  (future nil :read-only t)
  (term 0))                             ; in which it was appended

(defmacro with-node ((node) &body body)
  `(sb-thread:with-mutex ((node-lock ,node)) ,@body))

(defun now (node)
  (funcall (node-clock node)))

(defun timing-ns (node kind)
  (seconds-ns (getf (node-timing node) kind)))

(defun observe (node event &rest arguments)
  (when (node-observer node) (apply (node-observer node) node event arguments)))

(defun majority-p (node count)
  (> (* 2 count) (length (node-names node))))

;;; What is on the disk

(defun note-record (node record)
  (setf (node-dirty node) t)
  (write-disk (node-disk node) (framed record)))

(defun sync-journal (node)
  "Return once all that NODE has noted outlives a crash."
  (when (shiftf (node-dirty node) nil) (sync-disk (node-disk node))))

(defun call-with-disk (node function)
  "Call FUNCTION, which may change the disk of NODE; an error breaks NODE."
  (when (node-ended node) (grpc:fail :unavailable "this node has ended"))
  (handler-bind ((error (lambda (condition)
                          (unless (typep condition 'grpc:rpc-error)
                            (setf (node-ended node) condition)))))
    (funcall function)))

(defmacro with-disk ((node) &body body)
  "Evaluate BODY with the lock of NODE; after an error NODE is broken."
  `(with-node (,node) (call-with-disk ,node (lambda () ,@body))))

(defun set-term (node term candidate)
  "The term of NODE is TERM, in which CANDIDATE, or nobody, has its vote."
  (setf (node-term node) term
        (node-vote node) candidate)
  (note-record node (vote-record term candidate)))

(defun append-entry (node entry)
  (observe node :appends entry)
  (add-entry (node-log node) entry)
  (note-record node (entry-record entry)))

(defun truncate-log (node index)
  "The log of NODE ends before INDEX."
  (observe node :truncates index)
  (assert (> index (node-commit node)) () "What is committed is not truncated.")
  (drop-entries (node-log node) index)
  (note-record node (pb:make-record :truncated-from index)))

(defun rewrite-journal (node)
  "Have the disk of NODE keep what NODE has and nothing else."
  (replace-disk (node-disk node)
                  (journal-octets (node-log node) (node-term node) (node-vote node)))
  (setf (node-dirty node) nil))

;;; What is committed

(defun compact-log (node)
  "Have a snapshot stand for what was applied, if that is much."
  (let* ((log (node-log node)) (index (node-applied node)))
    (when (> (- index (log-base-index log)) (node-most-entries node))
      (move-base log index (term-at log index) (store-snapshot (node-store node)))
      (rewrite-journal node))))

(defun apply-entry (node entry)
  "Do what ENTRY says; the client that waits for it, if any does, has its result."
  (let* ((index (v1:entry-index entry))
         (result (and (zerop (v1:entry-kind entry))
                      (apply-command (node-store node)
                                     (grpc:parse-message 'pb:command (v1:entry-data entry)) index)))
         (proposal (gethash index (node-waiting node))))
    (setf (node-applied node) index)
    (observe node :applies entry)
    (when proposal
      (remhash index (node-waiting node))
      (loop:resolve-future (proposal-future proposal) result))))

(defun apply-committed (node)
  (loop while (< (node-applied node) (node-commit node))
        do (apply-entry node (entry-at (node-log node) (1+ (node-applied node)))))
  (compact-log node))

(defun set-commit (node index)
  "The log of NODE is committed up to INDEX at least."
  (when (> index (node-commit node))
    (setf (node-commit node) index)
    (observe node :commits index)))

(defun restore (node index term snapshot)
  "SNAPSHOT stands for the log of NODE up to INDEX, of TERM."
  (move-base (node-log node) index term snapshot)
  (setf (node-store node) (restored-store snapshot)
        (node-commit node) (max index (node-commit node))
        (node-applied node) index)
  (observe node :restores index))

;;; The driver's inbox

(defun ring (node)
  (sb-thread:signal-semaphore (node-bell node)))

(defun tell (node function)
  "Have the driver of NODE call FUNCTION with the lock. From any thread, which waits for nothing."
  (sb-thread:with-mutex ((node-inbox-lock node))
    (push function (node-inbox node)))
  (ring node))

(defun take-inbox (node)
  (sb-thread:with-mutex ((node-inbox-lock node))
    (reverse (shiftf (node-inbox node) '()))))
