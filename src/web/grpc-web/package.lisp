;;;; gRPC-Web (grpc's repository, doc/PROTOCOL-WEB.md) at a server.

(defpackage #:clgrpc.grpc-web
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:exchange #:clgrpc.exchange)
                    (#:rpc #:clgrpc.rpc) (#:status #:clgrpc.status)
                    (#:wire #:clgrpc.wire) (#:server #:clgrpc.server) (#:web #:clgrpc.web))
  (:import-from #:sb-ext #:define-load-time-global))
