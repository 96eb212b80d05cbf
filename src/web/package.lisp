;;;; Protocols of the web by which the services of a server are reached: the code that gRPC-Web,
;;;; Connect and REST share. Each protocol has a folder here. A protocol makes a WEB-CLAIM of the
;;;; head of a request that is its own; from there on the call is a server's call like any other,
;;;; with operations of this package.
;;;;
;;;; The files in their order: codec (messages as Protocol Buffers or JSON); head (how answers
;;;; begin); claim (the data in the head of a request); cors (pages of other origins); content-type;
;;;; answer-head; receiving; sending; operation (the transport's end); error (codes, and errors as
;;;; JSON); bare-answer (of protocols without envelopes).

(defpackage #:clgrpc.web
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:hpack #:clgrpc.hpack)
                    (#:exchange #:clgrpc.exchange) (#:protobuf #:clgrpc.protobuf)
                    (#:rpc #:clgrpc.rpc) (#:status #:clgrpc.status) (#:method #:clgrpc.method)
                    (#:encoding #:clgrpc.encoding) (#:serving #:clgrpc.serving)
                    (#:wire #:clgrpc.wire) (#:server #:clgrpc.server))
  (:import-from #:sb-ext #:define-load-time-global)
  (:import-from #:clgrpc.rpc #:operate #:call-status)
  (:export
   ;; codec.lisp
   #:codec #:make-codec #:decode-proto #:decode-json #:encode-json #:**proto** #:**json**
   #:decoded-type #:as-sent #:reading-limits #:receive-as-text #:send-as-text
   ;; claim.lisp
   #:web-claim #:make-web-claim #:web-claim-codec #:web-claim-heads
   #:web-claim-cors #:call-web-claim
   #:header #:header-value #:parse-header #:metadata-fields #:metadata-rejection
   #:head-encoding #:head-accepted #:find-web-route #:http2-refusal #:find-method-descriptor
   #:media-type #:+media-type-characters+
   ;; content-type.lisp
   #:make-forms #:preparer #:find-form #:form-codec #:form-kind #:form-heads
   ;; cors.lisp
   #:origin-headers #:preflight #:vary-headers
   ;; head.lisp
   #:heads #:make-heads #:heads-head #:other-head #:metadata-headers
   #:answer-headers #:await-head #:end-after-head
   ;; receiving.lisp, sending.lisp
   #:call-web-notes #:notes-answer #:notes-too-long #:notes-sent #:collect-body #:collected-body
   #:notes-carry #:receive-bare #:deliver-body
   #:receive-enveloped #:body-whole #:write-encoded #:write-octets #:write-enveloped #:envelope
   #:finish-enveloped #:mark-headers
   ;; operation.lisp
   #:**web-request-operations** #:**web-stream-operations** #:operations-for #:make-grpc-claim
   #:make-protocol-handler
   ;; error.lisp
   #:error-json #:call-end #:call-end-in-head #:json-octets
   ;; bare-answer.lisp
   #:write-bare-answer #:write-bare-error #:finish-bare))
