;;;; Tests of channelz: the service's reports, over the wire, of calls and connections.

(defpackage #:clgrpc.tests.channelz
  (:use #:cl #:clgrpc.base #:clgrpc.tests.form #:clgrpc.tests.server)
  (:local-nicknames (#:grpc #:clgrpc) (#:client #:clgrpc.client) (#:os #:clgrpc.os)
                    (#:protobuf #:clgrpc.protobuf)
                    (#:server #:clgrpc.server) (#:loop #:clgrpc.loop) (#:wire #:clgrpc.wire)
                    (#:channelz #:clgrpc.channelz) (#:support #:clgrpc.tests.support)
                    (#:v1 #:grpc.channelz.v1) (#:methods #:grpc.channelz.v1.channelz))
  (:import-from #:clgrpc.tests.server #:double #:count-up #:add-up #:echo))

(in-package #:clgrpc.tests.channelz)

(def-suite :clgrpc.channelz :description "What channelz tells.")
