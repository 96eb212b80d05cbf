;;;; The proto files of workers of gRPC's benchmarks. This comes before package.lisp, since it makes
;;;; the packages GRPC.TESTING, GRPC.TESTING.WORKER-SERVICE and so on.

(in-package #:cl-user)

(clgrpc:define-proto "../../proto/grpc/testing/benchmark_service.proto"
  :import-paths ("../../proto/"))
(clgrpc:define-proto "../../proto/grpc/testing/worker_service.proto" :import-paths ("../../proto/"))
