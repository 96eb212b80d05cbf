;;;; The common code of channels of all transports: stubs, futures, interceptors, client loops.

(defpackage #:clgrpc.calling
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:local-nicknames (#:os #:clgrpc.os) (#:loop #:clgrpc.loop))
  (:import-from #:sb-ext #:defglobal)
  (:import-from #:clgrpc.loop #:cancel #:future-done-p #:future-values)
  (:import-from #:clgrpc.rpc
                #:call #:call-condition #:call-deadline #:call-path #:call-status
                #:client-p #:close-send #:interceptors-for
                #:on-writable #:operate #:reply #:retry-call #:send #:try-send #:wait-for-call)
  (:import-from #:clgrpc.method
                #:*call* #:channel #:channel-target #:invoke #:rpc-method #:rpc-method-kind
                #:rpc-method-path #:stub-method)
  (:import-from #:clgrpc.credentials #:check-credentials #:compose-credentials)
  (:import-from #:clgrpc.status #:deadline #:deadline-in #:failure-p #:rpc-error)
  (:export
   #:absolute-deadline #:acquire-client-loop #:call-async #:channel-addresses #:channel-state
   #:check-call-options #:client-reserve #:close-channel #:drive-for #:end-elsewhere
   #:ensure-connected #:fail-or-retry #:interception #:on-state-change
   #:release-client-loop #:request-generator #:reset-back-off #:send-requests #:tell-state
   #:wait-for-state-change #:when-dropped))
