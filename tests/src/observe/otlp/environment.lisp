;;;; The environment's settings of an exporter.

(in-package #:clgrpc.tests.otlp)

(defun variables (&rest plist)
  "A function that returns the values of environment variables from PLIST."
  (lambda (name)
    (loop for (key value) on plist by #'cddr
          when (string= key name) return value)))

(defun endpoint-of (&rest plist)
  "The target for spans with the environment PLIST, and :plaintext or :tls."
  (multiple-value-bind (target credentials)
      (otlp::endpoint :traces nil nil (apply #'variables plist))
    (list target (if credentials :tls :plaintext))))

(test endpoints-of-the-environment
  (is (equal '("localhost:4317" :plaintext) (endpoint-of)))
  (is (equal '("c:1" :plaintext) (endpoint-of "OTEL_EXPORTER_OTLP_ENDPOINT" " http://c:1/v1 ")))
  (is (equal '("c:4317" :tls) (endpoint-of "OTEL_EXPORTER_OTLP_ENDPOINT" "https://c")))
  (is (equal '("[::1]:4317" :plaintext) (endpoint-of "OTEL_EXPORTER_OTLP_ENDPOINT" "HTTP://[::1]")))
  (is (equal '("d:2" :plaintext)
             (endpoint-of "OTEL_EXPORTER_OTLP_ENDPOINT" "https://c:1"
                          "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" "http://d:2")))
  (is (equal '("localhost:4317" :plaintext) (endpoint-of "OTEL_EXPORTER_OTLP_ENDPOINT" " ")))
  (is (equal '("c:1" :plaintext) (endpoint-of "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT" "http://x:1"
                                              "OTEL_EXPORTER_OTLP_ENDPOINT" "http://c:1")))
  ;; without a scheme INSECURE decides, and is false by default
  (is (equal '("c:1" :tls) (endpoint-of "OTEL_EXPORTER_OTLP_ENDPOINT" "c:1")))
  (is (equal '("c:1" :plaintext) (endpoint-of "OTEL_EXPORTER_OTLP_ENDPOINT" "c:1"
                                              "OTEL_EXPORTER_OTLP_INSECURE" "true")))
  (is (equal '("c:1" :tls) (endpoint-of "OTEL_EXPORTER_OTLP_ENDPOINT" "https://c:1"
                                        "OTEL_EXPORTER_OTLP_INSECURE" "true"))))

(test a-given-target-counts-more
  (let ((environment (variables "OTEL_EXPORTER_OTLP_ENDPOINT" "https://c:1")))
    (is (equal '("t:1" nil)
               (multiple-value-list (otlp::endpoint :metrics "t:1" nil environment))))
    (is (equal '("unix:/run/c" nil)
               (multiple-value-list (otlp::endpoint :metrics "unix:/run/c" nil environment))))
    (multiple-value-bind (target credentials)
        (otlp::endpoint :metrics "https://t" nil environment)
      (is (string= "t:4317" target))
      (is-true credentials))))

(test lists-of-keys-and-values
  (is (equal '(("a" . "1") ("b" . "x y,z")) (otlp::parse-pairs "a=1, b = x%20y%2Cz ,")))
  (is (equal '(("a" . "b=c")) (otlp::parse-pairs "a=b=c")))
  (is (equal '(("a" . "")) (otlp::parse-pairs "a=")))
  (is (equal '(("a" . "ä")) (otlp::parse-pairs "a=%C3%A4")))
  (is (null (otlp::parse-pairs "")))
  (dolist (text '("a" "=1" "a=%2" "a=%xx" "a=%ff" "a=1,b"))
    (is (eq :invalid (otlp::parse-pairs text)) "~S was taken" text)))

(test numbers-and-words-of-the-environment
  (with-log ()
    (let ((environment (variables "OTEL_EXPORTER_OTLP_TIMEOUT" "2500"
                                  "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT" "100"
                                  "OTEL_EXPORTER_OTLP_COMPRESSION" "gzip"
                                  "OTEL_EXPORTER_OTLP_METRICS_COMPRESSION" "lzma"
                                  "OTEL_EXPORTER_OTLP_HEADERS" "Api-Key=secret"
                                  "OTEL_EXPORTER_OTLP_METRICS_HEADERS" "what"
                                  "OTEL_EXPORTER_OTLP_PROTOCOL" "http/protobuf"
                                  "OTEL_METRIC_EXPORT_INTERVAL" "-1"
                                  "OTEL_BSP_SCHEDULE_DELAY" "50")))
      (is (= 5/2 (otlp::read-timeout :traces environment)))
      (is (= 1/10 (otlp::read-timeout :metrics environment)))
      (is (eq :gzip (otlp::read-compression :traces environment)))
      (is (null (events-of :otlp-variable-ignored)))
      (is (null (otlp::read-compression :metrics environment)))
      (is (equal '(("api-key" . "secret")) (otlp::read-headers :traces environment)))
      (is (null (otlp::read-headers :metrics environment)))
      (is (null (otlp::read-milliseconds "OTEL_METRIC_EXPORT_INTERVAL" environment)))
      (is (= 1/20 (otlp::read-milliseconds "OTEL_BSP_SCHEDULE_DELAY" environment)))
      (otlp::check-protocol :traces environment)
      (is (equal '("OTEL_EXPORTER_OTLP_PROTOCOL" "OTEL_METRIC_EXPORT_INTERVAL"
                   "OTEL_EXPORTER_OTLP_METRICS_HEADERS" "OTEL_EXPORTER_OTLP_METRICS_COMPRESSION")
                 (mapcar (lambda (event) (getf event :name))
                         (events-of :otlp-variable-ignored))))
      (is (notany (lambda (event) (search "what" (getf event :value)))
                  (events-of :otlp-variable-ignored))
          "headers may be secret"))))

(test values-with-secrets-are-not-logged
  "Addresses with a password or a query are not shown, as headers are not."
  (dolist (value '("http://u:s3cret@h" "http://h/x?token=s3cret"))
    (with-log ()
      (otlp::read-count "N" (variables "N" value))
      (is (equal '("not shown") (loop for event in (events-of :otlp-variable-ignored)
                                      collect (getf event :value)))))))

(test numbers-are-of-at-most-12-digits
  (loop for (text number) in '(("0" 0) ("007" 7) ("999999999999" 999999999999)
                               ("1000000000000" nil) ("-1" nil) ("+1" nil) ("1.0" nil) ("1 2" nil))
        do (with-log ()
             (is (eql number (otlp::read-count "N" (variables "N" text))) "~A" text)
             (is (equal (if number '() (list (list "N" text "must be an integer")))
                        (loop for event in (events-of :otlp-variable-ignored)
                              collect (list (getf event :name) (getf event :value)
                                            (getf event :reason))))))))

(test compressions-of-the-environment
  (loop for (text compression) in '(("gzip" :gzip) ("GZIP" :gzip) ("none" :identity)
                                    ("None" :identity) ("" nil) ("deflate" nil))
        do (with-log ()
             (is (eq compression
                     (otlp::read-compression
                      :traces (variables "OTEL_EXPORTER_OTLP_COMPRESSION" text)))
                 "~A" text)
             (is (= (if (equal "deflate" text) 1 0)
                    (length (events-of :otlp-variable-ignored)))))))

(test signals-that-are-not-wanted
  (is-true (otlp::export-wanted-p :metrics (variables "OTEL_TRACES_EXPORTER" "none")))
  (is-false (otlp::export-wanted-p :traces (variables "OTEL_TRACES_EXPORTER" "none")))
  (is-false (otlp::export-wanted-p :metrics (variables "OTEL_SDK_DISABLED" "TRUE"))))
