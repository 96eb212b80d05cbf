;;;; Tests of the engine of `clgrpc load`.

(defpackage #:clgrpc.tests.load
  (:use #:cl #:clgrpc.tests.form)
  (:local-nicknames (#:grpc #:clgrpc) (#:base #:clgrpc.base) (#:os #:clgrpc.os)
                    (#:load #:clgrpc.load)
                    (#:method #:clgrpc.method) (#:protobuf #:clgrpc.protobuf)
                    (#:hpack #:clgrpc.hpack) (#:http2 #:clgrpc.http2) (#:loop #:clgrpc.loop)
                    (#:examples #:clgrpc.examples) (#:wire #:clgrpc.wire)
                    (#:support #:clgrpc.tests.support))
  (:import-from #:clgrpc.tests.abuse
                #:with-evil-server #:opening-octets #:response-fields #:frames #:ok-and-then
                #:answered-by-fields #:flood-of))

(in-package #:clgrpc.tests.load)

(def-suite :clgrpc.load :description "The engine of clgrpc load.")
(def-suite :clgrpc.load.misbehaviour :description "Runs against servers that fail and hang.")
