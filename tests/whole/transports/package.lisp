;;;; What a call means whatever carries it: one set of cases, each a test for every transport.

(defpackage #:clgrpc.tests.transports
  (:use #:cl #:clgrpc.base #:clgrpc.option #:clgrpc.tests.form #:clgrpc.tests.server)
  (:local-nicknames (#:grpc #:clgrpc) (#:support #:clgrpc.tests.support)
                    (#:loop #:clgrpc.loop))
  (:import-from #:clgrpc.tests.server
                #:double #:double-when #:count-up #:add-up #:echo #:double-later
                #:count-up-reactively #:add-up-reactively #:echo-reactively #:check-four-kinds))

(in-package #:clgrpc.tests.transports)

(def-suite :clgrpc.transports :description "The semantics of calls, the same over every transport.")
