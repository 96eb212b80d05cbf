;;;; The public policy scenarios (names, configs, retries, hedging, balancing, health, limits) as
;;;; tests of our own, in virtual time and without Go: the client under test is ours as it is, on
;;;; the simulator (doc/simulation.md), and the backends speak HTTP/2 as a test scripts them.
;;;;
;;;; backend.lisp is a backend, attempt.lisp what it does with a call, scenario.lisp the form of a
;;;; scenario; then there is a file for each subject. suite.lisp checks that no scenario is missing.

(defpackage #:clgrpc.tests.policy
  (:use #:cl #:clgrpc.base #:clgrpc.tests.form)
  (:local-nicknames (#:grpc #:clgrpc) (#:sim #:clgrpc.sim) (#:dns #:clgrpc.dns)
                    (#:sim-tests #:clgrpc.tests.sim)
                    (#:server-tests #:clgrpc.tests.server) (#:dns-tests #:clgrpc.tests.dns)
                    (#:dialogue #:clgrpc.tests.dialogue) (#:support #:clgrpc.tests.support)
                    (#:health #:grpc.health.v1)
                    (#:orca #:xds.data.orca.v3) (#:orca-service #:xds.service.orca.v3)))

(in-package #:clgrpc.tests.policy)

(def-suite :clgrpc.policy :description "The public policy scenarios, on the simulator.")
