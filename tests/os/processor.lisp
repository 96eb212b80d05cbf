;;;; How many processors there are for us.

(in-package #:clgrpc.tests.os)
(in-suite :clgrpc.os)

(test processors-are-counted
  (is (<= 1 (os:processor-count) 1024)))
