;;;; Updates, which are sent to the page in JSON. The first event that a viewer gets, :hello, has
;;;; all data; after that an event :frame comes each second with the changes. An UPDATE-STREAM keeps
;;;; the data of its last reading, to find the changes, and the updates of the last minutes, for
;;;; viewers that connect later.
;;;;
;;;; An update has these members; all except "time" and "seconds" are omitted if they have not
;;;; changed.
;;;;
;;;;   "time"     of the update, in ms since 1970; "seconds": the time since the update before
;;;;   "bounds"   of the buckets, in seconds, once there are any
;;;;   "series"   new ones of calls: [[number, role, method, status, target, protocol], …]
;;;;   "counts"   [[number of the series, seconds, bucket, calls, bucket, calls, …], …]: how
;;;;              many calls have ended, by bucket of their duration, and how long they took
;;;;              together
;;;;   "values"   {"process.cpu.time": 12.5, …}: numbers that have changed, as they are now
;;;;   "calls"    calls that were kept since the update before; "log": events since then
;;;;   "servers"  their loops and some connections; "threads": [[name, how many], …]
;;;;
;;;;   "hour"     looks of hour.lisp since then
;;;;
;;;; :hello has the same members, with totals in "counts", "process" and "started", which never
;;;; change, and "frames", the last ones.

