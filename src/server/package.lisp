;;;; The server: listeners, routes, calls as handlers see them, drain.

(defpackage #:clgrpc.server
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:hpack #:clgrpc.hpack) (#:http2 #:clgrpc.http2)
                    (#:exchange #:clgrpc.exchange)
                    (#:protobuf #:clgrpc.protobuf) (#:rpc #:clgrpc.rpc) (#:status #:clgrpc.status)
                    (#:method #:clgrpc.method) (#:wire #:clgrpc.wire)
                    (#:os #:clgrpc.os) (#:encoding #:clgrpc.encoding))
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
                  #:server-observer #:server-reserve
                  #:await-emptied #:acceptor-state #:close-acceptor #:note-emptied #:answer-of
                  #:bad-answer-condition #:sendable-end #:route
                  #:note-answer #:make-routes
                  #:route-table #:find-unknown-route
                  #:route-current-p #:route-table-routes)
  (:import-from #:clgrpc.wire
                #:link #:wire-call #:wire-call-loop)
  (:export
   #:call-before-stop #:min-ping-seconds #:note-server-started #:note-server-stopping
   #:server-address #:server-addresses #:server-credentials #:server-running-p
   #:server-service-names #:server-statistics #:start-server #:stop-server #:wire-server
   ;; for channelz
   #:server-channel-trace #:server-loop-links #:server-loop-loop #:server-loop-call-counts
   #:server-loops #:server-sockets #:**servers**
   ;; protocol.lisp, and the functions that protocols other than gRPC need
   #:call-claim #:call-http-request #:call-notes #:call-protocol #:claim #:claim-incoming
   #:deliver-request #:deliver-to-stream #:encode-status-message #:finish-with-condition
   #:half-close-stream #:handler-began-ns #:header-list-limit #:make-protocol
   #:protocol-handler #:note-served #:over-http1-p #:post-metadata #:post-reply-by #:protocol-names
   #:register-protocol #:**request-operations** #:route-method #:server-call
   #:server-call-born-ns #:server-finish #:server-origins #:status-http-status
   #:take-query-octets #:write-trailers-later
   ;; connection-report.lisp
   #:report-connections #:server-speaks-tls-p))
