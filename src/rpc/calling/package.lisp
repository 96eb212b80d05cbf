;;;; The common code of channels of all transports: stubs, futures, interceptors, client loops.

(defpackage #:clgrpc.calling
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:local-nicknames (#:os #:clgrpc.os) (#:loop #:clgrpc.loop) (#:protobuf #:clgrpc.protobuf)
                    (#:config #:clgrpc.config) (#:status #:clgrpc.status))
  (:import-from #:sb-ext #:defglobal #:compare-and-swap)
  (:import-from #:clgrpc.loop #:cancel #:future-done-p #:await #:attach)
  (:import-from #:clgrpc.rpc
                #:call #:call-condition #:call-deadline #:call-fields #:call-path
                #:call-rpc-method #:call-status #:call-value #:client-p #:close-send
                #:failed-attempts #:final-status
                #:interceptors-for #:on-writable #:operate #:reply
                #:retry-call #:send #:trailer-fields #:try-send #:verdict-error #:wait-for-call)
  (:import-from #:clgrpc.method
                #:*call* #:channel #:invoke #:rpc-method #:rpc-method-kind
                #:rpc-method-path #:rpc-method-request-type #:stub-method)
  (:import-from #:clgrpc.status
                #:check-metadata #:refusal-error #:deadline #:deadline-in
                #:failure-p #:make-rpc-error #:rpc-error #:rpc-error-trailers)
  (:export
   #:absolute-deadline #:acquire-client-loop #:ask-credentials
   #:call-async #:call-credentials #:channel-addresses
   #:channel-state #:channel-target #:channel-secure-p #:check-call-options
   #:check-credentials #:client-reserve #:close-channel #:compose-credentials #:credentials-metadata
   #:credentials-request #:credentials-request-audience #:credentials-request-authority
   #:credentials-request-path #:credentials-request-secure-p #:drive-for #:end-elsewhere
   #:ensure-connected #:fail-or-retry #:get-request-metadata #:interception #:limit-silence
   #:on-state-change #:release-client-loop #:request-generator
   #:reset-back-off #:send-requests #:tell-state #:wait-for-state-change
   #:when-dropped
   ;; attempt-view.lisp
   #:attempt #:attempt-call #:attempt-kind #:attempt-message #:attempt-metadata #:attempt-number
   #:attempt-peer #:attempt-request-metadata #:attempt-status #:attempt-trailers #:close-attempt
   #:on-attempt-end #:put-attempt-metadata #:view-attempt
   ;; retry.lisp
   #:add-attempt #:attempt-failure #:commit #:count-repeats
   #:make-attempt-failure #:make-retry-operations #:retries
   #:take-number #:tell-begun #:tell-due #:tell-failed #:tell-failed-late
   ;; retry-policy.lisp
   #:count-success #:current-throttle #:find-retry-policy #:parse-pushback
   #:throttle #:throttled-p))
