;;;; Runs made again from reports in JSON: with all data from our own; from ghz's, which list every
;;;; call, with the data that follow from the calls. An error names the member that is missing or of
;;;; a wrong type.

(in-package #:clgrpc.report)

(define-condition unreadable-run (clgrpc-error)
  ((text :initarg :text :reader unreadable-run-text)) ; the error, in one line
  (:report (lambda (condition stream) (write-string (unreadable-run-text condition) stream)))
  (:documentation "A file is not the report of a run. The condition's text gives the reason, in one
line."))

(defun reject-report (control &rest arguments)
  (error 'unreadable-run :text (format nil "~?" control arguments)))

(defun member-of (object name type &optional (default nil default-p))
  "The member NAME of the JSON OBJECT, which must be of the Lisp TYPE. If DEFAULT is given, it
replaces a missing member and null, which Go writes for empty values."
  (let ((member (and (listp object) (assoc name object :test #'string=))))
    (cond ((and default-p (or (null member) (eq :null (cdr member)))) default)
          ((and member (typep (cdr member) type)) (cdr member))
          (t (reject-report "it has no ~S that is a report's" name)))))

(defun whole-member (object name)
  (member-of object name '(unsigned-byte 62) 0))

(defun read-histogram (json)
  (load:restore-histogram
   (loop for pair across (member-of json "buckets" 'simple-vector)
         unless (and (simple-vector-p pair) (= 2 (length pair))
                     (every (lambda (number) (typep number '(unsigned-byte 62))) pair))
           do (reject-report "a bucket of a histogram is a pair of integers")
         collect (cons (svref pair 0) (svref pair 1)))
   :sum (member-of json "sum" '(unsigned-byte 62))
   :min (member-of json "min" '(unsigned-byte 62))
   :max (member-of json "max" '(unsigned-byte 62))))

(defun histogram-member (object name)
  (read-histogram (member-of object name 'list)))

(defun read-status (json)
  (load:make-status-row
   :name (member-of json "name" 'string) :code (member-of json "code" '(unsigned-byte 8))
   :count (whole-member json "count") :latency (histogram-member json "latency")
   :messages (loop for (message . count) in (member-of json "messages" 'list '())
                   unless (typep count '(unsigned-byte 62))
                     do (reject-report "the count of a message is not an integer")
                   collect (cons message count))))

(defun read-share (json key)
  (load:make-share-row :name (member-of json key 'string)
                       :count (whole-member json "count")
                       :errors (whole-member json "errors")
                       :latency (histogram-member json "latency")))

(defun read-second (json)
  (load:make-second-row :count (whole-member json "count") :errors (whole-member json "errors")
                        :latency (histogram-member json "latency")
                        :sent-octets (whole-member json "sentOctets")
                        :received-octets (whole-member json "receivedOctets")
                        :connections (whole-member json "connections")
                        :lateness-max-ns (whole-member json "latenessMax")))

;;; Reading the calls that a report lists one by one

(defun read-time (text)
  "The time TEXT, in the form of RFC 3339, in nanoseconds since 1970."
  (multiple-value-bind (seconds ns) (protobuf:parse-timestamp-text text)
    (if (and seconds (<= 0 seconds))
        (+ ns (* +ns-per-second+ seconds))
        (reject-report "~S is not a time" text))))

(defun error-message (text status)
  "The message of a call that ended with STATUS; TEXT is the value of ERROR-TEXT for it."
  (let ((prefix (error-text status "")))
    (if (uiop:string-prefix-p prefix text)
        (subseq text (length prefix))
        text)))

(defun read-detail (json)
  "The call in JSON, an element of ghz's details."
  (let ((latency (member-of json "latency" '(unsigned-byte 61)))
        (status (member-of json "status" 'string))
        (text (member-of json "timestamp" 'string nil)))
    (load:make-sample :unix-ns (if text (max 0 (- (read-time text) latency)) 0)
                      :latency-ns latency :status status
                      :error (unless (string= "OK" status)
                               (error-message (member-of json "error" 'string "") status)))))

(defun read-kind (object name keywords)
  "The element of KEYWORDS that the member NAME of OBJECT names."
  (or (find (member-of object name 'string) keywords :test #'string-equal)
      (reject-report "its ~S is not one of ~{~(~A~)~^, ~}" name keywords)))

(defun read-end-reason (json)
  (let ((reason (member-of json "endReason" 'string "normal")))
    (cond ((string= reason "cancel") :interrupted)
          ((string= reason "timeout") :deadline))))

(defun vector-of (function object name)
  (map 'list function (member-of object name 'simple-vector #())))

(defun read-options (json own)
  (append (member-of json "options" 'list '()) (member-of own "options" 'list '())))

(defun read-own-run (json own)
  "The run in JSON, a report of this program's, whose member \"clgrpc\" is OWN."
  (unless (eql 1 (member-of own "version" 'integer))
    (reject-report "it was written by a later version, whose reports are different"))
  (load:make-run
   :name (member-of json "name" 'string nil)
   :target (member-of own "target" 'string) :method (member-of own "method" 'string)
   :kind (read-kind own "kind" '(:unary :client-streaming :server-streaming :bidi))
   :started-unix-ns (whole-member own "started")
   :duration-ns (member-of json "total" '(unsigned-byte 62))
   :options (read-options json own) :tags (member-of json "tags" 'list '())
   :loop-kind (read-kind own "loop" '(:open :closed))
   :intended-rps (member-of own "intendedRps" 'real nil)
   :count (member-of json "count" '(unsigned-byte 62))
   :latency (histogram-member own "latency") :all-latency (histogram-member own "allLatency")
   :statuses (vector-of #'read-status own "statuses")
   :backends (vector-of (lambda (json) (read-share json "address")) own "backends")
   :methods (vector-of (lambda (json) (read-share json "method")) own "methods")
   :seconds (coerce (vector-of #'read-second own "seconds") 'vector)
   :interval-seconds (member-of own "intervalSeconds" '(integer 1) 1)
   :stages (loop for (name . histogram) in (member-of own "stages" 'list '())
                 collect (cons name (read-histogram histogram)))
   :lateness (histogram-member own "lateness")
   :octets-sent (whole-member own "octetsSent")
   :octets-received (whole-member own "octetsReceived")
   :messages-sent (whole-member own "messagesSent")
   :messages-received (whole-member own "messagesReceived")
   :connections (whole-member own "connections") :connects (whole-member own "connects")
   :cpu-ns (whole-member own "cpu") :limited (member-of own "limited" 'string nil)
   :burst (member-of own "burst" '(integer 1 1000000000) 1)
   :under-way (whole-member own "underWay")
   :message-latency (if (member-of own "messageLatency" 'list nil)
                        (histogram-member own "messageLatency")
                        (load:make-histogram))
   :server (member-of own "server" 'list '())
   :oldest-under-way-ns (whole-member own "oldestUnderWay")
   :ended-early (read-end-reason json)
   :samples (vector-of #'read-detail json "details")
   :rounds (vector-of #'parse-run-object own "rounds")))

;;; ghz's

(defun read-ghz-statuses (json by-status)
  "The STATUS-ROWs of JSON, a report of ghz's, with the histograms of the table BY-STATUS."
  (loop for (name . count) in (member-of json "statusCodeDistribution" 'list '())
        unless (typep count '(unsigned-byte 62))
          do (reject-report "the count of a status is not an integer")
        collect (load:make-status-row :name name :count count
                                      :code (or (position name load:*status-names*
                                                          :test #'string=)
                                                2)
                                      :latency (or (gethash name by-status)
                                                   (load:make-histogram)))))

(defparameter *most-samples* 4096
  "The maximum number of calls of ghz's report that are kept one by one.")

(defun spread-samples (samples)
  "SAMPLES sorted by time. If they are more than *MOST-SAMPLES*, only every second, third or nth of
them."
  (let ((step (ceiling (length samples) *most-samples*)))
    (loop for sample in (sort (copy-list samples) #'< :key #'load:sample-unix-ns)
          for i from 0
          when (zerop (mod i step)) collect sample)))

(defun read-ghz-run (json)
  "The run in JSON, a report of ghz's, made from its list of calls."
  (let ((samples (vector-of #'read-detail json "details"))
        (latency (load:make-histogram)) (all (load:make-histogram))
        (by-status (make-hash-table :test 'equal))
        (options (member-of json "options" 'list '())))
    (dolist (sample samples)
      (let ((ns (load:sample-latency-ns sample)) (status (load:sample-status sample)))
        (load:record-value all ns)
        (load:record-value (alexandria:ensure-gethash status by-status (load:make-histogram))
                           ns)
        (when (string= status "OK") (load:record-value latency ns))))
    (load:make-run
     :name (member-of json "name" 'string nil)
     :target (member-of options "host" 'string "") :method (member-of options "call" 'string "")
     :started-unix-ns (if samples (reduce #'min samples :key #'load:sample-unix-ns) 0)
     :duration-ns (member-of json "total" '(unsigned-byte 62))
     :options options :count (member-of json "count" '(unsigned-byte 62))
     :latency latency :all-latency all
     :statuses (read-ghz-statuses json by-status)
     :ended-early (read-end-reason json)
     :samples (spread-samples samples))))

(defun parse-run-object (json)
  (let ((own (member-of json "clgrpc" 'list nil)))
    (if own (read-own-run json own) (read-ghz-run json))))

(defparameter *longest-report* (expt 2 29) "The maximum number of octets of a file with a report.")

(defun parse-run (source)
  "The run from SOURCE, its report in JSON, a string or octets: a report that RUN-JSON made, or a
report of ghz. Signal UNREADABLE-RUN if SOURCE is not a report."
  (handler-case (parse-run-object (parse-json source :max-length *longest-report*))
    (json-error (error) (reject-report "~A" error))
    (limit-exceeded (error) (reject-report "~A" error))))

(defun error-reason (error)
  "The reason of ERROR, about a file or a stream: a few words of the system, without the file's
name."
  (let* ((text (bounded-text error)) (colon (search ": " text :from-end t)))
    (cond (colon (subseq text (+ colon 2)))
          ;; the error in SBCL for a path whose directory is missing
          ((search "does not exist" text) "No such file or directory")
          (t text))))

(defun read-run-file (path)
  "The run from the file at PATH, a string, which contains its report in JSON. Signal
UNREADABLE-RUN, which names the file, if the file has no such report."
  (handler-case
      (parse-run (file-octets path :most *longest-report*))
    (unreadable-run (error) (reject-report "~A is not the report of a run: ~A" path error))
    (error (error) (reject-report "~A cannot be read: ~A" path (error-reason error)))))
