;;;; The tests of the client, against our server and against a raw one.

(defpackage #:clgrpc.tests.client
  (:use #:cl #:clgrpc.base #:clgrpc.option #:clgrpc.tests.form #:clgrpc.tests.server)
  (:local-nicknames (#:attempt #:clgrpc.attempt) (#:encoding #:clgrpc.encoding)
                    (#:grpc #:clgrpc) (#:rpc #:clgrpc.rpc) (#:calling #:clgrpc.calling)
                    (#:status #:clgrpc.status) (#:method #:clgrpc.method) (#:wire #:clgrpc.wire)
                    (#:client #:clgrpc.client) (#:server #:clgrpc.server)
                    (#:config #:clgrpc.config) (#:proxy #:clgrpc.proxy)
                    (#:loop #:clgrpc.loop) (#:http2 #:clgrpc.http2) (#:hpack #:clgrpc.hpack)
                    (#:os #:clgrpc.os) (#:dns #:clgrpc.dns) (#:dns-tests #:clgrpc.tests.dns)
                    (#:support #:clgrpc.tests.support))
  (:import-from #:clgrpc.tests.server
                #:double #:double-when #:count-up #:add-up #:echo #:connect-socket #:our-threads
                #:with-plain-socket)
  ;; for other tests
  (:export #:free-address #:open-breaker-of #:puppet-asked #:refusing #:with-core))

(in-package #:clgrpc.tests.client)

(def-suite :clgrpc.client :description "Stubs, channels, connections, futures; load and leaks.")
