;;;; Methods, services, and the class of channels.

(defpackage #:clgrpc.method
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:protobuf #:clgrpc.protobuf))
  (:import-from #:sb-ext #:defglobal)
  (:import-from #:clgrpc.status
                #:deadline #:fail)
  (:import-from #:clgrpc.encoding #:codec-of-name #:type-in-codec)
  (:export
   #:*call* #:binding #:binding-function #:call #:channel #:current-call
   #:direct-channel #:generic-method #:generic-service
   #:generic-service-methods #:invoke #:make-binding #:make-generic-service #:method-binding
   #:pool-method #:pool-methods
   #:channel-target #:check-service #:method-in-codec
   #:make-rpc-method #:rpc-method #:rpc-method-codec #:rpc-method-function-name
   #:rpc-method-descriptor
   #:rpc-method-kind #:rpc-method-name
   #:rpc-method-number #:rpc-method-path #:rpc-method-path-field #:rpc-method-quiet
   #:rpc-method-request-type #:rpc-method-response-type #:rpc-method-route
   #:rpc-method-service-name #:service #:stub-method
   #:unknown-method
   #:service-methods #:service-target #:watch-services))
