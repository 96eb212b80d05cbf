;;;; Stores by name; a cluster without etcd.

(in-package #:clgrpc.tests.cluster)

(test stores-have-names
  (dolist (name '("" "etcd:" "127.0.0.1:2379" "memory:" :memory nil))
    (signals grpc:misuse (open-store name)))
  (let ((store (open-store "etcd:127.0.0.1:2379,127.0.0.1:22379")))
    (is (typep store 'etcd:etcd))
    (etcd:close-etcd store)))

(test clusters-without-etcd
  "Nodes on a store in memory join, see each other, and are lost, as they do on etcd."
  (let ((store (open-store "memory")))
    (unwind-protect
         (with-node (a "a" :store store)
           (with-node (b "b" :store store :lease-seconds 2)
             (is-true (await-names a "a" "b"))
             (let ((generation (node-generation b)))
               (etcd:revoke-lease (etcd:lease-by-number store (etcd:lease-id (node-lease b))))
               (eventually (< generation (node-generation b)))
               (is-true (await-names a "a" "b"))))
           (is-true (await-names a "a"))
           (grpc:with-channel (channel (grpc:server-address (node-server a)))
             (grpc:with-call (call (watch-members channel 1))
               (is (eq :change-kind-joined (first (first (next-told call))))))))
      (etcd:close-etcd store)))
  ;; and one that is opened for the node
  (with-node (a "a" :store "memory")
    (is (eq :member (node-state a)))))
