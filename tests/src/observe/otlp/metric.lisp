;;;; Metrics as messages.

(in-package #:clgrpc.tests.otlp)

(defun sent-metrics (families &rest options)
  "The requests for FAMILIES as they arrive, counted from 5 to 7 ns."
  (loop for (request . points) in (apply #'otlp::metrics-requests families
                                         (otlp::resource-message '(("service.name" . "s"))) 5 7
                                         options)
        collect (passed-on 'collector:export-metrics-service-request request)))

(defun scopes-of (request)
  (data:resource-metrics-scope-metrics
   (elt (collector:export-metrics-service-request-resource-metrics request) 0)))

(defun metrics-of (request)
  "All metrics in REQUEST, a list."
  (loop for scope across (scopes-of request)
        append (coerce (data:scope-metrics-metrics scope) 'list)))

(defun attributes-of (key-values)
  "KEY-VALUES, messages, as an alist."
  (loop for item across key-values
        collect (cons (common:key-value-key item)
                      (values (common:any-value-value (common:key-value-value item))))))

(defun family-of (kind points &rest options)
  (apply #'metrics::make-family :name "f" :kind kind :unit "By" :text "what" :points points
         options))

(test sums-and-gauges-arrive
  (flet ((metric (kind value)
           (first (metrics-of (first (sent-metrics
                                      (list (family-of kind
                                                       (list (metrics::make-point
                                                              :attributes '(("a" . "b"))
                                                              :value value))))))))))
    (let* ((metric (metric :counter 12))
           (sum (data:metric-sum metric))
           (point (elt (data:sum-data-points sum) 0)))
      (is (string= "f" (data:metric-name metric)))
      (is (string= "By" (data:metric-unit metric)))
      (is (string= "what" (data:metric-description metric)))
      (is-true (data:sum-is-monotonic sum))
      (is (eq :aggregation-temporality-cumulative (data:sum-aggregation-temporality sum)))
      (is (= 5 (data:number-data-point-start-time-unix-nano point)))
      (is (= 7 (data:number-data-point-time-unix-nano point)))
      (is (equal '(12 :as-int) (multiple-value-list (data:number-data-point-value point))))
      (is (equal '(("a" . "b")) (attributes-of (data:number-data-point-attributes point)))))
    (let* ((sum (data:metric-sum (metric :up-down-counter -3)))
           (point (elt (data:sum-data-points sum) 0)))
      (is-false (data:sum-is-monotonic sum))
      (is (= -3 (data:number-data-point-value point))))
    (let* ((metric (metric :gauge 1/2))
           (point (elt (data:gauge-data-points (data:metric-gauge metric)) 0)))
      (is (eq :gauge (data:metric-data-case metric)))
      (is (equal '(0.5d0 :as-double) (multiple-value-list (data:number-data-point-value point))))
      (is (zerop (data:number-data-point-start-time-unix-nano point))))))

(test histograms-arrive
  (let* ((trace "0af7651916cd43dd8448eb211c80319c")
         (exemplar `(3/200 (("trace_id" . ,trace) ("span_id" . "b7ad6b7169203331") ("user" . "u"))
                           6))
         (family (family-of :histogram
                            (list (metrics::make-point
                                   :attributes '() :bounds '(1/1000 0.5d0) :buckets '(1 2 0)
                                   :sum 31/1000 :exemplars (list nil exemplar nil)))))
         (metric (first (metrics-of (first (sent-metrics (list family))))))
         (histogram (data:metric-histogram metric))
         (point (elt (data:histogram-data-points histogram) 0))
         (sent (elt (data:histogram-data-point-exemplars point) 0)))
    (is (eq :aggregation-temporality-cumulative
            (data:histogram-aggregation-temporality histogram)))
    (is (= 3 (data:histogram-data-point-count point)))
    (is (= 0.031d0 (data:histogram-data-point-sum point)))
    (is (equalp #(1 2 0) (data:histogram-data-point-bucket-counts point)))
    (is (equalp #(0.001d0 0.5d0) (data:histogram-data-point-explicit-bounds point)))
    (is (= 5 (data:histogram-data-point-start-time-unix-nano point)))
    (is (= 1 (length (data:histogram-data-point-exemplars point))))
    (is (= 0.015d0 (data:exemplar-value sent)))
    (is (= 6 (data:exemplar-time-unix-nano sent)))
    (is (= 16 (length (data:exemplar-trace-id sent))))
    (is (= #x0a (aref (data:exemplar-trace-id sent) 0)))
    (is (equalp (octets-of #xb7 #xad #x6b #x71 #x69 #x20 #x33 #x31) (data:exemplar-span-id sent)))
    (is (equal '(("user" . "u")) (attributes-of (data:exemplar-filtered-attributes sent))))))

(test requests-have-a-bound
  (flet ((points (count)
           (loop for i below count collect (metrics::make-point :attributes '() :value i))))
    (let* ((families (list (family-of :counter (points 7)) (family-of :gauge (points 0))
                           (family-of :counter (points 4))))
           (requests (sent-metrics families :limit 5)))
      (is (= 3 (length requests)))
      (is (equal '(5 5 1)
                 (loop for request in requests
                       collect (loop for metric in (metrics-of request)
                                     sum (length (data:sum-data-points
                                                  (data:metric-sum metric)))))))
      (is (equal '(0 1 2 3 4 5 6 0 1 2 3)
                 (loop for request in requests
                       append (loop for metric in (metrics-of request)
                                    append (map 'list #'data:number-data-point-value
                                                (data:sum-data-points
                                                 (data:metric-sum metric))))))))
    (is (null (sent-metrics (list (family-of :counter '())))) "no points make no request")))

(test the-resource-and-the-library-arrive
  (let* ((point (metrics::make-point :attributes '() :value 1))
         (request (first (sent-metrics (list (family-of :counter (list point))
                                             (family-of :gauge (list point))))))
         (resource (data:resource-metrics-resource
                    (elt (collector:export-metrics-service-request-resource-metrics request) 0)))
         (scope (elt (scopes-of request) 0)))
    (is (equal '(("service.name" . "s")) (attributes-of (resource:resource-attributes resource))))
    (is (= 1 (length (scopes-of request))))
    (is (= 2 (length (data:scope-metrics-metrics scope))))
    (is (string= "clgrpc" (common:instrumentation-scope-name (data:scope-metrics-scope scope))))))

(test requests-of-long-points-have-fewer
  "Each request is shorter than collectors accept, unless a single point is longer, which is alone."
  (flet ((point (value length)
           (metrics::make-point :value value
                                :attributes (list (cons "text" (make-string length))))))
    (let ((requests (sent-metrics
                     (list (family-of :counter (loop for i below 10 collect (point i 900000)))
                           (family-of :counter (list (point 10 5000000) (point 11 1)))))))
      (flet ((values-of (request)
               (loop for metric in (metrics-of request)
                     append (map 'list #'data:number-data-point-value
                                 (data:sum-data-points (data:metric-sum metric))))))
        (is (equal (alexandria:iota 12) (mapcan #'values-of requests)))
        (dolist (request requests)
          (is (or (equal '(10) (values-of request))
                  (< (clgrpc.protobuf:serialized-size request) 4000000))))))))
