;;;; The tests of the protocols of the web: the same handlers as gRPC's, called by curl.

(defpackage #:clgrpc.tests.web
  (:use #:cl #:clgrpc.base #:clgrpc.tests.form)
  (:local-nicknames (#:grpc #:clgrpc) (#:server #:clgrpc.server)
                    (#:support #:clgrpc.tests.support) (#:rest #:clgrpc.rest)
                    (#:web #:clgrpc.web) (#:wire #:clgrpc.wire)
                    (#:metrics #:clgrpc.metrics)
                    (#:memory #:clgrpc.tests.world) (#:dialogue #:clgrpc.tests.dialogue))
  (:import-from #:clgrpc.tests.server
                #:with-probe #:double #:count-up #:add-up #:curl #:note #:number-of #:framed
                #:note-octets #:budgets #:make-signal
                #:signal-it #:await-signal #:wait-until #:eventually #:+patience+ #:server-links
                #:held-octets #:octets-charged #:handling
                #:with-plain-socket #:connect-socket #:close-socket #:say-text
                #:hear-octets #:wire-text #:answers #:hear-all
                #:with-server-loop #:connects #:answer-http #:*others* #:check-kept
                #:comes #:link-of #:raw-request #:with-raw-client #:ask-raw #:field-of
                #:send-request #:exchange-headers #:exchange-ended
                #:call-with-room-short #:call-with-taker #:wide))

(in-package #:clgrpc.tests.web)

(def-suite :clgrpc.web :description "gRPC-Web and Connect at a server.")
