;;;; Run the fuzzing driver with the command line's arguments; scripts/fuzz --help explains them.

(load (merge-pathnames "../load.lisp" *load-truename*))
(in-package #:clgrpc.scripts)

(load-strictly "clgrpc-tests/fuzz")
(quit (uiop:symbol-call '#:clgrpc.tests.fuzz '#:main (rest sb-ext:*posix-argv*)))
