;;;; Tests of the tokens that are call credentials: against our own HTTP server as a token endpoint,
;;;; and against sockets that misbehave.

(defpackage #:clgrpc.tests.token
  (:use #:cl #:clgrpc.base #:clgrpc.tests.form #:clgrpc.tests.server)
  (:local-nicknames (#:credentials #:clgrpc.credentials)
                    (#:grpc #:clgrpc) (#:token #:clgrpc.token) (#:calling #:clgrpc.calling)
                    (#:os #:clgrpc.os) (#:support #:clgrpc.tests.support))
  (:import-from #:clgrpc.tests.server #:double))

(in-package #:clgrpc.tests.token)

(def-suite :clgrpc.token :description "Tokens as call credentials.")
