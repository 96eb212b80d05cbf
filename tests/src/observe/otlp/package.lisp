;;;; Tests of the exporter: messages, the environment, and a collector of our own whose behaviour a
;;;; test determines.

(defpackage #:clgrpc.tests.otlp
  (:use #:cl #:clgrpc.base #:clgrpc.tests.form #:clgrpc.tests.server)
  (:shadow #:collect)
  (:local-nicknames (#:grpc #:clgrpc) (#:otlp #:clgrpc.otlp) (#:metrics #:clgrpc.metrics)
                    (#:loop #:clgrpc.loop)
                    (#:trace #:clgrpc.trace)
                    (#:support #:clgrpc.tests.support)
                    (#:common #:opentelemetry.proto.common.v1)
                    (#:resource #:opentelemetry.proto.resource.v1)
                    (#:data #:opentelemetry.proto.metrics.v1)
                    (#:spans #:opentelemetry.proto.trace.v1)
                    (#:collector #:opentelemetry.proto.collector.metrics.v1)
                    (#:metrics-service #:opentelemetry.proto.collector.metrics.v1.metrics-service)
                    (#:trace-collector #:opentelemetry.proto.collector.trace.v1)
                    (#:trace-service #:opentelemetry.proto.collector.trace.v1.trace-service)))

(in-package #:clgrpc.tests.otlp)

(def-suite :clgrpc.otlp :description "Metrics and spans sent to a collector.")
