;;;; The package of clusters gives its users the names of what stands beside membership, too:
;;;; discovery, Raft's transport, workflows. It comes last, so that it clashes with nothing unseen:
;;;; IMPORT refuses a name that is another's here.

(in-package #:clgrpc.cluster)

(eval-when (:compile-toplevel :load-toplevel :execute)
  (dolist (package '(#:clgrpc.discovery #:clgrpc.raft #:clgrpc.workflow))
    (do-external-symbols (symbol package)
      (import symbol '#:clgrpc.cluster)
      (export symbol '#:clgrpc.cluster))))
