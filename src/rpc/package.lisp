;;;; The common code of both ends of a call.

(defpackage #:clgrpc.rpc
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:local-nicknames (#:os #:clgrpc.os) (#:loop #:clgrpc.loop)
                    (#:protobuf #:clgrpc.protobuf))
  (:import-from #:sb-ext #:defglobal)
  (:import-from #:clgrpc.loop #:cancel #:future-done-p #:await)
  (:import-from #:clgrpc.method
                #:*call* #:call #:rpc-method #:rpc-method-function-name #:rpc-method-kind
                #:rpc-method-path #:rpc-method-request-type #:rpc-method-response-type
                #:rpc-method-service-name)
  (:import-from #:clgrpc.status
                #:check-metadata #:deadline #:details-octets #:end-reason
                #:make-rpc-error #:rpc-error #:rpc-error-call #:rpc-error-cause
                #:rpc-error-ended-by #:rpc-error-message #:rpc-error-sent-p #:rpc-error-status
                #:status-code #:unknown)
  (:export
   #:abort-as #:add-to-batch #:add-trailers #:after #:answers-once-p #:+arrival-octets+
   #:attempt-of #:begin-intent #:call #:call-compression #:call-condition #:call-deadline
   #:call-fields #:**call-ids** #:call-incoming #:call-metadata #:call-path
   #:call-peer #:call-reactions #:call-received #:call-rpc-method #:call-security #:call-stages
   #:call-status #:call-trailers #:call-value #:call-with-room #:callbacks-p #:cancel
   #:cancel-call #:cancelled-p #:check-authority #:check-compression #:check-interceptors
   #:check-message #:check-observer #:client-p #:close-send #:compressed-octets
   #:*debug-on-error* #:define-own-part #:define-transport-end #:deliverable-p #:do-messages
   #:due-callback #:encoding #:encoding-name #:encoding-of-name #:encoding-open-p #:encoding-text
   #:encodings #:end-call #:ensure-reactions #:expand-beginning #:expand-octets #:failed-attempts
   #:filter-messages #:filtered #:final-status #:finish #:flaw #:gate-ringer #:incoming-type
   #:interceptors-for #:late-value #:+long-octets+ #:make-observer #:may-send-p #:message-due-p
   #:note-failed-attempt #:note-opened #:notify #:notify-sleeper #:observe #:observer
   #:observer-for #:observer-interceptors #:on-cancel #:on-end #:on-half-close #:on-message
   #:on-writable #:only-request #:operate #:operations #:outgoing #:outgoing-metadata
   #:outgoing-type #:overdue-p #:own-authority #:own-limits #:park #:pop-incoming #:queue-batch
   #:push-incoming #:queued-octets #:put-received #:reactions #:reactions-due
   #:reactions-on-half-close #:reactions-on-message #:reactions-on-writable #:reactions-scheduled
   #:reactions-timers #:receive #:receive-by #:received-compressed-p #:register-compressor
   #:refuse-to-wait #:register-zstd #:reply #:retry-call #:retry-handler #:return-status #:room-p
   #:rpc-error-attempts #:rpc-error-stages #:send #:send-metadata #:stage-text #:takes-one-p
   #:time-remaining #:trailer-fields #:try-send #:uncharge #:verdict #:verdict-error
   #:wait-for-call #:wait-for-ready #:watch-room #:with-call #:with-user-code))
