;;;; Reading: the counts of all shards are added up, and the figures of the process are read.
;;;; Readers take no lock: with many methods they need many milliseconds, in which a loop that
;;;; counts something new would wait. The lists and vectors that these functions read only get
;;;; further elements, which are complete.

(in-package #:clgrpc.metrics)

;;; Contents of cells

(defun merge-cells (pairs)
  "Return PAIRS, each of attributes and a list of numbers, with the numbers for the same attributes
added up."
  (let ((table (make-hash-table :test 'equal))
        (order '()))
    (loop for (attributes . numbers) in pairs
          do (let ((known (gethash attributes table)))
               (unless known (push attributes order))
               (setf (gethash attributes table) (if known (mapcar #'+ known numbers) numbers))))
    (loop for attributes in (nreverse order)
          collect (cons attributes (gethash attributes table)))))

(defun cell-list (cells at count)
  (loop for i from at below (+ at count) collect (aref (the cells cells) i)))

(defun histogram-points (scale pairs &optional exemplars)
  "Points of PAIRS of attributes and the cells of a histogram of SCALE. EXEMPLARS are pairs of
attributes and a vector of exemplars or nil."
  (loop for (attributes sum . buckets) in (merge-cells pairs)
        unless (every #'zerop buckets)
          collect (make-point :attributes attributes :sum (* sum (scale-unit scale))
                              :bounds (scale-values scale) :buckets buckets
                              :exemplars (merge-exemplars attributes exemplars
                                                          (length buckets)))))

(defun merge-exemplars (attributes pairs count)
  "A vector of the newest exemplar, or nil, of each of COUNT buckets, among those PAIRS that have
ATTRIBUTES; nil if there are no exemplars."
  (when-let ((vectors (loop for (other . vector) in pairs
                            when (and vector (equal attributes other)) collect vector)))
    (loop for i below count
          collect (when-let ((exemplars (remove nil (mapcar (lambda (vector) (svref vector i))
                                                            vectors))))
                    (let ((newest (reduce (lambda (a b)
                                            (if (< (exemplar-unix-ns a) (exemplar-unix-ns b))
                                                b a))
                                          exemplars)))
                      (list (* (exemplar-value newest) (scale-unit **latency**))
                            (exemplar-labels newest) (exemplar-unix-ns newest)))))))

(defun counter-points (pairs)
  (loop for (attributes number) in (merge-cells pairs)
        collect (make-point :attributes attributes :value number)))

(defun target-records (metrics role)
  (loop for shard in (all-shards metrics)
        append (remove role (shard-target-records shard) :key #'target-record-role :test-not #'eq)))

(defun target-record-method-records-of (target-record)
  "The method records of TARGET-RECORD, each once."
  (remove-duplicates (remove nil (coerce (target-record-method-records target-record) 'list))))

(defun status-text (number)
  (substitute #\_ #\- (string-upcase (if (= number 1) "cancelled" (status:code-status number)))))

(defun attributes-of (target-record &optional method-record status)
  "The attributes of TARGET-RECORD's counts, of METHOD-RECORD and of STATUS, a code."
  (append (when method-record (list (cons "grpc.method" (method-record-method method-record))))
          (when (target-record-target target-record)
                (list (cons "grpc.target" (target-record-target target-record))))
          (when status (list (cons "grpc.status" (status-text status))))
          (when (and method-record (target-record-protocol target-record))
                (list (cons "clgrpc.protocol" (target-record-protocol target-record))))))

(defun map-series (function metrics role reader)
  "Call FUNCTION with attributes and a SERIES, for each method record of ROLE and each status in the
vector that READER returns for the method record; return a list of the values."
  (loop for target-record in (target-records metrics role)
        append (loop for method-record in (target-record-method-records-of target-record)
                     append
                     (loop for series across (the simple-vector (funcall reader method-record))
                                  for status from 0
                                  when series
                                    collect (funcall function (attributes-of target-record
                                                                             method-record status)
                                                     series)))))

(defun series-points (metrics role reader at scale &optional exemplars)
  "Points of the histogram of SCALE at AT, for the series that READER returns; with exemplars if
EXEMPLARS is true."
  (flet ((exemplars (attributes series) (cons attributes (series-exemplars series)))
         (cells (attributes series)
           (cons attributes (cell-list (series-cells series) at (scale-cells scale)))))
    (histogram-points scale (map-series #'cells metrics role reader)
                      (and exemplars (map-series #'exemplars metrics role reader)))))

(defun method-record-points (metrics role at &optional scale)
  "The points of the method records of ROLE for the instrument at AT: a histogram if SCALE is given,
else a counter."
  (let ((pairs (loop for target-record in (target-records metrics role)
                     append
                     (loop for method-record in (target-record-method-records-of target-record)
                                  collect (cons (attributes-of target-record method-record)
                                                (cell-list (method-record-cells method-record) at
                                                           (if scale (scale-cells scale) 1)))))))
    (if scale
        (histogram-points scale pairs)
        (remove 0 (counter-points pairs) :key #'point-value))))

(defun target-record-points (metrics role at &optional scale)
  "As METHOD-RECORD-POINTS, for target records."
  (let ((pairs (loop for target-record in (target-records metrics role)
                     collect (cons (attributes-of target-record)
                                   (cell-list (target-record-cells target-record) at
                                              (if scale (scale-cells scale) 1))))))
    (if scale
        (histogram-points scale pairs)
        (let ((points (counter-points pairs)))
          ;; as in OpenTelemetry, points of channels exist once they have counted
          (if (eq :client role) (remove 0 points :key #'point-value) points)))))

(defun label-points (metrics role kind name)
  "Points of the counts of target records by texts of KIND, which is the attribute NAME."
  (counter-points (loop for target-record in (target-records metrics role)
                        append (loop for ((its-kind . text) . cells) in
                                     (target-record-labelled target-record)
                                     when (eq kind its-kind)
                                       collect (list (append (attributes-of target-record)
                                                             (list (cons name text)))
                                                     (aref (the cells cells) +padding+))))))

(defun less (points others)
  "POINTS, each reduced by the value that OTHERS have for its attributes."
  (loop for point in points
        for other = (find (point-attributes point) others :key #'point-attributes :test #'equal)
        collect (make-point :attributes (point-attributes point)
                            :value (- (point-value point) (if other (point-value other) 0)))))

(defun disconnection-points (metrics)
  (if (member "grpc.disconnect_error" (metrics-optional-labels metrics) :test #'string=)
      (label-points metrics :client :disconnection "grpc.disconnect_error")
      (target-record-points metrics :client +disconnected+)))

(defparameter *refusing-options*
  '("heap" "max-calls" "max-connections" "max-held-octets" "reserve-wait-seconds")
  "The options whose refusals are reported from the start, at 0. In a series that appears with the
first refusals Prometheus would see no increase.")

(defun refusal-points (metrics)
  (let ((points (label-points metrics :server :refusal "clgrpc.option")))
    (append points
            (and (target-records metrics :server)
                 (loop for option in *refusing-options*
                       for attributes = (list (cons "clgrpc.option" option))
                       unless (find attributes points :key #'point-attributes :test #'equal)
                         collect (make-point :attributes attributes :value 0))))))

;;; Loops

(defun live-loops (metrics)
  (remove nil (mapcar #'sb-ext:weak-pointer-value (metrics-loops metrics))))

(defun loop-points (metrics key &optional (unit 1))
  "Points of the statistic KEY of each loop, in units of UNIT, by the loop's name."
  (counter-points (loop for loop in (live-loops metrics)
                        collect (list (list (cons "clgrpc.loop" (loop:event-loop-name loop)))
                                      (/ (getf (loop:event-loop-statistics loop) key) unit)))))

(defun reserve-thread-points (metrics)
  (let ((reserves (remove-duplicates (mapcar #'loop:event-loop-statistics (live-loops metrics))
                                     :key (lambda (statistics) (getf statistics :reserve)))))
    (flet ((point (state key)
             (make-point :attributes (list (cons "clgrpc.state" state))
                         :value (reduce #'+ reserves :key (lambda (statistics)
                                                            (getf statistics key))))))
      (and reserves (list (point "busy" :busy-threads) (point "idle" :idle-threads))))))

;;; Logs

(defun lost-entry-points ()
  (loop for log in '(:events :binary)
        collect (make-point :attributes (list (cons "clgrpc.log" (string-downcase log)))
                            :value (lost-entries log))))

;;; The process

(defun one-point (number)
  (and number (list (make-point :value number))))

(defun foreign-integer (name)
  "The C int NAME of SBCL's runtime, or nil if it has none."
  (let ((address (sb-sys:find-foreign-symbol-address name)))
    (and address (sb-sys:sap-ref-32 (sb-sys:int-sap address) 0))))

(defvar *process* nil
  "While metrics are read, and after the first request for them: the kernel's figures of this
process.")

(defun process ()
  (or *process* (setf *process* (os:read-process))))

(defun build-points ()
  (list (make-point :value 1
                    :attributes (list (cons "version" **version**)
                                      (cons "lisp" (format nil "~A ~A" (lisp-implementation-type)
                                                           (lisp-implementation-version)))))))
;;; All of it

(defun read-instrument (metrics instrument)
  "INSTRUMENT and its counts in METRICS, as a FAMILY."
  (make-family :name (instrument-name instrument) :kind (instrument-kind instrument)
               :unit (instrument-unit instrument) :text (instrument-text instrument)
               :alias (instrument-alias instrument)
               :points (funcall (instrument-reader instrument) metrics)))

(defun collect (metrics &key (names t))
  "The counts of METRICS so far: a list of FAMILYs, in the order of the table of instruments,
followed by those of users' instruments. Families without points are omitted. NAMES is T or a list
of names, strings, of instruments: other instruments are not read. From any thread."
  (flet ((wanted (items key)
           (if (eq t names)
               items
               (remove-if-not (lambda (item) (member (funcall key item) names :test #'string=))
                              items))))
    (remove nil
            (append (let ((*process* nil))
                      (loop for instrument in (wanted (metrics-instruments metrics)
                                                      #'instrument-name)
                            collect (read-instrument metrics instrument)))
                    (mapcar #'custom-family (wanted (reverse (metrics-customs metrics))
                                                    #'custom-name)))
            :key #'family-points)))
