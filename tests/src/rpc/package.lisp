;;;; The tests of calls on any transport: of the folders status, encoding, method,
;;;; credentials, rpc, attempt, calling and serving, which have a suite each.

(defpackage #:clgrpc.tests.rpc
  (:use #:cl #:clgrpc.base #:clgrpc.option #:clgrpc.tests.form)
  (:local-nicknames (#:rpc #:clgrpc.rpc) (#:serving #:clgrpc.serving) (#:method #:clgrpc.method)
                    (#:support #:clgrpc.tests.support)
                    (#:status #:clgrpc.status) (#:calling #:clgrpc.calling) (#:loop #:clgrpc.loop)
                    (#:protobuf #:clgrpc.protobuf) (#:config #:clgrpc.config)
                    (#:encoding #:clgrpc.encoding) (#:credentials #:clgrpc.credentials)
                    (#:attempt #:clgrpc.attempt)))

(in-package #:clgrpc.tests.rpc)

(def-suite :clgrpc.status :description "Statuses, metadata and time-outs.")
(def-suite :clgrpc.encoding :description "Compressions and codecs.")
(def-suite :clgrpc.method :description "Methods and services.")
(def-suite :clgrpc.rpc :description "The common code of both ends of a call.")
(def-suite :clgrpc.credentials :description "Call credentials.")
(def-suite :clgrpc.attempt :description "Retries, hedging, the view of an attempt.")
(def-suite :clgrpc.calling :description "The common code of channels of all transports.")
(def-suite :clgrpc.serving :description "The common code of servers of all transports.")
