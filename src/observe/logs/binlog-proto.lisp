;;;; The proto file of the binary log. This comes before package.lisp, since it makes the package
;;;; GRPC.BINARYLOG.V1.

(in-package #:cl-user)

(clgrpc.protobuf:define-proto "../../../proto/grpc/binlog/v1/binarylog.proto"
  :import-paths ("../../../proto/"))
