;;;; Statuses, errors of calls, metadata and time-outs: the data of calls over every transport.

(defpackage #:clgrpc.status
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:local-nicknames (#:protobuf #:clgrpc.protobuf))
  (:import-from #:sb-ext #:defglobal)
  (:export
   #:aborted #:already-exists #:cancelled #:check-metadata #:code-status #:control-status
   #:data-loss #:deadline #:deadline-exceeded #:deadline-in #:details-octets
   #:encode-timeout #:fail #:failed-precondition #:failure-p #:internal
   #:invalid-argument #:make-rpc-error #:not-found #:out-of-range
   #:parse-timeout #:permission-denied #:resource-exhausted #:rpc-error
   #:rpc-error-call #:rpc-error-cause #:rpc-error-detail #:rpc-error-details
   #:rpc-error-details-octets #:rpc-error-ended-by #:rpc-error-message #:rpc-error-peer
   #:rpc-error-reason #:rpc-error-sent-p #:rpc-error-status #:rpc-error-trailers
   #:sendable-metadata #:sent-code #:status-code #:unauthenticated #:unavailable #:unimplemented
   #:unknown))
