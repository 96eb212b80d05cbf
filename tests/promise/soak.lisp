;;;; The soak: everything at once for a while, after which memory, threads and descriptors are what they
;;;; were.

(in-package #:clgrpc.tests.promise)
(in-suite :clgrpc.promise)
