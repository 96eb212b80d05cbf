;;;; The tests of the simulator, and with it of clients and servers: the mix (mix.lisp) runs for
;;;; some hundred seeds here, for a thousand in make endurance, and for as many as one likes with
;;;; scripts/simulate.

(defpackage #:clgrpc.tests.sim
  (:use #:cl #:clgrpc.base #:clgrpc.option #:clgrpc.tests.form)
  (:local-nicknames (#:grpc #:clgrpc) (#:sim #:clgrpc.sim) (#:rpc #:clgrpc.rpc)
                    (#:status #:clgrpc.status)
                    (#:server #:clgrpc.server) (#:client #:clgrpc.client) (#:loop #:clgrpc.loop)
                    (#:http2 #:clgrpc.http2) (#:wire #:clgrpc.wire)
                    (#:support #:clgrpc.tests.support)
                    (#:lab-server #:clgrpc.tests.server) (#:dns #:clgrpc.dns)
                    (#:dns-tests #:clgrpc.tests.dns) (#:os #:clgrpc.os))
  (:export #:main #:add-name-server #:*watchful-policies* #:*other-policies*
           #:*mix-options* #:run-mix #:scenarios))

(in-package #:clgrpc.tests.sim)

(def-suite :clgrpc.sim :description "The simulator, and clients and servers in it.")
(def-suite :clgrpc.sim.seeds :description "Mixes that are each made from a seed.")
