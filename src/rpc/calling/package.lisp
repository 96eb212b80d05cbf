;;;; What channels of all transports share: stubs, futures, interceptors, client loops.

(defpackage #:clgrpc.calling
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:local-nicknames (#:os #:clgrpc.os) (#:loop #:clgrpc.loop) (#:protobuf #:clgrpc.protobuf)
                    (#:config #:clgrpc.config) (#:status #:clgrpc.status))
  (:import-from #:sb-ext #:defglobal #:compare-and-swap)
  (:import-from #:clgrpc.loop #:cancel #:future-done-p #:await #:attach)
  (:import-from #:clgrpc.rpc
                #:call #:call-condition #:call-deadline #:call-ending #:call-fields #:call-intent
                #:call-outcome #:call-path #:call-rpc-method
                #:call-status #:call-value #:check-message #:client-p #:close-send
                #:ending-trailer-fields #:ensure-intent #:failed-attempts #:intent-attempt
                #:intent-authority #:intent-receive-limit #:intent-send-limit
                #:interceptors-for #:on-writable #:operate #:outcome-message
                #:reply #:retry-call #:send #:try-send #:verdict-error #:wait-for-call)
  (:import-from #:clgrpc.method
                #:*call* #:channel #:invoke #:rpc-method #:rpc-method-kind #:rpc-method-path
                #:rpc-method-request-type #:stub-method)
  (:import-from #:clgrpc.status
                #:check-metadata #:refusal-error #:deadline #:deadline-in #:earlier-deadline
                #:failure-p #:make-rpc-error #:rpc-error #:rpc-error-trailers)
  (:export
   ;; call-credentials.lisp
   #:call-credentials #:get-request-metadata #:credentials-request #:make-credentials-request
   #:credentials-request-path #:credentials-request-authority #:credentials-request-audience
   #:credentials-request-secure-p #:compose-credentials #:ask-credentials #:token-metadata
   #:check-credentials-secure #:check-credentials-kind #:waiting-credentials-p
   #:absolute-deadline #:acquire-client-loop #:acquire-timer-loop #:bearer-token #:begin-intent
   #:authority-host #:begin-values #:check-authority
   #:call-async #:channel-addresses #:channel-plaintext-credentials #:channel-secure-p
   #:channel-state #:channel-target #:check-call-options #:client-loop #:client-loop-loop
   #:client-loop-reserve #:close-channel #:credentials-metadata #:drive-for #:end-elsewhere
   #:ensure-connected #:limit-silence #:on-state-change #:tell-state #:reset-back-off
   #:fail-or-retry #:interception #:only-request
   #:pump-requests #:release-client-loop #:release-timer-loop #:report-dropped #:request-generator
   #:send-requests #:wait-for-state-change #:when-dropped
   ;; attempt-view.lisp
   #:attempt #:attempt-call #:attempt-kind #:attempt-message #:attempt-metadata #:attempt-number
   #:attempt-peer #:attempt-request-metadata #:attempt-status #:attempt-trailers #:close-attempt
   #:close-own-view #:view-attempt #:on-attempt-end #:own-view #:put-attempt-metadata #:take-view
   ;; retry.lisp
   #:retries #:make-retries #:retries-running #:retries-limit #:retries-awaited
   #:take-number
   #:add-attempt #:forget-attempt #:first-begun #:attempt-due #:attempt-failed
   #:count-late-failure #:count-repeats #:commit #:end-retries #:attempt-failure
   #:make-attempt-failure #:attempt-failure-status #:attempt-failure-message
   ;; retry-policy.lisp
   #:policy #:throttle #:find-retry-policy #:policy-limit #:metadata-pushback #:parse-pushback
   #:current-throttle #:count-success #:throttled-p))
