;;;; Calls within the image: a channel whose stubs call the handlers of a server, or of a service
;;;; object, without octets, and with the semantics of the wire.

(defpackage #:clgrpc.inproc
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:import-from #:alexandria #:if-let #:when-let)
  (:local-nicknames (#:os #:clgrpc.os) (#:loop #:clgrpc.loop) (#:protobuf #:clgrpc.protobuf)
                    (#:rpc #:clgrpc.rpc) (#:method #:clgrpc.method) (#:calling #:clgrpc.calling)
                    (#:status #:clgrpc.status) (#:serving #:clgrpc.serving)
                    (#:config #:clgrpc.config) (#:attempt #:clgrpc.attempt)
                    (#:credentials #:clgrpc.credentials) (#:encoding #:clgrpc.encoding))
  (:import-from #:sb-ext
                  #:defglobal #:define-load-time-global #:compare-and-swap #:atomic-incf
                  #:atomic-decf)
  (:import-from #:clgrpc.method
                  #:*call* #:rpc-method #:rpc-method-kind)
  (:import-from #:clgrpc.rpc
                  #:call #:call-status #:call-rpc-method #:call-fields #:call-deadline
                  #:notify #:operate #:with-user-code)
  (:export #:server-channel #:service-channel #:inproc-channel))
