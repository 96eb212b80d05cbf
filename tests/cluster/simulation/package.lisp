;;;; etcd's client, discovery, membership and workflows on the simulator's network and clock, with
;;;; the engine in memory in etcd's place: it fails, stops and loses its data, from a seed.

(defpackage #:clgrpc.tests.simulation
  (:use #:cl #:clgrpc.base #:clgrpc.tests.form)
  (:local-nicknames (#:grpc #:clgrpc) (#:sim #:clgrpc.sim) (#:rpc #:clgrpc.rpc)
                    (#:loop #:clgrpc.loop) (#:etcd #:clgrpc.etcd) (#:memory #:clgrpc.memory)
                    (#:cluster #:clgrpc.cluster) (#:discovery #:clgrpc.discovery)
                    (#:workflow #:clgrpc.workflow) (#:status #:clgrpc.status)
                    (#:support #:clgrpc.tests.support))
  (:export #:run-cluster #:run-workflows))

(in-package #:clgrpc.tests.simulation)

(def-suite :clgrpc.simulation :description "Clusters in the simulator.")
(def-suite :clgrpc.simulation.seeds :description "Clusters that are each made from a seed.")
