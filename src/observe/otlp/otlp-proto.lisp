;;;; The proto files of OTLP. This comes before package.lisp, since it makes the packages
;;;; OPENTELEMETRY.PROTO.METRICS.V1 and so on. Metrics are sent once in a while, spans all the time.

(in-package #:cl-user)

(clgrpc.protobuf:define-proto "../../../proto/opentelemetry/proto/common/v1/common.proto"
  :import-paths ("../../../proto/"))
(clgrpc.protobuf:define-proto "../../../proto/opentelemetry/proto/resource/v1/resource.proto"
  :import-paths ("../../../proto/"))
(clgrpc.protobuf:define-proto "../../../proto/opentelemetry/proto/metrics/v1/metrics.proto"
  :import-paths ("../../../proto/") :optimize-for :code-size)
(clgrpc.protobuf:define-proto
    "../../../proto/opentelemetry/proto/collector/metrics/v1/metrics_service.proto"
  :import-paths ("../../../proto/") :optimize-for :code-size)
(clgrpc.protobuf:define-proto "../../../proto/opentelemetry/proto/trace/v1/trace.proto"
  :import-paths ("../../../proto/"))
(clgrpc.protobuf:define-proto
    "../../../proto/opentelemetry/proto/collector/trace/v1/trace_service.proto"
  :import-paths ("../../../proto/"))
