;;;; Replication, as the leader does it (Raft, 5.3). A request that fails, or is refused, makes all
;;;; that was sent after it void: its answers belong to an epoch that is over.

(in-package #:clgrpc.examples.raft)

(defconstant +most-pending+ 16 "Requests to one member that are not answered.")
(defconstant +most-request-octets+ 262144)

;;; Answers

(defun probe (progress next)
  "Look for where the logs agree from NEXT on; answers to what was sent do not count."
  (setf (progress-state progress) :probe
        (progress-next progress) (max next (1+ (progress-match progress)))
        (progress-pending progress) 0)
  (incf (progress-epoch progress)))

(defun take-answer (node progress term epoch round response error)
  "The member of PROGRESS has answered RESPONSE, or ERROR, to a request of TERM."
  (cond ((and response (> (v1:append-entries-response-term response) (node-term node)))
         (follow node (v1:append-entries-response-term response)))
        ((not (and (eq :leader (node-role node)) (= term (node-term node))
                   (member progress (node-progress node)))))
        (error (when (= epoch (progress-epoch progress))
                 (probe progress (1+ (progress-match progress)))))
        (t (setf (progress-heard-ns progress) (now node)
                 (progress-round progress) (max round (progress-round progress)))
           (when (= epoch (progress-epoch progress))
             (note-response progress response)))))

(defun note-response (progress response)
  (decf (progress-pending progress))
  (cond ((v1:append-entries-response-success response)
         (let ((match (max (progress-match progress)
                           (v1:append-entries-response-match-index response))))
           (setf (progress-match progress) match
                 (progress-next progress) (max (1+ match) (progress-next progress)))
           (when (eq :probe (progress-state progress))
             (setf (progress-state progress) :stream))))
        (t (probe progress (min (v1:append-entries-response-conflict-index response)
                                (1- (progress-next progress))))
           (setf (progress-sent-ns progress) 0)))) ; the next is due at once

;;; Requests

(defun send-entries (node progress entries)
  "A function that sends ENTRIES, an empty list or those from the NEXT of PROGRESS on."
  (let* ((log (node-log node)) (previous (1- (progress-next progress)))
         (known (term-at log previous))
         (request (v1:make-append-entries-request
                   :term (node-term node)
                   ;; where a snapshot is needed, a sign of life agrees with any log
                   :prev-log-index (if known previous 0) :prev-log-term (or known 0)
                   :leader-commit (if known (node-commit node) 0)
                   :entries entries))
         (term (node-term node)) (epoch (progress-epoch progress)) (round (node-round node)))
    (incf (progress-pending progress))
    (setf (progress-sent-ns progress) (now node)
          (progress-sent-round progress) round)
    (flet ((then (response error)
             (tell node (lambda ()
                          (take-answer node progress term epoch round response error)))))
      (lambda ()
        (unless (raft:pipeline-entries (progress-peer progress) request #'then :wait 0)
          (then nil (grpc:make-rpc-error :resource-exhausted :message "the pipeline is full")))))))

(defun due-p (node progress)
  "True if the member of PROGRESS needs a sign of life, for its own sake or a read's."
  (or (< (progress-sent-round progress) (node-round node))
      (<= (+ (progress-sent-ns progress) (timing-ns node :heartbeat)) (now node))))

(defun send-snapshot (node progress)
  "A function that sends the snapshot of NODE's log to the member of PROGRESS."
  (let* ((log (node-log node)) (term (node-term node)) (index (log-base-index log))
         (snapshot (log-snapshot log))
         (header (v1:make-snapshot-header :term term :last-included-index index
                                          :last-included-term (log-base-term log))))
    (setf (progress-state progress) :snapshot)
    (flet ((send ()
             (let ((response (handler-case (raft:install-snapshot (progress-peer progress) header
                                                                  snapshot :timeout 10)
                               (grpc:rpc-error () nil))))
               (tell node (lambda () (note-snapshot node progress term index response))))))
      (lambda () (loop:run-in-background (node-background node) #'send)))))

(defun note-snapshot (node progress term index response)
  "A snapshot up to INDEX was answered with RESPONSE, or with an error: nil."
  (cond ((and response (> (v1:install-snapshot-response-term response) (node-term node)))
         (follow node (v1:install-snapshot-response-term response)))
        ((and (eq :leader (node-role node)) (= term (node-term node))
              (eq :snapshot (progress-state progress)))
         (when response
           (setf (progress-match progress) (max index (progress-match progress))))
         (probe progress (1+ (progress-match progress))))))

(defun sends-to (node progress)
  "Functions that send what the member of PROGRESS is to have now."
  (let* ((log (node-log node)) (sends '()))
    (flet ((next-entries ()
             (entries-from log (progress-next progress) (node-request-entries node)
                           +most-request-octets+)))
      (when (and (<= (progress-next progress) (log-base-index log))
                 (not (eq :snapshot (progress-state progress))))
        (push (send-snapshot node progress) sends))
      (when (eq :stream (progress-state progress))
        (loop while (and (<= (progress-next progress) (last-index log))
                         (< (progress-pending progress) +most-pending+))
              do (let ((entries (next-entries)))
                   (push (send-entries node progress entries) sends)
                   (incf (progress-next progress) (length entries)))))
      (when (due-p node progress)
        (push (send-entries node progress (if (eq :probe (progress-state progress))
                                              (next-entries)
                                              '()))
              sends)))
    (nreverse sends)))

;;; What follows from the answers

(defun reached (node key own)
  "The highest number that KEY, of progresses, and OWN, of NODE itself, have at a majority."
  (let ((numbers (sort (cons own (mapcar key (node-progress node))) #'>)))
    (nth (floor (length numbers) 2) numbers)))

(defun advance-commit (node)
  "Commit what a majority has, if that is of NODE's own term (5.4.2)."
  (let ((index (reached node #'progress-match (last-index (node-log node)))))
    (when (eql (node-term node) (term-at (node-log node) index))
      (set-commit node index))))

(defun answer-reads (node)
  "Let those reads go on that a majority has confirmed."
  (let ((round (reached node #'progress-round (node-round node))))
    (flet ((ready-p (read)
             (and (<= (pending-read-round read) round)
                  (<= (pending-read-index read) (node-applied node)))))
      (dolist (read (node-reads node))
        (when (ready-p read) (loop:resolve-future (pending-read-future read) t)))
      (setf (node-reads node) (remove-if #'ready-p (node-reads node))))))

(defun check-majority (node)
  "A leader that a majority does not answer steps down: clients look for another."
  (let ((heard-ns (reached node #'progress-heard-ns (now node))))
    (when (> (- (now node) heard-ns) (timing-ns node :abdication))
      (follow node (node-term node)))))

(defun append-proposals (node)
  "Put what clients want in the log."
  (dolist (proposal (reverse (shiftf (node-proposals node) '())))
    (let ((index (1+ (last-index (node-log node)))))
      (setf (proposal-term proposal) (node-term node)
            (gethash index (node-waiting node)) proposal)
      (append-entry node (v1:make-entry :index index :term (node-term node)
                                        :data (proposal-command proposal))))))

(defun replicate (node)
  "Do what a leader does in a turn; return functions that send."
  (append-proposals node)
  (sync-journal node)
  (check-majority node)
  (when (eq :leader (node-role node))
    (advance-commit node)
    (apply-committed node)
    (answer-reads node)
    (loop for progress in (node-progress node) append (sends-to node progress))))
