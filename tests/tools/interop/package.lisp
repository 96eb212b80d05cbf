;;;; Interoperation: grpc-go at the other end, in both directions. Servers run in processes of their
;;;; own, so that a dead server is really dead; skipped where there is no Go to build the peers.

(defpackage #:clgrpc.tests.interop
  (:use #:cl #:clgrpc.tests.form #:clgrpc.tests.support)
  (:local-nicknames (#:grpc #:clgrpc) (#:os #:clgrpc.os) (#:testing #:grpc.testing)
                    (#:test-service #:grpc.testing.test-service)))

(in-package #:clgrpc.tests.interop)

(def-suite :clgrpc.interop :description "grpc-go as client and as server.")

(defparameter *max-receive-octets* (* 32 1024 1024)
  "The limit of all servers here; room for messages of 16 MB.")

