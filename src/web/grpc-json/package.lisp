;;;; gRPC with messages in JSON: application/grpc+json, over HTTP/2 only. Everything except the
;;;; messages is as in gRPC (grpc's repository, doc/PROTOCOL-HTTP2.md).

(defpackage #:clgrpc.grpc-json
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:exchange #:clgrpc.exchange) (#:wire #:clgrpc.wire)
                    (#:server #:clgrpc.server) (#:web #:clgrpc.web))
  (:import-from #:sb-ext #:define-load-time-global))
