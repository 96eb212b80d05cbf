;;;; Changes of a store: puts, removals, and transactions of puts, removals, reads and other
;;;; transactions. As in etcd a request is checked completely before any of it is done, all
;;;; comparisons apply to the previous revision, and each operation sees the effects of those before
;;;; it.

(in-package #:clgrpc.memory)

(defconstant +most-operations+ 128
  "The maximum number of elements in each of a transaction's lists.")
(defconstant +most-steps+ 2048
  "The maximum number of operations and comparisons of a transaction, inner transactions included.
etcd has no such limit, and a request of 1.5 MB has room for 200,000.")
(defconstant +most-read+ 500000
  "The maximum number of items that a request reads, counting items that are read twice as two: a
short request could ask for all items 200,000 times.")

;;; Requests by themselves

(defun check-key (key)
  (when (zerop (length key)) (refuse :empty-key)))

(defun check-range (request)
  (check-key (pb:range-request-key request))
  (check-order request))

(defun check-comparison (comparison)
  "Refuse COMPARISON, a Compare, if its key is missing, or if the enum has no name for its target or
its result."
  (check-key (pb:compare-key comparison))
  (unless (and (keywordp (pb:compare-target comparison))
               (keywordp (pb:compare-result comparison)))
    (refuse :invalid-comparison)))

(defun check-put (request)
  (check-key (pb:put-request-key request))
  (when (and (pb:put-request-ignore-value request) (plusp (length (pb:put-request-value request))))
    (refuse :value-provided))
  (when (and (pb:put-request-ignore-lease request) (/= 0 (pb:put-request-lease request)))
    (refuse :lease-provided)))

(defun check-transaction (request most)
  "Refuse REQUEST, a TxnRequest, if it is invalid, for example because it has more than MOST
operations."
  (let* ((then (pb:txn-request-success request))
         (else (pb:txn-request-failure request))
         (comparisons (pb:txn-request-compare request))
         (count (max (length comparisons) (length then) (length else))))
    (when (> count most) (refuse :too-many-operations))
    (map nil #'check-comparison comparisons)
    (flet ((check (operation)
             (multiple-value-bind (request kind) (pb:request-op-request operation)
               (ecase kind
                 (:request-range (check-range request))
                 (:request-put (check-put request))
                 (:request-delete-range (check-key (pb:delete-range-request-key request)))
                 (:request-txn (check-transaction request (- most count)))
                 ((nil) (refuse :key-not-found))))))
      (map nil #'check then)
      (map nil #'check else))))

(defun requests-of (kind operations)
  "The requests of KIND among OPERATIONS, a list."
  (loop for operation across (coerce operations 'vector)
        when (eq kind (pb:request-op-request-case operation))
          collect (pb:request-op-request operation)))

(defun removed-p (key removals)
  "True if one of REMOVALS, a list of DeleteRangeRequests, covers KEY. As in etcd, a removal to the
end of all keys conflicts with none: there the last operation wins."
  (some (lambda (removal)
          (let ((start (pb:delete-range-request-key removal))
                (end (pb:delete-range-request-range-end removal)))
            (if (zerop (length end))
                (octets-equal start key)
                (and (not (before-p key start)) (before-p key end)))))
        removals))

(defun check-key-overlaps (operations)
  "Refuse OPERATIONS, of a transaction, if they change a key twice by a put. Return the keys that
OPERATIONS put, and the DeleteRangeRequests among OPERATIONS, with the keys and requests of the
transactions among OPERATIONS."
  (let ((removals (requests-of :request-delete-range operations)) (keys '()))
    (flet ((add (key excused)
             (when (or (and (member key keys :test #'octets-equal)
                            (not (member key excused :test #'octets-equal)))
                       (removed-p key removals))
               (refuse :duplicate-key))
             (pushnew key keys :test #'octets-equal)))
      (dolist (request (requests-of :request-txn operations))
        (multiple-value-bind (then then-removals)
            (check-key-overlaps (pb:txn-request-success request))
          (multiple-value-bind (else else-removals)
              (check-key-overlaps (pb:txn-request-failure request))
            (dolist (key then) (add key '()))
            ;; only one of the two lists is done
            (dolist (key else) (add key then))
            (setf removals (append then-removals else-removals removals)))))
      (dolist (request (requests-of :request-put operations))
        (add (pb:put-request-key request) '())))
    (values keys removals)))

;;; Costs of requests

(defun items-read (tree key end &key limit (more 0))
  "The maximum number of items, up to LIMIT if given, that a read of the range from KEY to END in
TREE can return after up to MORE items were added to TREE."
  (if (zerop (length end))
      1
      (multiple-value-bind (start end) (range-bounds key end)
        (let ((count (+ more (count-range tree start end))))
          (if limit (min limit count) count)))))

(defun tree-there (store revision)
  "The tree of STORE at REVISION, or the newest tree if REVISION is not positive; nil if STORE does
not have that revision."
  (cond ((<= revision 0) (newest store))
        ((<= (store-compacted store) revision (store-revision store)) (tree-at store revision))))

(defun items-of-range (store request &optional (more 0))
  "How many items of STORE, and of MORE that may be added to it first, are read to answer REQUEST, a
RangeRequest."
  (if (pb:range-request-count-only request)
      1
      (let ((limit (pb:range-request-limit request)))
        (items-read (tree-there store (pb:range-request-revision request))
                    (pb:range-request-key request) (pb:range-request-range-end request)
                    :limit (and (plusp limit) (not (whole-p request)) limit) :more more))))

(defun check-read (count)
  (when (> count +most-read+) (refuse :too-much-read)))

(defconstant +most-removed+ 25000
  "The maximum number of items that a request removes. All of them are removed at one revision, for
which the lock is held some five milliseconds.")

(defun check-removed (count)
  (when (> count +most-removed+) (refuse :too-much-removed)))

(defun items-removed (store request &optional (more 0))
  "How many items of STORE, and of MORE that may be added to it first, REQUEST, a
DeleteRangeRequest, removes at most."
  (items-read (newest store) (pb:delete-range-request-key request)
              (pb:delete-range-request-range-end request) :more more))

(defun check-cost (store request)
  "Refuse REQUEST, a TxnRequest that is valid otherwise, if it, with the transactions in it, has too
many operations, or reads or removes too much of STORE."
  (let ((steps 0) (puts 0) (read 0) (removed 0))
    (labels ((note-step ()
               (when (> (incf steps) +most-steps+) (refuse :too-many-operations)))
             (note-read (items)
               (check-read (incf read items)))
             (note-comparison (comparison)
               (note-step)
               (note-read (items-read (newest store) (pb:compare-key comparison)
                                      (pb:compare-range-end comparison))))
             (note-operation (operation)
               (note-step)
               (let ((request (pb:request-op-request operation)))
                 (typecase request
                   (pb:put-request (incf puts))
                   (pb:range-request (note-read (items-of-range store request puts)))
                   (pb:delete-range-request
                    (check-removed (incf removed (items-removed store request puts))))
                   (pb:txn-request (note-all request)))))
             (note-all (request)
               (map nil #'note-comparison (pb:txn-request-compare request))
               (map nil #'note-operation (pb:txn-request-success request))
               (map nil #'note-operation (pb:txn-request-failure request))))
      (note-all request))))

;;; Comparisons

(defun comparison-sign (comparison item)
  "-1, 0 or 1: the order of the value of ITEM, or nil, and the operand of COMPARISON."
  (flet ((sign (less a b)
           (cond ((funcall less a b) -1) ((funcall less b a) 1) (t 0)))
         (of (reader) (if item (funcall reader item) 0)))
    (ecase (pb:compare-target comparison)
      (:value (sign #'before-p (item-value item) (pb:compare-value comparison)))
      (:version (sign #'< (of #'item-version) (pb:compare-version comparison)))
      (:create (sign #'< (of #'item-created) (pb:compare-create-revision comparison)))
      (:mod (sign #'< (of #'item-changed) (pb:compare-mod-revision comparison)))
      (:lease (sign #'< (of #'item-lease) (pb:compare-lease comparison))))))

(defun item-so-p (comparison item)
  (let ((sign (comparison-sign comparison item)))
    (ecase (pb:compare-result comparison)
      (:equal (= 0 sign))
      (:not-equal (/= 0 sign))
      (:greater (= 1 sign))
      (:less (= -1 sign)))))

(defun so-p (comparison tree)
  "True if COMPARISON, a Compare, holds in TREE: for all items of its range or, if the range is
empty, for a missing item, whose revisions are 0 and whose value differs from every value."
  (let ((items (range-items tree (pb:compare-key comparison) (pb:compare-range-end comparison))))
    (cond (items (every (lambda (item) (item-so-p comparison item)) items))
          ((eq :value (pb:compare-target comparison)) nil)
          (t (item-so-p comparison nil)))))

;;; Plans: the operations of a transaction that are done

(defstruct (plan (:constructor make-plan (succeeded steps)) (:copier nil))
  "A transaction once its comparisons are made."
  (succeeded nil :type boolean :read-only t) ; true if all comparisons of the plan hold
  (steps '() :type list :read-only t))  ; the operations to do: requests, and PLANs of transactions

(defun plan-transaction (request tree)
  "The PLAN of REQUEST, a TxnRequest, by the items in TREE, the newest tree."
  (let ((succeeded (every (lambda (comparison) (so-p comparison tree))
                          (pb:txn-request-compare request))))
    (make-plan succeeded
               (map 'list (lambda (operation)
                            (let ((request (pb:request-op-request operation)))
                              (if (typep request 'pb:txn-request)
                                  (plan-transaction request tree)
                                  request)))
                    (if succeeded
                        (pb:txn-request-success request)
                        (pb:txn-request-failure request))))))

(defun map-steps (function plan type)
  "Call FUNCTION with the requests of TYPE in PLAN."
  (dolist (step (plan-steps plan))
    (cond ((plan-p step) (map-steps function step type))
          ((typep step type) (funcall function step)))))

(defun leaves-something-p (request)
  "True if REQUEST, a PutRequest, keeps the present value or lease."
  (or (pb:put-request-ignore-value request) (pb:put-request-ignore-lease request)))

(defun check-item-there (store request)
  "Refuse REQUEST, a PutRequest, if it keeps the value or the lease of an item that does not exist."
  (when (and (leaves-something-p request)
             (null (tree-item (newest store) (pb:put-request-key request))))
    (refuse :key-not-found)))

(defun check-lease-there (store request)
  (let ((lease (pb:put-request-lease request)))
    (unless (or (zerop lease) (find-lease store lease)) (refuse :lease-not-found))))

(defun put-cost (request)
  (+ 128 (length (pb:put-request-key request)) (length (pb:put-request-value request))))

(defun check-plan (store plan)
  "Refuse PLAN if some of it cannot be done."
  (let ((octets 0))
    (map-steps (lambda (request) (incf octets (put-cost request))) plan 'pb:put-request)
    (make-room store octets)
    (map-steps (lambda (request)
                 (check-item-there store request)
                 (check-lease-there store request))
               plan 'pb:put-request)
    (map-steps (lambda (request)
                 (let ((revision (pb:range-request-revision request)))
                   (cond ((zerop revision))
                         ((> revision (store-revision store)) (refuse :future-revision))
                         ((< revision (store-compacted store)) (refuse :compacted)))))
               plan 'pb:range-request)))

;;; Doing it

(defun do-put (write-batch request)
  (let* ((key (pb:put-request-key request))
         (previous (tree-item (write-batch-tree write-batch) key)))
    ;; an item that CHECK-ITEM-THERE has found may have been removed by the same transaction
    (when (and (null previous) (leaves-something-p request)) (refuse :key-not-found))
    (put-item write-batch key
              (if (pb:put-request-ignore-value request)
                  (item-value previous)
                  (pb:put-request-value request))
              (if (pb:put-request-ignore-lease request)
                  (item-lease previous)
                  (pb:put-request-lease request)))
    (pb:make-put-response :header (header (write-batch-revision write-batch))
                          :prev-kv (and (pb:put-request-prev-kv request) (key-value previous)))))

(defun removed-items (write-batch request)
  "Remove the items in the range of REQUEST, a DeleteRangeRequest. Return them."
  (let ((key (pb:delete-range-request-key request))
        (end (pb:delete-range-request-range-end request)))
    (if (zerop (length end))
        (when-let ((item (tree-item (write-batch-tree write-batch) key)))
          (remove-item write-batch item)
          (list item))
        (multiple-value-bind (start end) (range-bounds key end)
          (remove-range write-batch start end)))))

(defun removal-response (items revision request)
  "The answer to REQUEST, a DeleteRangeRequest, that has removed ITEMS."
  (pb:make-delete-range-response :header (header revision)
                                 :deleted (length items)
                                 :prev-kvs (and (pb:delete-range-request-prev-kv request)
                                                (mapcar #'key-value items))))

(defun do-removal (write-batch request)
  (let ((items (removed-items write-batch request)))
    (removal-response items (write-batch-revision-now write-batch) request)))

(defun do-range (write-batch request)
  (let ((revision (pb:range-request-revision request)))
    (range-response (if (plusp revision)
                        (tree-at (write-batch-store write-batch) revision)
                        (write-batch-tree write-batch))
                    (write-batch-revision-now write-batch) request)))

(defun do-step (write-batch step)
  "Do STEP of a plan in WRITE-BATCH; return the ResponseOp."
  (etypecase step
    (pb:range-request (pb:make-response-op :response-range (do-range write-batch step)))
    (pb:put-request (pb:make-response-op :response-put (do-put write-batch step)))
    (pb:delete-range-request
     (pb:make-response-op :response-delete-range (do-removal write-batch step)))
    (plan (pb:make-response-op :response-txn (do-plan write-batch step 0)))))

(defun do-plan (write-batch plan revision)
  "Do PLAN in WRITE-BATCH; return the TxnResponse, with REVISION."
  (pb:make-txn-response :header (header revision) :succeeded (plan-succeeded plan)
                        :responses (mapcar (lambda (step) (do-step write-batch step))
                                           (plan-steps plan))))

;;; Requests to a store

(defun answer-range (store request)
  "Return a function that returns the answer. The returned function reads a tree, which is never
changed, so its caller needs no lock."
  (check-range request)
  (let ((tree (tree-at store (pb:range-request-revision request)))
        (revision (store-revision store)))
    (check-read (items-of-range store request))
    (lambda () (range-response tree revision request))))

(defun answer-put (store request)
  (check-put request)
  (make-room store (put-cost request))
  (check-lease-there store request)
  (check-item-there store request)
  (let ((write-batch (write-batch-of store)))
    (prog1 (do-put write-batch request) (commit write-batch))))

(defun answer-removal (store request)
  "Return a function that returns the answer, without a lock."
  (check-key (pb:delete-range-request-key request))
  (check-removed (items-removed store request))
  (let* ((write-batch (write-batch-of store))
         (items (removed-items write-batch request))
         (revision (commit write-batch)))
    (lambda () (removal-response items revision request))))

(defun answer-transaction (store request)
  (check-transaction request +most-operations+)
  (check-cost store request)
  (check-key-overlaps (pb:txn-request-success request))
  (check-key-overlaps (pb:txn-request-failure request))
  (let ((plan (plan-transaction request (newest store))))
    (check-plan store plan)
    (let* ((write-batch (write-batch-of store))
           (response (do-plan write-batch plan 0)))
      (setf (pb:txn-response-header response) (header (commit write-batch)))
      response)))
