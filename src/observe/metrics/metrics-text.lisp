;;;; The text that Prometheus reads: its own format, version 0.0.4, and OpenMetrics 1.0, which has
;;;; exemplars as well. Names and labels are made as OpenTelemetry's exporter for Prometheus makes
;;;; them: dots become underscores, units are appended as words, counters end in _total.

(in-package #:clgrpc.metrics)

(defparameter *unit-words*
  '(("s" . "seconds") ("ms" . "milliseconds") ("By" . "bytes") ("1" . "ratio") ("m" . "meters")
    ("V" . "volts") ("A" . "amperes") ("J" . "joules") ("W" . "watts") ("g" . "grams")
    ("Cel" . "celsius") ("Hz" . "hertz") ("%" . "percent"))
  "Words for units in names.")

(defun clean-name (name)
  "NAME, in which an underscore replaces each character that Prometheus does not allow in names."
  (let ((clean (map 'string (lambda (char)
                              (if (and (< (char-code char) 128)
                                       (or (alphanumericp char) (char= char #\_)))
                                  char
                                  #\_))
                    name)))
    (if (and (plusp (length clean)) (digit-char-p (char clean 0)))
        (concatenate 'string "_" clean)
        clean)))

(defun prometheus-name (family)
  "The name of FAMILY in Prometheus, without _total."
  (or (family-alias family)
      (let ((name (clean-name (family-name family)))
            (word (cdr (assoc (family-unit family) *unit-words* :test #'string=))))
        (if (and word
                 (not (and (string= "1" (family-unit family))
                           (not (eq :gauge (family-kind family)))))
                 (not (uiop:string-suffix-p name (concatenate 'string "_" word))))
            (concatenate 'string name "_" word)
            name))))

(defun write-escaped (text stream &key quotes)
  "Write TEXT as Prometheus reads it back, within QUOTES if that is true."
  (when quotes (write-char #\" stream))
  (loop for char across text
        do (case char
             (#\\ (write-string "\\\\" stream))
             (#\Newline (write-string "\\n" stream))
             (#\" (write-string (if quotes "\\\"" "\"") stream))
             (t (write-char char stream))))
  (when quotes (write-char #\" stream)))

(defun double-digits (double)
  "Two values: the fewest digits that represent DOUBLE, a positive one, as text, and the exponent of
the first."
  (let* ((text (float-decimal double))
         (end (or (position #\e text :test #'char-equal) (length text)))
         (point (position #\. text))
         (exponent (if (< end (length text)) (parse-integer text :start (1+ end)) 0))
         (digits (concatenate 'string (subseq text 0 point) (subseq text (1+ point) end)))
         (first (position #\0 digits :test #'char/=)))
    (values (string-right-trim "0" (subseq digits first))
            (+ exponent point -1 (- first)))))

(defun write-double (double stream)
  "Write DOUBLE, a positive one, in Go's form, so that bounds are the same texts everywhere: with an
exponent if the exponent is less than -4 or more than 5."
  (multiple-value-bind (digits exponent) (double-digits double)
    (let ((count (length digits)))
      (cond ((not (< -5 exponent 6))
             (format stream "~C~@[.~A~]e~:[+~;-~]~2,'0D" (char digits 0)
                     (and (< 1 count) (subseq digits 1)) (minusp exponent) (abs exponent)))
            ((minusp exponent)
             (format stream "0.~A~A" (make-string (- -1 exponent) :initial-element #\0) digits))
            ((< (1+ exponent) count)
             (format stream "~A.~A" (subseq digits 0 (1+ exponent)) (subseq digits (1+ exponent))))
            (t (format stream "~A~A" digits
                       (make-string (- (1+ exponent) count) :initial-element #\0)))))))

(defun write-number (number stream)
  "Write NUMBER, a real: exactly if it is an integer, else as the nearest double-float."
  (let ((double (if (integerp number) nil (coerce number 'double-float))))
    (cond ((null double) (format stream "~D" number))
          ((zerop double) (write-char #\0 stream))
          (t (when (minusp double) (write-char #\- stream))
             (write-double (abs double) stream)))))

(defun write-labels (attributes stream)
  "Write ATTRIBUTES, an alist, in braces; write nothing if there are none."
  (when attributes
    (write-char #\{ stream)
    (loop for ((name . value) . more) on attributes
          do (write-string (clean-name name) stream)
             (write-char #\= stream)
             (write-escaped value stream :quotes t)
             (when more (write-char #\, stream)))
    (write-char #\} stream)))

(defun scoped (attributes)
  "ATTRIBUTES and the attributes that identify this library as the source, sorted."
  (append (sort (copy-list attributes) #'string< :key #'car)
          (list (cons "otel_scope_name" "clgrpc") (cons "otel_scope_schema_url" "")
                (cons "otel_scope_version" **version**))))

(defun write-exemplar (exemplar stream)
  "Write EXEMPLAR, (value labels unix-ns), after a bucket, in the form of OpenMetrics."
  (destructuring-bind (value labels unix-ns) exemplar
    (write-string " # " stream)
    (write-labels labels stream)
    (unless labels (write-string "{}" stream))
    (write-char #\Space stream)
    (write-number value stream)
    (write-char #\Space stream)
    (write-number (/ unix-ns 1000000000) stream)))

(defun write-sample (name attributes number stream)
  (write-string name stream)
  (write-labels attributes stream)
  (write-char #\Space stream)
  (write-number number stream))

(defun bound-text (bound open)
  "BOUND as the value of the label le. If OPEN is true, for OpenMetrics, the value always has a
point."
  (let ((text (if (zerop bound)
                  "0"
                  (with-output-to-string (stream)
                    (write-number (coerce bound 'double-float) stream)))))
    (if (and open (notany (lambda (char) (find char ".e")) text))
        (concatenate 'string text ".0")
        text)))

(defun write-histogram (name point open stream)
  (let ((labels (scoped (point-attributes point)))
        (total 0))
    (loop for count in (point-buckets point)
          for bounds = (point-bounds point) then (rest bounds)
          for exemplars = (point-exemplars point) then (rest exemplars)
          do (incf total count)
             (write-sample (concatenate 'string name "_bucket")
                           (append labels
                                   (list (cons "le" (if bounds
                                                        (bound-text (first bounds) open)
                                                        "+Inf"))))
                           total stream)
             (when (and open (first exemplars)) (write-exemplar (first exemplars) stream))
             (terpri stream))
    (write-sample (concatenate 'string name "_sum") labels (point-sum point) stream)
    (terpri stream)
    (write-sample (concatenate 'string name "_count") labels total stream)
    (terpri stream)))

(defun write-family (family open stream)
  "Write FAMILY, in OpenMetrics if OPEN is true."
  (let* ((name (prometheus-name family))
         (counter (eq :counter (family-kind family)))
         (total (if counter (concatenate 'string name "_total") name))
         (head (if open name total)))
    (format stream "# HELP ~A " head)
    (write-escaped (family-text family) stream)
    (format stream "~%# TYPE ~A ~A~%" head
            (ecase (family-kind family)
              (:counter "counter")
              ((:up-down-counter :gauge) "gauge")
              (:histogram "histogram")))
    (dolist (point (family-points family))
      (cond ((eq :histogram (family-kind family)) (write-histogram name point open stream))
            (t (write-sample total (scoped (point-attributes point)) (point-value point) stream)
               (terpri stream))))))

(defun write-target (resource open stream)
  "Write target_info with the attributes of RESOURCE, an alist about the process, if there are any."
  (when resource
    (format stream "# HELP ~A Target metadata~%# TYPE ~:*~A ~:[gauge~;info~]~%"
            (if open "target" "target_info") open)
    (write-sample "target_info"
                  (sort (loop for (name . value) in resource
                              collect (cons name (value-text value)))
                        #'string< :key #'car)
                  1 stream)
    (terpri stream)))

(defun families-text (families open &key resource)
  "The text of FAMILIES, in OpenMetrics if OPEN is true, else in Prometheus's own format. The
attributes of RESOURCE, which describe the process, are written first."
  (with-output-to-string (stream)
    (write-target resource open stream)
    (dolist (family families) (write-family family open stream))
    (when open (format stream "# EOF~%"))))

(define-keyword-function metrics-text (metrics &key accept)
  "Return the counts of METRICS for Prometheus: octets, and their content type. ACCEPT is the
request's accept header, a string or nil: if it asks for OpenMetrics, the format is OpenMetrics,
with exemplars, else Prometheus's own. From any thread."
  (let ((open (open-metrics-wanted-p accept)))
    (values (string-octets (families-text (collect metrics) open
                                          :resource (metrics-resource metrics)))
            (if open
                "application/openmetrics-text; version=1.0.0; charset=utf-8"
                "text/plain; version=0.0.4; charset=utf-8"))))
