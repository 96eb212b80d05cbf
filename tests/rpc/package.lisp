(defpackage #:clgrpc.tests.rpc
  (:use #:cl #:clgrpc.base #:fiveam)
  (:local-nicknames (#:rpc #:clgrpc.rpc) (#:loop #:clgrpc.loop)
                    (#:protobuf #:clgrpc.protobuf)))

(in-package #:clgrpc.tests.rpc)

(def-suite :clgrpc.rpc :description "What both ends of a call share.")
