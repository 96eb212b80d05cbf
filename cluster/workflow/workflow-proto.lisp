;;;; The proto file of workflows. This comes before package.lisp, since it makes the package
;;;; CLGRPC.WORKFLOW.V1.

(in-package #:cl-user)

(clgrpc.protobuf:define-proto "../../proto/cluster/workflow.proto"
  :import-paths ("../../proto/"))
