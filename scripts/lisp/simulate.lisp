;;;; Run the simulator's driver with the command line's arguments; scripts/simulate --help explains
;;;; them.

(load (merge-pathnames "../load.lisp" *load-truename*))
(in-package #:clgrpc.scripts)

(load-strictly "clgrpc-tests/sim")
(load-strictly "clgrpc-tests/simulation")
(load-strictly "clgrpc-tests/raft-example")
(quit (uiop:symbol-call '#:clgrpc.tests.sim '#:main (rest sb-ext:*posix-argv*)))
