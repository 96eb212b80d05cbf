;;;; Metrics as messages: the families that METRICS:COLLECT returns become requests of the
;;;; collector's MetricsService. Sums and histograms are cumulative: they count from when the
;;;; metrics were made, so an export that is lost loses no data.

(in-package #:clgrpc.otlp)

(defconstant +points-per-request+ 2000
  "The maximum number of points in a request. A point takes some 100 to 500 octets, and collectors
accept messages of 4 MiB by default.")
(defconstant +octets-per-request+ 2097152
  "The maximum number of octets of a request. If points have long attributes, so that a request is
longer, it is divided. A request of one point may be longer.")

(defun hex-octets (text length)
  "The LENGTH octets that TEXT, hexadecimal digits, represents; no octets if TEXT is anything else."
  (if (and (stringp text)
           (= (* 2 length) (length text))
           (every (lambda (char) (digit-char-p char 16)) text))
      (let ((octets (make-octets length)))
        (dotimes (i length octets)
          (setf (aref octets i) (parse-integer text :start (* 2 i) :end (* 2 (1+ i)) :radix 16))))
      (make-octets 0)))

(defun exemplar-message (exemplar)
  "The message for EXEMPLAR, a list of a value, labels and a time. The labels trace_id and span_id
have fields of their own."
  (destructuring-bind (value labels unix-ns) exemplar
    (flet ((label (name) (cdr (assoc name labels :test #'string=))))
      (data:make-exemplar
       :time-unix-nano unix-ns
       :as-double (coerce value 'double-float)
       :trace-id (hex-octets (label "trace_id") 16)
       :span-id (hex-octets (label "span_id") 8)
       :filtered-attributes (key-values (remove-if (lambda (name)
                                                     (member name '("trace_id" "span_id")
                                                             :test #'string=))
                                                   labels :key #'car))))))

(defun number-point (point start-ns now-ns)
  "The message for POINT, which has one number. START-NS is nil for a gauge."
  (let ((value (metrics:point-value point))
        (attributes (key-values (metrics:point-attributes point)))
        (start-ns (or start-ns 0)))
    (if (typep value '(signed-byte 64))
        (data:make-number-data-point :attributes attributes :start-time-unix-nano start-ns
                                     :time-unix-nano now-ns :as-int value)
        (data:make-number-data-point :attributes attributes :start-time-unix-nano start-ns
                                     :time-unix-nano now-ns
                                     :as-double (coerce value 'double-float)))))

(defun histogram-point (point start-ns now-ns)
  (data:make-histogram-data-point
   :attributes (key-values (metrics:point-attributes point))
   :start-time-unix-nano start-ns :time-unix-nano now-ns
   :count (metrics:point-count point)
   :sum (coerce (metrics:point-sum point) 'double-float)
   :bucket-counts (metrics:point-buckets point)
   :explicit-bounds (map 'vector (lambda (bound) (coerce bound 'double-float))
                         (metrics:point-bounds point))
   :exemplars (map 'list #'exemplar-message (remove nil (metrics:point-exemplars point)))))

(defun metric-message (family points start-ns now-ns)
  (let ((kind (metrics:family-kind family)))
    (flet ((make (&rest data)
             (apply #'data:make-metric :name (metrics:family-name family)
                                       :description (metrics:family-text family)
                                       :unit (metrics:family-unit family)
                                       data))
           (messages (function start-ns)
             (mapcar (lambda (point) (funcall function point start-ns now-ns)) points)))
      (ecase kind
        (:gauge (make :gauge (data:make-gauge :data-points (messages #'number-point nil))))
        ((:counter :up-down-counter)
         (make :sum (data:make-sum :data-points (messages #'number-point start-ns)
                                   :aggregation-temporality :aggregation-temporality-cumulative
                                   :is-monotonic (eq :counter kind))))
        (:histogram
         (make :histogram (data:make-histogram
                           :data-points (messages #'histogram-point start-ns)
                           :aggregation-temporality :aggregation-temporality-cumulative)))))))

;;; Requests

(defun divide-points (part limit)
  "PART, a list of (FAMILY . POINTS), as a list of such lists, each with LIMIT points at most."
  (let ((parts '()) (part-so-far '()) (room limit))
    (loop for (family . points) in part
          do (loop while points
                   do (let ((taken (loop repeat room while points collect (pop points))))
                        (push (cons family taken) part-so-far)
                        (decf room (length taken))
                        (when (zerop room)
                          (push (nreverse part-so-far) parts)
                          (setf part-so-far '()
                                room limit)))))
    (when part-so-far (push (nreverse part-so-far) parts))
    (nreverse parts)))

(defun scope-metrics (part start-ns now-ns)
  "The message for PART, a list of (FAMILY . POINTS)."
  (data:make-scope-metrics
   :scope (library-scope)
   :metrics (loop for (family . points) in part
                  collect (metric-message family points start-ns now-ns))))

(defun part-requests (part resource start-ns now-ns)
  "As METRICS-REQUESTS, for PART, a list of (FAMILY . POINTS): one request, or several if that would
be too long."
  (let ((count (loop for (nil . points) in part sum (length points)))
        (request (collector:make-export-metrics-service-request
                  :resource-metrics
                  (list (data:make-resource-metrics
                         :resource resource
                         :scope-metrics (list (scope-metrics part start-ns now-ns)))))))
    (if (and (< 1 count) (< +octets-per-request+ (protobuf:serialized-size request)))
        (loop for half in (divide-points part (ceiling count 2))
              append (part-requests half resource start-ns now-ns))
        (list (cons request count)))))

(defun metrics-requests (families resource start-ns now-ns &key (limit +points-per-request+))
  "The requests that report FAMILIES, a value of METRICS:COLLECT, to a collector, counted from
START-NS to NOW-NS, nanoseconds since 1970: a list of (REQUEST . POINTS), each with LIMIT points at
most. RESOURCE is a message."
  (let ((all (loop for family in families
                   collect (cons family (metrics:family-points family)))))
    (loop for part in (divide-points all limit)
          append (part-requests part resource start-ns now-ns))))
