;;;; The OpenTelemetry protocol (OTLP): metrics and spans go to a collector, by calls of our own
;;;; client. The files, from the ground up: settings of the environment; attributes and the
;;;; resource; metrics and spans as messages; consequences of a failure; a pipeline, which is one
;;;; signal's way to the collector; and the exporter, which has a pipeline for each signal.

(defpackage #:clgrpc.otlp
  (:use #:cl #:clgrpc.base)
  (:import-from #:alexandria #:if-let #:when-let)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:protobuf #:clgrpc.protobuf)
                    (#:status #:clgrpc.status) (#:calling #:clgrpc.calling)
                    (#:client #:clgrpc.client)
                    (#:metrics #:clgrpc.metrics) (#:trace #:clgrpc.trace)
                    (#:common #:opentelemetry.proto.common.v1)
                    (#:resource #:opentelemetry.proto.resource.v1)
                    (#:data #:opentelemetry.proto.metrics.v1)
                    (#:spans #:opentelemetry.proto.trace.v1)
                    (#:collector #:opentelemetry.proto.collector.metrics.v1)
                    (#:metrics-service #:opentelemetry.proto.collector.metrics.v1.metrics-service)
                    (#:trace-collector #:opentelemetry.proto.collector.trace.v1)
                    (#:trace-service #:opentelemetry.proto.collector.trace.v1.trace-service))
  (:import-from #:sb-ext #:defglobal)
  (:export
   ;; exporter.lisp
   #:otlp-exporter #:make-otlp-exporter #:resource-attributes
   #:flush-exporter #:stop-exporter #:exporter-statistics))
