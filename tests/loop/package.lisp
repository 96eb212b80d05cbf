;;;; Tests of clgrpc.loop, one file per source file (closing.lisp is the other half of
;;;; connection.lisp, examples.lisp is about examples/loop). Everything happens on loopback; nothing
;;;; sleeps to wait.

(defpackage #:clgrpc.tests.loop
  (:use #:cl #:clgrpc.base #:clgrpc.loop #:fiveam)
  (:shadow #:await)
  (:local-nicknames (#:as #:clgrpc.loop) (#:os #:clgrpc.os) (#:support #:clgrpc.tests.support)))

(in-package #:clgrpc.tests.loop)

(def-suite :clgrpc.loop :description "The event loop, connections, listeners, reserve threads.")
(in-suite :clgrpc.loop)
