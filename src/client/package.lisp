;;;; The client: channels over the network, connections with back-off, calls.

(defpackage #:clgrpc.client
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:import-from #:alexandria #:if-let #:when-let)
  (:local-nicknames (#:os #:clgrpc.os) (#:loop #:clgrpc.loop) (#:dns #:clgrpc.dns)
                    (#:hpack #:clgrpc.hpack) (#:http2 #:clgrpc.http2)
                    (#:protobuf #:clgrpc.protobuf) (#:rpc #:clgrpc.rpc)
                    (#:status #:clgrpc.status) (#:method #:clgrpc.method)
                    (#:attempt #:clgrpc.attempt) (#:credentials #:clgrpc.credentials)
                    (#:encoding #:clgrpc.encoding)
                    (#:calling #:clgrpc.calling) (#:wire #:clgrpc.wire)
                    (#:config #:clgrpc.config) (#:proxy #:clgrpc.proxy))
  (:import-from #:sb-ext #:compare-and-swap #:defglobal #:define-load-time-global)
  (:import-from #:clgrpc.status
                  #:rpc-error-message)
  (:import-from #:clgrpc.loop
                  #:back-off #:make-back-off #:back-off-timer
                  #:start-back-off #:stop-back-off #:forget-failures)
  (:import-from #:clgrpc.method
                  #:channel-target #:rpc-method #:rpc-method-kind #:rpc-method-path)
  (:import-from #:clgrpc.rpc
                  #:call #:call-status #:call-rpc-method #:call-fields #:call-deadline
                  #:end-call #:notify #:operate)
  (:import-from #:clgrpc.attempt
                  #:count-success #:current-throttle #:find-retry-policy #:parse-pushback
                  #:throttle #:throttled-p)
  (:import-from #:clgrpc.credentials #:channel-secure-p #:credentials-metadata)
  (:import-from #:clgrpc.calling
                  #:close-channel #:channel-state #:channel-addresses #:ensure-connected
                  #:reset-back-off #:wait-for-state-change #:interception
                  #:acquire-client-loop #:client-reserve #:release-client-loop #:drive-for
                  #:absolute-deadline #:check-call-options #:end-elsewhere #:fail-or-retry
                  #:request-generator #:send-requests #:when-dropped)
  (:import-from #:clgrpc.wire
                  #:link #:wire-call #:wire-call-loop
                #:wire-call-options)
  (:export
   ;; status-mapping.lisp
   #:http-status-status #:error-code-status #:trailers-status
   ;; ending.lisp
   #:waited-p
   ;; resolver.lisp
   #:resolver #:define-resolver #:resolver-target #:resolver-name #:start-resolver #:resolve-now
   #:stop-resolver #:push-addresses #:push-failure #:resolver-authority #:resolver-host
   #:resolver-loop #:begin-resolving #:resolve-again #:end-resolving #:answers-p #:run-resolver
   #:quit-resolver #:deliver #:make-resolver
   #:backend #:backend-addresses #:backend-key #:backend-attributes #:make-backend #:backend-with
   #:first-address
   ;; balancer.lisp
   #:balancer #:balancer-core #:balancer-parent #:balancer-now #:balancer-random
   #:update-backends #:subchannel-changed #:exit-idle #:close-balancer #:child-published
   #:balancer-facts #:subchannel-facts #:subchannel-opened #:subchannel-closed #:publish
   #:resolving-wanted-p
   #:health-service
   #:make-picker #:new-picker #:picker #:picker-p #:picker-function #:picker-text
   #:make-failure #:failure #:failure-p #:failure-text
   ;; switch.lisp
   #:switch #:dismiss #:define-balancer
   ;; channel-structure.lisp and subchannel.lisp
   #:balancer-observer #:core-loop #:core-options #:core-name #:waiting-p
   #:subchannel #:subchannel-p #:subchannel-core #:subchannel-state #:subchannel-link-state
   #:subchannel-key #:subchannel-addresses #:subchannel-attributes #:subchannel-note
   #:subchannel-watchers #:subchannel-vetoes #:subchannel-balancer
   #:room-for-subchannel-p #:open-subchannel #:connect #:close-subchannel #:close-several
   #:change-addresses
   #:last-error-text #:breaker-passed-p #:room-p #:subchannel-calls
   #:impose-veto #:lift-veto #:veto-name #:veto-state #:add-listener
   ;; internal-call.lisp
   #:open-internal-call #:close-internal-call
   ;; for channelz
   #:**cores** #:core-channel-trace #:core-state #:core-subchannels #:core-calls-begun
   #:core-calls-succeeded #:core-calls-failed #:core-call-ns #:core-name #:subchannel-connection-set
   #:connection-set-failure #:all-links
   #:subchannel-channel-trace #:subchannel-picks #:subchannel-failures #:subchannel-cancellations
   #:server-text #:state-text
   ;; guarded-picker.lisp
   #:cancelled-by-server-p
   ;; network-channel.lisp
   #:wire-channel #:make-channel #:with-channel #:limit-channel-silence))
