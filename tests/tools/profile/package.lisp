;;;; Tests of `clgrpc profile`: what is made of what perf prints, as it was recorded once; and where
;;;; perf is, a short profile of a server.

(defpackage #:clgrpc.tests.profile
  (:use #:cl #:clgrpc.tests.form)
  (:local-nicknames (#:profile #:clgrpc.profile) (#:base #:clgrpc.base)
                    (#:support #:clgrpc.tests.support))
  (:import-from #:clgrpc.tests.page #:check-page #:look-with-browser))

(in-package #:clgrpc.tests.profile)

(def-suite :clgrpc.profile :description "clgrpc profile.")
(def-suite :clgrpc.profile.server :description "What clgrpc profile measures of a server.")
