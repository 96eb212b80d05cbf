;;;; The messages of the protobuf conformance suite, which `testee protobuf` needs.

(in-package #:cl-user)

(clgrpc:define-proto "../proto/conformance/conformance.proto")
(clgrpc:define-proto "../proto/conformance/test_messages_proto2.proto")
(clgrpc:define-proto "../proto/conformance/test_messages_proto3.proto")
(clgrpc:define-proto "../proto/conformance/test_messages_proto2_editions.proto")
(clgrpc:define-proto "../proto/conformance/test_messages_proto3_editions.proto")
(clgrpc:define-proto "../proto/conformance/test_messages_edition2023.proto")
