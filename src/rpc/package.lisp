;;;; What both ends of a call share.

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
   #:**call-ids** #:*debug-on-error* #:+arrival-octets+ #:+long-octets+ #:abort-as #:abort-with
   #:add-trailers
   #:after #:answers-once-p #:arrival #:arrival-end #:arrival-item #:arrival-next #:arrival-size
   #:await-fields #:call #:call-compression #:call-condition #:call-deadline #:call-ending
   #:call-fields #:call-incoming #:call-inlet #:call-intent #:call-metadata
   #:call-outcome #:call-outlet #:call-parts #:call-path #:call-peer #:call-reactions
   #:call-received #:call-rpc-method #:call-security #:call-stage #:call-stages #:call-status
   #:call-trailers #:call-unsent-octets #:call-value #:call-with-room #:callbacks-p #:cancel
   #:cancel-call #:cancelled-p #:charged-arrival #:check-compression #:check-interceptors
   #:check-message #:check-observer #:client-p #:close-send #:define-shared-operations
   #:define-transport-end #:deliverable-p #:do-messages #:due-callback #:due-on-writable #:end-call
   #:encoding #:encoding-p #:encoding-field #:encoding-name #:encoding-names #:encoding-of-name
   #:encoding-text #:encoding-open-p #:encodings #:more-encodings-p #:expand-beginning
   #:expand-octets
   #:compressed-octets #:register-compressor #:register-zstd
   #:ending-outcome #:ending-trailer-fields #:ending-trailers #:ensure-ending #:ensure-inlet
   #:ensure-intent #:ensure-outlet #:ensure-parts #:ensure-reactions #:error-condition
   #:failed-attempts #:filter-messages #:filtered #:finish #:flaw #:gate-ringer #:incoming-type
   #:inlet #:inlet-filter #:inlet-queued-octets #:inlet-received #:intent-attempt
   #:intent-authority #:intent-metadata #:intent-receive-limit #:intent-send-limit
   #:intent-wait-for-ready #:interceptors-for #:join-observers #:late-value #:make-arrival
   #:make-observer #:make-trusted-observer #:may-send-p #:message-due-p
   #:note-failed-attempt #:note-opened #:notify #:notify-sleeper #:observe #:observer #:observer-for
   #:observer-interceptors #:on-cancel #:on-end #:on-half-close #:on-message #:on-writable
   #:operate #:operations #:outcome #:outcome-details #:outcome-message #:outcome-stage
   #:outcome-unsent #:outgoing #:outgoing-metadata #:outgoing-type #:outlet
   #:outlet-writable-wanted #:overdue-p #:park #:parts #:pop-incoming #:push-arrival
   #:push-incoming #:reactions #:reactions-due #:reactions-on-half-close #:reactions-on-message
   #:reactions-on-writable #:reactions-scheduled #:reactions-timers #:receivable-p #:receive
   #:receive-by #:receive-each #:received-compressed-p #:reply #:retry-call #:retry-handler
   #:return-status #:room-p #:rpc-error-attempts #:rpc-error-stages #:send #:send-metadata
   #:sends-one-p #:stage-text #:takes-one-p #:time-remaining #:try-send #:uncharge
   #:unknown-method-verdict #:verdict
   #:attempt-of #:verdict-error #:refuse-to-wait #:wait-for-call #:with-call #:with-user-code))
