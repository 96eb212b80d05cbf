;;;; Tests of the logs of calls.

(defpackage #:clgrpc.tests.logs
  (:use #:cl #:clgrpc.base #:clgrpc.tests.form #:clgrpc.tests.server)
  (:local-nicknames (#:grpc #:clgrpc) (#:logs #:clgrpc.logs) (#:loop #:clgrpc.loop)
                    (#:os #:clgrpc.os) (#:binlog #:grpc.binarylog.v1)
                    (#:metrics #:clgrpc.metrics))
  (:import-from #:clgrpc.tests.server #:double #:count-up #:add-up #:echo))

(in-package #:clgrpc.tests.logs)

(def-suite :clgrpc.logs :description "The access log and the binary log.")
