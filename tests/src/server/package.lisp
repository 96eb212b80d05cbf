;;;; The tests of the server, and the code that the client's tests need too: a service whose
;;;; handlers a test gives as functions, waiting without sleeping, and a raw HTTP/2 peer. Loaded
;;;; after bench.lisp, which makes the packages LAB and LAB.BENCH.

(defpackage #:clgrpc.tests.server
  (:use #:cl #:clgrpc.base #:clgrpc.option #:clgrpc.tests.form)
  (:local-nicknames (#:encoding #:clgrpc.encoding)
                    (#:grpc #:clgrpc) (#:rpc #:clgrpc.rpc) (#:method #:clgrpc.method)
                    (#:status #:clgrpc.status) (#:serving #:clgrpc.serving) (#:wire #:clgrpc.wire)
                    (#:server #:clgrpc.server) (#:exchange #:clgrpc.exchange)
                    (#:client #:clgrpc.client) (#:loop #:clgrpc.loop) (#:http2 #:clgrpc.http2)
                    (#:hpack #:clgrpc.hpack) (#:os #:clgrpc.os)
                    (#:support #:clgrpc.tests.support) (#:memory #:clgrpc.tests.world)
                    (#:dialogue #:clgrpc.tests.dialogue))
  (:import-from #:clgrpc.tests.support #:close-socket #:connect-socket #:wait-until #:eventually)
  (:export
   ;; support.lisp
   #:+patience+ #:make-signal #:signal-it #:await-signal #:wait-until #:eventually #:settled
   #:server-links
   #:budgets #:held-octets #:note #:number-of
   #:numbers #:with-threads #:with-log #:events-of #:elapsed-seconds #:caught #:route-named
   ;; service.lisp
   #:probe #:make-probe #:with-probe #:probe-server #:ask #:watch #:collect #:chat
   #:handling #:start-probe #:with-started #:ask-and-pass-on #:check-failing-function
   ;; peer.lisp
   #:peer #:peer-http2 #:peer-goaway #:peer-closed #:peer-exchanges #:flush-peer #:send-octets
   #:await-peer #:exchange #:exchange-stream #:exchange-headers #:exchange-data-octets
   #:exchange-trailers #:exchange-ended #:exchange-reset #:field-of #:status-of #:framed
   #:note-octets #:with-raw-client #:send-fields #:send-request #:await-answer #:ask-raw
   #:with-raw-server #:ok-response
   ;; answer-compression.lisp
   #:packed-note
   ;; reply-room.lisp
   #:call-with-room-short #:call-with-taker #:wide
   ;; http-client.lisp
   #:curl
   ;; script.lisp, opening.lisp and kept.lisp
   #:with-server-loop #:connects #:answer-http #:*others* #:check-kept
   #:octets-charged)
  ;; for other tests
  (:export #:*events* #:ask-plainly #:certified #:close-socket #:connect-socket #:other-p
           #:peer-socket #:wire-text))

(in-package #:clgrpc.tests.server)

(def-suite :clgrpc.server :description "Handlers, answers, drain: our server and whoever calls it.")
