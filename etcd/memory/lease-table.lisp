;;;; Leases of a store. A lease whose time is over is ENDING while it has items: some of the items
;;;; are removed at a time, so that no request waits for all removals. No request finds a lease that
;;;; is ENDING. The store's clock is an argument: the caller first ends the leases whose time is
;;;; over. A draft becomes the newest revision here, since leases record their items.

(in-package #:clgrpc.memory)

(defconstant +shortest-lease-seconds+ 2 "The minimum TTL, in seconds. A lease for which a shorter
TTL was requested gets this one, as in etcd.")
(defconstant +longest-lease-seconds+ 9000000000
  "The maximum TTL of a lease, in seconds, as in etcd.")

(defstruct (lease (:constructor make-lease (number seconds end-ns)) (:copier nil))
  "A lease of a store."
  (number 0 :type (signed-byte 64) :read-only t) ; the lease's number for users
  (seconds 0 :type (integer 0) :read-only t) ; how long the lease lasts unless it is renewed
  (end-ns 0 :type (integer 0))          ; when the lease ends unless it is renewed
  (ending nil :type boolean)            ; the lease's time is over, and items must still be removed
  (items nil :type (or null node)))     ; the tree of the items that end with it

(declaim (sb-ext:freeze-type lease))

(defun find-any-lease (store number)
  "The lease of STORE that has NUMBER; nil if no lease has it. The lease may be ending."
  (values (gethash number (store-leases store))))

(defun find-lease (store number)
  "The lease of STORE that has NUMBER and lasts; nil if no such lease exists."
  (let ((lease (find-any-lease store number)))
    (and lease (not (lease-ending lease)) lease)))

(defun note-change (store change)
  "Note CHANGE in the leases of STORE."
  (flet ((lease-of (item)
           (and item (plusp (item-version item)) (find-any-lease store (item-lease item)))))
    (let* ((item (change-item change))
           (before (lease-of (change-previous change)))
           (now (lease-of item)))
      (when before
        (setf (lease-items before) (tree-without (lease-items before) (item-key item))))
      (when now
        (setf (lease-items now) (tree-with (lease-items now) item))))))

(defun note-octets (store change)
  "Add the octets of CHANGE, of the newest revision, to the sum of STORE."
  (when (change-previous change)
    (decf (store-newest-octets store) (item-cost (change-previous change))))
  (unless (removal-p change)
    (let ((cost (item-cost (change-item change))))
      (incf (store-octets store) cost)
      (incf (store-newest-octets store) cost))))

(defun note-clearing (store clearing)
  "Note CLEARING in the leases of STORE."
  (dolist (number (clearing-leases clearing))
    (when-let ((lease (find-any-lease store number)))
      (setf (lease-items lease)
            (tree-outside (lease-items lease) (clearing-start clearing)
                          (clearing-end clearing))))))

(defun commit (write-batch)
  "Make WRITE-BATCH the newest revision of its store, if it has changes. Return the store's revision
after that."
  (let ((store (write-batch-store write-batch))
        (changes (nreverse (write-batch-changes write-batch))))
    (when changes
      (vector-push-extend (make-record (write-batch-tree write-batch)
                                       (coerce changes 'simple-vector))
                          (store-records store))
      (setf (store-revision store) (write-batch-revision write-batch))
      (dolist (change changes)
        (note-octets store change))
      (dolist (note (nreverse (write-batch-lease-notes write-batch)))
        (if (clearing-p note) (note-clearing store note) (note-change store note)))
      (let ((most (limits-revisions (store-limits store))))
        ;; seldom, since the vector of records is moved then
        (when (> (length (store-records store)) (+ most (ceiling most 4)))
          (forget-some store (- (store-revision store) most -1)))))
    (store-revision store)))

(defun new-lease-number (store)
  (loop (let ((number (incf (store-lease-number store))))
          (unless (find-any-lease store number) (return number)))))

(defun grant-lease (store number seconds now-ns)
  "Return a new lease of STORE, with NUMBER unless that is 0, of SECONDS from NOW-NS on."
  (let ((leases (store-leases store)))
    (when (> seconds +longest-lease-seconds+) (refuse :lease-too-long))
    (when (and (/= 0 number) (find-any-lease store number)) (refuse :lease-exists))
    (when (>= (hash-table-count leases) (limits-leases (store-limits store)))
      (refuse :too-many-leases))
    (let* ((seconds (max seconds +shortest-lease-seconds+))
           (number (if (zerop number) (new-lease-number store) number))
           (end-ns (+ now-ns (seconds-ns seconds))))
      (setf (store-quiet-until-ns store) (min end-ns (store-quiet-until-ns store))
            (gethash number leases) (make-lease number seconds end-ns)))))

(defconstant +removed-at-once+ 1000
  "How many items are removed at once because their leases are over.")

(defun end-items (store lease most)
  "Remove items of LEASE, which is ending, at most MOST of them, all at one revision of STORE;
remove LEASE with its last item. Return the number of removed items."
  (let ((items (range-items (lease-items lease) (octets-of 0) (octets-of 0) most))
        (write-batch (write-batch-of store)))
    (dolist (item items) (remove-item write-batch item))
    (commit write-batch)
    (unless (lease-items lease) (remhash (lease-number lease) (store-leases store)))
    (length items)))

(defun revoke-lease (store lease &optional (most +removed-at-once+))
  "End LEASE, and its items with it, at most MOST of them at one revision of STORE; END-LEASES
removes the others. Return how many items were removed."
  (setf (lease-ending lease) t
        (lease-end-ns lease) 0)
  (prog1 (end-items store lease most)
    (when (lease-items lease) (setf (store-quiet-until-ns store) 0))))

(defun renew-lease (lease now-ns)
  "Renew LEASE for its time from NOW-NS on. Return its seconds."
  (setf (lease-end-ns lease) (+ now-ns (seconds-ns (lease-seconds lease))))
  (lease-seconds lease))

(defun in-order-of-end (leases)
  "LEASES, a fresh list, sorted by their ends, the earliest first."
  (sort leases (lambda (a b)
                 (if (= (lease-end-ns a) (lease-end-ns b))
                     (< (lease-number a) (lease-number b))
                     (< (lease-end-ns a) (lease-end-ns b))))))

(defun leases-in-order (store)
  "The leases of STORE that have not ended, sorted by their ends, the earliest first."
  (in-order-of-end (loop for lease being the hash-values of (store-leases store)
                         unless (lease-ending lease) collect lease)))

(defun first-end-ns (store)
  "The time at which the first of the leases of STORE ends; nil without leases. The function
examines all leases."
  (loop for lease being the hash-values of (store-leases store)
        minimize (lease-end-ns lease) into first
        finally (return (if (plusp (hash-table-count (store-leases store))) first nil))))

(defun next-look-ns (store)
  "The time before which no lease of STORE ends; nil without leases."
  (and (plusp (hash-table-count (store-leases store)))
       (store-quiet-until-ns store)))

(defconstant +ended-at-once+ 1000 "How many leases are ended at once.")

(defun end-leases (store now-ns)
  "End the leases of STORE whose time is over at NOW-NS, each at a revision of its own. End at most
+ENDED-AT-ONCE+ leases, with +REMOVED-AT-ONCE+ items, since this delays all requests. Return true if
any lease was due."
  (unless (< now-ns (store-quiet-until-ns store))
    (let ((over (in-order-of-end (loop for lease being the hash-values of (store-leases store)
                                       when (<= (lease-end-ns lease) now-ns) collect lease)))
          (left +removed-at-once+))
      (loop for lease in over
            repeat +ended-at-once+
            while (plusp left)
            do (decf left (revoke-lease store lease left)))
      (setf (store-quiet-until-ns store) (or (first-end-ns store) now-ns))
      (and over t))))
