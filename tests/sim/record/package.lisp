;;;; Recorded scenarios: of each one everything that others can see is compared with a text in
;;;; tests/vectors/record: each frame on the wire and the millisecond in which it arrives, each
;;;; event of the log, and the metrics and spans of both ends. tests/support/programs/record.lisp
;;;; compares, and writes the texts again.

(defpackage #:clgrpc.tests.record
  (:use #:cl #:clgrpc.base #:clgrpc.tests.form)
  (:local-nicknames (#:grpc #:clgrpc) (#:sim #:clgrpc.sim) (#:status #:clgrpc.status)
                    (#:method #:clgrpc.method) (#:hpack #:clgrpc.hpack) (#:client #:clgrpc.client)
                    (#:metrics #:clgrpc.metrics) (#:trace #:clgrpc.trace)
                    (#:testee #:clgrpc.testee) (#:etcd #:clgrpc.etcd)
                    (#:memory #:clgrpc.memory) (#:discovery #:clgrpc.discovery)
                    (#:cluster #:clgrpc.cluster) (#:workflow #:clgrpc.workflow)
                    (#:protobuf #:clgrpc.protobuf) (#:dns #:clgrpc.dns)
                    (#:sim-tests #:clgrpc.tests.sim) (#:dns-tests #:clgrpc.tests.dns)
                    (#:support #:clgrpc.tests.support) (#:dialogue #:clgrpc.tests.dialogue))
  (:import-from #:clgrpc.tests.server #:start-probe #:make-probe #:note #:number-of #:handling))

(in-package #:clgrpc.tests.record)

(def-suite :clgrpc.record :description "Recorded courses of calls.")
