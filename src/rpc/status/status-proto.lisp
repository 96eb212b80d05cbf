;;;; The proto files of status details. This comes before package.lisp, since it makes the package
;;;; GOOGLE.RPC.

(in-package #:cl-user)

(clgrpc.protobuf:define-proto "../../../proto/google/rpc/status.proto")
(clgrpc.protobuf:define-proto "../../../proto/google/rpc/error_details.proto")
