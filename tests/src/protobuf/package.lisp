;;;; Tests of clgrpc.protobuf; each file mirrors one of src/protobuf/. Random tests print their
;;;; seed; setting CLGRPC_SEED to it repeats them. Golden octets come from another implementation.

(defpackage #:clgrpc.tests.protobuf
  (:use #:cl #:clgrpc.base #:clgrpc.protobuf #:clgrpc.tests.form)
  (:local-nicknames (#:protobuf #:clgrpc.protobuf) (#:support #:clgrpc.tests.support))
  ;; for other tests
  (:export #:random-message))

(in-package #:clgrpc.tests.protobuf)

(def-suite :clgrpc.protobuf :description "The .proto compiler and the coders that it makes.")
