;;;; Services that belong to gRPC itself and that every server may offer beside its own.

(defpackage #:clgrpc.services
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:protobuf #:clgrpc.protobuf) (#:rpc #:clgrpc.rpc) (#:status #:clgrpc.status)
                    (#:server #:clgrpc.server) (#:health #:grpc.health.v1)
                    (#:health-methods #:grpc.health.v1.health))
  (:export #:health-service #:health-handler #:health-status #:set-health-status
           #:reflection-services))