(in-package #:clgrpc.console)

(defconstant +updates+ 300 "How many updates an update stream keeps and the page shows.")
(defconstant +links+ 50 "How many connections of a loop are shown.")
(defconstant +threads+ 100 "How many names of threads are shown.")

(defparameter *durations*
  '(("grpc.server.call.duration" . "server") ("grpc.client.call.duration" . "client"))
  "The instruments from which series are made, with the role of each.")

(defparameter *values*
  '("grpc.server.call.started" "clgrpc.server.connections" "clgrpc.server.connections_accepted"
    "clgrpc.server.refusals" "clgrpc.loop.turns" "clgrpc.loop.connections"
    "clgrpc.gc.collections" "clgrpc.gc.pause" "clgrpc.heap.used" "clgrpc.heap.limit"
    "clgrpc.heap.allocated" "process.cpu.time" "process.memory.usage" "process.thread.count")
  "The instruments whose values are shown. The number of open descriptors is not among them: to
count thousands takes long.")

(defstruct (series (:constructor make-series (number attributes)) (:copier nil))
  "The calls of one role, method, status, target and protocol, as last seen."
  (number 0 :type index :read-only t)   ; by which updates name it
  (attributes '() :type list :read-only t) ; those five, strings; "" if absent
  (buckets '() :type list)              ; how many calls each bucket has
  (sum 0 :type real))                   ; how many seconds they took together

(defstruct (update-stream (:copier nil))
  "The data of the last reading of a console, and its last updates. One thread's."
  (series (make-hash-table :test 'equal) :type hash-table :read-only t) ; by attributes
  (bounds '() :type list)               ; of the buckets, in seconds
  (values (make-hash-table :test 'equal) :type hash-table :read-only t) ; by name
  (call 0 :type (unsigned-byte 62))     ; the number of the last call that was kept
  (entry 0 :type index)                 ; the number of the last event of the log
  (servers '() :type list)              ; the last data of servers
  (threads '() :type list)              ; the last data of threads
  (taken-ns 0 :type (unsigned-byte 62)) ; when the last update was made
  (updates (make-fifo) :type fifo :read-only t) ; the last of them
  (count 0 :type index))                ; the length of UPDATES

(declaim (sb-ext:freeze-type series update-stream))

(defmethod print-object ((series series) stream)
  (print-unreadable-object (series stream :type t)
    (format stream "~D ~{~A~^ ~}" (series-number series) (series-attributes series))))

(defmethod print-object ((update-stream update-stream) stream)
  (print-unreadable-object (update-stream stream :type t)
    (format stream "~D series, ~D updates" (hash-table-count (update-stream-series update-stream))
            (update-stream-count update-stream))))

;;; JSON

(defun json-number (number)
  "NUMBER, a real, as WRITE-JSON takes it."
  (if (integerp number) number (coerce number 'double-float)))

(defun json-list (items)
  (coerce items 'simple-vector))

(defun json-value (value)
  "VALUE of a plist, of any type, as WRITE-JSON takes it."
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
    (or (gethash attributes table)
        (setf (gethash attributes table) (make-series (hash-table-count table) attributes)))))

(defun count-row (number sum buckets)
  "The element of \"counts\" for the series NUMBER; nil if BUCKETS are all empty."
  (let ((pairs (loop for count in buckets
                     for bucket from 0
                     unless (zerop count) append (list bucket count))))
    (and pairs (json-list (list* number (json-number sum) pairs)))))

(defun update-series (update-stream role point)
  "Note POINT of a histogram in UPDATE-STREAM; return the row for \"counts\", or nil."
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
  "The series of UPDATE-STREAM, from the number FROM on, in their order."
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
value was the same before."
  (let ((table (update-stream-values update-stream)))
    (unless (eql value (gethash name table))
      (setf (gethash name table) value)
      (cons name (json-number value)))))

;;; Calls, events, servers, threads

(defun sample-object (sample)
  (list* (cons "number" (sample-number sample))
         (cons "time" (unix-ms (sample-unix-ns sample)))
         (json-object (sample-plist sample))))

(defun samples-after (console number)
  "The calls of CONSOLE that are kept and have a higher number than NUMBER, the oldest first."
  (let ((sample-sets (sb-thread:with-mutex ((console-lock console))
                       (mapcar #'cdr (console-sample-sets console)))))
    (sort (loop for sample-set in sample-sets
                append
                (remove number (sample-set-calls sample-set) :key #'sample-number :test #'>=))
          #'< :key #'sample-number)))

(defun entry-object (entry)
  (list (cons "number" (entry-number entry))
        (cons "time" (unix-ms (entry-unix-ns entry)))
        (cons "level" (string-downcase (entry-level entry)))
        (cons "event" (string-downcase (entry-event entry)))
        (cons "values" (json-list (loop for (key text) on (entry-plist entry) by #'cddr
                                        collect (json-list (list (string-downcase key)
                                                                 text)))))))

(defun server-object (server)
  (list (cons "addresses" (json-list (server:server-addresses server)))
        (cons "services" (json-list (server:server-service-names server)))
        (cons "running" (if (server:server-running-p server) :true :false))
        (cons "loops" (json-list (mapcar #'json-object
                                         (and (server:server-running-p server)
                                              (server:report-connections server
                                                                         :limit +links+)))))))

(defun shown-servers ()
  "The servers of this process that serve something, the oldest first."
  (sort (remove-if-not #'serving:server-services (registered server:**servers**))
        #'< :key (lambda (server) (channel-trace-number (server:server-channel-trace server)))))

(defun server-objects ()
  (mapcar #'server-object (shown-servers)))

(defun thread-rows ()
  "How many threads there are of each name, the most first."
  (let ((counts (make-hash-table :test 'equal)))
    (dolist (thread (sb-thread:list-all-threads))
      (incf (gethash (or (sb-thread:thread-name thread) "") counts 0)))
    (let ((rows (sort (loop for name being the hash-keys of counts using (hash-value count)
                            collect (list (printable-text name :limit 100) count))
                      #'string< :key #'first)))
      (subseq rows 0 (min +threads+ (length rows))))))

(defun changed (before now)
  "NOW as a JSON array, or nil if it is as BEFORE."
  (if (equalp before now) nil (json-list now)))

;;; Updates

(defun note-families (update-stream families)
  "Note FAMILIES in UPDATE-STREAM. Return the changes: rows of counts, and members of values."
  (let ((counts '()) (values '()))
    (dolist (family families)
      (let ((role (cdr (assoc (metrics:family-name family) *durations* :test #'string=))))
        (if role
            (dolist (point (metrics:family-points family))
              (let ((row (update-series update-stream role point)))
                (when row (push row counts))))
            (loop for (name . value) in (family-values family)
                  for member = (update-value update-stream name value)
                  when member do (push member values)))))
    (values (nreverse counts) (nreverse values))))

(defun shown-instruments ()
  (append (mapcar #'car *durations*) *values*))

(defun bounds-vector (update-stream)
  (json-list (mapcar #'json-number (update-stream-bounds update-stream))))

(defun timed-members (update-stream now &rest names-and-values)
  "As MEMBERS, for an update that UPDATE-STREAM takes NOW: with \"time\" and \"seconds\" besides."
  (let ((before-ns (shiftf (update-stream-taken-ns update-stream) now)))
    (apply #'members "time" (unix-ms (real-time-ns))
           "seconds" (ns-seconds (if (zerop before-ns) 0 (- now before-ns)))
           names-and-values)))

(defun take-update (console update-stream now)
  "Look at CONSOLE at NOW of the monotonic clock; note it in UPDATE-STREAM, and return the changes
since the update before, an object for WRITE-JSON."
  (let* ((first-new (hash-table-count (update-stream-series update-stream)))
         (calls (samples-after console (update-stream-call update-stream)))
         (entries (entries-after (console-tail console) (update-stream-entry update-stream)))
         (bounds (update-stream-bounds update-stream))
         (servers (server-objects))
         (threads (mapcar #'json-list (thread-rows))))
    (multiple-value-bind (counts values)
        (note-families update-stream (metrics:collect (console-metrics console)
                                                      :names (shown-instruments)))
      (when calls (setf (update-stream-call update-stream) (sample-number (first (last calls)))))
      (when entries
            (setf (update-stream-entry update-stream) (entry-number (first (last entries)))))
      (timed-members
       update-stream now
       "bounds" (and (null bounds) (bounds-vector update-stream))
       "series" (json-list (mapcar #'series-row (all-series update-stream :from first-new)))
       "counts" (json-list counts)
       "values" values
       "calls" (json-list (mapcar #'sample-object calls))
       "log" (json-list (mapcar #'entry-object entries))
       "servers" (changed (shiftf (update-stream-servers update-stream) servers) servers)
       "threads" (changed (shiftf (update-stream-threads update-stream) threads) threads)
       "hour" (hour-news (console-hour console))))))

(defun chart-members (update)
  "The part of UPDATE that later viewers get as well: the data of charts."
  (remove-if-not (lambda (member)
                   (member (car member) '("time" "seconds" "counts" "values") :test #'string=))
                 update))

(defun keep-update (update-stream update)
  "Keep UPDATE in UPDATE-STREAM."
  (enqueue (chart-members update) (update-stream-updates update-stream))
  (if (< (update-stream-count update-stream) +updates+)
      (incf (update-stream-count update-stream))
      (dequeue (update-stream-updates update-stream))))

(defun process-object ()
  (list (cons "version" **version**)
        (cons "lisp" (format nil "~A ~A" (lisp-implementation-type)
                             (lisp-implementation-version)))
        (cons "host" (machine-instance))))

(defun hello (console update-stream)
  "All that UPDATE-STREAM knows of CONSOLE, an object for WRITE-JSON."
  (let ((series (all-series update-stream)))
    (list* (cons "process" (process-object))
           (cons "started" (unix-ms (metrics:metrics-started-ns (console-metrics console))))
           (cons "bounds" (bounds-vector update-stream))
           (cons "pages" (json-list (loop for (name title) in (console-pages console)
                                          collect (vector name title))))
           (cons "frames" (json-list (fifo-items (update-stream-updates update-stream))))
           (cons "hour" (whole-hour (console-hour console)))
           (members "time" (unix-ms (real-time-ns))
                    "series" (json-list (mapcar #'series-row series))
                    "counts" (json-list
                              (remove nil (mapcar (lambda (series)
                                                    (count-row (series-number series)
                                                               (series-sum series)
                                                               (series-buckets series)))
                                                  series)))
                    "values"
                    (loop for name being the hash-keys of (update-stream-values update-stream)
                                     using (hash-value value)
                                   collect (cons name (json-number value)))
                    "calls" (json-list (mapcar #'sample-object (samples-after console 0)))
                    "log" (json-list (mapcar #'entry-object
                                             (entries-after (console-tail console) 0)))
                    "servers" (json-list (update-stream-servers update-stream))
                    "threads" (json-list (update-stream-threads update-stream))))))

(defun event-text (name object)
  "The server-sent event NAME with OBJECT."
  (format nil "event: ~A~%data: ~A~%~%" name (write-json object)))
