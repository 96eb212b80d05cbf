;;;; Tests of clgrpc.exchange alone, without a server. Tests of exchanges with a server and its
;;;; peers are in tests/src/server/http.

(defpackage #:clgrpc.tests.exchange
  (:use #:cl #:clgrpc.base #:clgrpc.option #:clgrpc.tests.form)
  (:local-nicknames (#:exchange #:clgrpc.exchange))
  (:export #:request-for))

(in-package #:clgrpc.tests.exchange)

(def-suite :clgrpc.exchange :description "Requests of HTTP beside gRPC: routes, parts, versions.")
