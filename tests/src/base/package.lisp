;;;; Tests of clgrpc.base, one file per source file.

(defpackage #:clgrpc.tests.base
  (:use #:cl #:clgrpc.base #:clgrpc.option #:clgrpc.tests.form))

(in-package #:clgrpc.tests.base)

(def-suite :clgrpc.base :description "Octets, options, encodings, clock, timers, queues.")
