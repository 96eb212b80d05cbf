;;;; The server: listeners, routes, calls as handlers see them, drain.

(defpackage #:clgrpc.server
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:hpack #:clgrpc.hpack) (#:http2 #:clgrpc.http2)
                    (#:exchange #:clgrpc.exchange)
                    (#:protobuf #:clgrpc.protobuf) (#:rpc #:clgrpc.rpc) (#:status #:clgrpc.status)
                    (#:method #:clgrpc.method) (#:wire #:clgrpc.wire)
                    (#:os #:clgrpc.os))
  (:import-from #:sb-ext #:defglobal #:define-load-time-global)
  (:import-from #:clgrpc.status
                  #:rpc-error-status)
  (:import-from #:clgrpc.method
                  #:rpc-method #:rpc-method-kind)
  (:import-from #:clgrpc.rpc
                  #:call #:call-status #:call-rpc-method #:end-call
                  #:with-user-code #:operate #:answers-once-p)
  (:import-from #:clgrpc.serving
                  #:server #:server-services #:server-options #:server-interceptors
                  #:server-observer #:server-reserve #:server-acceptors #:server-lock
                  #:server-emptied #:acceptor-address #:close-acceptor #:acceptor-busy-p
                  #:abandon-acceptor #:acceptor-calls #:note-emptied #:answer-of
                  #:bad-answer-condition #:sendable-end #:route
                  #:note-long-answer #:note-short-answer #:execution-of #:make-routes
                  #:route-table #:route-table-server #:route-table-epoch #:find-unknown-route
                  #:route-table-routes)
  (:import-from #:clgrpc.wire
                #:link #:wire-call #:wire-call-loop)
  (:export
   #:wire-server #:start-server #:stop-server #:server-address #:server-addresses
   #:server-statistics #:server-running-p #:server-service-names #:note-server-started
   #:note-server-stopping #:call-before-stop #:min-ping-seconds #:server-credentials
   ;; for channelz
   #:**servers** #:server-channel-trace #:server-loops #:server-sockets
   #:server-loop-tally #:server-loop-links #:server-loop-loop
   ;; protocol.lisp, and what protocols beside gRPC need
   #:make-protocol #:register-protocol #:protocol-names #:manner #:make-manner #:claim
   #:claim-incoming #:take-query-octets
   #:server-call #:call-claim #:call-notes #:call-protocol #:call-http-request #:server-origins
   #:server-call-request #:server-call-undecoded #:keep-request #:unended-p #:route-method
   #:server-finish #:finish-with-condition #:note-answering #:deliver-to-stream
   #:half-close-stream #:handler-began-ns #:status-http-status #:**request-operations**
   #:write-trailers-later #:note-served #:header-list-limit #:over-http1-p #:server-call-born-ns
   ;; connection-report.lisp
   #:report-connections #:server-speaks-tls-p))
