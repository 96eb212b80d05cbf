;;;; Metrics: counts of servers, channels and the process, made at nearly no cost, and read by
;;;; monitoring systems. The files, from the ground up: buckets and cells; the table of instruments;
;;;; the registry and its shards; the counting observers; users' own instruments; values read from
;;;; the process; families, which a reader gets; the headers of a request; and the text for
;;;; Prometheus.

(defpackage #:clgrpc.metrics
  (:use #:cl #:clgrpc.base)
  (:import-from #:alexandria #:when-let)
  (:local-nicknames (#:os #:clgrpc.os) (#:loop #:clgrpc.loop) (#:http1 #:clgrpc.http1)
                    (#:rpc #:clgrpc.rpc) (#:status #:clgrpc.status) (#:method #:clgrpc.method))
  (:import-from #:sb-ext #:defglobal #:define-load-time-global)
  (:import-from #:clgrpc.rpc #:call-rpc-method #:call-status #:operate)
  (:export
   ;; registry.lisp
   #:metrics #:make-metrics #:metrics-started-ns
   ;; user-instrument.lisp
   #:make-counter #:make-up-down-counter #:make-gauge #:make-histogram #:add #:record
   #:ensure-instruments
   ;; instrument-table.lisp
   #:instrument-table
   ;; count.lisp
   #:plain-request-p
   ;; family.lisp, collect.lisp
   #:collect #:family #:family-name #:family-kind #:family-unit #:family-text #:family-alias
   #:family-points
   #:point #:point-attributes #:point-value #:point-bounds #:point-buckets #:point-sum
   #:point-count #:point-exemplars
   ;; accept.lisp
   #:gzip-wanted-p #:open-metrics-wanted-p
   ;; metrics-text.lisp
   #:metrics-text))
