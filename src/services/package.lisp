;;;; Services that belong to gRPC itself and that every server may offer beside its own, and
;;;; handlers of plain HTTP for monitoring: health and metrics.

(defpackage #:clgrpc.services
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:os #:clgrpc.os) (#:protobuf #:clgrpc.protobuf) (#:rpc #:clgrpc.rpc)
                    (#:loop #:clgrpc.loop) (#:status #:clgrpc.status) (#:metrics #:clgrpc.metrics)
                    (#:server #:clgrpc.server) (#:exchange #:clgrpc.exchange)
                    (#:health #:grpc.health.v1)
                    (#:health-methods #:grpc.health.v1.health))
  (:export #:health-service #:health-handler #:health-status #:set-health-status
           #:reflection-services #:metrics-handler))
