;;;; What both ends of a call share.

(defpackage #:clgrpc.rpc
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:os #:clgrpc.os) (#:loop #:clgrpc.loop) (#:hpack #:clgrpc.hpack)
                    (#:http2 #:clgrpc.http2) (#:protobuf #:clgrpc.protobuf))
  (:import-from #:sb-ext #:defglobal)
  (:import-from #:clgrpc.loop #:cancel)
  (:export
   ;; status.lisp
   #:rpc-error #:rpc-error-status #:rpc-error-message #:rpc-error-details #:rpc-error-details-octets
   #:rpc-error-detail #:rpc-error-trailers #:rpc-error-call #:rpc-error-peer #:rpc-error-ended-by
   #:rpc-error-cause #:rpc-error-sent-p #:cancelled #:unknown #:invalid-argument #:deadline-exceeded
   #:not-found #:already-exists #:permission-denied #:resource-exhausted #:failed-precondition
   #:aborted #:out-of-range #:unimplemented #:internal #:unavailable #:data-loss #:unauthenticated
   #:status-code #:code-status #:make-rpc-error #:fail #:http-status-status #:error-code-status
   #:encode-status-message #:decode-status-message
   ;; details.lisp
   #:details-octets
   ;; timeout.lisp
   #:deadline #:deadline-in #:parse-timeout #:encode-timeout #:earlier-deadline
   ;; metadata.lisp
   #:check-metadata #:encode-metadata #:metadata-fields #:fields-metadata #:list-custom-fields
   #:metadata-octets #:sound-metadata-p
   ;; method.lisp
   #:rpc-method #:rpc-method-name #:rpc-method-service-name #:rpc-method-path
   #:rpc-method-path-field #:rpc-method-kind #:rpc-method-request-type #:rpc-method-response-type
   #:rpc-method-function-name #:find-rpc-method #:descriptor-rpc-method #:service #:service-methods
   #:channel #:invoke #:service-target #:direct-channel #:method-function #:binding
   #:binding-function #:ensure-binding
   #:define-service #:watch-services #:forget-watcher
   ;; framing.lisp
   #:+parcel-octets+ #:parcel #:parcel-octets #:parcel-end #:parcel-taken
   ;; compression.lisp
   #:encoding #:find-encoding #:parse-encoding #:accepted-encodings #:unknown-encoding-text
   #:quoted-octets
   #:accepted-encodings-field #:compression #:compression-outgoing #:compression-incoming
   ;; encoding.lisp
   #:compression-of #:ensure-compression #:compresses-p #:call-compression
   #:received-compressed-p #:encode-encodings #:encode-accepted-encodings
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
   ;; link.lisp
   #:link #:link-loop #:link-owner #:link-http2 #:link-socket #:link-calls #:link-draining
   #:link-born-ns #:link-place #:link-options #:link-seat #:link-guest #:link-late
   #:link-share
   #:link-last-fields #:link-failure #:link-goaway
   #:link-peer #:link-security #:link-answers #:make-answers #:answers-coming
   #:answers-held-up #:answers-left #:link-ended #:link-due #:open-link #:abandon-link #:expel-link
   #:close-link
   #:link-output #:link-http2-closed
   #:wake-callbacks
   ;; stage.lisp, account.lisp
   #:mark-call #:marked-p #:unmarked #:+unattended+ #:+headers+ #:+answer+ #:+due+ #:+end+
   #:make-wait-clock #:wait-clock-stage
   #:enter-stage #:read-clock-for-call #:stop-waiting #:call-began-ns #:call-stages #:explain-call
   #:rpc-error-stages #:rpc-error-reason #:failure-p
   ;; wire.lisp to deadline.lisp
   #:+begun+ #:+over+ #:+spoken-message+ #:wire-call-marks #:wire-call-born-ns #:endpoint-clock
   #:make-ledger #:ledger-held #:total-held-limit #:encoded-length
   #:wire-call #:wire-call-link #:wire-call-stream #:wire-call-headers-sent
   #:wire-call-send-closed #:wire-call-unattended #:close-sending #:wire-call-partial
   #:wire-call-loop
   #:wire-call-endpoint #:endpoint
   #:wire-call-options #:wire-call-speech #:put-into-outbox #:write-outbox
   #:write-half-close #:receive-data #:keep-octets #:to-keep-p #:hold #:release-call
   #:queue-incoming #:seal-batch #:wire-decode #:encode-unless-short #:undecoded-p
   #:parse-incoming #:unparsable-condition
   #:deliver-streamed #:half-close-streamed #:encode-message
   #:+long-octets+ #:call-with-room
   #:write-message #:write-encoded #:wire-send #:wire-post #:wire-room #:wire-taken #:wire-writable
   #:wire-schedule #:ensure-headers #:wire-after #:wire-now #:wire-peer
   #:wire-security #:wire-stage #:wire-stages #:wire-unsent-octets #:start-deadline
   #:deadline-passed #:overdue-p #:stop-timers))
