;;;; Tests of clgrpc.async, one file per source file (handles are tested with programs,
;;;; examples.lisp is about examples/async). Everything happens on loopback; nothing sleeps to wait.

(defpackage #:clgrpc.tests.async
  (:use #:cl #:clgrpc.base #:clgrpc.async #:clgrpc.tests.loop #:clgrpc.tests.form)
  (:shadowing-import-from #:clgrpc.tests.loop #:await)
  (:local-nicknames (#:as #:clgrpc.async) (#:loop #:clgrpc.loop) (#:os #:clgrpc.os)
                    (#:support #:clgrpc.tests.support)))

(in-package #:clgrpc.tests.async)

(def-suite :clgrpc.async :description "cl-async's verbs: programs, timers, sockets, servers.")
