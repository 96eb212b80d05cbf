;;;; Workflows that have ended are kept for a time, see next-time. If the octets of ended workflows
;;;; have a limit, the oldest are deleted at that limit. One node checks this now and then: the one
;;;; that has the first shard.
;;;;
;;;; The index for lists has ended workflows by status, from the newest to the oldest, each with its
;;;; octets. The node reads that part of the index once, and then follows it by a watch. The node
;;;; remembers only the sums of the octets of workflows that began within the same few seconds: a
;;;; period. At the limit the node goes through these sums, from the newest, to the period in which
;;;; the sum exceeds the limit, and reads the entries from there to the oldest. So a check reads
;;;; from the store only the entries of one period, and those to be deleted.
;;;;
;;;; If the sums cannot follow the watch, since it has ended or a removed entry is compacted, they
;;;; are forgotten, and the next check reads all again.
;;;;
;;;; The keeper, which does the check, has other work as well, so it waits for the watch a second at
;;;; most. Etcd (from 3.4.25 and 3.5.8 on) reports the progress of a watch only once all watches of
;;;; the client's stream have caught up, so a slow watch delays all reports. A check that has waited
;;;; in vain deletes nothing; after several such checks the sums are forgotten.

(in-package #:clgrpc.workflow)

(defconstant +period-digits+ 3
  "The number of hexadecimal digits that are dropped from the end of an AGE, in milliseconds, to
make the key of a period. A period lasts some four seconds.")

(defconstant +longest-progress-seconds+ 1 "How long a check waits for the watch of the sums.")
(defconstant +most-vain-checks+ 3
  "The number of checks in a row that wait in vain for the watch before everything is read again.")

(defun period-of (root key)
  "The period of the workflow that has ended with KEY in the index: STATUS/ and the beginning of
its AGE. The period of any other key is nil."
  (let* ((text (subseq key (length (key root "by" "")))) (age (position #\/ text))
         (end (and age (- (+ age 1 (length (time-text 0))) +period-digits+))))
    (and end (< end (length text)) (subseq text 0 end))))

(defun period-status (period)
  (subseq period 0 (position #\/ period)))

;;; The sums

(defun count-ended (retention root entry sign)
  "Add the octets of the workflow of ENTRY in the index, times SIGN, to the sums of RETENTION, whose
lock the caller must hold."
  (let* ((index-entry (entry-index-entry entry ""))
         (period (and index-entry (period-of root (index-entry-position index-entry))))
         (sums (retention-sums retention)))
    (when (and period
               (>= 0 (incf (gethash period sums 0) (* sign (index-entry-octets index-entry)))))
      (remhash period sums))))

(defun note-ended-change (retention root change)
  "Update the sums of RETENTION by CHANGE of the index."
  (let ((entry (etcd:change-entry change)) (previous (etcd:change-previous change))
        (put (eq :put (etcd:change-kind change))))
    (sb-thread:with-mutex ((retention-lock retention))
      (cond (previous (count-ended retention root previous -1))
            ;; the entry was compacted: each ended workflow is put only once
            ((not put) (setf (retention-lost retention) t)))
      (when put (count-ended retention root entry 1)))))

(defun forget-ended (node)
  "End the watch of NODE's sums, if it has one."
  (let* ((retention (node-retention node)) (watch (shiftf (retention-watch retention) nil)))
    (setf (retention-vain-checks retention) 0)
    (when watch (etcd:cancel-watch watch))))

(defun read-ended (node)
  "Read the sums of NODE, and watch the index from then on."
  (let* ((retention (node-retention node)) (root (node-root node))
         ;; all statuses but the last
         (range (list :from (node-key node "by" "") :to (node-key node "by" "running"))))
    (forget-ended node)
    (sb-thread:with-mutex ((retention-lock retention))
      (clrhash (retention-sums retention))
      (setf (retention-lost retention) nil))
    (let ((revision (apply #'etcd:map-entries
                           (lambda (entry)
                             (sb-thread:with-mutex ((retention-lock retention))
                               (count-ended retention root entry 1)))
                           (node-etcd node) range)))
      (setf (retention-watch retention)
            (apply #'etcd:watch (node-etcd node)
                   (lambda (changes revision)
                     (declare (ignore revision))
                     (dolist (change changes) (note-ended-change retention root change)))
                   :after revision :previous t
                   :on-end (lambda (condition)
                             (declare (ignore condition))
                             (sb-thread:with-mutex ((retention-lock retention))
                               (setf (retention-lost retention) t)))
                   range)))))

(defun await-ended (node watch)
  "Wait a little until the sums of NODE, which follow WATCH, agree with the store. Return true if
they agree."
  (let ((revision (nth-value 1 (etcd:fetch (node-etcd node) (node-key node "date")))))
    (handler-case (etcd:await-progress watch :revision revision
                                       :timeout +longest-progress-seconds+)
      (etcd:unavailable () nil))))

(defun follow-ended (node)
  "Update the sums of NODE from the store. Return false if the sums do not agree with the store
yet."
  (let* ((retention (node-retention node)) (watch (retention-watch retention)))
    (cond ((or (null watch)
               (sb-thread:with-mutex ((retention-lock retention)) (retention-lost retention)))
           (read-ended node)
           t)
          ((await-ended node watch)
           (setf (retention-vain-checks retention) 0)
           t)
          (t (when (<= +most-vain-checks+ (incf (retention-vain-checks retention)))
               (forget-ended node))
             nil))))

(defun ended-octets (node)
  "The sums of NODE, an alist from periods to octets, from the newest to the oldest of each status;
and their sum."
  (let* ((retention (node-retention node))
         (sums (sort (sb-thread:with-mutex ((retention-lock retention))
                       (alexandria:hash-table-alist (retention-sums retention)))
                     #'string< :key #'car)))
    (values sums (reduce #'+ sums :key #'cdr))))

;;; What is deleted

(defun first-superfluous (sums most)
  "Return two values: the first period in SUMS, an alist of one status, up to which the octets
exceed MOST, and the octets before that period; nil if all octets together do not exceed MOST."
  (loop with sum = 0
        for (period . octets) in sums
        do (when (< most (+ sum octets)) (return (values period sum)))
           (incf sum octets)))

(defun ids-after (node period sum most)
  "The ids of ended workflows of one status, from PERIOD to the oldest, that do not fit into MOST
octets, of which newer workflows take SUM."
  (let ((prefix (node-key node "by" (period-status period) "")) (ids '()))
    (etcd:map-entries (lambda (entry)
                        (let ((entry (entry-index-entry entry prefix)))
                          (when (and entry (< most (incf sum (index-entry-octets entry))))
                            (push (index-entry-id entry) ids))))
                      (node-etcd node) :from (node-key node "by" period) :to (key-behind prefix))
    ids))

(defun superfluous-ids (node most)
  "The ids of the ended workflows that do not fit into MOST octets. Each status gets a share of MOST
in proportion to its octets."
  (multiple-value-bind (sums all) (ended-octets node)
    (when (< most all)
      (loop for status in (remove-duplicates (mapcar (lambda (sum) (period-status (car sum))) sums)
                                             :test #'string=)
            append (let* ((own (remove status sums :test-not #'string=
                                                   :key (lambda (sum) (period-status (car sum)))))
                          (share (floor (* most (reduce #'+ own :key #'cdr)) all)))
                     (multiple-value-bind (period sum) (first-superfluous own share)
                       (and period (ids-after node period sum share))))))))

(defun limit-retention (node)
  "Delete the oldest ended workflows if all of them take too many octets."
  (let ((most (limits-retention-octets (node-limits node))))
    (cond ((null most))
          ((member 0 (timer-queue-own (node-timer-queue node)))
           (when (follow-ended node)
             (change-together node (superfluous-ids node most)
                              (lambda (draft)
                                (and (not (running-p (draft-state draft)))
                                     (delete-state draft))))))
          ;; another node does this check
          (t (forget-ended node)))))
