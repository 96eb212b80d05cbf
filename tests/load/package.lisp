;;;; Tests of the engine of `clgrpc load`.

(defpackage #:clgrpc.tests.load
  (:use #:cl #:fiveam)
  (:local-nicknames (#:grpc #:clgrpc) (#:base #:clgrpc.base) (#:load #:clgrpc.load)
                    (#:service #:clgrpc.service) (#:protobuf #:clgrpc.protobuf)
                    (#:hpack #:clgrpc.hpack) (#:http2 #:clgrpc.http2) (#:loop #:clgrpc.loop)
                    (#:examples #:clgrpc.examples)
                    (#:support #:clgrpc.tests.support)))

(in-package #:clgrpc.tests.load)

(def-suite :clgrpc.load :description "The engine of clgrpc load.")
