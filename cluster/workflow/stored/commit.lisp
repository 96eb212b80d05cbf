;;;; Commits: transactions that several threads of a node make at the same time are sent to the
;;;; store as one request. Each transaction stays separate within the request: it succeeds or fails
;;;; independently of the others, and each thread gets the result that it would get alone.
;;;;
;;;; 1. A transaction that arrives while fewer requests than +MOST-FLYING+ are under way is sent at
;;;;    once, by its own thread.
;;;; 2. Transactions that come meanwhile queue. When a request is answered, a job sends the first
;;;;    transactions of the queue, as many as fit into one request, and so on until the queue is
;;;;    empty.
;;;; 3. Two transactions about one workflow are never in one request: etcd lets a request change a
;;;;    key only once.
;;;;
;;;; So a node with little to do never waits for other threads, and one with much to do makes fewer
;;;; requests.
;;;;
;;;; Stale reads (etcd's serializable ones) are joined in the same way, in a group of their own.
;;;; Stale reads return the present data of one member of etcd, and wait for no disk and no other
;;;; member. A change after a stale read is put only if the state is still the same; a refusal after
;;;; a stale read is checked again by a commit.

(in-package #:clgrpc.workflow)

(defconstant +most-flying+ 2
  "The maximum number of requests of a node's commits that are under way at once.")
(defconstant +most-together+ 32 "The maximum number of transactions in one request. etcd, which
accepts 128 operations, counts each of them as one and leaves 96 operations for each.")
(defconstant +commit-octets+ 1000000
  "The maximum number of octets that one request puts; etcd accepts 1.5 MB.")
(defconstant +longest-commit-seconds+ 60 "The longest wait for a commit: by then its request has
ended, or no thread will make it.")

(defstruct (commit (:constructor make-commit (ids transaction octets)) (:copier nil))
  "A transaction that must be done."
  (ids '() :type list :read-only t)     ; the ids of the workflows that the transaction changes
  (transaction '() :type list :read-only t) ; the arguments of TRANSACT
  (octets 0 :type index :read-only t)   ; how many octets the transaction puts
  (future (loop:make-future) :read-only t)) ; the future of the values of TRANSACT

(declaim (sb-ext:freeze-type commit))

(defun transaction-octets (operations)
  (loop for (verb nil value) in operations
        when (eq :put verb) sum (length (the vector value))))

(defun own-request-p (commit)
  "True if COMMIT is too large to share a request."
  (or (< +commit-octets+ (* 2 (commit-octets commit)))
      (loop for (nil operations) on (commit-transaction commit) by #'cddr
              thereis (< (- +most-operations+ +most-together+) (length operations)))))

(defun take-commits (group)
  "Remove the first commits of GROUP's queue that fit into one request, and return them in order.
The caller must hold GROUP's lock."
  (let ((taken '()) (left '()) (octets 0) (ids (make-hash-table :test 'equal)) (full nil))
    (dolist (commit (clear-fifo (commit-group-queue group)))
      (cond ((or full
                 (some (lambda (id) (gethash id ids)) (commit-ids commit))
                 (and taken
                      (or (own-request-p commit)
                          (< +commit-octets+ (+ octets (commit-octets commit))))))
             (push commit left)
             ;; so later transactions of the same workflows do not overtake this commit
             (dolist (id (commit-ids commit)) (setf (gethash id ids) t)))
            (t (push commit taken)
               (incf octets (commit-octets commit))
               (dolist (id (commit-ids commit)) (setf (gethash id ids) t))
               (setf full (or (own-request-p commit) (= +most-together+ (length taken)))))))
    (dolist (commit (reverse left)) (enqueue commit (commit-group-queue group)))
    (nreverse taken)))

(defun settle-commit (etcd commit)
  "Do COMMIT alone."
  (handler-case (multiple-value-call #'loop:resolve-future (commit-future commit)
                  (apply #'etcd:transact etcd (commit-transaction commit)))
    (error (condition) (loop:reject-future (commit-future commit) condition))))

(defun settle-commits (etcd commits)
  "Do COMMITS in one request."
  (handler-case
      (multiple-value-bind (done results revision)
          (etcd:transact etcd :then (loop for commit in commits
                                          collect (cons :transact (commit-transaction commit))))
        (declare (ignore done))
        (loop for commit in commits
              for (done . results) in results
              do (loop:resolve-future (commit-future commit) done results revision)))
    ;; one transaction is wrong, or puts into a full store, or uses a lease that has ended; this
    ;; must not affect the other transactions
    ((or etcd:invalid-request etcd:space-exceeded etcd:lease-not-found) ()
      (dolist (commit commits) (settle-commit etcd commit)))
    (error (condition)
      (dolist (commit commits) (loop:reject-future (commit-future commit) condition)))))

(defun more-to-send-p (group)
  "Note that a request of GROUP is over. Return true if GROUP has something to send and may send
another request."
  (sb-thread:with-mutex ((commit-group-lock group))
    (cond ((fifo-items (commit-group-queue group)) t)
          (t (decf (commit-group-flying group))
             nil))))

(defun await-commit (commit)
  "Wait for COMMIT, and return the values of TRANSACT."
  (handler-case (loop:await (commit-future commit) :timeout +longest-commit-seconds+)
    ;; the store's client was closed meanwhile
    (loop:await-timeout ()
      (error 'etcd:unavailable :perhaps-done t :text "a transaction was not answered"))))

(defun read-together (etcd operations)
  "The results of OPERATIONS, which only read, in as few requests as possible."
  (loop for from from 0 below (length operations) by +most-operations+
        append (nth-value 1 (etcd:transact
                             etcd :then (subseq operations from
                                                (min (length operations)
                                                     (+ from +most-operations+)))))))

(defun settle-stale-reads (etcd commits)
  "Do COMMITS, which are stale reads, in one request."
  (flet ((operations (commit) (getf (commit-transaction commit) :then)))
    (handler-case
        (let ((results (read-together etcd (mapcan (lambda (commit) (copy-list (operations commit)))
                                                   commits))))
          (dolist (commit commits)
            (loop:resolve-future (commit-future commit) t
                                 (loop repeat (length (operations commit)) collect (pop results)))))
      (error (condition)
        (dolist (commit commits) (loop:reject-future (commit-future commit) condition))))))

(defun queue-commit (group commit)
  "Queue COMMIT in GROUP, whose lock the caller must hold. Return true if the caller must send a
request, which is then counted as under way."
  (enqueue commit (commit-group-queue group))
  (when (< (commit-group-flying group) +most-flying+)
    (incf (commit-group-flying group))))

(defun end-sending (node group commits)
  "Handle the end of a request with COMMITS, of GROUP of NODE: a job sends the rest of the queue."
  (dolist (commit commits)
    (unless (loop:future-done-p (commit-future commit))
      (loop:reject-future (commit-future commit)
                          (make-condition 'etcd:unavailable :perhaps-done t
                                          :text "a non-local exit has stopped the sender"))))
  (when (more-to-send-p group)
    (etcd:run-in-background (node-etcd node) (lambda () (send-commits node group)))))

(defun send-commits (node group &optional commit)
  "Send the first commits in the queue of GROUP, of NODE; a job sends the rest, even if a non-local
exit, such as that of WITH-TIMEOUT, leaves the function. If COMMIT is given, queue it first, and
send nothing if enough requests are under way."
  (let ((etcd (node-etcd node)) (sends (null commit)) (commits '()))
    (with-undoing ((sb-thread:with-mutex ((commit-group-lock group))
                     (when commit (setf sends (queue-commit group commit)))
                     (when sends (setf commits (take-commits group))))
                   (when sends (end-sending node group commits)))
      (cond ((eq group (node-stale-reads node)) (settle-stale-reads etcd commits))
            ((rest commits) (settle-commits etcd commits))
            (t (dolist (commit commits) (settle-commit etcd commit)))))))

(defun do-commit (node group commit)
  "Do COMMIT together with other simultaneous commits of GROUP, of NODE. Return the values of
TRANSACT."
  (send-commits node group commit)
  (await-commit commit))

(defun transact (node ids &key when then else)
  "Do what ETCD:TRANSACT does in the store of NODE, together with other simultaneous transactions.
IDS are the ids of the workflows that the transaction changes."
  (if (node-commits node)
      (do-commit node (node-commits node)
        (make-commit ids (list :when when :then then :else else) (transaction-octets then)))
      ;; a node without jobs has no other threads
      (etcd:transact (node-etcd node) :when when :then then :else else)))

(defun read-stale (node keys)
  "The entries of KEYS at some recent revision, with nil for those that do not exist; nil if NODE
has no jobs."
  (and keys
       (node-stale-reads node)
       (nth-value 1 (do-commit node (node-stale-reads node)
                      (make-commit '() (list :then (loop for key in keys
                                                         collect (list :get key :stale t)))
                                   0)))))

(defun fetch-together (node key)
  "The entry of KEY, or nil, as ETCD:FETCH returns it."
  (if (node-commits node)
      (first (nth-value 1 (transact node '() :then (list (list :get key)))))
      (etcd:fetch (node-etcd node) key)))
