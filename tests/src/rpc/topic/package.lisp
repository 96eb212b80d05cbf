;;;; Tests of topics, over our own servers.

(defpackage #:clgrpc.tests.topic
  (:use #:cl #:clgrpc.base #:clgrpc.tests.form #:clgrpc.tests.server)
  (:local-nicknames (#:grpc #:clgrpc) (#:topic #:clgrpc.topic) (#:support #:clgrpc.tests.support))
  (:import-from #:clgrpc.tests.server #:double))

(in-package #:clgrpc.tests.topic)

(def-suite :clgrpc.topic :description "Topics: one sender, many streams.")
