;;;; What is done with entries: one by one, and by ranges. A range is read in pages, all of one
;;;; revision of the store, so that what is read was there at one time.

(in-package #:clgrpc.etcd)

(defun header-revision (header)
  (if header (pb:response-header-revision header) 0))

(defun range-request (key end &key revision stale limit keys-only count-only)
  (pb:make-range-request :key key :range-end (or end (make-octets 0)) :revision (or revision 0)
                         :serializable (and stale t) :limit (or limit 0)
                         :keys-only (and keys-only t) :count-only (and count-only t)))

(defun fetch (etcd key &key revision stale timeout)
  "Return the entry of KEY, a string or octets, at REVISION, by default the newest, or nil if there
is none; and as second value the revision that the store is at. With STALE one member answers by
itself, perhaps with what was so a while ago. Signal an ETCD-ERROR: COMPACTED, FUTURE-REVISION or
another. From any thread."
  (let ((response (ask etcd #'kv:range
                       (range-request (key-octets key) nil :revision revision :stale stale)
                       timeout)))
    (values (first (entries-of (pb:range-response-kvs response)))
            (header-revision (pb:range-response-header response)))))

(defun map-entries (function etcd &key prefix from to revision stale keys-only (page 1000)
                                    timeout)
  "Call FUNCTION with each entry of a range, in the order of their keys: of the keys that begin with
PREFIX, or of those from FROM on, before TO. They are fetched in pages of PAGE entries, each within
TIMEOUT seconds, all at REVISION, by default the newest when this begins, which is returned. With
KEYS-ONLY their values are empty; STALE is as for FETCH. Signal an ETCD-ERROR; COMPACTED if the
revision is compacted meanwhile. From any thread."
  (check-type page (integer 1))
  (multiple-value-bind (start end) (range-of prefix from to)
    (loop
      (let* ((response (ask etcd #'kv:range
                            (range-request start end :revision revision :stale stale :limit page
                                                     :keys-only keys-only)
                            timeout))
             (entries (pb:range-response-kvs response)))
        (unless revision
          (setf revision (header-revision (pb:range-response-header response))))
        (map nil (lambda (message) (funcall function (entry-of message))) entries)
        (unless (and (pb:range-response-more response) (plusp (length entries)))
          (return revision))
        (setf start (next-key (mvccpb:key-value-key (elt entries (1- (length entries))))))))))

(defun fetch-entries (etcd &rest arguments &key prefix from to revision stale keys-only page
                                              timeout)
  "Return a list of the entries of a range, and the revision they are of; the arguments are those of
MAP-ENTRIES. From any thread."
  (declare (ignore prefix from to revision stale keys-only page timeout))
  (let* ((entries '())
         (revision (apply #'map-entries (lambda (entry) (push entry entries)) etcd arguments)))
    (values (nreverse entries) revision)))

(defun count-entries (etcd &key prefix from to revision stale timeout)
  "Return how many entries a range has, see MAP-ENTRIES. From any thread."
  (multiple-value-bind (start end) (range-of prefix from to)
    (pb:range-response-count
     (ask etcd #'kv:range
          (range-request start end :revision revision :stale stale :count-only t)
          timeout))))

(defun lease-number (lease)
  "The number of LEASE, a lease, a number, or nil for none."
  (etypecase lease
    (null 0)
    (integer lease)
    (lease (lease-id lease))))

(defun put-request (key value &key lease keep-lease previous)
  (pb:make-put-request :key (key-octets key) :value (text-octets value)
                       :lease (lease-number lease) :ignore-lease (and keep-lease t)
                       :prev-kv (and previous t)))

(defun put (etcd key value &key lease keep-lease previous timeout)
  "Put VALUE at KEY, strings or octets. Return the revision that this makes; and with PREVIOUS, as
second value, the entry that was there before, or nil. The entry ends with LEASE, a lease or its
number; with KEEP-LEASE, with that which it has. Signal an ETCD-ERROR: LEASE-NOT-FOUND or another;
see ETCD-ERROR-PERHAPS-DONE-P. From any thread."
  (let ((response (ask etcd #'kv:put
                       (put-request key value :lease lease :keep-lease keep-lease
                                              :previous previous)
                       timeout)))
    (values (header-revision (pb:put-response-header response))
            (entry-of (pb:put-response-prev-kv response)))))

(defun remove-entry (etcd key &key timeout)
  "Remove the entry of KEY. Return it, or nil if there was none; and as second value the revision of
the store. Signal an ETCD-ERROR, see ETCD-ERROR-PERHAPS-DONE-P. From any thread."
  (let ((response (ask etcd #'kv:delete-range
                       (pb:make-delete-range-request :key (key-octets key) :prev-kv t)
                       timeout)))
    (values (first (entries-of (pb:delete-range-response-prev-kvs response)))
            (header-revision (pb:delete-range-response-header response)))))

(defun remove-entries (etcd &key prefix from to timeout)
  "Remove the entries of a range, see MAP-ENTRIES. Return how many there were, and the revision of
the store. Signal an ETCD-ERROR, see ETCD-ERROR-PERHAPS-DONE-P. From any thread."
  (multiple-value-bind (start end) (range-of prefix from to)
    (let ((response (ask etcd #'kv:delete-range
                         (pb:make-delete-range-request :key start :range-end end)
                         timeout)))
      (values (pb:delete-range-response-deleted response)
              (header-revision (pb:delete-range-response-header response))))))

(defun compact (etcd revision &key timeout)
  "Have ETCD forget what was so before REVISION. Who asks for it, or watches from there, is told
COMPACTED. Signal an ETCD-ERROR. From any thread."
  (ask etcd #'kv:compact (pb:make-compaction-request :revision revision) timeout)
  nil)
