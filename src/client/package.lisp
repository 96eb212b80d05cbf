;;;; The client: channels, connections with back-off, calls, futures.

(defpackage #:clgrpc.client
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:os #:clgrpc.os) (#:loop #:clgrpc.loop) (#:hpack #:clgrpc.hpack)
                    (#:http2 #:clgrpc.http2) (#:protobuf #:clgrpc.protobuf) (#:rpc #:clgrpc.rpc)
                    (#:wire #:clgrpc.wire))
  (:import-from #:sb-ext #:compare-and-swap #:defglobal #:define-load-time-global)
  (:import-from #:clgrpc.rpc
                #:call #:call-status #:call-rpc-method #:call-fields #:call-deadline
                #:call-incoming #:end-call #:notify #:operate #:cancel
                #:rpc-method #:rpc-method-kind #:rpc-error-message)
  (:import-from #:clgrpc.wire
                #:link #:link-loop #:link-owner #:wire-call #:wire-call-link #:wire-call-loop
                #:wire-call-stream #:wire-call-send-closed #:wire-call-endpoint
                #:wire-call-unattended)
  (:import-from #:clgrpc.loop #:future #:future-done-p #:await #:attach)
  (:export
   ;; for the in-process channel
   #:client-loop #:acquire-timer-loop #:release-timer-loop #:client-loop-loop
   #:client-loop-reserve
   #:when-dropped #:report-dropped
   #:interception #:channel-secure-p #:check-call-options #:absolute-deadline #:request-generator
   #:only-request #:fail-or-retry #:never #:drive-for #:pump-requests
   #:send-requests
   #:channel-interceptors #:channel-call-credentials
   ;; channel.lisp to future.lisp
   #:wire-channel #:make-channel #:close-channel #:with-channel #:channel-target #:channel-state
   #:ensure-connected #:wait-for-state-change #:call-async))
