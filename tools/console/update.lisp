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

(defconstant +links+ 50 "The maximum number of connections that are shown for each loop.")
(defconstant +threads+ 100 "The maximum number of names of threads that are shown.")

;;; The data about calls, events, servers and threads

(defun sample-object (sample)
  (list* (cons "number" (sample-number sample))
         (cons "time" (unix-ms (sample-unix-ns sample)))
         (json-object (sample-plist sample))))

(defun samples-after (console number)
  "The calls that CONSOLE keeps and whose numbers are higher than NUMBER, the oldest first."
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
  "Lists of a name of threads and the number of threads of that name, sorted by name; at most
+THREADS+ lists."
  (let ((counts (make-hash-table :test 'equal)))
    (dolist (thread (sb-thread:list-all-threads))
      (incf (gethash (or (sb-thread:thread-name thread) "") counts 0)))
    (let ((rows (sort (loop for name being the hash-keys of counts using (hash-value count)
                            collect (list (printable-text name :limit 100) count))
                      #'string< :key #'first)))
      (subseq rows 0 (min +threads+ (length rows))))))

(defun changed (before now)
  "NOW as a JSON array, or nil if it equals BEFORE."
  (if (equalp before now) nil (json-list now)))

;;; Updates

(defun take-update (console update-stream now)
  "Read the data of CONSOLE at the time NOW of the monotonic clock, and note them in UPDATE-STREAM.
Return the changes since the previous update, an object for WRITE-JSON."
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

(defun process-object ()
  (list (cons "version" **version**)
        (cons "lisp" (format nil "~A ~A" (lisp-implementation-type)
                             (lisp-implementation-version)))
        (cons "host" (machine-instance))))

(defun hello (console update-stream)
  "All data of CONSOLE in UPDATE-STREAM, an object for WRITE-JSON."
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
  "The text of the server-sent event NAME with OBJECT as its data."
  (format nil "event: ~A~%data: ~A~%~%" name (write-json object)))
