;;;; Tests of metrics: cells alone, the counts of all kinds of calls, and the text.

(defpackage #:clgrpc.tests.metrics
  (:use #:cl #:clgrpc.base #:clgrpc.tests.form #:clgrpc.tests.server)
  (:import-from #:clgrpc.tests.client #:double #:echo)
  (:local-nicknames (#:grpc #:clgrpc) (#:metrics #:clgrpc.metrics)
                    (#:loop #:clgrpc.loop) (#:support #:clgrpc.tests.support)
                    (#:tests #:clgrpc.tests.client)))

(in-package #:clgrpc.tests.metrics)

(def-suite :clgrpc.metrics :description "What is counted, and how it is read.")

(defun family (metrics name)
  "The family NAME that METRICS have, or nil."
  (find name (metrics:collect metrics) :key #'metrics:family-name :test #'string=))

(defun points (metrics name)
  "For the family NAME: lists of the values of attributes except targets, and the count or value."
  (let ((family (family metrics name)))
    (sort (loop for point in (and family (metrics:family-points family))
                collect (append (loop for (attribute . value) in (metrics:point-attributes point)
                                      unless (string= "grpc.target" attribute) collect value)
                                (list (or (metrics:point-value point)
                                          (metrics:point-count point)))))
          #'string< :key #'prin1-to-string)))
