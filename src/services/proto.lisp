;;;; The proto files of the services that every server may offer. This comes before package.lisp,
;;;; since it makes the packages GRPC.HEALTH.V1 and GRPC.HEALTH.V1.HEALTH.

(in-package #:cl-user)

(clgrpc.protobuf:define-proto "../../proto/grpc/health/v1/health.proto")
