;;;; Tests of the manual: that it has everything, that its links lead somewhere, and that a browser
;;;; shows it.

(defpackage #:clgrpc.tests.manual
  (:use #:cl #:clgrpc.tests.form)
  (:local-nicknames (#:manual #:clgrpc.manual) (#:base #:clgrpc.base) (#:ppcre #:cl-ppcre)
                    (#:support #:clgrpc.tests.support)))

(in-package #:clgrpc.tests.manual)

(def-suite :clgrpc.manual :description "The manual as a site.")
