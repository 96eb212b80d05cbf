;;;; Tests of clgrpc.base, one file per source file.

(defpackage #:clgrpc.tests.base
  (:use #:cl #:clgrpc.base #:clgrpc.option #:clgrpc.tests.form)
  (:local-nicknames (#:support #:clgrpc.tests.support)))

(in-package #:clgrpc.tests.base)

(def-suite :clgrpc.base :description "Octets, options, encodings, clock, timers, queues.")
