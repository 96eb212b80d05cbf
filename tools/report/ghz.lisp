;;;; A run as a report of ghz (ghz's runner/reporter.go, Report): fields with the same names, types
;;;; and definitions, so that programs which read ghz's reports read ours. Durations are integers of
;;;; nanoseconds. As in ghz, AVERAGE is the mean latency of all calls, and other figures of latency
;;;; count only calls that ended with OK.

(in-package #:clgrpc.report)

(defun object (&rest names-and-values)
  "A JSON object: NAMES-AND-VALUES alternate, and a value of nil leaves its member out."
  (loop for (name value) on names-and-values by #'cddr
        when value collect (cons name value)))

(defun json-vector (list)
  (coerce list 'simple-vector))

(defun json-number (value)
  "VALUE, a real, in JSON's form."
  (if (integerp value) value (float value 1d0)))

;;; Times

(defun time-text (unix-ns)
  "UNIX-NS, nanoseconds since 1970, in the form of RFC 3339, in UTC."
  (multiple-value-bind (seconds ns) (floor unix-ns +ns-per-second+)
    (or (protobuf:timestamp-text seconds ns) "")))

(defun second-text (unix-ns)
  "The text of the time UNIX-NS, to the second."
  (time-text (- unix-ns (mod unix-ns +ns-per-second+))))

;;; Latencies

(defparameter *ghz-percentages* '(10 25 50 75 90 95 99) "The percentages in ghz's reports, which are
integers.")

(defun ghz-distribution (latency)
  (json-vector
   (unless (zerop (load:histogram-count latency))
     (loop for percentage in *ghz-percentages*
           collect (object "percentage" percentage
                           "latency" (round (load:histogram-quantile latency
                                                                     (/ percentage 100))))))))

(defun bucket-counts (latency marks)
  "For each two neighbours in MARKS, the number of values of the histogram LATENCY between them:
greater than the first and at most the second. MARKS is a rising list from the lowest value to the
highest."
  (let ((counts (make-list (length marks) :initial-element 0)))
    (load:map-histogram
     (lambda (low high count)
       ;; the least value is known exactly, and belongs to the first mark
       (when (and (<= low (load:histogram-min latency)) (< (load:histogram-min latency) high))
         (incf (first counts))
         (decf count))
       (let* ((value (min (load:histogram-max latency)
                          (max (load:histogram-min latency) (/ (+ low high -1) 2))))
              (place (or (position-if (lambda (mark) (<= value mark)) marks)
                         (1- (length marks)))))
         (incf (nth place counts) count)))
     latency)
    counts))

(defun even-marks (low high steps)
  "A list of values from LOW to HIGH in STEPS equal steps."
  (loop for i from 0 to steps
        collect (+ low (* (/ i steps) (- high low)))))

(defun ghz-histogram (latency)
  "ghz's eleven buckets, each with its upper end in seconds."
  (let ((count (load:histogram-count latency))
        (marks (even-marks (load:histogram-min latency) (load:histogram-max latency) 10)))
    (json-vector
     (unless (zerop count)
       (loop for mark in marks
             for in-bucket in (bucket-counts latency marks)
             collect (object "mark" (float (/ mark 1000000000) 1d0)
                             "count" in-bucket
                             "frequency" (float (/ in-bucket count) 1d0)))))))

;;; Statuses and errors

(defun error-text (status message)
  "The text of an error with STATUS, a name, and MESSAGE, as grpc-go prints it and ghz reports it."
  (format nil "rpc error: code = ~A desc = ~A" status message))

(defun other-errors (row)
  "The number of calls of the STATUS-ROW that ended with a message that was not kept."
  (- (load:status-row-count row)
     (reduce #'+ (load:status-row-messages row) :key #'cdr)))

(defun error-rows (run)
  "The errors in RUN: conses (text . count), the most frequent first."
  (sort (loop for row in (load:run-statuses run)
              for name = (load:status-row-name row)
              unless (zerop (load:status-row-code row))
                append (loop for (message . count) in (load:status-row-messages row)
                             collect (cons (error-text name message) count))
                and when (plusp (other-errors row))
                      collect (cons (format nil "rpc error: code = ~A, other messages" name)
                                    (other-errors row)))
        #'> :key #'cdr))

(defun ghz-detail (sample)
  "SAMPLE in ghz's form, where the timestamp is the end of the call."
  (let ((status (load:sample-status sample)))
    (object "timestamp" (time-text (+ (load:sample-unix-ns sample)
                                      (load:sample-latency-ns sample)))
            "latency" (load:sample-latency-ns sample)
            "error" (if (string= "OK" status)
                        ""
                        (error-text status (or (load:sample-error sample) "")))
            "status" status)))

;;; Options

(defparameter *ghz-options*
  '(("call" string) ("host" string) ("proto" string) ("protoset" string)
    ("import-paths" strings) ("enable-compression" boolean) ("cacert" string) ("cert" string)
    ("key" string) ("cname" string) ("skipTLS" boolean) ("insecure" boolean :false)
    ("authority" string) ("rps" integer) ("load-schedule" string "const")
    ("load-start" integer 0) ("load-end" integer 0) ("load-step" integer 0)
    ("load-step-duration" integer 0) ("load-max-duration" integer 0) ("concurrency" integer)
    ("concurrency-schedule" string "const") ("concurrency-start" integer 0)
    ("concurrency-end" integer 0) ("concurrency-step" integer 0)
    ("concurrency-step-duration" integer 0) ("concurrency-max-duration" integer 0)
    ("total" integer) ("async" boolean) ("connections" integer) ("duration" integer)
    ("timeout" integer) ("dial-timeout" integer) ("keepalive" integer) ("data" t)
    ("binary" boolean :false) ("metadata" pairs) ("CPUs" integer 1) ("name" string)
    ("skipFirst" integer) ("count-errors" boolean))
  "The options in ghz's report: name, type and, for some, the text that is written if the option has
no value.")

(defun of-json-type-p (value type)
  "True if the JSON VALUE is of TYPE, one of those in *GHZ-OPTIONS*."
  (ecase type
    ((t) t)
    (string (stringp value))
    (integer (typep value '(signed-byte 64)))
    (boolean (member value '(:true :false)))
    (strings (and (simple-vector-p value) (every #'stringp value)))
    (pairs (and (listp value) (every #'consp value)
                (every (lambda (member) (stringp (cdr member))) value)))))

(defun ghz-option-p (option)
  "True if ghz has an option with the name and type of OPTION, a cons (name . JSON)."
  (let ((row (assoc (car option) *ghz-options* :test #'string=)))
    (and row (of-json-type-p (cdr option) (second row)))))

(defun ghz-options (run)
  (let ((given (remove-if-not #'ghz-option-p (load:run-options run))))
    (loop for (name nil default) in *ghz-options*
          for option = (assoc name given :test #'string=)
          for value = (if option (cdr option) default)
          when (or option value) collect (cons name value))))

;;; The report

(defun end-reason (run)
  (ecase (load:run-ended-early run)
    ((nil) "normal")
    ((:interrupted :terminated) "cancel")
    (:deadline "timeout")))

(defun ghz-fields (run)
  "RUN as ghz's report, a JSON object."
  (let ((latency (load:run-latency run)))
    (append
     (when (load:run-name run) (object "name" (load:run-name run)))
     (object "endReason" (end-reason run)
             "date" (second-text (+ (load:run-started-unix-ns run) (load:run-duration-ns run))))
     (list (cons "options" (ghz-options run)))
     (object "count" (load:run-count run)
             "total" (load:run-duration-ns run)
             "average" (round (load:histogram-mean (load:run-all-latency run)))
             "fastest" (load:histogram-min latency)
             "slowest" (load:histogram-max latency)
             "rps" (float (rate run) 1d0))
     (list (cons "errorDistribution" (error-rows run))
           (cons "statusCodeDistribution"
                 (loop for row in (load:run-statuses run)
                       collect (cons (load:status-row-name row) (load:status-row-count row))))
           (cons "latencyDistribution" (ghz-distribution latency))
           (cons "histogram" (ghz-histogram latency))
           (cons "details" (json-vector (mapcar #'ghz-detail (load:run-samples run)))))
     (when (load:run-tags run) (list (cons "tags" (load:run-tags run)))))))
