;;;; What both ends of a call share.

(defpackage #:clgrpc.rpc
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:os #:clgrpc.os) (#:loop #:clgrpc.loop)
                    (#:protobuf #:clgrpc.protobuf))
  (:import-from #:sb-ext #:defglobal)
  (:import-from #:clgrpc.loop #:cancel #:future-done-p #:await)
  (:export
   ;; status.lisp
   #:rpc-error #:rpc-error-status #:rpc-error-message #:rpc-error-details #:rpc-error-details-octets
   #:rpc-error-detail #:rpc-error-trailers #:rpc-error-call #:rpc-error-peer #:rpc-error-ended-by
   #:rpc-error-cause #:rpc-error-sent-p #:cancelled #:unknown #:invalid-argument #:deadline-exceeded
   #:not-found #:already-exists #:permission-denied #:resource-exhausted #:failed-precondition
   #:aborted #:out-of-range #:unimplemented #:internal #:unavailable #:data-loss #:unauthenticated
   #:status-code #:code-status #:make-rpc-error #:fail
   ;; timeout.lisp
   #:deadline #:deadline-in #:parse-timeout #:encode-timeout
   ;; metadata.lisp
   #:check-metadata #:metadata-entries
   ;; method.lisp
   #:rpc-method #:rpc-method-name #:rpc-method-service-name #:rpc-method-path
   #:rpc-method-path-field #:rpc-method-route #:rpc-method-kind #:rpc-method-request-type
   #:rpc-method-response-type
   #:rpc-method-function-name #:find-rpc-method #:descriptor-rpc-method #:service #:service-methods
   #:service-target #:direct-channel #:method-function #:binding
   #:binding-function #:make-binding #:make-rpc-method
   #:define-service #:watch-services #:forget-watcher
   #:call-compression #:received-compressed-p
   ;; interceptor.lisp
   #:check-interceptors #:bearer-token
   #:credentials-metadata #:interception
   ;; channel.lisp
   #:channel #:invoke #:channel-target #:channel-state #:close-channel #:ensure-connected
   #:wait-for-state-change #:channel-secure-p #:channel-plaintext-credentials
   ;; transport.lisp
   #:operations #:define-transport-end #:operate #:contract-table
   ;; observer.lisp
   #:observer #:make-observer #:check-observer #:observe #:observation-table
   ;; part.lisp
   #:parts #:call-parts #:ensure-parts #:parts-reactions #:inlet #:call-inlet
   #:ensure-inlet #:inlet-received #:inlet-queued-octets #:inlet-arrived #:inlet-filter
   #:outlet #:call-outlet #:ensure-outlet #:outlet-unsent-octets
   #:outlet-writable-wanted #:reactions #:call-reactions #:ensure-reactions
   #:reactions-on-message #:reactions-on-half-close #:reactions-on-writable #:reactions-scheduled
   #:reactions-timers #:reactions-due #:call-ending #:ensure-ending #:ending-outcome
   #:ending-trailers #:ending-trailer-fields #:call-intent #:ensure-intent #:intent-metadata
   #:intent-wait-for-ready #:outgoing-metadata #:call-received
   ;; call.lisp, verb.lisp, trouble.lisp
   #:call #:call-rpc-method #:call-status #:call-fields #:call-deadline #:call-half-closed
   #:call-incoming
   #:outcome-message #:outcome-details #:outcome-stage #:call-outcome #:call-stage
   #:call-path #:stage-text
   #:call-unsent-octets #:filtered #:room-p #:*call*
   #:notify #:wait-for-call
   #:push-incoming #:pop-incoming #:+arrival-octets+ #:make-arrival #:arrival-next
   #:notify-sleeper #:deliverable-p #:end-call
   #:call-condition #:callbacks-p #:message-due-p #:due-callback #:due-on-writable
   #:receive-by #:receivable-p #:await-fields #:receive-each #:client-p
   #:outgoing-type #:incoming-type #:may-send-p
   #:outgoing
   #:park #:gate-ringer #:with-user-code
   #:*debug-on-error* #:return-status #:cancel-call #:retry-handler #:retry-call #:call-peer
   #:call-security #:send #:try-send #:close-send #:receive #:do-messages #:cancel #:cancelled-p
   #:with-call #:call-metadata #:call-trailers #:send-metadata #:time-remaining #:on-message
   #:on-half-close #:on-cancel #:on-writable #:on-end #:filter-messages #:reply #:finish #:after
   ;; account.lisp
   #:call-stages
   #:rpc-error-stages #:rpc-error-reason #:failure-p
   ;; stub.lisp, future.lisp
   #:check-call-options #:absolute-deadline #:request-generator #:only-request #:send-requests
   #:pump-requests #:fail-or-retry #:never #:call-async
   ;; verdict.lisp
   #:verdict #:abort-as #:verdict-error #:overdue-p #:answers-once-p #:takes-one-p #:flaw
   #:add-trailers
   ;; server.lisp
   #:server #:server-services #:server-options #:server-interceptors #:server-observer
   #:server-reserve
   #:server-entrances #:server-lock #:server-emptied #:ensure-entrance #:note-emptied
   #:entrance-address #:close-entrance #:entrance-busy-p #:abandon-entrance #:entrance-calls
   ;; answer.lisp
   #:answer-of #:sendable-end #:bad-answer-condition
   ;; route.lisp
   #:route #:route-server #:route-epoch #:route-method
   #:route-binding #:route-interceptors #:route-execution #:route-long-octets #:note-long-answer
   #:note-short-answer #:execution-of #:make-routes #:route-table #:route-table-server
   #:route-table-epoch #:route-table-routes
   ;; dropped.lisp, runtime.lisp
   #:when-dropped #:report-dropped #:end-elsewhere #:client-loop #:client-loop-loop
   #:client-loop-reserve #:acquire-client-loop #:release-client-loop #:acquire-timer-loop
   #:release-timer-loop #:drive-for
   ;; room.lisp
   #:+long-octets+ #:call-with-room
   ;; for the wire
   #:abort-with #:arrival #:arrival-end #:arrival-item #:arrival-size #:binary-name-p
   #:charged-arrival #:check-compression #:outcome #:outcome-unsent #:push-arrival #:sends-one-p
   #:uncharge))
