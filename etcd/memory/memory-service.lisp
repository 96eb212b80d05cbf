;;;; The methods of etcd's services, and the client within the image.

(in-package #:clgrpc.memory)

(defconstant +longest-request+ 1572864
  "The maximum number of octets of a request that changes something.")

(defun check-size (request)
  "Refuse REQUEST, a message, if it is too long."
  (when (> (protobuf:measure (protobuf:message-type-of request) request) +longest-request+)
    (refuse :too-large)))

(defmethod kv:range ((engine engine) request &key)
  (funcall (on-store (engine store) (answer-range store request))))

(defmethod kv:put ((engine engine) request &key)
  (check-size request)
  (on-store (engine store) (answer-put store request)))

(defmethod kv:delete-range ((engine engine) request &key)
  (funcall (on-store (engine store) (answer-removal store request))))

(defmethod kv:txn ((engine engine) request &key)
  (check-size request)
  (on-store (engine store) (answer-transaction store request)))

(defmethod kv:compact ((engine engine) request &key)
  (let ((revision (pb:compaction-request-revision request)))
    (on-store (engine store) (begin-compaction store revision))
    (loop until (on-store (engine store) (forget-some store revision)))
    (pb:make-compaction-response :header (header (engine-revision engine)))))

;;; Leases

(defmethod leases:lease-grant ((engine engine) request &key)
  (on-store (engine store now)
    (let ((lease (grant-lease store (pb:lease-grant-request-id request)
                              (pb:lease-grant-request-ttl request) now)))
      (loop:wake-job (engine-job engine))
      (pb:make-lease-grant-response :header (header (store-revision store))
                                    :id (lease-number lease) :ttl (lease-seconds lease)))))

(defmethod leases:lease-revoke ((engine engine) request &key)
  (let* ((number (pb:lease-revoke-request-id request))
         (lease (on-store (engine store)
                  (let ((lease (or (find-lease store number) (refuse :lease-not-found))))
                    (revoke-lease store lease)
                    lease))))
    ;; each request to the store removes some of the remaining items
    (loop while (on-store (engine store)
                  (declare (ignore store))
                  (lease-items lease)))
    (pb:make-lease-revoke-response :header (header (engine-revision engine)))))

(defun answer-keep-alive (engine request)
  (on-store (engine store now)
    (let ((lease (find-lease store (pb:lease-keep-alive-request-id request))))
      (pb:make-lease-keep-alive-response :header (header (store-revision store))
                                         :id (pb:lease-keep-alive-request-id request)
                                         :ttl (if lease (renew-lease lease now) 0)))))

(defmethod leases:lease-keep-alive ((engine engine) requests &key call)
  (declare (ignore requests))
  (rpc:on-half-close call (lambda () (rpc:finish call)))
  ;; requests of a call wait while its answers are unread
  (rpc:on-message call (lambda (request) (rpc:try-send call (answer-keep-alive engine request))))
  call)

(defmethod leases:lease-time-to-live ((engine engine) request &key)
  (on-store (engine store now)
    (let* ((number (pb:lease-time-to-live-request-id request))
           (lease (find-lease store number))
           (header (header (store-revision store))))
      (if (null lease)
          (pb:make-lease-time-to-live-response :header header :id number :ttl -1)
          (pb:make-lease-time-to-live-response
           :header header :id number :granted-ttl (lease-seconds lease)
           :ttl (floor (- (lease-end-ns lease) now) (seconds-ns 1))
           :keys (and (pb:lease-time-to-live-request-keys request)
                      (mapcar #'item-key
                              (range-items (lease-items lease) (octets-of 0) (octets-of 0)))))))))

(defmethod leases:lease-leases ((engine engine) request &key)
  (declare (ignore request))
  (on-store (engine store)
    (pb:make-lease-leases-response
     :header (header (store-revision store))
     :leases (loop for lease in (leases-in-order store)
                   collect (pb:make-lease-status :id (lease-number lease))))))

;;; Watches and members

(defmethod watches:watch ((engine engine) requests &key call)
  (declare (ignore requests))
  (begin-watching engine call))

(defmethod cluster:member-list ((engine engine) request &key)
  (declare (ignore request))
  (on-store (engine store)
    (pb:make-member-list-response :header (header (store-revision store))
                                  :members (list (pb:make-member :id 1 :name "memory")))))

(defmethod maintenance:status ((engine engine) request &key)
  (declare (ignore request))
  (on-store (engine store)
    (let ((revision (store-revision store)))
      (pb:make-status-response :header (header revision) :version "memory"
                               :db-size (store-octets store)
                               ;; older revisions make room by themselves
                               :db-size-in-use (store-newest-octets store)
                               :db-size-quota (limits-octets (store-limits store))
                               :leader 1 :raft-index revision :raft-applied-index revision))))

(defun connect (engine &key (timeout 5))
  "Return a client of ENGINE within the image, an ETCD, as CLGRPC.ETCD:MAKE-ETCD returns. Its calls
may take TIMEOUT seconds unless they have a timeout of their own. From any thread; end it with
CLOSE-ETCD."
  (etcd:make-etcd nil :timeout timeout
                  :channel (inproc:service-channel engine :max-receive-octets 268435456)))
