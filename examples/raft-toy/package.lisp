;;;; A TOY that shows the calls of clgrpc-cluster/raft, and no Raft: nothing is on disk, nobody's
;;;; time runs out, members do not change, and a leader that loses its term does not step down by
;;;; itself. Three members hold an election, replicate a log of texts, catch up by a snapshot and
;;;; hand the leadership over.

(defpackage #:clgrpc.examples.raft-toy
  (:use #:cl)
  (:local-nicknames (#:grpc #:clgrpc) (#:raft #:clgrpc.raft) (#:v1 #:clgrpc.raft.v1))
  (:export #:toy #:make-toy #:toy-name #:toy-texts #:toy-commit #:start-toy #:stop-toy #:connect-toy
           #:elect #:replicate #:catch-up #:hand-over #:show))

(in-package #:clgrpc.examples.raft-toy)
