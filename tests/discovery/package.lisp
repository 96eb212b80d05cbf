;;;; Tests of discovery, against etcd itself. Skipped where that is missing.

(defpackage #:clgrpc.tests.discovery
  (:use #:cl #:fiveam)
  (:import-from #:clgrpc.base #:misuse)
  (:import-from #:clgrpc.tests.etcd
                #:with-store #:*etcd* #:store-address #:store-program #:begin-store #:wait-until
                #:free-port #:+patience+)
  (:local-nicknames (#:discovery #:clgrpc.discovery) (#:etcd #:clgrpc.etcd) (#:grpc #:clgrpc)
                    (#:support #:clgrpc.tests.support)))

(in-package #:clgrpc.tests.discovery)

(def-suite :clgrpc.discovery
  :description "Servers that register themselves, and channels that find them.")
