;;;; The proto files of protocols for gRPC clients and servers themselves: health, load reports.
;;;; The files make the packages GRPC.HEALTH.V1, GRPC.HEALTH.V1.HEALTH, XDS.DATA.ORCA.V3 and so on.

(in-package #:cl-user)

(clgrpc.protobuf:define-proto "../../../proto/grpc/health/v1/health.proto")
(clgrpc.protobuf:define-proto "../../../proto/xds/data/orca/v3/orca_load_report.proto"
  :import-paths ("../../../proto/"))
(clgrpc.protobuf:define-proto "../../../proto/xds/service/orca/v3/orca.proto"
  :import-paths ("../../../proto/"))
