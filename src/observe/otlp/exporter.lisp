;;;; The exporter: a pipeline for the metrics, and one for the spans.

(in-package #:clgrpc.otlp)

(defconstant +longest-back-off-seconds+ 5
  "The maximum back-off, in seconds. A collector that was restarted is found again within about this
time.")

(defconstant +most-batch-spans+ 100000
  "The maximum number of spans in a request.")

(defclass otlp-exporter ()
  ((pipelines :initarg :pipelines :reader exporter-pipelines) ; one or two EXPORT-PIPELINEs
   ;; the METRICS in which the exporter counts, or nil
   (metrics :initarg :metrics :reader exporter-metrics)
   ;; the tracing whose spans are exported, or nil
   (tracing :initarg :tracing :reader exporter-tracing)
   (ring :initform nil :accessor exporter-ring)) ; the exporter's function as the ON-BATCH of
                                                 ; TRACING, or nil
  (:documentation "A sender of metrics and spans to a collector: see MAKE-OTLP-EXPORTER."))

(define-printer (exporter otlp-exporter)
  "~{~A~^, ~}" (exporter-pipelines exporter))

;;; Metrics of the exporter itself

;; Each series exists from the beginning, at 0: if a series appeared only with the first loss,
;; Prometheus would not see an increase.

(defun zeroed-counter (metrics name outcomes &rest options)
  "A counter NAME of METRICS, with a series that is 0 for each signal and each of OUTCOMES."
  (let ((counter (apply #'metrics:make-counter metrics name
                        :attributes '("signal" "outcome") options)))
    (dolist (signal '(:metrics :traces) counter)
      (dolist (outcome outcomes) (metrics:add counter 0 signal outcome)))))

(defun new-counter (metrics)
  "A counter of outcomes of points and spans of exporters, among METRICS."
  (zeroed-counter
   metrics "clgrpc.otlp.items" '(:exported :rejected :dropped :overflowed) :unit "{item}"
   :text (format nil "Points of metrics and spans, by outcome: exported, rejected ~
                      by the collector, dropped with an export that failed for good, or ~
                      overflowed because too many waited.")))

(defun new-export-counter (metrics)
  "A counter of how exports have ended, among METRICS."
  (zeroed-counter metrics "clgrpc.otlp.exports" '(:succeeded :failed) :unit "{export}"
                  :text "Exports to the collector, by outcome."))

(defun new-board (metrics)
  "Make a gauge, in METRICS, of items that wait for a collector; return a list whose first element,
changed atomically, is the list of pipelines that the gauge reads."
  (let ((board (list '())))
    (metrics:make-gauge
     metrics "clgrpc.otlp.waiting" :unit "{item}" :attributes '("signal")
     :function (lambda ()
                 (loop for signal in '(:metrics :traces)
                       collect (list (loop for pipeline in (car board)
                                           when (eq signal (pipeline-signal pipeline))
                                             sum (waiting-items pipeline))
                                     signal)))
     :text "Points of metrics and spans that wait to be exported.")
    board))

(defun watch-pipelines (metrics pipelines watched)
  "Let the gauge of METRICS read PIPELINES if WATCHED is true, else no longer read them. If METRICS
is nil, do nothing."
  (when-let ((board (metrics:ensure-instruments metrics 'board #'new-board)))
    (sb-ext:atomic-update (car board)
                          (lambda (others)
                            (if watched
                                (append pipelines others)
                                (set-difference others pipelines))))))

(defun counting-function (metrics signal)
  "The function COUNT of a pipeline for SIGNAL: it counts in METRICS, if there are any."
  (let ((counter (metrics:ensure-instruments metrics 'counter #'new-counter))
        (exports (metrics:ensure-instruments metrics 'exports #'new-export-counter)))
    (if counter
        (lambda (fate items)
          (metrics:add (if (member fate '(:succeeded :failed)) exports counter) items signal fate))
        (constantly nil))))

;;; The pipelines

(defun new-pipeline (signal target metrics options get-variable &rest slots)
  "A pipeline for SIGNAL to TARGET, with OPTIONS of MAKE-OTLP-EXPORTER, the environment's settings,
and SLOTS."
  (check-protocol signal get-variable)
  (destructuring-bind (&key credentials compression headers timeout &allow-other-keys) options
    (multiple-value-bind (address credentials)
        (endpoint signal target credentials get-variable)
      (apply #'make-pipeline
             :signal signal :target address
             :channel (client:make-channel
                       address :credentials credentials
                       :compression (or compression (read-compression signal get-variable))
                       :max-client-loops 1024 ; a loop that only this channel uses
                       :backoff-maximum-seconds +longest-back-off-seconds+)
             :metadata (append headers
                               (remove-if (lambda (key) (assoc key headers :test #'string-equal))
                                          (read-headers signal get-variable) :key #'car))
             :timeout-seconds (or timeout (positive (read-timeout signal get-variable)) 10)
             :count (counting-function metrics signal)
             slots))))

(defun positive (number)
  "NUMBER if NUMBER is above 0, else nil."
  (and number (plusp number) number))

(defun export-metrics (channel request &rest options)
  "Send REQUEST to the collector at CHANNEL; return the number of points that it has rejected, and
the reason."
  (if-let ((partial (collector:export-metrics-service-response-partial-success
                     (apply #'metrics-service:export channel request options))))
    (values (collector:export-metrics-partial-success-rejected-data-points partial)
            (collector:export-metrics-partial-success-error-message partial))
    (values 0 "")))

(defun export-spans (channel request &rest options)
  "Send REQUEST to the collector at CHANNEL; return how many spans it has rejected, and the reason."
  (if-let ((partial (trace-collector:export-trace-service-response-partial-success
                     (apply #'trace-service:export channel request options))))
    (values (trace-collector:export-trace-partial-success-rejected-spans partial)
            (trace-collector:export-trace-partial-success-error-message partial))
    (values 0 "")))

(defun metrics-pipeline (metrics target resource options get-variable)
  (new-pipeline
   :metrics target metrics options get-variable
   :interval-seconds (or (getf options :interval)
                         (positive (read-milliseconds "OTEL_METRIC_EXPORT_INTERVAL" get-variable))
                         60)
   :take (lambda ()
           (loop for (request . points) in (metrics-requests (metrics:collect metrics) resource
                                                             (metrics:metrics-started-ns metrics)
                                                             (loop:unix-ns))
                 collect (make-batch request points)))
   :request #'identity :export #'export-metrics :overflow (constantly 0)))

(defun span-batches (spans limit)
  "SPANS, a list, as batches of LIMIT at most."
  (loop while spans
        collect (let ((batch (loop repeat limit while spans collect (pop spans))))
                  (make-batch batch (length batch)))))

(defun traces-pipeline (tracing target resource metrics options get-variable)
  (let ((limit (or (getf options :batch-spans)
                   (positive (read-count "OTEL_BSP_MAX_EXPORT_BATCH_SIZE" get-variable))
                   512))
        (before (trace:spans-dropped tracing))) ; an earlier exporter has counted these
    (new-pipeline
     :traces target metrics options get-variable
     :interval-seconds (or (getf options :span-interval)
                           (positive (read-milliseconds "OTEL_BSP_SCHEDULE_DELAY" get-variable))
                           5)
     :take (lambda () (span-batches (trace:drain tracing) (min limit +most-batch-spans+)))
     :request (lambda (spans) (spans-request spans resource))
     :sift (lambda (spans) (remove-if-not #'encodable-p spans))
     :export #'export-spans :keeps t :queued (lambda () (trace:spans-waiting tracing))
     :overflow (lambda () (max 0 (- (trace:spans-dropped tracing) before))))))

;;; Interface

(defun check-exporter-options (metrics tracing options)
  (flet ((check (name type)
           (let ((value (getf options name)))
             (unless (typep value type)
               ;; headers may be secret
               (misuse "~S of an exporter cannot be ~:[~S~;of the type ~S~]."
                       name (eq :headers name) (if (eq :headers name) (type-of value) value))))))
    (unless (typep metrics '(or null metrics:metrics))
      (misuse "METRICS of an exporter are a value of MAKE-METRICS, not ~S." metrics))
    (unless (typep tracing '(or null trace:tracing))
      (misuse "TRACING of an exporter is a value of MAKE-TRACING, not ~S." tracing))
    (unless (or metrics tracing) (misuse "An exporter needs metrics, or tracing, or both."))
    (check :interval '(or null (real 0.01 86400)))
    (check :span-interval '(or null (real 0.01 86400)))
    (check :timeout '(or null (real 0.01 86400)))
    (check :batch-spans `(or null (integer 1 ,+most-batch-spans+)))
    (check :headers 'list)
    (check :resource 'list)))

(defun export-wanted-p (signal get-variable)
  "True unless the environment turns the export of SIGNAL off."
  (flet ((says-p (name word)
           (let ((value (variable-value name get-variable)))
             (and value (string-equal word value)))))
    (not (or (says-p "OTEL_SDK_DISABLED" "true")
             (says-p (format nil "OTEL_~A_EXPORTER" signal) "none")))))

(define-keyword-function make-otlp-exporter
    (target &rest options
     &key metrics tracing interval span-interval batch-spans timeout headers
          compression credentials resource)
  "Return an exporter, which sends METRICS, made by MAKE-METRICS, and the spans of TRACING, made by
MAKE-TRACING, to an OpenTelemetry collector at TARGET, by OTLP over gRPC, until STOP-EXPORTER.
TARGET is a channel's target, or a URL with http or https. If TARGET is nil, the environment gives
the target; the default is http://localhost:4317. Metrics are sent every INTERVAL seconds (a real,
by default 60). Spans are sent every SPAN-INTERVAL seconds (5), or as soon as a batch waits, with
BATCH-SPANS (512) in a request. An export may take TIMEOUT seconds (10); if it fails and may succeed
later, it is tried again, after longer and longer pauses, or when the collector requests it. HEADERS
is metadata for each export. COMPRESSION, :gzip or :identity, and CREDENTIALS are as for
MAKE-CHANNEL. RESOURCE is an alist of attributes, strings and values, that identify this process,
such as ((\"service.name\" . \"shop\")). Missing arguments come from the environment, by
OpenTelemetry's variables: OTEL_EXPORTER_OTLP_ENDPOINT and similar ones, OTEL_SERVICE_NAME,
OTEL_RESOURCE_ATTRIBUTES, OTEL_METRIC_EXPORT_INTERVAL, OTEL_BSP_SCHEDULE_DELAY,
OTEL_BSP_MAX_EXPORT_BATCH_SIZE, OTEL_SDK_DISABLED, OTEL_METRICS_EXPORTER and OTEL_TRACES_EXPORTER.
The exporter works on threads of its own, so calls do not wait for it; its own calls are neither
measured nor traced. While the collector cannot be reached, spans wait in the queues of TRACING, and
those that find no room are counted: EXPORTER-STATISTICS, the metric clgrpc.otlp.items and the log
give their number. Signal MISUSE for a wrong argument, TLS-ERROR if CREDENTIALS cannot be used. From
any thread."
  (declare (ignore interval span-interval batch-spans timeout headers compression credentials))
  (check-exporter-options metrics tracing options)
  (let* ((get-variable #'sb-ext:posix-getenv)
         (message (resource-message (resource-attributes resource get-variable)))
         (pipelines
           (append
            (and metrics (export-wanted-p :metrics get-variable)
                 (list (metrics-pipeline metrics target message options get-variable)))
            (and tracing (export-wanted-p :traces get-variable)
                 (list (traces-pipeline tracing target message metrics options get-variable)))))
         (exporter (make-instance 'otlp-exporter :pipelines pipelines :tracing tracing
                                                 :metrics metrics)))
    (watch-pipelines metrics pipelines t)
    (loop:end-before-save exporter (lambda (exporter) (stop-exporter exporter :timeout 1)))
    (dolist (pipeline pipelines)
      (when (eq :traces (pipeline-signal pipeline))
        (setf (exporter-ring exporter) (lambda () (ring-pipeline pipeline))
              (trace:on-batch tracing) (exporter-ring exporter)))
      (start-pipeline pipeline))
    exporter))

(define-keyword-function flush-exporter (exporter &key (timeout 10))
  "Make EXPORTER, of MAKE-OTLP-EXPORTER, send all present data; wait until the collector has the
data, for at most TIMEOUT seconds (a real). Return true if the collector has all data. Not on an
event loop's thread."
  (check-type timeout (real 0))
  (let* ((end-ns (loop:notice-end timeout))
         (numbers (mapcar #'ask-for-flush (exporter-pipelines exporter))))
    (every (lambda (pipeline number) (await-flush pipeline number end-ns))
           (exporter-pipelines exporter) numbers)))

(define-keyword-function stop-exporter (exporter &key (timeout 10))
  "End EXPORTER, of MAKE-OTLP-EXPORTER, once it has sent all waiting data, after at most TIMEOUT
seconds (a real); unsent data is dropped and counted. Return true if EXPORTER could send all data. A
stopped exporter stays stopped. Not on an event loop's thread."
  (prog1 (flush-exporter exporter :timeout timeout)
    (loop:forget-ending exporter)
    (let ((tracing (exporter-tracing exporter)))
      ;; another exporter may have taken its place
      (when (and tracing (eq (exporter-ring exporter) (trace:on-batch tracing)))
        (setf (trace:on-batch tracing) nil)))
    (watch-pipelines (exporter-metrics exporter) (exporter-pipelines exporter) nil)
    (mapc #'stop-pipeline (exporter-pipelines exporter))))

(defun exporter-statistics (exporter)
  "Return the counts of EXPORTER, of MAKE-OTLP-EXPORTER, as a plist: for each signal, :metrics or
:traces, a plist of the numbers of points or spans. The numbers are of items that the collector
accepted (:exported) or refused (:rejected), that were lost with an export that failed for good
(:dropped) or because too many waited (:overflowed), and that wait to be sent again (:waiting).
:REQUESTS is the number of exports tried, :FAILURES the number of these that failed. Metrics are
cumulative, so a failure loses none. From any thread."
  (loop for pipeline in (exporter-pipelines exporter)
        for tally = (pipeline-tally pipeline)
        append (list (pipeline-signal pipeline)
                     (list :exported (tally-exported tally) :rejected (tally-rejected tally)
                           :dropped (tally-dropped tally)
                           :overflowed (max (tally-overflowed tally)
                                            (funcall (pipeline-overflow pipeline)))
                           :waiting (reduce #'+ (pipeline-waiting pipeline) :key #'batch-items)
                           :requests (tally-requests tally)
                           :failures (tally-failures tally)))))
