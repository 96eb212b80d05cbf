;;;; Changes of many workflows by one decision: several in one transaction, as many as etcd accepts.
;;;; A joint transaction may fail, because other nodes change some of its workflows at the same time
;;;; or because one workflow cannot be changed. If it fails, the workflows are changed one by one.

(in-package #:clgrpc.workflow)

(defconstant +bulk-octets+ 1000000 "The maximum number of octets of states in one transaction; etcd
accepts 1.5 MB.")
(defconstant +bulk-page+ 100 "The number of states that are fetched at once.")

(defun bulk-draft (node entry decision)
  "The draft that DECISION makes of the state in ENTRY, or nil if DECISION changes nothing."
  (when-let ((cached-state (entry-cached-state node entry)))
    (multiple-value-bind (draft changes) (decide node cached-state decision)
      (and changes draft))))

(defun bulk-drafts (node ids entries decision)
  "An alist from ids to the drafts that DECISION makes of ENTRIES, the states of the workflows IDS."
  (loop for id in ids
        for entry in entries
        for draft = (and entry (for-one (node id) (bulk-draft node entry decision)))
        when draft collect (cons id draft)))

(defun next-batch (node drafts)
  "Two values: the operations of the first of DRAFTS that fit into one transaction, and the number
of these drafts."
  (let ((operations '()) (count 0) (operation-count 0) (octets 0))
    (loop for (nil . draft) in drafts
          for new = (draft-operations (node-root node) draft)
          do (incf operation-count (length new))
             (incf octets (put-octets draft))
          while (or (zerop count)
                    (and (<= operation-count +most-operations+) (<= octets +bulk-octets+)))
          do (setf operations (append operations new))
             (incf count))
    (values operations count)))

(defun put-drafts (node drafts operations)
  "Put DRAFTS into the store by OPERATIONS. Return false if the workflow of one of DRAFTS has
changed."
  (multiple-value-bind (done results revision)
      (etcd:transact (node-etcd node)
                     :when (mapcar (lambda (draft) (unchanged-p node draft)) drafts)
                     :then operations)
    (declare (ignore results))
    (if done
        (note-put node drafts revision)
        (note-conflict node drafts))
    done))

(defun put-batch (node drafts operations)
  "Do what PUT-DRAFTS does, but also return false if the store refuses DRAFTS together."
  (handler-case (put-drafts node drafts operations)
    (workflow-refusal () nil)))

(defun put-all (node drafts decision)
  "Put DRAFTS, an alist by id that DECISION has made, into the store, several at once."
  (loop while drafts
        do (multiple-value-bind (operations count) (next-batch node drafts)
             (let ((batch (loop repeat count collect (pop drafts))))
               (unless (put-batch node (mapcar #'cdr batch) operations)
                 (loop for (id) in batch
                       do (for-one (node id) (change-workflow node id decision))))))))

(defun change-some (node ids decision)
  "Do what CHANGE-TOGETHER does, for IDS of at most +BULK-PAGE+ workflows."
  (let ((drafts (bulk-drafts node ids (fetch-states node ids) decision)))
    (flet ((forgets-p (draft) (draft-forgotten (cdr draft))))
      (each-though-full
        ;; changes that make room come first
        (put-all node (remove-if-not #'forgets-p drafts) decision)
        (put-all node (remove-if #'forgets-p drafts) decision)))))

(defun change-together (node ids decision)
  "Change each of the workflows IDS by DECISION, a function of a draft. A workflow that cannot be
changed is left alone for a while, see FOR-ONE. Signal an ETCD-ERROR or SESSION-LOST. If the store
is full, first make the deletions that DECISION decides on, then signal SPACE-EXCEEDED."
  (map-though-full (lambda (some) (change-some node some decision))
                   (loop while ids
                         collect (loop repeat +bulk-page+ while ids collect (pop ids)))))
