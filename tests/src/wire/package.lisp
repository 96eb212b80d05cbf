(defpackage #:clgrpc.tests.wire
  (:use #:cl #:clgrpc.base #:clgrpc.option #:clgrpc.tests.form)
  (:local-nicknames (#:encoding #:clgrpc.encoding)
                    (#:rpc #:clgrpc.rpc) (#:status #:clgrpc.status) (#:method #:clgrpc.method)
                    (#:wire #:clgrpc.wire) (#:hpack #:clgrpc.hpack)
                    (#:http2 #:clgrpc.http2) (#:loop #:clgrpc.loop)
                    (#:memory #:clgrpc.tests.world) (#:dialogue #:clgrpc.tests.dialogue)))

(in-package #:clgrpc.tests.wire)

(def-suite :clgrpc.wire :description "The common code of both ends of a call over HTTP.")
