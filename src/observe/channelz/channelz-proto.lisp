;;;; The proto file of channelz, which is rarely called. This comes before package.lisp, since it
;;;; makes the packages GRPC.CHANNELZ.V1 and GRPC.CHANNELZ.V1.CHANNELZ.

(in-package #:cl-user)

(clgrpc.protobuf:define-proto "../../../proto/grpc/channelz/v1/channelz.proto"
  :import-paths ("../../../proto/") :optimize-for :code-size)
