;;;; The package that users see. The package defines nothing: it imports every name from the folder
;;;; that defines it, and exports all names. Give it a local nickname: (:local-nicknames (#:grpc
;;;; #:clgrpc)).

(uiop:define-package #:clgrpc
  (:use)
  (:import-from #:clgrpc.base
                #:clgrpc-error #:misuse #:limit-exceeded #:limit-exceeded-option
                #:limit-exceeded-limit #:limit-exceeded-actual #:*log-function*
                #:*backtrace-arguments* #:add-log-listener #:remove-log-listener
                #:log-writer #:log-errors #:log-in-background #:flush-log #:tracers #:tracer-table
                #:tracer-name #:tracer-text #:tracer-aliases #:tracer-meaning #:tune-collector)
  (:import-from #:clgrpc.option #:option-table)
  (:import-from #:clgrpc.loop
                #:future #:make-future #:future-done-p #:resolve-future #:reject-future #:await
                #:attach #:all #:any #:future-cancelled #:future-cancelled-text #:await-timeout
                #:await-timeout-future
                #:socket-error #:socket-error-operation #:socket-error-address
                #:socket-error-reason
                #:tls-credentials #:reload-credentials
                #:security-protocol #:security-cipher #:security-resumed-p #:security-server-name
                #:security-peer-certificate #:certificate-identity)
  (:import-from #:clgrpc.os
                #:tls-error #:tls-error-text #:certificate #:certificate-der #:certificate-subject
                #:certificate-issuer #:certificate-names #:certificate-serial-number
                #:certificate-not-before #:certificate-not-after)
  (:import-from #:clgrpc.protobuf
                ;; definitions
                #:define-proto #:define-file #:define-descriptor-set #:load-descriptor-set
                #:*import-roots*
                #:proto-syntax-error #:proto-syntax-error-file #:proto-syntax-error-line
                #:proto-syntax-error-column #:proto-syntax-error-expected
                #:proto-syntax-error-text #:proto-syntax-error-others
                ;; messages
                #:message #:serialize #:serialized-size #:parse-message #:message= #:copy-message
                #:merge-message #:clear-message #:write-delimited #:read-delimited
                #:message-json #:parse-json-message #:message-text #:parse-text-message
                #:message-text-error #:message-text-error-format #:message-text-error-line
                #:message-text-error-column #:message-text-error-path #:message-print-error
                #:message-print-error-format
                #:field-type-error #:field-type-error-field
                #:protobuf-error #:protobuf-error-type #:protobuf-error-position
                #:protobuf-error-text #:required-field-missing #:required-field-missing-path
                ;; well-known types
                #:unix-time-timestamp #:timestamp-unix-time #:universal-time-timestamp
                #:timestamp-universal-time #:seconds-duration #:duration-in-seconds
                #:any-pack #:any-unpack #:any-type-name #:data-value #:value-data
                #:alist-struct #:struct-alist #:vector-list-value #:list-value-vector
                ;; maps and enums
                #:proto-map #:map-value #:map-count #:map-remove #:do-map #:map-alist
                #:enum-number #:enum-keyword
                ;; messages of any type
                #:make-message #:find-message-type #:field-value #:field-present-p #:clear-field
                #:present-fields #:do-fields #:ensure-field #:append-to-field #:oneof-field
                #:type-pool #:make-type-pool #:find-pool-type #:type-pool-files
                #:read-proto-files
                #:raw-message #:raw-message-p #:raw-message-octets
                #:unknown-fields #:find-extension)
  (:import-from #:clgrpc.status
                  #:fail #:make-rpc-error #:status-code #:code-status #:rpc-error
                  #:rpc-error-status #:rpc-error-message #:rpc-error-details
                  #:rpc-error-details-octets #:rpc-error-detail #:rpc-error-trailers
                  #:rpc-error-call #:rpc-error-peer #:rpc-error-ended-by #:rpc-error-cause
                  #:rpc-error-sent-p #:rpc-error-reason #:cancelled #:unknown #:invalid-argument
                  #:deadline-exceeded #:not-found #:already-exists #:permission-denied
                  #:resource-exhausted #:failed-precondition #:aborted #:out-of-range
                  #:unimplemented #:internal #:unavailable #:data-loss #:unauthenticated)
  (:import-from #:clgrpc.method
                  #:service #:channel #:channel-target #:current-call
                  #:rpc-method #:rpc-method-path #:rpc-method-name
                  #:rpc-method-service-name #:rpc-method-kind
                  #:invoke #:generic-method #:pool-method #:pool-methods
                  #:generic-service #:make-generic-service #:generic-service-methods)
  (:import-from #:clgrpc.rpc
                  #:observer #:make-observer #:call #:send #:try-send #:close-send #:receive
                  #:do-messages #:with-call #:cancel #:cancelled-p #:call-status #:call-metadata
                  #:call-trailers #:call-peer #:call-stages #:failed-attempts #:call-security
                  #:call-compression #:received-compressed-p
                  #:send-metadata #:time-remaining
                  #:call-deadline #:after
                  #:on-message #:on-half-close #:on-cancel #:on-writable #:reply #:finish #:on-end
                  #:filter-messages #:call-rpc-method #:call-value
                  #:*debug-on-error* #:return-status #:cancel-call #:retry-handler #:retry-call
                  #:rpc-error-stages #:rpc-error-attempts)
  (:import-from #:clgrpc.encoding #:register-codec #:register-compressor #:register-zstd)
  (:import-from #:clgrpc.calling
                  #:close-channel #:channel-state #:channel-addresses
                  #:ensure-connected #:reset-back-off
                  #:wait-for-state-change #:on-state-change #:call-async)
  (:import-from #:clgrpc.credentials
                  #:call-credentials #:get-request-metadata #:credentials-request
                  #:credentials-request-path #:credentials-request-authority
                  #:credentials-request-audience #:credentials-request-secure-p
                  #:compose-credentials)
  (:import-from #:clgrpc.attempt
                  #:attempt #:attempt-call #:attempt-number #:attempt-kind #:attempt-peer
                  #:attempt-request-metadata #:attempt-status #:attempt-message
                  #:attempt-metadata #:attempt-trailers #:on-attempt-end)
  (:import-from #:clgrpc.topic
                #:topic #:make-topic #:subscribe #:unsubscribe #:broadcast #:close-topic
                #:topic-position #:topic-statistics
                #:follow-stream)
  (:import-from #:clgrpc.serving
                  #:server)
  (:import-from #:clgrpc.client
                #:make-channel #:with-channel
                ;; resolvers
                #:resolver #:define-resolver #:resolver-target #:resolver-name #:start-resolver
                #:resolve-now #:stop-resolver #:push-addresses #:push-failure
                ;; balancers
                #:balancer #:define-balancer #:update-backends #:subchannel-changed #:exit-idle
                #:close-balancer #:publish #:make-picker #:make-failure
                #:backend #:backend-key #:backend-attributes
                #:subchannel #:open-subchannel #:connect #:close-subchannel #:subchannel-state
                #:subchannel-key #:subchannel-attributes #:subchannel-calls)
  (:import-from #:clgrpc.token
                #:bearer-token #:token-credentials #:fetch-token #:token-file #:self-signed-token
                #:client-token #:exchanged-token)
  (:import-from #:clgrpc.config
                #:service-config-error #:service-config-error-path #:service-config-error-text)
  (:import-from #:clgrpc.server
                #:start-server #:stop-server #:server-address #:server-addresses
                #:server-running-p #:server-statistics #:server-service-names #:note-server-started
                #:note-server-stopping #:call-before-stop)
  (:import-from #:clgrpc.exchange
                #:http-handler #:http-request #:http-request-p
                #:http-request-method #:http-request-target #:http-request-path
                #:http-request-query #:http-request-headers #:http-request-header
                #:http-request-parameter #:http-request-body #:http-request-peer
                #:begin-response #:send-chunk #:end-response #:response-open-p #:on-response-end)
  (:import-from #:clgrpc.rest
                #:use-http-rules #:rule-error #:rule-error-rule #:rule-error-text #:openapi-handler)
  (:import-from #:clgrpc.gateway
                #:gateway-service #:make-gateway-service)
  (:import-from #:clgrpc.trace
                #:tracing #:make-tracing #:trace-context #:current-trace #:trace-id #:span-id
                #:trace-sampled-p #:trace-state #:traceparent #:parse-traceparent #:with-span
                #:with-baggage #:current-baggage #:set-span-attribute #:add-span-event
                #:trace-exemplar)
  (:import-from #:clgrpc.inproc #:server-channel #:service-channel)
  (:import-from #:clgrpc.metrics
                #:metrics #:make-metrics #:metrics-text #:make-counter #:make-up-down-counter
                #:make-gauge #:make-histogram #:add #:record)
  (:import-from #:clgrpc.logs #:access-log #:make-access-log
                #:binary-log #:make-binary-log #:close-binary-log #:rotate-binary-log
                #:binary-log-dropped
                #:read-binary-log)
  (:import-from #:clgrpc.services
                #:health-service #:health-status #:health-handler #:set-health-status
                #:reflection-services #:metrics-handler)
  (:import-from #:clgrpc.channelz #:channelz-service)
  (:import-from #:clgrpc.program #:run-server)
  (:import-from #:clgrpc.otlp
                #:otlp-exporter #:make-otlp-exporter #:flush-exporter #:stop-exporter
                #:exporter-statistics))

;; the package uses no other, so what it imports is exactly what it gives to users
(eval-when (:compile-toplevel :load-toplevel :execute)
  (do-symbols (symbol '#:clgrpc) (export symbol '#:clgrpc)))
