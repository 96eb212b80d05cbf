;;;; Tests of clusters: what is decided, without a store; the rest on etcd, and skipped where that
;;;; is missing.

(defpackage #:clgrpc.tests.cluster
  (:use #:cl #:clgrpc.tests.form #:clgrpc.cluster)
  (:import-from #:clgrpc.tests.etcd #:with-store #:*etcd* #:store-address #:store-program
                #:begin-store #:wait-until #:eventually #:+patience+ #:free-port
                #:with-stand-in #:with-hook #:stand-in-hook)
  (:local-nicknames (#:grpc #:clgrpc) (#:etcd #:clgrpc.etcd) (#:cluster #:clgrpc.cluster)
                    (#:discovery #:clgrpc.discovery)
                    (#:support #:clgrpc.tests.support) (#:os #:clgrpc.os)
                    (#:memory #:clgrpc.memory) (#:loop #:clgrpc.loop) (#:base #:clgrpc.base)
                    (#:server #:clgrpc.server)
                    (#:pb #:clgrpc.cluster.v1) (#:methods #:clgrpc.cluster.v1.cluster)))

(in-package #:clgrpc.tests.cluster)

(def-suite :clgrpc.cluster :description "Membership.")
