;;;; Exchanges: requests of HTTP and their answers, over HTTP/1.1, and over HTTP/2 in addition to
;;;; gRPC. This layer finds the handler of a request, passes the request to it, checks and writes
;;;; its answer, and does all the work of a connection that speaks HTTP/1.1. An exchange is not a
;;;; call: the owner runs the handlers, counts them and bounds their memory, through the functions
;;;; of a SINK.
;;;;
;;;; The files in their order: http-version (the protocol of a connection); content (answers);
;;;; router; exchange (requests); answer-date; chunked (answers in parts); over-http2; over-http1.

(defpackage #:clgrpc.exchange
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:import-from #:alexandria #:when-let)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:hpack #:clgrpc.hpack) (#:http1 #:clgrpc.http1)
                    (#:http2 #:clgrpc.http2))
  (:import-from #:sb-ext #:define-load-time-global)
  (:export
   ;; http-version.lisp
   #:http-version-of
   ;; content.lisp
   #:plain-answer-p #:check-answer #:fixed-answer #:text-answer #:answer-head #:make-answer-head
   #:answer-head-http-status #:make-plain-answer #:plain-answer-http-status #:plain-answer
   ;; router.lisp
   #:http-handler #:http-handler-p #:http-handler-path #:http-handler-function
   #:http-handler-quiet #:http-handler-execution #:prompt-handler #:router #:make-router
   #:router-fallback #:router-claim #:router-epoch #:add-handler #:answers-p #:find-route
   ;; exchange.lisp
   #:make-sink #:http-request #:http-request-p #:http-request-method #:http-request-target
   #:http-request-path #:http-request-query #:http-request-headers #:http-request-header
   #:http-request-parameter #:http-request-body #:http-request-peer #:http-request-secure-p
   #:http-request-context #:http-request-route #:http-request-sending #:query-parameter
   #:query-values
   #:answer #:answer-of #:receive-body #:end-body #:refuse-unrouted #:write-end #:begun-p
   #:http-request-claimed #:http-request-fill #:http-request-whole #:write-head #:write-part
   #:cut-answer-off #:unsent-octets #:pause-body #:resume-body #:renew-body-time
   ;; chunked.lisp
   #:end-if-stopping #:end-open-response #:begin-response #:send-chunk #:end-response
   #:response-open-p
   #:on-response-end
   ;; over-http2.lisp
   #:read-http2-request #:claimed-http2-request #:refused-http2-request #:leave-stream
   ;; over-http1.lisp
   #:http-loop #:make-http-loop #:http-loop-router #:http1-connection #:begin-http1
   #:http1-connection-octets #:drain-http1 #:state-request))
