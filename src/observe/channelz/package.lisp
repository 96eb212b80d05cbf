;;;; channelz (gRFC A14): a service that reports to its callers the channels, servers and
;;;; connections of this process, with their states and counts.

(defpackage #:clgrpc.channelz
  (:use #:cl #:clgrpc.base)
  (:import-from #:alexandria #:if-let #:when-let)
  (:local-nicknames (#:os #:clgrpc.os) (#:loop #:clgrpc.loop) (#:http2 #:clgrpc.http2)
                    (#:protobuf #:clgrpc.protobuf) (#:status #:clgrpc.status)
                    (#:wire #:clgrpc.wire) (#:client #:clgrpc.client) (#:server #:clgrpc.server)
                    (#:v1 #:grpc.channelz.v1) (#:methods #:grpc.channelz.v1.channelz))
  (:export #:channelz-service))
