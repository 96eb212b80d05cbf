;;;; Telemetry of servers, as options of commands that serve: the log, a page with metrics, metrics
;;;; and spans for an OpenTelemetry collector.

(in-package #:clgrpc.program)

(define-shared-options :telemetry
  (log-level "LEVEL" (choice-parser :debug :info :warning :error :none) :warning
             "The least severe events that are written to the standard error: debug, info,
      warning or error; or none. GRPC_TRACE switches on the tracers that doc/observability.md
      lists.")
  (log-format "FORMAT" (choice-parser :text :json) :text
              "The form of the log: a line of text, or of JSON, for each event.")
  (access-log "[RATIO]" #'parse-ratio nil
              "Log each call, or a share from 0 to 1 of them and all that fail;
      doc/observability.md lists the fields of the events. The level of the log is info at least.")
  (metrics "ADDRESSES" (addresses-parser 0) nil
           "Serve metrics for Prometheus, at /metrics, and health, at /healthz, on ADDRESSES, over
      HTTP, or HTTPS with --tls-cert. All clients that reach ADDRESSES may read them.")
  (otlp "ADDRESS" (address-parser 1) nil
        "Send metrics and spans to the OpenTelemetry collector at ADDRESS, as
      doc/monitoring.md says; variables such as OTEL_SERVICE_NAME are obeyed.")
  (trace-sample "RATIO" #'parse-ratio nil
                "Trace calls, and record this share of the traces that begin here, from 0 to 1; for
      traces that begin elsewhere the caller has decided. Without --trace-sample, --otlp records
      all. The log's events have the ids of traces, recorded or not."))

(defun begin-logging (level format access-log)
  "Log events of LEVEL and above, in FORMAT. If ACCESS-LOG is true, events of :INFO and above are
logged in any case. If LEVEL is nil, do not change the log."
  (when level
    (let ((level (if (and access-log (not (eq :debug level))) :info level)))
      (setf *log-function* (log-writer :level level :format format)))))

(defun call-with-web (addresses credentials handlers url function)
  "Start a server on ADDRESSES that answers HTTP by HANDLERS, over TLS if CREDENTIALS are given;
then call FUNCTION with the value of URL, a function of that server. If ADDRESSES are nil, only call
FUNCTION with nil."
  (if (null addresses)
      (funcall function nil)
      (let ((server (server:start-server '() :listen addresses :http handlers
                                         :credentials credentials)))
        (unwind-protect (funcall function (funcall url server))
          (server:stop-server server :drain 0)))))

(defun call-with-metrics-page (addresses credentials metrics health function)
  "Call FUNCTION with the URL of the page that shows METRICS and HEALTH on ADDRESSES, over TLS if
there are CREDENTIALS; with nil if ADDRESSES are nil."
  (call-with-web
   addresses credentials
   (and addresses (list* (services:metrics-handler metrics)
                         (and health (list (services:health-handler health)))))
   (lambda (server)
     (format nil "http~:[~;s~]://~A/metrics" credentials (server:server-address server)))
   function))

(defun make-tracing-as-asked (trace-sample otlp)
  "Tracing that records the share TRACE-SAMPLE of the traces that begin here, or all of them if only
OTLP is given; nil if neither is given. Without OTLP no exporter takes spans, so few are kept."
  (when (or trace-sample otlp)
    (apply #'trace:make-tracing :sampler `(:parent-based (:trace-id-ratio ,(or trace-sample 1)))
           (if otlp '() '(:max-queued-spans 1)))))

(defun begin-exporting (otlp metrics tracing)
  "Start an exporter of METRICS and of TRACING's spans to the collector at OTLP; nil if OTLP is
nil."
  (and otlp (otlp:make-otlp-exporter otlp :metrics metrics :tracing tracing)))

(defun end-exporting (exporter)
  "Send the remaining data to the collector of EXPORTER, or nil, for five seconds at most."
  (when exporter (otlp:stop-exporter exporter :timeout 5)))

(defun telemetry-lines (trace-sample otlp)
  "Lines about TRACE-SAMPLE, the share of traces that are recorded, or nil, and about the data that
go to the collector at OTLP, an address or nil."
  (append (when (or trace-sample otlp)
            (list (format nil "recording ~F of the traces that begin here~:[, for the log only~;~]"
                          (or trace-sample 1) otlp)))
          (when otlp (list (format nil "exporting metrics and spans to ~A" otlp)))))
