;;;; Tests of the pages that reports are.

(defpackage #:clgrpc.tests.page
  (:use #:cl #:clgrpc.tests.form)
  (:local-nicknames (#:page #:clgrpc.page) (#:base #:clgrpc.base)
                    (#:support #:clgrpc.tests.support))
  (:export #:look-with-browser #:check-page))

(in-package #:clgrpc.tests.page)

(def-suite :clgrpc.page :description "Figures, markup, charts and pages.")
