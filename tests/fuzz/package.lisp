;;;; Fuzzing of every decoder of Protocol Buffers: `scripts/fuzz --help`. A few thousand inputs each
;;;; are part of `make test`.

(defpackage #:clgrpc.tests.fuzz
  (:use #:cl #:clgrpc.base #:fiveam)
  (:local-nicknames (#:protobuf #:clgrpc.protobuf) (#:support #:clgrpc.tests.support)
                    (#:messages #:clgrpc.tests.protobuf))
  (:export #:main))

(in-package #:clgrpc.tests.fuzz)

(def-suite :clgrpc.fuzz :description "Mutated inputs for every decoder.")
