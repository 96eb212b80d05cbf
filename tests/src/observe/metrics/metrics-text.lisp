;;;; The text for Prometheus, read back.

(in-package #:clgrpc.tests.metrics)

(defun text-of (metrics &optional accept)
  (map 'string #'code-char (grpc:metrics-text metrics :accept accept)))

(defun lines-of (metrics &optional accept)
  (uiop:split-string (text-of metrics accept) :separator '(#\Newline)))

(defun sample (lines start)
  "The number at the end of the line of LINES that begins with START."
  (let ((line (find start lines :test (lambda (start line) (uiop:string-prefix-p start line)))))
    (and line (subseq line (1+ (position #\Space line :from-end t))))))

(test numbers-are-written-exactly
  (flet ((text (number) (with-output-to-string (stream) (metrics::write-number number stream))))
    (is (equal '("0" "5" "-2" "0.5" "1e-05" "0.0003" "1.5" "1234.25" "100"
                 "1.048576e+06" "1.5e-07" "-0.25" "0" "0")
               (mapcar #'text '(0 5 -2 1/2 1/100000 3/10000 1.5d0 1234.25d0 100.0d0 1048576.0d0
                               1.5d-7 -0.25 0d0 -0d0))))))

(test names-are-those-of-opentelemetry-s-exporter
  (flet ((name (name kind unit)
           (metrics::prometheus-name
            (metrics::make-family :name name :kind kind :unit unit))))
    (is (string= "grpc_server_call_duration_seconds"
                 (name "grpc.server.call.duration" :histogram "s")))
    (is (string= "grpc_client_attempt_started" (name "grpc.client.attempt.started" :counter
                                                     "{attempt}")))
    (is (string= "grpc_server_call_sent_total_compressed_message_size_bytes"
                 (name "grpc.server.call.sent_total_compressed_message_size" :histogram "By")))
    (is (string= "_9_a_b" (name "9.a-b" :gauge "")))
    (is (string= "caf__1" (name "café/1" :counter "")))
    ;; the unit is appended unless the name ends with it; the unit 1 of a gauge is a ratio
    (is (string= "load_seconds" (name "load_seconds" :gauge "s")))
    (is (string= "preload_seconds" (name "preload" :gauge "s")))
    (is (string= "seconds_seconds" (name "seconds" :gauge "s")))
    (is (string= "load_ratio" (name "load" :gauge "1")))
    (is (string= "load" (name "load" :counter "1")))
    (is (string= "load" (name "load" :histogram "1")))))

(test the-text-says-what-was-counted
  (let* ((metrics (grpc:make-metrics))
         (counter (grpc:make-counter metrics "shop.orders" :attributes '("kind")
                                                           :text (format nil "Or\\ders~%x")))
         (histogram (grpc:make-histogram metrics "shop.time" :unit "s" :bounds '(1/10 1))))
    (grpc:add counter 3 (format nil "a\"b\\c~%"))
    (mapc (lambda (number) (grpc:record histogram number)) '(1/10 1/5 5))
    (let ((lines (lines-of metrics)))
      (is (member "# TYPE shop_orders_total counter" lines :test #'string=))
      (is (member "# HELP shop_orders_total Or\\\\ders\\nx" lines :test #'string=))
      (is (equal "3" (sample lines "shop_orders_total{kind=\"a\\\"b\\\\c\\n\",otel_scope_name")))
      (flet ((bucket (le)
               (let ((line (find-if (lambda (line)
                                      (and (uiop:string-prefix-p "shop_time_seconds_bucket" line)
                                           (search (format nil "le=\"~A\"" le) line)))
                                    lines)))
                 (and line (subseq line (1+ (position #\Space line :from-end t)))))))
        (is (equal '("1" "2" "3") (mapcar #'bucket '("0.1" "1" "+Inf")))))
      (is (equal "5.3" (sample lines "shop_time_seconds_sum")))
      (is (equal "3" (sample lines "shop_time_seconds_count"))))
    (let ((lines (lines-of metrics "application/openmetrics-text;version=1.0.0")))
      (is (member "# TYPE shop_orders counter" lines :test #'string=))
      (is (equal "# EOF" (first (last lines 2))))
      (is (find-if (lambda (line) (search "le=\"1.0\"" line)) lines)))))

(test the-type-says-which-format-it-is
  (flet ((type (accept) (nth-value 1 (grpc:metrics-text (grpc:make-metrics) :accept accept))))
    (is (string= "text/plain; version=0.0.4; charset=utf-8" (type nil)))
    (is (string= "application/openmetrics-text; version=1.0.0; charset=utf-8"
                 (type "application/openmetrics-text")))))

(test the-process-is-told-of
  (let ((lines (lines-of (grpc:make-metrics))))
    (dolist (name '("process_cpu_seconds_total" "process_resident_memory_bytes"
                    "process_open_fds" "process_threads" "clgrpc_heap_used_bytes"
                    "clgrpc_build_info"))
      (is-true (sample lines name) "~A" name))
    (is (< 1500000000 (let ((*read-default-float-format* 'double-float))
                        (read-from-string (sample lines "process_start_time_seconds{")))
           4000000000))))

(test the-process-is-asked-once-a-reading
  (let ((count 0))
    (with-replaced (('clgrpc.os:read-process
                     (lambda (function) (incf count) (funcall function))))
      (text-of (grpc:make-metrics)))
    (is (= 1 count))))

(test promtool-takes-the-text
  (clgrpc.tests.support:need-program "promtool")
  (let ((metrics (grpc:make-metrics)))
    (with-probe (channel :channel-options (list :observer metrics)) (:ask #'double)
      (ask channel (note 1))
      (with-input-from-string (stream (text-of metrics))
        (multiple-value-bind (output error status)
            (uiop:run-program '("promtool" "check" "metrics")
                              :input stream :output :string :error-output :string
                              :ignore-error-status t)
          (declare (ignore output))
          ;; 3 is advice about names, which are OpenTelemetry's
          (is (member status '(0 3)) "~A" error)
          (is-false (search "error while linting" error) "~A" error))))))

(test the-target-is-told-of
  "The attributes of the process, in the form of OpenTelemetry's exporter for Prometheus."
  (let ((metrics (grpc:make-metrics :resource '(("service.name" . "shop") ("a" . 1)))))
    (is (member "target_info{a=\"1\",service_name=\"shop\"} 1" (lines-of metrics) :test #'string=))
    (is (member "# TYPE target info"
                (lines-of metrics "application/openmetrics-text;version=1.0.0")
                :test #'string=))
    (is (notany (lambda (line) (search "target_info" line)) (lines-of (grpc:make-metrics))))
    (signals grpc:misuse (grpc:make-metrics :resource '(("service name" . 1))))
    (is (search ":exemplar is a function or nil, not 5."
                (handler-case (grpc:make-metrics :exemplar 5)
                  (grpc:misuse (error) (princ-to-string error)))))))

(test refusals-are-there-from-the-begin
  "They are 0 once there is a server, so that an alert sees the first."
  (let ((metrics (grpc:make-metrics)))
    (with-probe (channel :options (list :observer metrics)) (:ask #'double)
      (is (member '("max-calls" 0) (points metrics "clgrpc.server.refusals") :test #'equal)))))
