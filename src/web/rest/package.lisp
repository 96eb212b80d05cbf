;;;; REST as google.api.http has it (google/api/http.proto, AIP-127): which requests of plain HTTP
;;;; call a method of a service, how a request becomes a message, and how a message becomes the
;;;; answer. All files up to openapi have only functions of texts, octets and messages, without I/O,
;;;; clock or threads; the last files make the protocol of servers from these.
;;;;
;;;; The files in their order: condition; percent (decoding); template (path templates); yaml and
;;;; config (rules apart from the .proto); rule (checking against a method); router; query; body
;;;; (requests); answer; openapi; rest-calls (calls over HTTP); rest-claim (requests of a server);
;;;; document.

(defpackage #:clgrpc.rest
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:import-from #:alexandria #:if-let #:when-let)
  (:local-nicknames (#:protobuf #:clgrpc.protobuf) (#:status #:clgrpc.status)
                    (#:method #:clgrpc.method) (#:rpc #:clgrpc.rpc) (#:serving #:clgrpc.serving)
                    (#:wire #:clgrpc.wire) (#:http1 #:clgrpc.http1)
                    (#:exchange #:clgrpc.exchange)
                    (#:server #:clgrpc.server) (#:web #:clgrpc.web))
  (:export
   ;; rest-error.lisp
   #:rule-error #:rule-error-rule #:rule-error-text
   #:request-error #:request-error-http-status #:request-error-status #:request-error-text
   #:request-error-field #:request-error-headers
   ;; path-template.lisp
   #:parse-template #:template-text
   ;; yaml.lisp, config.lisp
   #:parse-yaml #:read-rules
   ;; rule.lisp
   #:route #:route-method #:route-verb #:route-template #:route-request-type
   #:route-response-type #:route-payload #:method-rule #:make-method-routes #:make-routes
   ;; route-tree.lisp
   #:router #:make-router #:router-routes #:find-route
   ;; body.lisp
   #:bind-message #:query-parameters #:body-parts #:streamed-p
   ;; rest-answer.lisp
   #:message-answer #:status-answer #:stream-form #:stream-type #:stream-item
   #:stream-status #:stream-close
   ;; openapi.lisp
   #:openapi-document
   ;; rest-claim.lisp
   #:use-http-rules
   ;; document.lisp
   #:openapi-handler))
