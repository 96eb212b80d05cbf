;;;; The common code of both ends of a call.

(defpackage #:clgrpc.rpc
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:import-from #:alexandria #:if-let #:when-let)
  (:local-nicknames (#:os #:clgrpc.os) (#:loop #:clgrpc.loop)
                    (#:protobuf #:clgrpc.protobuf))
  (:import-from #:sb-ext #:defglobal)
  (:import-from #:clgrpc.loop #:cancel)
  (:import-from #:clgrpc.method
                #:*call* #:call #:rpc-method #:rpc-method-function-name #:rpc-method-kind
                #:rpc-method-path #:rpc-method-request-type #:rpc-method-response-type
                #:rpc-method-service-name)
  (:import-from #:clgrpc.encoding #:check-compression)
  (:import-from #:clgrpc.status
                #:check-metadata #:deadline #:details-octets
                #:make-rpc-error #:rpc-error #:rpc-error-call #:rpc-error-cause
                #:rpc-error-ended-by #:rpc-error-message #:rpc-error-reason #:rpc-error-sent-p
                #:rpc-error-status
                #:status-code #:unknown)
  (:export
   #:abort-as #:add-to-batch #:add-trailers #:after #:answers-once-p #:+batch-octets+
   #:begin-own-options #:call #:call-compression #:call-condition #:call-deadline #:call-fields
   #:**call-ids** #:call-metadata #:call-path #:call-peer #:call-rpc-method #:call-security
   #:call-stages #:call-status #:call-trailers #:call-value #:call-with-room #:cancel
   #:cancel-call #:cancelled-p #:check-interceptors #:check-message #:check-observer
   #:client-p #:close-send #:*debug-on-error* #:define-own-part
   #:define-transport-end #:deliverable-p
   #:do-messages #:due-callback #:end-call #:failed-attempts #:filter-messages #:filtered
   #:final-status #:finish #:incoming-type #:interceptors-for #:late-value #:log-call-event
   #:+long-octets+ #:make-observer #:may-send-p #:message-due-p #:messages-wait-p
   #:note-failed-attempt #:note-opened #:notify #:notify-sleeper #:observe #:observer
   #:observer-for #:on-cancel #:on-end #:on-half-close #:on-message #:on-writable #:only-request
   #:operate #:operations #:outgoing #:outgoing-metadata #:outgoing-type #:overdue-p #:own-limits
   #:park #:pop-incoming #:pop-taken #:push-incoming #:put-received #:queue-batch #:queued-octets
   #:receive #:receive-by #:received-compressed-p #:refuse-to-wait #:reply #:retry-call
   #:retry-handler #:return-status #:room-p #:rpc-error-attempts #:rpc-error-stages
   #:schedule-callbacks #:send #:send-metadata #:stage-text #:takes-one-p #:time-remaining
   #:trailer-fields #:try-send #:uncharge #:verdict #:verdict-error #:violation #:wait-for-call
   #:watch-room #:with-call #:with-user-code))
