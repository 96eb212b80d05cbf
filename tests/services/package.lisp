;;;; Tests of the services that belong to gRPC itself.

(defpackage #:clgrpc.tests.services
  (:use #:cl #:fiveam #:clgrpc.tests.server)
  (:local-nicknames (#:grpc #:clgrpc) (#:health #:grpc.health.v1)
                    (#:health-methods #:grpc.health.v1.health)))

(in-package #:clgrpc.tests.services)

(def-suite :clgrpc.services :description "Health.")
