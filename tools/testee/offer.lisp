;;;; The services of `serve` beside the examples.

(in-package #:clgrpc.testee)

(add-offer "bench" "RouteGuide that remembers nothing, and grpc.testing.BenchmarkService"
           (lambda () (list (make-instance 'bench-route-guide) (make-instance 'bench-service)))
           :execution :inline)

(add-offer "interop" "grpc.testing.TestService, for the interoperability tests of gRPC, with
                   xds.service.orca.v3.OpenRcaService"
           (lambda () (list (make-instance 'interop-service)))
           :execution *interop-execution*)
