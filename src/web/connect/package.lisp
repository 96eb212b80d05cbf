;;;; The Connect protocol, version 1 (connectrpc.com, "Connect Protocol Reference"), at a server.
;;;;
;;;; The files in their order: claim (which requests are Connect's); unary (bare messages, errors as
;;;; JSON); stream (messages in envelopes, and the message at the end); protocol.

(defpackage #:clgrpc.connect
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:hpack #:clgrpc.hpack) (#:exchange #:clgrpc.exchange)
                    (#:protobuf #:clgrpc.protobuf) (#:rpc #:clgrpc.rpc) (#:status #:clgrpc.status)
                    (#:method #:clgrpc.method) (#:wire #:clgrpc.wire) (#:server #:clgrpc.server)
                    (#:web #:clgrpc.web))
  (:import-from #:sb-ext #:define-load-time-global)
  (:import-from #:clgrpc.rpc #:call-status))
