;;;; The .proto files that every image has. The well-known types, descriptor.proto and the plug-in's
;;;; protocol are defined here, at once, without fast coders, since messages that describe types are
;;;; rarely read or written. The features of other languages are kept as text and compiled when a
;;;; file imports them, since their package is called PB, a name that belongs to users. The
;;;; annotations of REST are here as well, since most files that use them import them without having
;;;; a copy.
;;;;
;;;; An import of one of these names means this definition, even if the import directories contain
;;;; another: the definitions are those of protobuf 33, and our code depends on them.

(in-package #:clgrpc.protobuf)

(define-built-ins "../../../proto/" :code-size
  ;; first, since this file defines the options of the other files
  "google/protobuf/descriptor.proto"
  "google/protobuf/compiler/plugin.proto")

(define-built-ins "../../../proto/" :speed
  "google/protobuf/any.proto"
  "google/protobuf/duration.proto"
  "google/protobuf/empty.proto"
  "google/protobuf/field_mask.proto"
  "google/protobuf/struct.proto"
  "google/protobuf/timestamp.proto"
  "google/protobuf/wrappers.proto")

(define-built-ins "../../../proto/" :code-size
  "google/protobuf/source_context.proto"
  "google/protobuf/type.proto"
  "google/protobuf/api.proto")

(define-built-ins "../../../proto/" :code-size
  "google/api/http.proto"
  "google/api/annotations.proto")

(define-built-ins "../../../proto/" :speed
  "google/api/httpbody.proto")

(embed-built-ins "../../../proto/"
  "google/protobuf/cpp_features.proto"
  "google/protobuf/java_features.proto"
  "google/protobuf/go_features.proto")
