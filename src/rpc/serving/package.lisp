;;;; The common code of servers of all transports: services, routes, acceptors, calls of handlers.

(defpackage #:clgrpc.serving
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:protobuf #:clgrpc.protobuf))
  (:import-from #:clgrpc.rpc
                #:+long-octets+ #:call #:call-path #:interceptors-for #:log-call-event #:observer
                #:outgoing-type #:with-user-code)
  (:import-from #:clgrpc.method
                #:binding #:binding-function #:method-binding #:rpc-method
                #:rpc-method-path #:service #:service-methods
                #:unknown-method)
  (:import-from #:clgrpc.status
                #:check-metadata #:rpc-error #:rpc-error-details-octets #:rpc-error-message
                #:rpc-error-status #:rpc-error-trailers)
  (:export
   #:acceptor-state #:answer-of #:await-emptied #:bad-answer-condition #:close-acceptor
   #:ensure-acceptor #:find-unknown-route #:make-routes #:note-answer #:note-emptied #:route
   #:route-current-p #:route-table #:route-table-routes #:sendable-end #:server
   #:server-interceptors #:server-observer #:server-options #:server-reserve #:server-services))
