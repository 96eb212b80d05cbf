;;;; The command `clgrpc`.

(defpackage #:clgrpc.tools
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:grpc #:clgrpc) (#:rpc #:clgrpc.rpc) (#:loop #:clgrpc.loop)
                    (#:os #:clgrpc.os) (#:protobuf #:clgrpc.protobuf)
                    (#:examples #:clgrpc.examples) (#:testing #:grpc.testing)
                    (#:connect #:connectrpc.conformance.v1)
                    (#:connect-methods #:connectrpc.conformance.v1.conformance-service))
  (:export
   ;; command.lisp
   #:run-command
   ;; bench.lisp
   #:bench-route-guide #:bench-service
   ;; interop.lisp
   #:interop-service
   ;; main.lisp
   #:main))
