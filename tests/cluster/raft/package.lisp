;;;; Tests of Raft's transport: over real sockets, within the image, and on the simulator. The state
;;;; machine behind it is a member (member.lisp), which writes down what comes.

(defpackage #:clgrpc.tests.raft
  (:use #:cl #:clgrpc.base #:clgrpc.tests.form)
  (:import-from #:clgrpc.tests.support #:wait-until #:eventually)
  (:local-nicknames (#:grpc #:clgrpc) (#:raft #:clgrpc.raft)
                    (#:support #:clgrpc.tests.support) (#:v1 #:clgrpc.raft.v1)
                    (#:methods #:clgrpc.raft.v1.raft) (#:sim #:clgrpc.sim)
                    (#:metrics #:clgrpc.metrics))
  (:shadow #:member))

(in-package #:clgrpc.tests.raft)

(def-suite :clgrpc.raft :description "Raft's transport.")
