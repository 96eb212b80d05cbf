;;;; Tests of the services that belong to gRPC itself.

(defpackage #:clgrpc.tests.services
  (:use #:cl #:clgrpc.tests.form #:clgrpc.tests.server)
  (:import-from #:clgrpc.base #:octets-string #:ring-first)
  (:local-nicknames (#:grpc #:clgrpc) (#:services #:clgrpc.services)
                    (#:server #:clgrpc.server) (#:exchange #:clgrpc.exchange)
                    (#:support #:clgrpc.tests.support)
                    (#:exchange-tests #:clgrpc.tests.exchange) (#:protobuf #:clgrpc.protobuf)
                    (#:health #:grpc.health.v1)
                    (#:health-methods #:grpc.health.v1.health)
                    (#:v1 #:grpc.reflection.v1)
                    (#:v1-methods #:grpc.reflection.v1.server-reflection)
                    (#:v1alpha #:grpc.reflection.v1alpha)
                    (#:v1alpha-methods #:grpc.reflection.v1alpha.server-reflection)))

(in-package #:clgrpc.tests.services)

(def-suite :clgrpc.services :description "Health, reflection, and pages over plain HTTP.")
