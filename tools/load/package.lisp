;;;; The engine of `clgrpc load`: calls at a rate or one after the other, and their results. The
;;;; command itself is tools/command/load.lisp; tools/report/ prints runs and compares them.

(defpackage #:clgrpc.load
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:import-from #:alexandria #:if-let #:when-let)
  (:local-nicknames (#:os #:clgrpc.os) (#:loop #:clgrpc.loop) (#:hpack #:clgrpc.hpack)
                    (#:http2 #:clgrpc.http2) (#:protobuf #:clgrpc.protobuf)
                    (#:status #:clgrpc.status) (#:method #:clgrpc.method)
                    (#:client #:clgrpc.client))
  (:export
   ;; histogram.lisp
   #:histogram #:make-histogram #:record-value #:merge-histograms #:histogram-count
   #:histogram-sum #:histogram-min #:histogram-max #:histogram-mean
   #:histogram-quantile #:map-histogram #:restore-histogram
   ;; run-result.lisp
   #:run #:make-run #:run-name #:run-target #:run-method #:run-kind #:run-started-unix-ns
   #:run-duration-ns #:run-options #:run-tags #:run-loop-kind #:run-intended-rps #:run-count
   #:run-message-latency #:run-server #:run-burst #:run-under-way #:run-oldest-under-way-ns
   #:run-latency #:run-all-latency #:run-statuses #:run-backends #:run-methods #:run-seconds
   #:run-interval-seconds #:run-stages
   #:run-lateness #:run-octets-sent #:run-octets-received #:run-messages-sent
   #:run-messages-received #:run-connections
   #:run-connects #:run-cpu-ns #:run-limited #:run-ended-early #:run-samples #:run-rounds
   #:status-row #:make-status-row #:status-row-name #:status-row-code #:status-row-count
   #:*status-names*
   #:status-row-latency #:status-row-messages
   #:share-row #:make-share-row #:share-row-name #:share-row-count
   #:share-row-errors #:share-row-latency
   #:second-row #:make-second-row #:second-row-count #:second-row-errors #:second-row-latency
   #:second-row-sent-octets #:second-row-received-octets #:second-row-connections
   #:second-row-lateness-max-ns
   #:sample #:make-sample #:sample-unix-ns #:sample-latency-ns #:sample-status #:sample-error
   ;; round.lisp
   #:merge-rounds
   ;; call-schedule.lisp
   #:schedule #:make-schedule #:schedule-value #:make-pacer #:next-due
   ;; data-template.lisp
   #:template-error #:compile-template #:expand-template
   ;; payload.lisp
   #:json-payload #:binary-payload #:compress-payload #:compile-metadata
   ;; plan.lisp
   #:plan #:make-plan #:plan-rate #:plan-total #:plan-duration-ns #:plan-warm-up-ns
   #:make-request #:request-head
   ;; termination.lisp
   #:call-terminable #:call-until-termination #:terminated-p
   ;; load-run.lisp
   #:perform-run #:run-failed #:calls-ended #:single-targets))
