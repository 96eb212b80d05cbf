;;;; What both ends of a call share.

(defpackage #:clgrpc.rpc
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:os #:clgrpc.os) (#:loop #:clgrpc.loop)
                    (#:protobuf #:clgrpc.protobuf))
  (:import-from #:sb-ext #:defglobal)
  (:import-from #:clgrpc.loop #:cancel)
  (:export
   ;; status.lisp
   #:rpc-error #:rpc-error-status #:rpc-error-message #:rpc-error-details #:rpc-error-details-octets
   #:rpc-error-detail #:rpc-error-trailers #:rpc-error-call #:rpc-error-peer #:rpc-error-ended-by
   #:rpc-error-cause #:rpc-error-sent-p #:cancelled #:unknown #:invalid-argument #:deadline-exceeded
   #:not-found #:already-exists #:permission-denied #:resource-exhausted #:failed-precondition
   #:aborted #:out-of-range #:unimplemented #:internal #:unavailable #:data-loss #:unauthenticated
   #:status-code #:code-status #:make-rpc-error #:fail
   ;; details.lisp
   #:details-octets
   ;; timeout.lisp
   #:deadline #:deadline-in #:parse-timeout #:encode-timeout #:earlier-deadline
   ;; metadata.lisp
   #:check-metadata #:metadata-entries
   ;; method.lisp
   #:rpc-method #:rpc-method-name #:rpc-method-service-name #:rpc-method-path
   #:rpc-method-path-field #:rpc-method-route #:rpc-method-kind #:rpc-method-request-type
   #:rpc-method-response-type
   #:rpc-method-function-name #:find-rpc-method #:descriptor-rpc-method #:service #:service-methods
   #:channel #:invoke #:service-target #:direct-channel #:method-function #:binding
   #:binding-function #:ensure-binding
   #:define-service #:watch-services #:forget-watcher
   #:call-compression #:received-compressed-p
   ;; interceptor.lisp
   #:check-interceptors #:call-intercepted #:invoke-intercepted #:bearer-token
   #:credentials-metadata
   ;; transport.lisp
   #:define-transport-end #:operate #:nothing #:contract-table
   ;; call.lisp, verb.lisp, trouble.lisp
   #:call #:call-rpc-method #:call-status #:call-fields #:call-deadline #:call-half-closed
   #:call-extra #:call-incoming #:extra #:ensure-extra
   #:extra-metadata #:extra-trailers #:extra-trailer-fields #:extra-outcome
   #:outcome-message #:outcome-details #:outcome-stage #:call-outcome #:extra-wait #:call-stage
   #:call-trouble #:call-role #:call-path #:tell-end #:stage-text
   #:call-unsent-octets #:extra-wait-for-ready #:extra-resent #:extra-queued-octets
   #:extra-incoming-filter
   #:extra-outgoing-filter #:extra-on-message #:extra-on-half-close #:extra-on-writable
   #:extra-scheduled #:extra-writable-wanted #:extra-timers #:filtered #:room-p #:*call*
   #:notify #:wait-for-call
   #:push-incoming #:pop-incoming #:+arrival-octets+ #:make-arrival #:arrival-next
   #:extra-received #:notify-sleeper #:deliverable-p #:end-call
   #:call-condition #:callbacks-p #:message-due-p #:due-callback #:due-on-writable
   #:receive-queued #:receive-each #:client-p #:outgoing-type #:incoming-type #:may-send-p
   #:check-message #:outgoing
   #:park #:gate-ringer #:with-user-code #:error-condition
   #:*debug-on-error* #:return-status #:cancel-call #:retry-handler #:retry-call #:call-peer
   #:call-security #:send #:try-send #:close-send #:receive #:do-messages #:cancel #:cancelled-p
   #:with-call #:call-metadata #:call-trailers #:send-metadata #:time-remaining #:on-message
   #:on-half-close #:on-cancel #:on-writable #:on-end #:filter-messages #:reply #:finish #:after
   ;; account.lisp
   #:call-stages #:explain-call
   #:rpc-error-stages #:rpc-error-reason #:failure-p
   ;; room.lisp
   #:+long-octets+ #:call-with-room
   ;; for the wire
   #:abort-with #:arrival #:arrival-end #:arrival-item #:arrival-size #:binary-name-p
   #:charged-arrival #:check-compression #:extra-arrived #:extra-arriving #:extra-compression
   #:extra-held #:extra-outbox #:extra-outbox-octets #:extra-partial #:extra-timer
   #:extra-unsent-octets #:extra-withheld #:outcome #:outcome-unsent #:push-arrival #:sends-one-p
   #:uncharge))
