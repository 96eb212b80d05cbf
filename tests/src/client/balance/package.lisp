;;;; Tests of balancing policies, mostly without sockets.

(defpackage #:clgrpc.tests.balance
  (:use #:cl #:clgrpc.base #:clgrpc.tests.form #:clgrpc.tests.server)
  (:local-nicknames (#:grpc #:clgrpc) (#:client #:clgrpc.client) (#:config #:clgrpc.config)
                    (#:balance #:clgrpc.balance) (#:loop #:clgrpc.loop)
                    (#:orca #:xds.data.orca.v3) (#:health #:grpc.health.v1)
                    (#:tests #:clgrpc.tests.client)))

(in-package #:clgrpc.tests.balance)

(def-suite :clgrpc.balance :description "Balancing policies.")
