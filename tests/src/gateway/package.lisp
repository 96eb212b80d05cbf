;;;; The tests of the gateway's service: a client, a gateway and a server behind it in one process.

(defpackage #:clgrpc.tests.gateway
  (:use #:cl #:clgrpc.base #:clgrpc.tests.form)
  (:local-nicknames (#:grpc #:clgrpc) (#:protobuf #:clgrpc.protobuf))
  (:import-from #:clgrpc.tests.server
                #:handling #:start-probe #:with-started #:call-with-log #:ask #:watch #:collect
                #:chat #:double #:count-up #:add-up #:echo #:curl #:note #:number-of #:numbers
                #:make-signal #:signal-it #:await-signal #:wait-until #:eventually))

(in-package #:clgrpc.tests.gateway)

(def-suite :clgrpc.gateway :description "A service that forwards its calls.")
