;;;; Distributed tracing: spans of calls as in gRFC A72, and of users' own work; W3C Trace Context
;;;; between processes; finished spans wait for an exporter.

(defpackage #:clgrpc.trace
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:import-from #:alexandria #:if-let #:when-let)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:hpack #:clgrpc.hpack) (#:rpc #:clgrpc.rpc)
                    (#:status #:clgrpc.status) (#:method #:clgrpc.method)
                    (#:attempt #:clgrpc.attempt)
                    (#:client #:clgrpc.client))
  (:import-from #:sb-ext #:defglobal)
  (:import-from #:clgrpc.rpc
                #:call #:call-status #:call-path #:call-value #:operate)
  (:export
   ;; trace-context.lisp, trace-state.lisp
   #:trace-context #:trace-id #:span-id #:trace-sampled-p #:trace-state #:parse-traceparent
   #:traceparent #:context-trace-id-octets #:context-span-id-octets #:context-flags #:context-state
   ;; span.lisp
   #:span #:span-name #:span-kind #:span-context #:span-parent-octets #:span-remote-parent-p
   #:span-start-ns #:span-end-ns #:span-attributes #:span-events #:span-links
   #:span-dropped-attributes #:span-dropped-events #:span-dropped-links #:span-status
   #:span-status-text #:event-name #:event-ns #:event-attributes #:span-link-context
   #:span-link-attributes
   ;; tracing.lisp
   #:tracing #:make-tracing #:on-batch #:drain #:spans-dropped #:spans-waiting
   ;; current.lisp
   #:current-trace #:current-baggage #:with-baggage #:with-span #:set-span-attribute
   #:add-span-event #:trace-exemplar))
