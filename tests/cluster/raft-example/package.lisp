;;;; The example examples/raft in the simulator: nodes whose processes and machines die, whose disks
;;;; lose what was not forced out, whose clocks go wrong, on a network that does; and clients. What
;;;; the paper promises is checked at each step, and what clients have seen at the end.

(defpackage #:clgrpc.tests.raft-example
  (:use #:cl #:clgrpc.base #:clgrpc.tests.form)
  (:local-nicknames (#:grpc #:clgrpc) (#:sim #:clgrpc.sim) (#:example #:clgrpc.examples.raft)
                    (#:raft #:clgrpc.raft) (#:v1 #:clgrpc.raft.v1) (#:loop #:clgrpc.loop)
                    (#:support #:clgrpc.tests.support) (#:pb #:examples.raft))
  (:export #:run-group))

(in-package #:clgrpc.tests.raft-example)

(def-suite :clgrpc.raft-example :description "The example of Raft, in the simulator.")
(def-suite :clgrpc.raft-example.seeds :description "Groups that are each made from a seed.")
