;;;; The proto file of workflows. This file is loaded before package.lisp, since it makes the
;;;; package CLGRPC.WORKFLOW.V1.

(in-package #:cl-user)

(clgrpc.protobuf:define-proto "../../proto/cluster/workflow.proto"
  :import-paths ("../../proto/"))
