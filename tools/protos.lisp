;;;; The proto files of the services `bench` and `interop`. This comes before package.lisp, since it
;;;; makes the packages GRPC.TESTING, GRPC.TESTING.TEST-SERVICE, XDS.DATA.ORCA.V3 and so on.

(in-package #:cl-user)

(clgrpc:define-proto "../proto/grpc/testing/test.proto" :import-paths ("../proto/"))
(clgrpc:define-proto "../proto/grpc/testing/benchmark_service.proto" :import-paths ("../proto/"))
(clgrpc:define-proto "../proto/xds/data/orca/v3/orca_load_report.proto" :import-paths ("../proto/"))
(clgrpc:define-proto "../proto/xds/service/orca/v3/orca.proto" :import-paths ("../proto/"))
