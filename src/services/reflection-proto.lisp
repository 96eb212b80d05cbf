;;;; The proto files of reflection, with specialised coders: a peer may send thousands of small
;;;; requests, and each answer has to be encoded. This comes before package.lisp, since it makes the
;;;; packages GRPC.REFLECTION.V1 and so on.

(in-package #:cl-user)

(clgrpc.protobuf:define-proto "../../proto/grpc/reflection/v1/reflection.proto"
  :import-paths ("../../proto/"))
(clgrpc.protobuf:define-proto "../../proto/grpc/reflection/v1alpha/reflection.proto"
  :import-paths ("../../proto/"))
