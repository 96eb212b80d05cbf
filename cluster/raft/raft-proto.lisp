;;;; Raft's messages. This file is loaded before package.lisp, since it makes the packages
;;;; CLGRPC.RAFT.V1 and CLGRPC.RAFT.V1.RAFT.

(in-package #:cl-user)

(clgrpc.protobuf:define-proto "../../proto/cluster/raft.proto" :import-paths ("../../proto/"))
