;;;; The proto files of the services that every server may offer. This comes before package.lisp,
;;;; since it makes the packages GRPC.HEALTH.V1, GRPC.HEALTH.V1.HEALTH, GRPC.REFLECTION.V1 and so
;;;; on.

(in-package #:cl-user)

(clgrpc.protobuf:define-proto "../../proto/grpc/health/v1/health.proto")
(clgrpc.protobuf:define-proto "../../proto/grpc/reflection/v1/reflection.proto"
  :import-paths ("../../proto/"))
(clgrpc.protobuf:define-proto "../../proto/grpc/reflection/v1alpha/reflection.proto"
  :import-paths ("../../proto/"))
