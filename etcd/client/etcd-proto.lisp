;;;; The proto files of etcd's API. This file is loaded before package.lisp, since it makes the
;;;; packages MVCCPB, AUTHPB and ETCDSERVERPB.

(in-package #:cl-user)

(clgrpc.protobuf:define-proto "../../proto/etcd/kv.proto" :import-paths ("../../proto/"))
(clgrpc.protobuf:define-proto "../../proto/etcd/auth.proto" :import-paths ("../../proto/"))
(clgrpc.protobuf:define-proto "../../proto/etcd/rpc.proto" :import-paths ("../../proto/"))
