;;;; The tests of this folder, over poll(2) as well.

(in-package #:clgrpc.tests.async)

(def-suite :clgrpc.async.poll :description "The tests of clgrpc.async over poll(2).")
(in-suite :clgrpc.async.poll)

(test the-verbs-over-poll
  (check-over-poll :clgrpc.async))
