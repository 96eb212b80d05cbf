;;;; The proto files of reflection, which is rarely called. This comes before package.lisp, since it
;;;; makes the packages GRPC.REFLECTION.V1 and so on.

(in-package #:cl-user)

(clgrpc.protobuf:define-proto "../../proto/grpc/reflection/v1/reflection.proto"
  :import-paths ("../../proto/") :optimize-for :code-size)
(clgrpc.protobuf:define-proto "../../proto/grpc/reflection/v1alpha/reflection.proto"
  :import-paths ("../../proto/") :optimize-for :code-size)
