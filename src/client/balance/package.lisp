;;;; Balancing policies, one a file, on the balancers of clgrpc.client.

(defpackage #:clgrpc.balance
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:import-from #:alexandria #:if-let #:when-let)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:protobuf #:clgrpc.protobuf) (#:rpc #:clgrpc.rpc)
                    (#:status #:clgrpc.status)
                    (#:hpack #:clgrpc.hpack) (#:method #:clgrpc.method)
                    (#:client #:clgrpc.client) (#:config #:clgrpc.config)
                    (#:health #:grpc.health.v1) (#:orca #:xds.data.orca.v3)
                    (#:orca-service #:xds.service.orca.v3))
  (:import-from #:sb-ext #:defglobal)
  (:import-from #:clgrpc.client
                #:backend-key #:backend-addresses #:backend-attributes #:first-address
                #:balancer #:balancer-core #:balancer-now #:balancer-observer
                #:balancer-random #:publish
                #:update-backends #:subchannel-changed #:exit-idle #:close-balancer
                #:child-published #:subchannel-opened #:subchannel-closed #:resolving-wanted-p
                #:new-picker #:picker-p #:picker-function #:make-failure
                #:subchannel #:open-subchannel #:connect #:subchannel-p
                #:subchannel-state #:subchannel-link-state #:subchannel-addresses
                #:subchannel-attributes
                #:subchannel-key #:subchannel-note #:subchannel-watchers #:last-error-text
                #:breaker-passed-p #:room-p #:subchannel-calls
                #:impose-veto #:lift-veto #:add-listener
                #:switch #:open-internal-call #:close-internal-call)
  (:import-from #:clgrpc.loop
                #:back-off #:make-back-off #:start-back-off #:stop-back-off #:forget-failures)
  (:export #:xxh64))
