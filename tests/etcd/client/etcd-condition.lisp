;;;; Which condition stands for what etcd says.

(in-package #:clgrpc.tests.etcd)

(test conditions-of-etcd
  (loop for (status text type . done)
          in '((:out-of-range "etcdserver: mvcc: required revision has been compacted"
                etcd:compacted)
               (:out-of-range "etcdserver: mvcc: required revision is a future revision"
                etcd:future-revision)
               (:not-found "etcdserver: requested lease not found" etcd:lease-not-found)
               (:failed-precondition "etcdserver: lease already exists" etcd:lease-exists)
               (:resource-exhausted "etcdserver: mvcc: database space exceeded"
                etcd:space-exceeded)
               (:resource-exhausted "etcdserver: too many requests" etcd:overloaded)
               (:invalid-argument "etcdserver: duplicate key given in txn request"
                etcd:invalid-request)
               (:permission-denied "etcdserver: permission denied" etcd:access-denied)
               (:unauthenticated "etcdserver: invalid auth token" etcd:access-denied)
               (:resource-exhausted "grpc: received message larger than max (9 vs. 8)"
                etcd:invalid-request)
               (:unavailable "etcdserver: leader changed" etcd:unavailable)
               (:internal "the response ends within a message" etcd:unavailable)
               ;; which it was not, whatever was sent
               (:unavailable "etcdserver: no leader" etcd:unavailable nil)
               (:data-loss "?" etcd:etcd-error))
        for sent = (and (member status '(:unavailable :internal)) t)
        for condition = (clgrpc.etcd::etcd-condition
                         (status:make-rpc-error status :message text :ended-by :peer :sent sent))
        do (is (eq type (type-of condition)))
           (is (string= text (etcd:etcd-error-text condition)))
           (is (eq (and sent (null done)) (etcd:etcd-error-perhaps-done-p condition))
               "~A ~A" status text)))
