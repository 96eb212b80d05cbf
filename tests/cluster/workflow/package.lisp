;;;; Tests of workflows: decisions and schedules of them without a store, and the service on etcd,
;;;; skipped where that is missing.

(defpackage #:clgrpc.tests.workflow
  (:use #:cl #:clgrpc.tests.form #:clgrpc.workflow)
  (:import-from #:clgrpc.base #:misuse #:string-octets #:octets-string #:make-octets)
  (:import-from #:clgrpc.tests.etcd #:with-store #:wait-until #:eventually #:*etcd* #:+patience+)
  (:local-nicknames (#:base #:clgrpc.base) (#:loop #:clgrpc.loop) (#:etcd #:clgrpc.etcd)
                    (#:memory #:clgrpc.memory)
                    (#:protobuf #:clgrpc.protobuf) (#:rpc #:clgrpc.rpc)
                    (#:server #:clgrpc.server) (#:client #:clgrpc.client)
                    (#:calling #:clgrpc.calling) (#:metrics #:clgrpc.metrics)
                    (#:trace #:clgrpc.trace) (#:services #:clgrpc.services)
                    (#:support #:clgrpc.tests.support) (#:tests #:clgrpc.tests.etcd)
                    (#:workflow #:clgrpc.workflow) (#:pb #:clgrpc.workflow.v1)
                    (#:methods #:clgrpc.workflow.v1.workflow)))

(in-package #:clgrpc.tests.workflow)

(def-suite :clgrpc.workflow :description "Durable workflows.")
(def-suite :clgrpc.workflow.seeds :description "Orders of what happens, each from a seed.")
