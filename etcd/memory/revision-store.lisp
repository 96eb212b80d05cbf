;;;; The store: for each of its revisions a tree of items, and the changes that made it. A revision
;;;; is made from a WRITE-BATCH, which begins as the newest tree, and is entered completely or not
;;;; at all. Revisions are numbered from 1, the empty store; those older than the last compaction
;;;; are not kept.
;;;;
;;;; The store has limits: of the octets of the items that it keeps, including old ones, and of the
;;;; revisions. If there are more revisions, the oldest are compacted, as an operator of etcd would
;;;; configure it.
;;;;
;;;; A request that is refused signals a REFUSAL: a status and a text, which is etcd's own except
;;;; for one.

(in-package #:clgrpc.memory)

(defstruct (change (:constructor make-change (item previous)) (:copier nil))
  "A change at one key, made by a revision."
  (item nil :type item :read-only t)    ; the item after the change; of version 0 if it was removed
  (previous nil :type (or null item)))  ; the item before it; nil, too, if that is compacted

(defstruct (record (:constructor make-record (tree changes)) (:copier nil))
  "A revision."
  (tree nil :type (or null node) :read-only t) ; the record's items
  ;; the changes of which the record consists, in their order
  (changes nil :type simple-vector :read-only t))

(defstruct (limits (:copier nil))
  "How much a store may contain."
  (octets 0 :type (integer 1) :read-only t) ; the most octets of all items that it keeps
  (revisions 0 :type (integer 1) :read-only t) ; the most revisions that the store keeps
  (leases 0 :type (integer 1) :read-only t)) ; the most leases at a time

(defstruct (store (:constructor %make-store) (:copier nil))
  "See above."
  (limits nil :type limits :read-only t) ; how much the store may contain
  (revision 1 :type (signed-byte 64))   ; the newest revision
  (compacted -1 :type (signed-byte 64)) ; the oldest revision that can be read; -1: all of them can
  ;; the records that are kept, the oldest first
  (records nil :type (and vector (not simple-array)) :read-only t)
  (first 1 :type (signed-byte 64))      ; the revision of the first of RECORDS
  (octets 0 :type (integer 0))          ; the sum of ITEM-COST of the items in RECORDS
  (newest-octets 0 :type (integer 0))   ; the sum of octets for the items of the newest record
  (leases (make-hash-table) :type hash-table :read-only t) ; leases by number
  (quiet-until-ns 0 :type (integer 0))  ; no lease ends before this time
  (lease-number 7587000000000000000 :type (signed-byte 64))) ; the number of the newest lease

(defstruct (clearing (:constructor make-clearing (start end leases)) (:copier nil))
  "A removed range of keys, recorded for the leases of its items."
  (start nil :type octets :read-only t) ; the first of the keys
  (end nil :type (or null octets) :read-only t) ; the end of the removed range, nil for one key
  (leases '() :type list :read-only t)) ; the numbers of the leases

(defstruct (write-batch (:constructor make-write-batch (store tree revision)) (:copier nil))
  "The next revision of a store, while it is being made."
  (store nil :type store :read-only t)  ; the store whose next revision it is
  (tree nil :type (or null node))       ; the batch's items
  (revision 0 :type (signed-byte 64) :read-only t) ; the number of that revision
  (changes '() :type list)              ; changes since the newest revision, the last first
  (lease-notes '() :type list))         ; changes of leases: CHANGEs and CLEARINGs, the last first

(declaim (sb-ext:freeze-type change record limits store clearing write-batch))

(defun make-store (limits)
  (%make-store :limits limits
               :records (make-array 64 :adjustable t :fill-pointer 1
                                    :initial-element (make-record nil #()))))

(define-printer (store store)
  "~D item~:P, revision ~D" (tree-size (newest store)) (store-revision store))

(defmacro define-refusals (&body rows)
  "Define REFUSE, a function of the name of a refusal: rows of NAME, status and text."
  `(defun refuse (name)
     "End the call with the status and text of NAME."
     (ecase name
       ,@(loop for (name status text) in rows
               collect `(,name (status:fail ,status ,text))))))

(define-refusals ; etcd-io/etcd, api/v3rpc/rpctypes/error.go
  (:empty-key :invalid-argument "etcdserver: key is not provided")
  (:key-not-found :invalid-argument "etcdserver: key not found")
  (:value-provided :invalid-argument "etcdserver: value is provided")
  (:lease-provided :invalid-argument "etcdserver: lease is provided")
  (:invalid-order :invalid-argument "etcdserver: invalid sort option")
  (:invalid-comparison :invalid-argument "etcdserver: invalid comparison")
  (:too-many-operations :invalid-argument "etcdserver: too many operations in txn request")
  (:duplicate-key :invalid-argument "etcdserver: duplicate key given in txn request")
  (:too-large :invalid-argument "etcdserver: request is too large")
  (:too-much-read :resource-exhausted ; which etcd does not refuse
   "etcdserver: more than 500000 keys are read at once")
  (:too-much-removed :resource-exhausted ; which etcd does not refuse either
   "etcdserver: more than 25000 keys are removed at once")
  (:compacted :out-of-range "etcdserver: mvcc: required revision has been compacted")
  (:future-revision :out-of-range "etcdserver: mvcc: required revision is a future revision")
  (:no-space :resource-exhausted "etcdserver: mvcc: database space exceeded")
  (:lease-not-found :not-found "etcdserver: requested lease not found")
  (:lease-exists :failed-precondition "etcdserver: lease already exists")
  (:lease-too-long :out-of-range "etcdserver: too large lease TTL")
  (:too-many-leases :resource-exhausted "etcdserver: too many leases")
  (:too-many-watches :resource-exhausted "etcdserver: too many watches")
  (:closed :unavailable "etcdserver: server stopped"))

;;; Revisions

(defun record-at (store revision)
  "The record of REVISION in STORE, which has one."
  (aref (store-records store) (- revision (store-first store))))

(defun newest (store)
  "The tree of the newest revision of STORE."
  (record-tree (record-at store (store-revision store))))

(defun tree-at (store revision)
  "The tree of STORE at REVISION, the newest if that is not positive. Refuse a revision that STORE
does not have."
  (cond ((> revision (store-revision store)) (refuse :future-revision))
        ((<= revision 0) (newest store))
        ((< revision (store-compacted store)) (refuse :compacted))
        (t (record-tree (record-at store revision)))))

(defun item-cost (item)
  "The octets that ITEM is assumed to need."
  (+ 128 (length (item-key item)) (length (item-value item))))

(defun forget-before (store revision)
  "Compact STORE up to REVISION, which must be a revision of STORE."
  (let ((records (store-records store))
        (known (max (store-first store) (1+ (store-compacted store)))))
    (loop for r from known to revision
          do (loop for change across (record-changes (record-at store r))
                   do (when (change-previous change)
                        (decf (store-octets store)
                              (item-cost (shiftf (change-previous change) nil))))))
    (let ((gone (- revision (store-first store))))
      (when (plusp gone)
        (replace records records :start2 gone)
        (fill records 0 :start (- (fill-pointer records) gone))
        (decf (fill-pointer records) gone)
        (setf (store-first store) revision)))
    (setf (store-compacted store) revision)))

(defconstant +forgotten-at-once+ 10000
  "How many changes are forgotten at once, unless a single revision has more.")

(defun forget-some (store revision)
  "Compact STORE up to REVISION, one that it has, or, if that is much work, only a part of it.
Return true once STORE is compacted up to REVISION. The lock need not be held between the calls."
  (when (< (store-compacted store) revision)
    (loop with first = (max (store-first store) (1+ (store-compacted store)))
          for last from first to revision
          sum (length (record-changes (record-at store last))) into changes
          when (or (= last revision) (<= +forgotten-at-once+ changes))
            do (forget-before store last)
               (return)))
  (<= revision (store-compacted store)))

(defun begin-compaction (store revision)
  "Check that FORGET-SOME may compact STORE up to REVISION. Refuse a revision that is compacted or
does not exist yet."
  (cond ((<= revision (store-compacted store)) (refuse :compacted))
        ((> revision (store-revision store)) (refuse :future-revision))
        ((< revision 1) (setf (store-compacted store) revision))))

(defun make-room (store octets)
  "Make room for OCTETS more in STORE, if necessary by compaction of the oldest revisions. Signal a
refusal if there is not enough."
  (let ((most (limits-octets (store-limits store))))
    (loop while (and (> (+ octets (store-octets store)) most)
                     (< (store-compacted store) (store-revision store)))
          do (forget-some store (store-revision store)))
    (when (> (+ octets (store-octets store)) most) (refuse :no-space))))

;;; Drafts

(defun write-batch-of (store)
  "A draft of STORE's next revision, as yet without a change."
  (make-write-batch store (newest store) (1+ (store-revision store))))

(defun write-batch-revision-now (write-batch)
  "The revision that a reader of WRITE-BATCH is given."
  (if (write-batch-changes write-batch) (write-batch-revision write-batch)
      (1- (write-batch-revision write-batch))))

(defun note-write (write-batch change)
  "Add CHANGE, of one item, to WRITE-BATCH."
  (push change (write-batch-changes write-batch))
  (push change (write-batch-lease-notes write-batch)))

(defun put-item (write-batch key value lease)
  "Put VALUE at KEY in WRITE-BATCH, with LEASE, a number."
  (let ((previous (tree-item (write-batch-tree write-batch) key))
        (revision (write-batch-revision write-batch)))
    (let ((item (make-item key value (if previous (item-created previous) revision) revision
                           (if previous (1+ (item-version previous)) 1) lease)))
      (setf (write-batch-tree write-batch) (tree-with (write-batch-tree write-batch) item))
      (note-write write-batch (make-change item previous)))))

(defun removal-change (write-batch previous)
  "The change that removes PREVIOUS, an item of WRITE-BATCH."
  (make-change (make-item (item-key previous) (octets-of) 0 (write-batch-revision write-batch) 0 0)
               previous))

(defun remove-item (write-batch previous)
  "Remove PREVIOUS, an item of WRITE-BATCH."
  (setf (write-batch-tree write-batch)
        (tree-without (write-batch-tree write-batch) (item-key previous)))
  (note-write write-batch (removal-change write-batch previous)))

(defun remove-range (write-batch start end)
  "Remove from WRITE-BATCH the items whose keys are at or after START and, unless END is nil, before
END. Return these items, in their order. The lock is held until all of them are removed; each costs
one step in a tree and three objects."
  (let ((items '()) (leases (make-hash-table)))
    (map-range (lambda (item)
                 (push item items)
                 (push (removal-change write-batch item) (write-batch-changes write-batch))
                 (unless (zerop (item-lease item)) (setf (gethash (item-lease item) leases) t)))
               (write-batch-tree write-batch) start end)
    (when items
      (setf (write-batch-tree write-batch)
            (tree-outside (write-batch-tree write-batch) start end))
      (push (make-clearing start end (loop for number being the hash-keys of leases collect number))
            (write-batch-lease-notes write-batch)))
    (nreverse items)))

(defun removal-p (change)
  (zerop (item-version (change-item change))))
