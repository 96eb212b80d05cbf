(defpackage #:clgrpc.tests.wire
  (:use #:cl #:clgrpc.base #:fiveam)
  (:local-nicknames (#:rpc #:clgrpc.rpc) (#:wire #:clgrpc.wire) (#:hpack #:clgrpc.hpack)
                    (#:loop #:clgrpc.loop)))

(in-package #:clgrpc.tests.wire)

(def-suite :clgrpc.wire :description "What both ends of a call share over HTTP/2.")
