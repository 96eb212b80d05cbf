;;;; Tests of roles: identities of certificates, patterns, permissions.

(defpackage #:clgrpc.tests.authority
  (:use #:cl #:clgrpc.tests.form #:clgrpc.authority)
  (:import-from #:clgrpc.base #:misuse)
  (:local-nicknames (#:authority #:clgrpc.authority) (#:loop #:clgrpc.loop)
                    (#:support #:clgrpc.tests.support)))

(in-package #:clgrpc.tests.authority)

(def-suite :clgrpc.authority :description "Who may do what at the services of a cluster.")
