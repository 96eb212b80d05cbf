;;;; Tests of tracing: contexts, samplers, spans and queues by themselves, and the spans of calls.

(defpackage #:clgrpc.tests.trace
  (:use #:cl #:clgrpc.base #:clgrpc.option #:clgrpc.tests.form #:clgrpc.tests.server)
  (:local-nicknames (#:grpc #:clgrpc) (#:trace #:clgrpc.trace) (#:rpc #:clgrpc.rpc)
                    (#:loop #:clgrpc.loop) (#:tests #:clgrpc.tests.client))
  (:import-from #:clgrpc.tests.server #:call-with-threads #:double #:echo #:count-up))

(in-package #:clgrpc.tests.trace)

(def-suite :clgrpc.trace :description "Traces: contexts between processes, spans of calls.")
