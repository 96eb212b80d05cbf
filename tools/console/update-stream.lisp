;;;; Update streams: the series and values of a console's metrics at the last reading, from which
;;;; changes are computed; and the updates of the last minutes, for viewers that connect later. This
;;;; file makes the parts of updates that come from metrics; see update.lisp for the whole.

(in-package #:clgrpc.console)

(defconstant +updates+ 300
  "The maximum number of updates that an update stream keeps and that the page shows.")

(defparameter *durations*
  '(("grpc.server.call.duration" . "server") ("grpc.client.call.duration" . "client"))
  "The instruments from which series are made, with the role of each.")

(defparameter *values*
  '("grpc.server.call.started" "clgrpc.server.connections" "clgrpc.server.connections_accepted"
    "clgrpc.server.refusals" "clgrpc.loop.turns" "clgrpc.loop.connections"
    "clgrpc.gc.collections" "clgrpc.gc.pause" "clgrpc.heap.used" "clgrpc.heap.limit"
    "clgrpc.heap.allocated" "process.cpu.time" "process.memory.usage" "process.thread.count")
  "The instruments whose values are shown. The number of open descriptors is not among them, because
counting thousands takes long.")

(defstruct (series (:constructor make-series (number attributes)) (:copier nil))
  "The calls of one role, method, status, target and protocol, as last seen."
  (number 0 :type index :read-only t)   ; the series' number in updates
  (attributes '() :type list :read-only t) ; the five attributes, strings; "" if absent
  (buckets '() :type list)              ; how many calls each bucket has
  (sum 0 :type real))                   ; how many seconds the calls took together

(defstruct (update-stream (:copier nil))
  "The data of the last reading of a console, and its last updates. Only one thread uses it."
  (series (make-hash-table :test 'equal) :type hash-table :read-only t) ; series by attributes
  (bounds '() :type list)               ; the bounds of the buckets, in seconds
  (values (make-hash-table :test 'equal) :type hash-table :read-only t) ; values by name
  (call 0 :type (unsigned-byte 62))     ; the number of the last call that was kept
  (entry 0 :type index)                 ; the number of the last event of the log
  (servers '() :type list)              ; the last data of servers
  (threads '() :type list)              ; the last data of threads
  (taken-ns 0 :type (unsigned-byte 62)) ; when the last update was made
  (updates (make-fifo) :type fifo :read-only t) ; the last updates
  (count 0 :type index))                ; the length of UPDATES

(declaim (sb-ext:freeze-type series update-stream))

(define-printer (series series)
  "~D ~{~A~^ ~}" (series-number series) (series-attributes series))

(define-printer (update-stream update-stream)
  "~D series, ~D updates" (hash-table-count (update-stream-series update-stream))
  (update-stream-count update-stream))

;;; JSON

(defun json-number (number)
  "NUMBER, a real, in a form that WRITE-JSON accepts."
  (if (integerp number) number (coerce number 'double-float)))

(defun json-list (items)
  (coerce items 'simple-vector))

(defun json-value (value)
  "VALUE of a plist, of any type, in a form that WRITE-JSON accepts."
  (typecase value
    (null :null)
    ((eql t) :true)
    (string (printable-text value))
    (real (json-number value))
    (symbol (string-downcase value))
    (cons (if (keywordp (first value))
              (json-object value)
              (json-list (mapcar #'json-value value))))
    (t (printable-text (bounded-text value :limit 200 :escape nil)))))

(defun json-object (plist)
  (loop for (key value) on plist by #'cddr
        collect (cons (string-downcase key) (json-value value))))

(defun unix-ms (unix-ns)
  (floor unix-ns 1000000))

(defun members (&rest names-and-values)
  "The members of an object, without those whose value is nil or an empty vector."
  (loop for (name value) on names-and-values by #'cddr
        unless (or (null value) (and (simple-vector-p value) (zerop (length value))))
          collect (cons name value)))

;;; Series and values

(defun point-attribute (point name)
  (or (cdr (assoc name (metrics:point-attributes point) :test #'string=)) ""))

(defun attributes-of (role point)
  (list role (point-attribute point "grpc.method") (point-attribute point "grpc.status")
        (point-attribute point "grpc.target") (point-attribute point "clgrpc.protocol")))

(defun ensure-series (update-stream attributes)
  (let ((table (update-stream-series update-stream)))
    (alexandria:ensure-gethash attributes table (make-series (hash-table-count table) attributes))))

(defun count-row (number sum buckets)
  "The element of \"counts\" for the series NUMBER, or nil if BUCKETS are all empty."
  (let ((pairs (loop for count in buckets
                     for bucket from 0
                     unless (zerop count) append (list bucket count))))
    (and pairs (json-list (list* number (json-number sum) pairs)))))

(defun update-series (update-stream role point)
  "Note POINT of a histogram in UPDATE-STREAM; return the row for \"counts\", or nil if POINT has
not changed."
  (let* ((series (ensure-series update-stream (attributes-of role point)))
         (buckets (metrics:point-buckets point))
         (before (or (series-buckets series) (mapcar (constantly 0) buckets)))
         (sum-before (series-sum series)))
    (setf (series-buckets series) buckets
          (series-sum series) (metrics:point-sum point)
          (update-stream-bounds update-stream) (metrics:point-bounds point))
    (count-row (series-number series) (- (metrics:point-sum point) sum-before)
               (mapcar #'- buckets before))))

(defun series-row (series)
  (json-list (cons (series-number series) (series-attributes series))))

(defun all-series (update-stream &key (from 0))
  "The series of UPDATE-STREAM whose numbers are FROM or higher, in the order of their numbers."
  (sort (loop for series being the hash-values of (update-stream-series update-stream)
              when (>= (series-number series) from) collect series)
        #'< :key #'series-number))

(defun value-name (family point)
  "The name of POINT of FAMILY in \"values\": the family's name, and its attributes' values after
slashes, except the protocol."
  (format nil "~A~{/~A~}" (metrics:family-name family)
          (loop for (attribute . value) in (metrics:point-attributes point)
                unless (string= "clgrpc.protocol" attribute) collect value)))

(defun family-values (family)
  "An alist from the names of the values of FAMILY to the sums of their points."
  (let ((sums '()))
    (dolist (point (metrics:family-points family) (nreverse sums))
      (let* ((name (value-name family point)) (known (assoc name sums :test #'string=)))
        (if known
            (incf (cdr known) (metrics:point-value point))
            (push (cons name (metrics:point-value point)) sums))))))

(defun update-value (update-stream name value)
  "Note in UPDATE-STREAM that the value NAME is VALUE. Return the member for \"values\"; nil if the
value has not changed."
  (let ((table (update-stream-values update-stream)))
    (unless (eql value (gethash name table))
      (setf (gethash name table) value)
      (cons name (json-number value)))))

(defun note-families (update-stream families)
  "Note FAMILIES in UPDATE-STREAM. Return the changes: rows of counts, and members of values."
  (let ((counts '()) (values '()))
    (dolist (family families)
      (if-let ((role (cdr (assoc (metrics:family-name family) *durations* :test #'string=))))
        (dolist (point (metrics:family-points family))
          (let ((row (update-series update-stream role point)))
            (when row (push row counts))))
        (loop for (name . value) in (family-values family)
              for member = (update-value update-stream name value)
              when member do (push member values))))
    (values (nreverse counts) (nreverse values))))

(defun shown-instruments ()
  (append (mapcar #'car *durations*) *values*))

(defun bounds-vector (update-stream)
  (json-list (mapcar #'json-number (update-stream-bounds update-stream))))

(defun timed-members (update-stream now &rest names-and-values)
  "This does what MEMBERS does, and adds \"time\" and \"seconds\", for an update of UPDATE-STREAM at
NOW."
  (let ((before-ns (shiftf (update-stream-taken-ns update-stream) now)))
    (apply #'members "time" (unix-ms (real-time-ns))
           "seconds" (ns-seconds (if (zerop before-ns) 0 (- now before-ns)))
           names-and-values)))

(defun chart-members (update)
  "The part of UPDATE that later viewers get as well: the data of charts."
  (remove-if-not (lambda (member)
                   (member (car member) '("time" "seconds" "counts" "values") :test #'string=))
                 update))

(defun keep-update (update-stream update)
  (enqueue (chart-members update) (update-stream-updates update-stream))
  (if (< (update-stream-count update-stream) +updates+)
      (incf (update-stream-count update-stream))
      (dequeue (update-stream-updates update-stream))))
