;;;; Tests of REST as functions of texts and octets, without a server.

(defpackage #:clgrpc.tests.rest
  (:use #:cl #:clgrpc.base #:clgrpc.rest #:fiveam)
  (:local-nicknames (#:protobuf #:clgrpc.protobuf) (#:rest #:clgrpc.rest)
                    (#:library #:clgrpc.tests.library)))

(in-package #:clgrpc.tests.rest)

(def-suite :clgrpc.rest :description "REST by google.api.http.")
