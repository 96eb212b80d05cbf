;;;; A reader of the metrics that a process serves for Prometheus: samples by name and labels, and
;;;; the counts of gRPC's methods among them.

(in-package #:clgrpc.tools)

;;; Samples

(defun parse-labels (line start)
  "Return two values: the labels in LINE after the brace at START, an alist, and the position of
their end."
  (let ((labels '()) (at (1+ start)))
    (loop
      (when (char= #\} (char line at)) (return (values (nreverse labels) (1+ at))))
      (let* ((equals (position #\= line :start at))
             (name (string-left-trim ", " (subseq line at equals)))
             (value (make-string-output-stream)))
        (setf at (+ 2 equals))          ; after the quote
        (loop for char = (char line at)
              until (char= #\" char)
              do (when (char= #\\ char)
                   (incf at)
                   (setf char (if (char= #\n (char line at)) #\Newline (char line at))))
                 (write-char char value)
                 (incf at))
        (push (cons name (get-output-stream-string value)) labels)
        (incf at)
        (when (char= #\, (char line at)) (incf at))))))

(defconstant +exact-float+ 1d15
  "The absolute value below which a float without a fraction is read as an integer.")

(defun parse-number (text)
  "The number that TEXT means. Return an integer if the number is whole and below +EXACT-FLOAT+,
even if it is written like 5.0. Return nil if JSON cannot represent the number, for instance NaN."
  (let ((number (handler-case (parse-json text) (clgrpc-error () nil))))
    (cond ((not (realp number)) nil)
          ((and (floatp number) (< (abs number) +exact-float+) (= number (ffloor number)))
           (round number))
          (t number))))

(defun parse-exposition-sample (line)
  "Return three values: the name, the labels and the number in LINE of a text for Prometheus. Return
nil if LINE contains no sample."
  (handler-case
      (let* ((end (position-if (lambda (char) (find char "{ ")) line))
             (name (subseq line 0 end)))
        (multiple-value-bind (labels at)
            (if (char= #\{ (char line end)) (parse-labels line end) (values '() end))
          (let* ((start (position #\Space line :start at :test #'char/=))
                 (number (parse-number (subseq line start (position #\Space line :start start)))))
            (and number (values name labels number)))))
    ;; LINE ends too early, or is not a sample
    (error () nil)))

;;; Methods

(defstruct (method-reading (:copier nil))
  "The counts of one method at one time."
  (role "" :type string :read-only t)   ; "server" or "client"
  (name "" :type string :read-only t)   ; the name of the method
  (target "" :type string :read-only t) ; the target of a client's channels
  (started nil :type (or null real))    ; calls that have begun, of servers
  (ended 0 :type real)                  ; calls that have ended
  (failed 0 :type real)                 ; calls that ended with another status than OK
  ;; an alist from a bound, nil without a bound, to the number of calls that took no longer
  (buckets '() :type list))

(defparameter *method-metrics*
  '(("grpc_server_call_started_total" "server" :started)
    ("grpc_server_call_duration_seconds_count" "server" :ended)
    ("grpc_server_call_duration_seconds_bucket" "server" :bucket)
    ("grpc_client_call_duration_seconds_count" "client" :ended)
    ("grpc_client_call_duration_seconds_bucket" "client" :bucket))
  "Rows for metrics: name, the side that counts, server or client, and the counted thing.")

(defparameter *most-methods* 2000
  "The maximum number of rows of methods that are read from a process: a client has a row for each
pair of a method and a target.")
(defparameter *most-buckets* 500 "The maximum number of buckets of one method that are read.")

(defun add-sample (reading what labels number)
  "Add NUMBER, a sample with LABELS, to the count WHAT of READING."
  (flet ((label (name) (cdr (assoc name labels :test #'string=))))
    (ecase what
      (:started (setf (method-reading-started reading)
                      (+ number (or (method-reading-started reading) 0))))
      (:ended (incf (method-reading-ended reading) number)
       (unless (equal "OK" (label "grpc_status")) (incf (method-reading-failed reading) number)))
      (:bucket (let* ((bound (parse-number (or (label "le") "")))
                      (entry (assoc bound (method-reading-buckets reading) :test #'eql)))
                 (cond (entry (incf (cdr entry) number))
                       (t (when (= *most-buckets* (length (method-reading-buckets reading)))
                            (fail-command "the metrics have more than ~D buckets of a method"
                                          *most-buckets*))
                          (push (cons bound number) (method-reading-buckets reading)))))))))

(defun read-methods (octets)
  "Return two values: the METHOD-READINGs in OCTETS, a text for Prometheus, in their order; and the
number of METHOD-READINGs that were left out. At most *MOST-METHODS* are returned, because samples
are compared one by one."
  (let ((readings (make-hash-table :test 'equal)) (order '()))
    (with-input-from-string (stream (octets-string octets))
      (loop for line = (read-line stream nil)
            while line
            when (uiop:string-prefix-p "grpc_" line)
              do (multiple-value-bind (name labels number) (parse-exposition-sample line)
                   (when-let ((row (assoc name *method-metrics* :test #'equal)))
                     (flet ((label (name) (or (cdr (assoc name labels :test #'string=)) "")))
                       (let ((key (list (second row) (label "grpc_method")
                                        (label "grpc_target"))))
                         (add-sample (or (gethash key readings)
                                         (let ((reading (make-method-reading
                                                         :role (first key) :name (second key)
                                                         :target (third key))))
                                           (when (< (hash-table-count readings) *most-methods*)
                                             (push reading order))
                                           (setf (gethash key readings) reading)))
                                     (third row) labels number)))))))
    (values (nreverse order) (max 0 (- (hash-table-count readings) *most-methods*)))))

(defparameter *process-metrics*
  '("process_cpu_seconds_total" "process_start_time_seconds" "process_threads" "process_open_fds"
    "clgrpc_heap_used_bytes" "clgrpc_heap_limit_bytes" "clgrpc_gc_collections_total")
  "The metrics of the process itself that are read.")

(defun read-figures (octets)
  "The metrics of *PROCESS-METRICS* that are in OCTETS, a text for Prometheus, as an alist."
  (with-input-from-string (stream (octets-string octets))
    (loop for line = (read-line stream nil)
          while line
          for name = (subseq line 0 (position-if (lambda (char) (find char "{ ")) line))
          when (member name *process-metrics* :test #'string=)
            collect (cons name (nth-value 2 (parse-exposition-sample line))))))

(defun buckets-since (new old)
  "The calls in the buckets of NEW, a METHOD-READING, minus those in OLD, an earlier METHOD-READING
or nil: pairs of a bound and a number, ascending, not cumulative."
  (let ((last 0))
    (loop for (bound . count) in (sort (copy-list (method-reading-buckets new))
                                       (lambda (a b) (and a (or (null b) (< a b)))) :key #'car)
          for before = (or (and old (cdr (assoc bound (method-reading-buckets old) :test #'eql)))
                           0)
          for since = (- count before)
          collect (cons bound (- since last))
          do (setf last since))))

(defun bucket-quantile (share buckets)
  "The quantile SHARE of the calls in BUCKETS, which BUCKETS-SINCE returned, as Prometheus's
histogram_quantile estimates it, or nil if BUCKETS have no calls."
  (let ((rank (* share (reduce #'+ buckets :key #'cdr))) (below 0) (last 0))
    (when (plusp rank)
      (loop for (bound . count) in buckets
            do (when (and (plusp count) (<= rank (+ below count)))
                 (return (if bound
                             (+ last (* (- bound last) (/ (- rank below) count)))
                             last)))
               (incf below count)
               (when bound (setf last bound))))))
