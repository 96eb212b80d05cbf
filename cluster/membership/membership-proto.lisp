;;;; The proto file of membership. This file is loaded before package.lisp, since it makes the
;;;; package CLGRPC.CLUSTER.V1.

(in-package #:cl-user)

(clgrpc.protobuf:define-proto "../../proto/cluster/membership.proto"
                              :import-paths ("../../proto/"))
