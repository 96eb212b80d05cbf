;;;; etcd: a client of it, servers that are found through it, and an engine in memory that stands in
;;;; for it.

(defsystem "clgrpc-etcd"
  :version "0.1.0"
  :author "The clgrpc developers"
  :license "MIT"
  :description "A client of etcd."
  :depends-on ("clgrpc/client" "clgrpc/balance" "clgrpc/metrics" "alexandria")
  :pathname "etcd/client/"
  :serial t
  :components ((:static-file "../../proto/etcd/kv.proto")
               (:static-file "../../proto/etcd/auth.proto")
               (:static-file "../../proto/etcd/rpc.proto") (:file "etcd-proto") (:file "package")
               (:file "etcd-condition") (:file "key-range") (:file "entry")
               (:file "client-endpoint") (:file "etcd-meter") (:file "etcd-client")
               (:file "etcd-call") (:file "renewal-stream") (:file "lease") (:file "keepalive")
               (:file "grant") (:file "entry-store") (:file "transaction") (:file "watch")
               (:file "multiplex") (:file "watch-job") (:file "mirror") (:file "waiter")
               (:file "lock") (:file "election") (:file "member") (:file "synchronize")
               (:file "user") (:file "maintenance"))
  :in-order-to ((test-op (test-op "clgrpc-tests/etcd" "clgrpc-tests/discovery"
                                  "clgrpc-tests/memory"))))

(defsystem "clgrpc-etcd/discovery"
  :description "Servers that register themselves in etcd, and channels that find them there."
  :depends-on ("clgrpc-etcd" "clgrpc/server" "clgrpc/metrics" "clgrpc/command")
  :pathname "etcd/discovery/"
  :serial t
  :components ((:file "package") (:file "endpoint") (:file "service-key") (:file "etcd-target")
               (:file "endpoint-table") (:file "discovery-meter") (:file "registration")
               (:file "listing") (:file "host-addresses") (:file "service-watcher")
               (:file "etcd-resolver") (:file "discovery-option")))

(defsystem "clgrpc-etcd/memory"
  :description "An engine in memory that serves etcd's services, for demonstrations and tests."
  :depends-on ("clgrpc-etcd" "clgrpc/inproc" "alexandria")
  :pathname "etcd/memory/"
  :serial t
  :components ((:file "package") (:file "tree") (:file "revision-store") (:file "lease-table")
               (:file "range") (:file "store-change") (:file "watch-listener") (:file "engine")
               (:file "watch-stream") (:file "memory-service")))
