;;;; The engine of `clgrpc load`: calls at a rate or one behind the other, and what is known of them
;;;; afterwards. The command itself is tools/load.lisp; tools/report/ prints runs and compares them.

(defpackage #:clgrpc.load
  (:use #:cl #:clgrpc.base)
  (:export
   ;; histogram.lisp
   #:histogram #:make-histogram #:record-value #:merge-histograms #:histogram-count
   #:histogram-sum #:histogram-min #:histogram-max #:histogram-mean #:histogram-deviation
   #:histogram-quantile #:map-histogram #:restore-histogram
   ;; run.lisp
   #:run #:make-run #:run-name #:run-target #:run-method #:run-kind #:run-started-unix-ns
   #:run-duration-ns #:run-options #:run-tags #:run-loop-kind #:run-intended-rps #:run-count
   #:run-latency #:run-all-latency #:run-statuses #:run-backends #:run-seconds
   #:run-interval-seconds #:run-stages
   #:run-lateness #:run-octets-sent #:run-octets-received #:run-messages-sent
   #:run-messages-received #:run-connections
   #:run-connects #:run-cpu-ns #:run-limited #:run-ended-early #:run-samples #:run-rounds
   #:status-row #:make-status-row #:status-row-name #:status-row-code #:status-row-count
   #:status-row-latency #:status-row-messages
   #:backend-row #:make-backend-row #:backend-row-address #:backend-row-count
   #:backend-row-errors #:backend-row-latency
   #:second-row #:make-second-row #:second-row-count #:second-row-errors #:second-row-latency
   #:second-row-sent-octets #:second-row-received-octets #:second-row-connections
   #:second-row-lateness-max-ns
   #:sample #:make-sample #:sample-unix-ns #:sample-latency-ns #:sample-status #:sample-error))
