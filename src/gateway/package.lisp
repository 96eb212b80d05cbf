;;;; A gateway: a service whose calls are forwarded to another server.

(defpackage #:clgrpc.gateway
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:rpc #:clgrpc.rpc) (#:method #:clgrpc.method)
                    (#:status #:clgrpc.status) (#:calling #:clgrpc.calling)
                    (#:serving #:clgrpc.serving))
  (:export #:gateway-service #:make-gateway-service))
