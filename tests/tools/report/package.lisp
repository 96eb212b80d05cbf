;;;; Tests of what is said of runs.

(defpackage #:clgrpc.tests.report
  (:use #:cl #:clgrpc.tests.form)
  (:local-nicknames (#:report #:clgrpc.report) (#:load #:clgrpc.load) (#:page #:clgrpc.page)
                    (#:base #:clgrpc.base) (#:support #:clgrpc.tests.support))
  (:export #:sample-run))

(in-package #:clgrpc.tests.report)

(def-suite :clgrpc.report :description "Reports of runs, comparisons and conditions.")
