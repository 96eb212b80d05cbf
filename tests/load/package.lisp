;;;; Tests of the engine of `clgrpc load`.

(defpackage #:clgrpc.tests.load
  (:use #:cl #:fiveam)
  (:local-nicknames (#:grpc #:clgrpc) (#:base #:clgrpc.base) (#:load #:clgrpc.load)
                    (#:support #:clgrpc.tests.support)))

(in-package #:clgrpc.tests.load)

(def-suite :clgrpc.load :description "The engine of clgrpc load.")
