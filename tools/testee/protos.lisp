;;;; The services of interoperability tests, and the messages of the conformance suites.

(in-package #:cl-user)

(clgrpc:define-proto "../../proto/grpc/testing/test.proto" :import-paths ("../../proto/"))
(clgrpc:define-proto "../../proto/conformance/conformance.proto")
(clgrpc:define-proto "../../proto/conformance/test_messages_proto2.proto")
(clgrpc:define-proto "../../proto/conformance/test_messages_proto3.proto")
(clgrpc:define-proto "../../proto/conformance/test_messages_proto2_editions.proto")
(clgrpc:define-proto "../../proto/conformance/test_messages_proto3_editions.proto")
(clgrpc:define-proto "../../proto/conformance/test_messages_edition2023.proto")
(clgrpc:define-proto "../../proto/connectrpc/conformance/v1/server_compat.proto"
  :import-paths ("../../proto/"))
(clgrpc:define-proto "../../proto/connectrpc/conformance/v1/client_compat.proto"
  :import-paths ("../../proto/"))
(clgrpc:define-proto "../../proto/lab/web/v1/lab.proto" :import-paths ("../../proto/"))
