;;;; Tests of the client of etcd, against etcd itself. Skipped where it is missing.

(defpackage #:clgrpc.tests.etcd
  (:use #:cl #:clgrpc.tests.form)
  (:import-from #:clgrpc.base #:octets-of #:misuse)
  (:import-from #:clgrpc.tests.support #:wait-until #:eventually)
  (:local-nicknames (#:etcd #:clgrpc.etcd) (#:support #:clgrpc.tests.support)
                    (#:base #:clgrpc.base) (#:loop #:clgrpc.loop) (#:metrics #:clgrpc.metrics)
                    (#:status #:clgrpc.status) (#:rpc #:clgrpc.rpc) (#:memory #:clgrpc.memory)
                    (#:inproc #:clgrpc.inproc)
                    (#:pb #:etcdserverpb) (#:kv #:etcdserverpb.kv)
                    (#:leases #:etcdserverpb.lease) (#:auth #:etcdserverpb.auth)
                    (#:watches #:etcdserverpb.watch))
  ;; server.lisp, for tests of what stands on etcd
  (:export #:with-store #:with-cluster #:end-store #:*etcd* #:run-store-tests #:store-address
           #:store-program #:begin-store #:wait-until #:eventually #:need-etcd #:free-port
           #:+patience+
           #:with-stand-in #:unwind-within #:call-with-failing-client)
  ;; for other tests
  (:export #:held-by #:new-cluster #:new-store #:seconds-of #:stand-in-hook #:store-folder
           #:store-name #:with-hook))

(in-package #:clgrpc.tests.etcd)

(def-suite :clgrpc.etcd :description "The client of etcd.")
