;;;; Tests of REST: as functions of texts and octets, and, in rest-claim.lisp, at a server.

(defpackage #:clgrpc.tests.rest
  (:use #:cl #:clgrpc.base #:clgrpc.rest #:clgrpc.tests.form)
  (:local-nicknames (#:protobuf #:clgrpc.protobuf) (#:rest #:clgrpc.rest) (#:grpc #:clgrpc)
                    (#:support #:clgrpc.tests.support) (#:library #:clgrpc.tests.library)
                    (#:library-methods #:clgrpc.tests.library.library))
  (:import-from #:clgrpc.tests.server #:curl #:with-started #:make-signal #:signal-it
                #:await-signal)
  ;; for other tests
  (:export #:bound #:library-methods #:library-router))

(in-package #:clgrpc.tests.rest)

(def-suite :clgrpc.rest :description "REST by google.api.http.")
