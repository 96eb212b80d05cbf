;;;; The messages of the example. This comes before package.lisp, since it makes the packages
;;;; EXAMPLES.RAFT and EXAMPLES.RAFT.KEY-VALUE.

(in-package #:cl-user)

(clgrpc.protobuf:define-proto "../../proto/examples/raft.proto")
