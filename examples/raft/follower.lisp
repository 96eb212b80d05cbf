;;;; What a node answers to a leader: entries (Raft, 5.3) and snapshots (7).

(in-package #:clgrpc.examples.raft)

(defun hear (node leader term)
  "LEADER, of TERM, gives a sign of life; return false if its term is over."
  (when (>= term (node-term node))
    (assert (not (and (= term (node-term node)) (eq :leader (node-role node)))) ()
            "Two lead in term ~D." term)
    (follow node term)
    (setf (node-leader node) leader
          (node-heard-ns node) (now node))
    (put-off-election node)
    t))

(defun conflict-index (node previous)
  "Where a leader may try next whose entry PREVIOUS the log of NODE does not have."
  (let ((log (node-log node)))
    (cond ((> previous (last-index log)) (1+ (last-index log)))
          (t (max (1+ (log-base-index log)) (first-index-of-term log previous))))))

(defun agrees-p (node request)
  "True if the log of NODE agrees with that of the leader of REQUEST before its entries. What a
snapshot stands for is committed, and so the same."
  (let ((previous (v1:append-entries-request-prev-log-index request)))
    (or (< previous (log-base-index (node-log node)))
        (eql (v1:append-entries-request-prev-log-term request)
             (term-at (node-log node) previous)))))

(defun take-entry (node entry)
  "Have ENTRY in the log of NODE; one of another term in its place goes, with all after it."
  (let* ((log (node-log node)) (index (v1:entry-index entry)) (term (term-at log index)))
    (unless (or (<= index (log-base-index log)) (eql term (v1:entry-term entry)))
      (when (<= index (last-index log)) (truncate-log node index))
      (append-entry node entry))))

(defun entries-response (node success &key (match 0) (conflict 0))
  (v1:make-append-entries-response :term (node-term node) :success success :match-index match
                                   :conflict-index conflict))

(defmethod raft:handle-append-entries ((node node) request &key)
  (with-disk (node)
    (let* ((previous (v1:append-entries-request-prev-log-index request))
           (entries (v1:append-entries-request-entries request))
           (last (+ previous (length entries))))
      (cond ((not (hear node (v1:append-entries-request-sender request)
                        (v1:append-entries-request-term request)))
             (entries-response node nil))
            ((not (agrees-p node request))
             (sync-journal node)
             (entries-response node nil :conflict (conflict-index node previous)))
            (t (map nil (lambda (entry) (take-entry node entry)) entries)
               (sync-journal node)
               (set-commit node (min last (v1:append-entries-request-leader-commit request)))
               (apply-committed node)
               (entries-response node t :match last))))))

;;; Snapshots

(defun snapshot-response (node &optional installed)
  (v1:make-install-snapshot-response :term (node-term node) :installed installed))

(defmethod raft:handle-install-snapshot ((node node) header offset &key)
  (with-disk (node)
    (let ((heard (hear node (v1:snapshot-header-sender header) (v1:snapshot-header-term header)))
          (has-it (<= (v1:snapshot-header-last-included-index header) (node-commit node))))
      (sync-journal node)
      (when (and heard (not has-it) (zerop offset)) (setf (node-chunks node) '()))
      (snapshot-response node (and heard has-it)))))

(defmethod raft:handle-snapshot-chunk ((node node) header offset data &key)
  (declare (ignore header offset))
  (with-disk (node)
    (push data (node-chunks node))))

(defmethod raft:handle-snapshot-end ((node node) header &key)
  (with-disk (node)
    (let ((octets (apply #'concatenate 'octets (reverse (shiftf (node-chunks node) '()))))
          (index (v1:snapshot-header-last-included-index header)))
      (when (> index (node-commit node))
        (restore node index (v1:snapshot-header-last-included-term header) octets)
        (rewrite-journal node))
      (snapshot-response node))))
