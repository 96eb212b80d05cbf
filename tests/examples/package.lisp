;;;; Tests of the examples, each through a real server and a real channel over loopback.

(defpackage #:clgrpc.tests.examples
  (:use #:cl #:clgrpc.tests.form #:clgrpc.examples)
  (:local-nicknames (#:grpc #:clgrpc) (#:support #:clgrpc.tests.support)
                    (#:server #:clgrpc.tests.server))
  (:export #:with-service #:place #:rectangle #:feature-names))

(in-package #:clgrpc.tests.examples)

(def-suite :clgrpc.examples :description "The examples and the README.")
