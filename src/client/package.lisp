;;;; The client: channels, connections with back-off, calls, futures.

(defpackage #:clgrpc.client
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:hpack #:clgrpc.hpack) (#:http2 #:clgrpc.http2)
                    (#:protobuf #:clgrpc.protobuf) (#:rpc #:clgrpc.rpc))
  (:import-from #:sb-ext #:defglobal #:define-load-time-global)
  (:import-from #:clgrpc.rpc
                #:call #:call-status #:call-rpc-method #:call-extra #:call-fields #:call-deadline
                #:call-incoming #:ensure-extra #:end-call #:notify #:operate #:link #:link-loop
                #:link-owner #:cancel #:wire-call #:wire-call-link #:wire-call-loop
                #:wire-call-stream #:wire-call-send-closed #:wire-call-endpoint #:rpc-method
                #:rpc-method-kind #:rpc-error-message)
  (:import-from #:clgrpc.loop #:future #:future-done-p #:await #:attach)
  (:export
   #:wire-channel #:make-channel #:close-channel #:with-channel #:channel-target #:channel-state
   #:ensure-connected #:wait-for-state-change #:call-async #:future-call))
