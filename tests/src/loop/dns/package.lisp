;;;; Tests of clgrpc.dns, one file per source file. The server is one of our own on loopback
;;;; (server.lisp), which the client's tests use, too. Nothing sleeps to wait.

(defpackage #:clgrpc.tests.dns
  (:use #:cl #:clgrpc.base #:clgrpc.dns #:clgrpc.tests.form)
  (:import-from #:clgrpc.tests.loop #:with-loops #:on-loop #:*patience-seconds*)
  (:local-nicknames (#:dns #:clgrpc.dns) (#:loop #:clgrpc.loop) (#:os #:clgrpc.os)
                    (#:support #:clgrpc.tests.support))
  (:export #:with-name-server #:name-server-address #:name-server-asked #:set-records #:set-code
           #:set-manner #:name-server)
  ;; for other tests
  (:export #:answer-octets #:answers #:make-name-server #:question-octets #:record-octets))

(in-package #:clgrpc.tests.dns)

(def-suite :clgrpc.dns :description "DNS: messages, answers, and asking a server.")
