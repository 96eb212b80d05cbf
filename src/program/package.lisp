;;;; A server as a program: from its command line, with options for logs and metrics, to its end by
;;;; a signal. RUN-SERVER is for programs of users; `clgrpc serve` and similar commands use the
;;;; parts.

(defpackage #:clgrpc.program
  (:use #:cl #:clgrpc.base #:clgrpc.option #:clgrpc.command)
  (:import-from #:sb-ext #:defglobal)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:os #:clgrpc.os) (#:serving #:clgrpc.serving)
                    (#:server #:clgrpc.server)
                    (#:services #:clgrpc.services) (#:metrics #:clgrpc.metrics)
                    (#:trace #:clgrpc.trace) (#:otlp #:clgrpc.otlp)
                    (#:logs #:clgrpc.logs) (#:channelz #:clgrpc.channelz))
  (:export
   ;; shutdown-signal.lisp
   #:+ending-seconds+ #:ending-seconds #:call-with-ending #:await-end #:end #:call-at-report
   ;; credentials.lisp
   #:server-credentials
   ;; perf-map.lisp
   #:write-perf-map #:map-functions #:function-label
   ;; telemetry.lisp
   #:begin-logging #:call-with-web #:call-with-metrics-page #:make-tracing-as-asked
   #:begin-exporting
   #:end-exporting #:telemetry-lines
   ;; server-program.lisp
   #:serve-as-asked #:serve-until-end
   ;; service-manager.lisp
   #:reload-at-hang-up
   ;; run-server.lisp
   #:write-everything #:run-server))
