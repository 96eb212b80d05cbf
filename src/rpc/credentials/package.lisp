;;;; Call credentials: metadata that identify the caller of a call, on every transport.

(defpackage #:clgrpc.credentials
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:loop #:clgrpc.loop))
  (:import-from #:clgrpc.loop #:await)
  (:import-from #:clgrpc.method #:channel #:channel-target #:rpc-method-path)
  (:import-from #:clgrpc.status
                #:check-metadata #:control-status #:make-rpc-error #:rpc-error #:rpc-error-message
                #:rpc-error-status)
  (:export
   #:ask-credentials #:call-credentials #:channel-secure-p #:check-credentials
   #:compose-credentials #:credentials-metadata #:credentials-request
   #:credentials-request-audience #:credentials-request-authority #:credentials-request-path
   #:credentials-request-secure-p #:get-request-metadata))
