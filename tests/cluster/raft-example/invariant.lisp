;;;; What the paper promises (Raft, figure 3), compared at each change of each node with all that
;;;; has happened before:
;;;;
;;;;     election safety        a term has one leader
;;;;     leader append-only     a leader truncates nothing
;;;;     log matching           entries of the same index and term are the same, as is all before
;;;;                            them: it is enough that the entry before has the same term
;;;;     leader completeness    a leader has all that was committed
;;;;     state machine safety   all apply the same entry at an index, and have the same store then

(in-package #:clgrpc.tests.raft-example)

(defstruct (witness (:copier nil))
  "What has happened in a group."
  (complaint nil :type (or null string)) ; the first thing that was wrong
  (leaders (make-hash-table))           ; from a term to the name that leads
  (entries (make-hash-table :test 'equal)) ; from (index . term) to what the entry is
  (committed (make-hash-table))         ; from an index to the term of its entry
  (last 0)                              ; the highest index that was committed
  (applied (make-hash-table))           ; from an index to what was applied
  (digests (make-hash-table))           ; from an index to the store's after it
  (elections 0)                         ; how many were won
  (restored 0))                         ; how often a node took a snapshot

(defun complain (witness control &rest arguments)
  (unless (witness-complaint witness)
    (setf (witness-complaint witness) (apply #'format nil control arguments))))

(defun check-same (witness table key value control &rest arguments)
  (multiple-value-bind (known known-p) (gethash key table)
    (cond ((not known-p) (setf (gethash key table) value))
          ((not (equal known value))
           (complain witness "~?: ~S and ~S" control arguments known value)))))

(defun entry-essence (entry)
  (list (v1:entry-term entry) (v1:entry-kind entry) (raft:crc32c (v1:entry-data entry))))

(defun check-election (witness node)
  (let ((term (example:node-term node)) (log (example:node-log node)))
    (incf (witness-elections witness))
    (check-same witness (witness-leaders witness) term (example:node-name node)
                "term ~D has two leaders" term)
    (loop for index from (example:log-base-index log) to (witness-last witness)
          unless (or (zerop index)
                     (eql (gethash index (witness-committed witness))
                          (example:term-at log index)))
            do (return (complain witness "~A leads term ~D without entry ~D, which was committed"
                                 (example:node-name node) term index)))))

(defun check-append (witness node entry)
  (let ((log (example:node-log node)) (index (v1:entry-index entry)))
    (check-same witness (witness-entries witness) (cons index (v1:entry-term entry))
                (cons (example:term-at log (example:last-index log)) (entry-essence entry))
                "entry ~D of ~A differs" index (example:node-name node))))

(defun check-truncation (witness node index)
  (when (eq :leader (example:node-role node))
    (complain witness "~A leads and truncates its log" (example:node-name node)))
  (when (eql (example:term-at (example:node-log node) index)
             (gethash index (witness-committed witness)))
    (complain witness "~A drops entry ~D, which was committed" (example:node-name node) index)))

(defun check-commit (witness node index)
  (let ((log (example:node-log node)))
    (loop for i from (max 1 (example:log-base-index log)) to index
          do (check-same witness (witness-committed witness) i (example:term-at log i)
                         "~A commits another entry ~D" (example:node-name node) i))
    (setf (witness-last witness) (max index (witness-last witness)))))

(defun check-store (witness node index)
  (check-same witness (witness-digests witness) index
              (example:store-digest (example:node-store node))
              "the store of ~A differs after entry ~D" (example:node-name node) index))

(defun watch-node (witness node event arguments)
  "NODE says that EVENT happens to it."
  (let ((argument (first arguments)))
    (ecase event
      (:leads (sim:note "~A leads term ~D" (example:node-name node) (example:node-term node))
       (check-election witness node))
      (:appends (check-append witness node argument))
      (:truncates (check-truncation witness node argument))
      (:commits (check-commit witness node argument))
      (:applies
       (let ((index (v1:entry-index argument)))
         (check-same witness (witness-applied witness) index (entry-essence argument)
                     "~A applies another entry ~D" (example:node-name node) index)
         (check-store witness node index)))
      (:restores (incf (witness-restored witness))
       (check-store witness node argument)))))
