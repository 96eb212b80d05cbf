;;;; The test service, compiled from bench.proto. This comes before package.lisp, since it makes the
;;;; packages LAB, LAB.BENCH and LAB.ABSENT.

(in-package #:cl-user)

(clgrpc:define-proto "bench.proto")
