;;;; Fuzzing of every decoder, from HPACK to JSON, and of the layers that speak to a peer:
;;;; `scripts/fuzz --help`. A few thousand inputs each are part of `make test`.

(defpackage #:clgrpc.tests.fuzz
  (:use #:cl #:clgrpc.base #:clgrpc.option #:clgrpc.tests.form)
  (:local-nicknames (#:encoding #:clgrpc.encoding)
                    (#:protobuf #:clgrpc.protobuf) (#:hpack #:clgrpc.hpack)
                    (#:http1 #:clgrpc.http1)
                    (#:http2 #:clgrpc.http2) (#:loop #:clgrpc.loop) (#:dns #:clgrpc.dns)
                    (#:dns-tests #:clgrpc.tests.dns) (#:rpc #:clgrpc.rpc)
                    (#:method #:clgrpc.method)
                    (#:server #:clgrpc.server) (#:client #:clgrpc.client) (#:grpc #:clgrpc)
                    (#:support #:clgrpc.tests.support) (#:dialogue #:clgrpc.tests.dialogue)
                    (#:ends #:clgrpc.tests.loop) (#:sim #:clgrpc.sim)
                    (#:rest #:clgrpc.rest) (#:library #:clgrpc.tests.rest)
                    (#:messages #:clgrpc.tests.protobuf) (#:wire #:clgrpc.wire))
  (:export #:main))

(in-package #:clgrpc.tests.fuzz)

(def-suite :clgrpc.fuzz :description "Mutated inputs for every decoder.")
