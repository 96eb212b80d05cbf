;;;; Operations on entries: one by one, and by ranges. A range is read in pages, all at one revision
;;;; of the store, so all its entries existed at the same time.

(in-package #:clgrpc.etcd)

(defun header-revision (header)
  (if header (pb:response-header-revision header) 0))

(defun order-words (order)
  "Two values: the direction and the target of ORDER, see MAP-ENTRIES, in the form of messages."
  (destructuring-bind (target &optional (direction :ascending))
      (if (listp order) order (list order))
    (values (case direction
              (:ascending :ascend)
              (:descending :descend)
              (t (misuse "An order is :ascending or :descending, not ~S." direction)))
            (case target
              ((:key :version :value) target)
              (:created :create)
              (:changed :mod)
              (t (misuse "Entries are ordered by :key, :version, :created, :changed or :value, not ~
                          ~S." target))))))

(defun range-request (key end &key revision stale limit keys-only count-only order
                                min-created max-created min-changed max-changed)
  (multiple-value-bind (direction target) (if order (order-words order) (values :none :key))
    (pb:make-range-request :key key :range-end (or end (make-octets 0)) :revision (or revision 0)
                           :serializable (and stale t) :limit (or limit 0)
                           :sort-order direction :sort-target target
                           :min-create-revision (or min-created 0)
                           :max-create-revision (or max-created 0)
                           :min-mod-revision (or min-changed 0)
                           :max-mod-revision (or max-changed 0)
                           :keys-only (and keys-only t) :count-only (and count-only t))))

(define-keyword-function fetch (etcd key &key revision stale timeout)
  "Return two values: the entry of KEY, a string or octets, at REVISION, by default the newest, or
nil if there is none; and the present revision of the store. If STALE is true, one member answers
without asking the others, perhaps with older data. Signal an ETCD-ERROR: COMPACTED, FUTURE-REVISION
or another. From any thread."
  (let ((response (ask etcd #'kv:range
                       (range-request (key-octets key) nil :revision revision :stale stale)
                       timeout :twice t :leader (not stale))))
    (values (first (entries-of (pb:range-response-kvs response)))
            (header-revision (pb:range-response-header response)))))

(define-keyword-function map-entries
    (function etcd &rest options
     &key prefix from to revision stale keys-only limit order min-created max-created
       min-changed max-changed (page 1000) timeout)
  "Call FUNCTION with each entry of a range of keys: those that begin with PREFIX, or FROM and the
later keys before TO. The entries are read at REVISION, by default the newest at the start; return
that revision. LIMIT is the maximum number of entries that FUNCTION gets. ORDER is the sort key:
:key, the default, :created or :changed (the revisions), :version or :value; or a list of a sort key
and :ascending or :descending. FUNCTION gets only entries that were created at a revision from
MIN-CREATED to MAX-CREATED, and last changed at a revision from MIN-CHANGED to MAX-CHANGED. If
KEYS-ONLY is true, the entries' values are empty; STALE is as for FETCH. In the default order
entries are fetched in pages of PAGE entries, each within TIMEOUT seconds; in any other order all
entries are fetched at once. Signal an ETCD-ERROR; COMPACTED if the revision is compacted meanwhile.
From any thread."
  (declare (ignore keys-only min-created max-created min-changed max-changed))
  (check-type page (integer 1))
  (check-type limit (or null (integer 1)))
  (let ((filters (alexandria:remove-from-plist options :prefix :from :to :revision :stale :limit
                                                       :page :timeout))
        (page (cond ((and order limit) limit)
                    (order 0)
                    (t page))))
    (multiple-value-bind (start end) (range-of prefix from to)
      (loop
        (let* (;; another member may not have reached the revision of the first page
               (stale (and stale (null revision)))
               (response (ask etcd #'kv:range
                              (apply #'range-request start end :revision revision :stale stale
                                                               :limit (if limit (min page limit)
                                                                          page)
                                                               filters)
                              timeout :twice t :leader (not stale)))
               (entries (pb:range-response-kvs response)))
          (unless revision
            (setf revision (header-revision (pb:range-response-header response))))
          (map nil (lambda (message) (funcall function (entry-of message))) entries)
          (when limit (decf limit (length entries)))
          (unless (and (pb:range-response-more response) (null order) (plusp (length entries))
                       (or (null limit) (plusp limit)))
            (return revision))
          (let ((next (next-key (mvccpb:key-value-key (elt entries (1- (length entries)))))))
            (setf start (need-part (and (key-before-p start next) next)))))))))

(define-keyword-function fetch-entries (etcd &rest arguments &key &allow-other-keys)
  "Return two values: a list of the entries of a range, and the revision at which they were read.
The arguments are as for MAP-ENTRIES. From any thread."
  (let* ((entries '())
         (revision (apply #'map-entries (lambda (entry) (push entry entries)) etcd arguments)))
    (values (nreverse entries) revision)))

(define-keyword-function count-entries (etcd &key prefix from to revision stale timeout)
  "Return how many entries a range has, see MAP-ENTRIES. From any thread."
  (multiple-value-bind (start end) (range-of prefix from to)
    (pb:range-response-count
     (ask etcd #'kv:range
          (range-request start end :revision revision :stale stale :count-only t)
          timeout :twice t :leader (not stale)))))

(defun lease-number (lease)
  "The number of LEASE: a lease, a number, or nil for no lease."
  (etypecase lease
    (null 0)
    (integer lease)
    (lease (lease-id lease))))

(defun put-request (key value &key lease keep-lease keep-value previous)
  (pb:make-put-request :key (key-octets key) :value (text-octets (if keep-value "" value))
                       :lease (lease-number lease) :ignore-lease (and keep-lease t)
                       :ignore-value (and keep-value t) :prev-kv (and previous t)))

(define-keyword-function put (etcd key value &key lease keep-lease keep-value previous timeout)
  "Put VALUE at KEY, strings or octets. Return the revision that the put makes and, if PREVIOUS is
true, as second value the former entry, or nil. The entry ends with LEASE, a lease or its number; if
KEEP-LEASE is true, it keeps its present lease. If KEEP-VALUE is true, the entry keeps its present
value, and VALUE is ignored. Signal LEASE-NOT-FOUND, INVALID-REQUEST if the lease or value to keep
is missing, or another ETCD-ERROR, see ETCD-ERROR-PERHAPS-DONE-P. From any thread."
  (let ((response (ask etcd #'kv:put
                       (put-request key value :lease lease :keep-lease keep-lease
                                              :keep-value keep-value :previous previous)
                       timeout)))
    (values (header-revision (pb:put-response-header response))
            (entry-of (pb:put-response-prev-kv response)))))

(define-keyword-function remove-entry (etcd key &key timeout)
  "Remove the entry of KEY. Return two values: the removed entry, or nil if there was none; and the
revision of the store. Signal an ETCD-ERROR, see ETCD-ERROR-PERHAPS-DONE-P. From any thread."
  (let ((response (ask etcd #'kv:delete-range
                       (pb:make-delete-range-request :key (key-octets key) :prev-kv t)
                       timeout)))
    (values (first (entries-of (pb:delete-range-response-prev-kvs response)))
            (header-revision (pb:delete-range-response-header response)))))

(define-keyword-function remove-entries (etcd &key prefix from to timeout)
  "Remove the entries of a range, see MAP-ENTRIES. Return two values: the number of removed entries,
and the revision of the store. Signal an ETCD-ERROR, see ETCD-ERROR-PERHAPS-DONE-P. From any
thread."
  (multiple-value-bind (start end) (range-of prefix from to)
    (let ((response (ask etcd #'kv:delete-range
                         (pb:make-delete-range-request :key start :range-end end)
                         timeout)))
      (values (pb:delete-range-response-deleted response)
              (header-revision (pb:delete-range-response-header response))))))

(define-keyword-function compact (etcd revision &key physical timeout)
  "Make ETCD forget the revisions before REVISION. Later reads of the compacted revisions, and
watches that begin at them, signal COMPACTED. If PHYSICAL is true, return only when the compacted
revisions are also removed from the file, so that their space can be used again. Signal an
ETCD-ERROR. From any thread."
  (ask etcd #'kv:compact (pb:make-compaction-request :revision revision :physical (and physical t))
       timeout)
  nil)
