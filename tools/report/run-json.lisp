;;;; A run as JSON: ghz's report, and all other data of the run under "clgrpc", from which
;;;; RUN-READER makes the run again. A histogram is an object with its exact count, sum, min and max
;;;; and its buckets, pairs [least value in ns, count] of buckets that are not empty.

(in-package #:clgrpc.report)

(defparameter *told-percentiles* '("p50" "p75" "p90" "p95" "p99" "p99.9" "p99.99")
  "The percentiles in the part of reports that ghz's lack.")

(defun histogram-json (histogram)
  (let ((buckets '()))
    (load:map-histogram (lambda (low high count)
                          (declare (ignore high))
                          (push (vector low count) buckets))
                        histogram)
    (object "count" (load:histogram-count histogram)
            "sum" (load:histogram-sum histogram)
            "min" (load:histogram-min histogram)
            "max" (load:histogram-max histogram)
            "buckets" (json-vector (nreverse buckets)))))

(defun status-json (row)
  (append (object "name" (load:status-row-name row)
                  "code" (load:status-row-code row)
                  "count" (load:status-row-count row)
                  "latency" (histogram-json (load:status-row-latency row)))
          (list (cons "messages" (load:status-row-messages row)))))

(defun share-json (row key)
  (object key (load:share-row-name row)
          "count" (load:share-row-count row)
          "errors" (load:share-row-errors row)
          "latency" (histogram-json (load:share-row-latency row))))

(defun second-json (row)
  (object "count" (load:second-row-count row)
          "errors" (load:second-row-errors row)
          "latency" (histogram-json (load:second-row-latency row))
          "sentOctets" (load:second-row-sent-octets row)
          "receivedOctets" (load:second-row-received-octets row)
          "connections" (load:second-row-connections row)
          "latenessMax" (load:second-row-lateness-max-ns row)))

(defun figures-json (run)
  "The most used figures, so that readers need not compute them from histograms."
  (loop for name in (append *told-percentiles* '("mean" "max" "errors" "error-ratio" "rps"
                                                 "cpu-per-call"))
        for value = (figure-value name run)
        when value collect (cons name (json-number value))))

(defun keyword-name (keyword)
  (string-downcase keyword))

(defun own-fields (run)
  "The data of RUN that ghz's report lacks, or has only in part."
  (append
   (object "version" 1
           "figures" (figures-json run)
           "target" (load:run-target run)
           "method" (load:run-method run)
           "kind" (keyword-name (load:run-kind run))
           "loop" (keyword-name (load:run-loop-kind run))
           "intendedRps" (and (load:run-intended-rps run)
                              (json-number (load:run-intended-rps run)))
           "started" (load:run-started-unix-ns run)
           "burst" (load:run-burst run)
           "underWay" (load:run-under-way run)
           "messageLatency" (histogram-json (load:run-message-latency run))
           "oldestUnderWay" (load:run-oldest-under-way-ns run)
           "latency" (histogram-json (load:run-latency run))
           "allLatency" (histogram-json (load:run-all-latency run))
           "lateness" (histogram-json (load:run-lateness run))
           "intervalSeconds" (load:run-interval-seconds run)
           "octetsSent" (load:run-octets-sent run)
           "octetsReceived" (load:run-octets-received run)
           "messagesSent" (load:run-messages-sent run)
           "messagesReceived" (load:run-messages-received run)
           "connections" (load:run-connections run)
           "connects" (load:run-connects run)
           "cpu" (load:run-cpu-ns run)
           "limited" (load:run-limited run))
   (list (cons "server" (or (load:run-server run) :null))
         (cons "options" (remove-if #'ghz-option-p (load:run-options run)))
         (cons "stages" (loop for (name . histogram) in (load:run-stages run)
                              collect (cons name (histogram-json histogram))))
         (cons "statuses" (json-vector (mapcar #'status-json (load:run-statuses run))))
         (cons "backends" (json-vector (loop for row in (load:run-backends run)
                                             collect (share-json row "address"))))
         (cons "methods" (json-vector (loop for row in (load:run-methods run)
                                            collect (share-json row "method"))))
         (cons "seconds" (map 'simple-vector #'second-json (load:run-seconds run)))
         (cons "rounds" (json-vector (mapcar #'run-json (load:run-rounds run)))))))

(defun run-json (run &key before)
  "RUN as a JSON object: ghz's report, with all other data under \"clgrpc\", including the
comparison with BEFORE, another run, if given."
  (append (ghz-fields run)
          (list (cons "clgrpc"
                      (append (own-fields run)
                              (when before
                                (list (cons "comparison"
                                            (runs-comparison-json before run)))))))))

(defun write-indented (value depth stream)
  (flet ((write-items (open close items write-item)
           (write-char open stream)
           (loop for (item . more) on items
                 do (format stream "~%~V@T" (* 2 (1+ depth)))
                    (funcall write-item item)
                    (when more (write-char #\, stream)))
           (format stream "~%~V@T~C" (* 2 depth) close)))
    (cond ((consp value)
           (write-items #\{ #\} value
                        (lambda (member)
                          (format stream "~A: " (write-json (car member)))
                          (write-indented (cdr member) (1+ depth) stream))))
          ((and (simple-vector-p value) (plusp (length value))
                (notevery #'integerp value)) ; pairs of integers stay on a line
           (write-items #\[ #\] (coerce value 'list)
                        (lambda (item) (write-indented item (1+ depth) stream))))
          (t (write-json value :stream stream)))))

(defun pretty-json (value)
  "The JSON VALUE as text with a line for each member, indented."
  (with-output-to-string (stream) (write-indented value 0 stream)))
