;;;; What the design promises of threads (DESIGN, P1 to P5, and reserves, driving, soaking), each a
;;;; test that prints its figure. The figures are taken on whatever machine this is, beside whatever
;;;; else it does; a test whose figure depends on that takes the best of a few rounds.

(defpackage #:clgrpc.tests.promise
  (:use #:cl #:clgrpc.base #:clgrpc.tests.form #:clgrpc.tests.server)
  (:local-nicknames (#:grpc #:clgrpc) (#:rpc #:clgrpc.rpc) (#:method #:clgrpc.method)
                    (#:status #:clgrpc.status) (#:server #:clgrpc.server)
                    (#:client #:clgrpc.client) (#:loop #:clgrpc.loop)
                    (#:async #:clgrpc.async) (#:os #:clgrpc.os)
                    (#:support #:clgrpc.tests.support) (#:dialogue #:clgrpc.tests.dialogue))
  (:import-from #:clgrpc.tests.server #:double #:evaluate)
  (:export #:soak))

(in-package #:clgrpc.tests.promise)

(def-suite :clgrpc.promise :description "P1 to P4 of the design, driving, timers.")
(def-suite :clgrpc.promise.sleeping :description "P2 of the design: handlers that sleep.")
(def-suite :clgrpc.promise.idle :description "P1 of the design where nothing is to do.")
(def-suite :clgrpc.promise.image :description "P5 of the design, and saved images.")
(def-suite :clgrpc.promise.memory :description "What calls leave behind and connections take.")
