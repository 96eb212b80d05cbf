;;;; The agent of a process that is profiled: a thread reads commands from standard input and
;;;; answers each with a line on standard output, `profile: JSON`. Only a process that was started
;;;; with CLGRPC_PROFILE=1 in its environment has this thread, which sleeps in between.
;;;;
;;;;   counters          the counts since the process began
;;;;   map PATH          write the addresses of its functions to a file
;;;;   locks PATH        write the addresses of its locks and conditions to a file
;;;;   heap-histogram MS the objects that were allocated in MS milliseconds and still exist
;;;;   sample MODE MS PATH
;;;;                     run SBCL's profiler for MS milliseconds and write the stacks to a file;
;;;;                     MODE is cpu or alloc

(in-package #:clgrpc.profile)

;;; Collections

(defstruct (counts (:copier nil))
  "Counts that are kept only where there is an agent."
  ;; how many collections there were, and how long they took; one runs at a time
  (collections 0 :type unsigned-byte)
  (collection-ns 0 :type unsigned-byte)
  (longest-collection-ns 0 :type unsigned-byte))

(sb-ext:define-load-time-global **counts** (make-counts))
(declaim (type counts **counts**))

(defun note-collection (ns)
  (let ((counts **counts**))
    (incf (counts-collections counts))
    (incf (counts-collection-ns counts) ns)
    (setf (counts-longest-collection-ns counts)
          (max ns (counts-longest-collection-ns counts)))))

(defun time-collections ()
  "Measure from now on the times for which garbage collections stop the threads."
  (sb-int:encapsulate 'sb-kernel::sub-gc 'profile
                      (lambda (function &rest arguments)
                        (let ((begin (monotonic-ns))
                              (epoch sb-kernel::*gc-epoch*))
                          (multiple-value-prog1 (apply function arguments)
                            (unless (eq epoch sb-kernel::*gc-epoch*)
                              (note-collection (- (monotonic-ns) begin))))))))

;;; Answers

(defun count-calls ()
  "The number of calls that the servers of this process have ended, plus those that its channels
have begun."
  (+ (loop for server in (registered server:**servers**)
           sum (getf (grpc:server-statistics server) :calls))
     (loop for core in (registered client:**cores**)
           sum (client:core-calls-begun core))))

(defun event-loops ()
  "The loops of the servers and channels of this process."
  (remove-duplicates
   (append (loop for server in (registered server:**servers**)
                 append (mapcar #'server:server-loop-loop (server:server-loops server)))
           (mapcar #'client:core-loop (registered client:**cores**)))))

(defun count-in-loops (key statistics)
  (reduce #'+ statistics :key (lambda (plist) (getf plist key))))

(defun counters ()
  (let ((loops (mapcar #'loop:event-loop-statistics (event-loops))) (counts **counts**))
    (list (cons "ns" (monotonic-ns))
          (cons "calls" (count-calls))
          (cons "turns" (count-in-loops :turns loops))
          (cons "consed" (sb-ext:get-bytes-consed))
          (cons "heap" (heap-used))
          (cons "collections" (counts-collections counts))
          (cons "collectionNs" (counts-collection-ns counts))
          (cons "longestCollectionNs" (counts-longest-collection-ns counts))
          (cons "batonsLent" (count-in-loops :lent loops))
          (cons "batonsLost" (count-in-loops :lost loops)))))

;;; A histogram of the heap

(defun kind-of (object)
  "The name of OBJECT's type."
  (typecase object
    (cons "cons")
    (structure-object (structure-kind (type-of object)))
    (simple-vector "simple-vector")
    (string "string")
    (array (format nil "vector of ~(~A~)" (array-element-type object)))
    (function (format nil "closure ~A"
                      (function-label (sb-kernel:%fun-name (sb-kernel:%fun-fun object)))))
    (t (format nil "~(~A~)" (type-of object)))))

(defun structure-kind (type)
  "The name of TYPE for reports. Names of messages have a hash after a dot, which distinguishes
definitions."
  (let* ((name (function-label type))
         (message (and (search "::%" name) (position #\. name :from-end t))))
    (if message
        (format nil "message ~A" (remove #\% (subseq name 0 message)))
        (format nil "structure ~A" name))))

(defun key-of (object)
  "A key for the kind of OBJECT, which lets objects be counted without making garbage."
  (typecase object
    (cons 'cons)
    ((satisfies sb-kernel:%instancep) (sb-kernel:%instance-layout object))
    (function (if (sb-kernel:closurep object) (sb-kernel:%closure-fun object) 'function))
    (t (sb-kernel:widetag-of object))))

(defun take-heap-histogram ()
  "A hash table from the keys of kinds to lists: an object of the kind, the octets of all objects,
and their number."
  (let ((table (make-hash-table :test 'eq :size 4096)))
    (sb-sys:without-gcing
      (sb-vm:map-allocated-objects
       (lambda (object type size)
         (declare (ignore type))
         (let ((entry (alexandria:ensure-gethash (key-of object) table (list object 0 0))))
           (incf (the fixnum (second entry)) (the fixnum size))
           (incf (the fixnum (third entry)))))
       :dynamic))
    table))

(defun heap-difference (before after)
  "A list with an alist, for JSON, for each kind of object that has more octets in AFTER than in
BEFORE."
  (let ((kinds (make-hash-table :test 'equal)))
    (maphash (lambda (key entry)
               (destructuring-bind (object octets count) entry
                 (destructuring-bind (&optional had (had-octets 0) (had-count 0))
                     (gethash key before)
                   (declare (ignore had))
                   (let ((row (alexandria:ensure-gethash (kind-of object) kinds (list 0 0))))
                     (incf (first row) (- octets had-octets))
                     (incf (second row) (- count had-count))))))
             after)
    (let ((rows (loop for kind being the hash-keys of kinds using (hash-value row)
                      when (plusp (first row))
                        collect (list (cons "kind" kind) (cons "octets" (first row))
                                      (cons "objects" (second row))))))
      (coerce (sort rows #'> :key (lambda (row) (cdr (second row)))) 'vector))))

(defconstant +histogram-octets+ (* 40 1024 1024)
  "The maximum number of octets that are allocated between two heap histograms, because more would
cause a collection.")

(defun heap-histogram (seconds)
  "The objects that were allocated in SECONDS, or until they had +HISTOGRAM-OCTETS+, and still
exist. Return nil if a collection has disturbed each attempt."
  (loop repeat 3
        do (sb-ext:gc)
           (let* ((before (take-heap-histogram))
                  (epoch sb-kernel::*gc-epoch*)
                  (calls (count-calls))
                  (consed (sb-ext:get-bytes-consed))
                  (end (+ (monotonic-ns) (floor (* seconds 1000000000)))))
             (loop while (and (< (monotonic-ns) end)
                              (< (- (sb-ext:get-bytes-consed) consed) +histogram-octets+))
                   do (sleep 1/1000))
             (let* ((consed (- (sb-ext:get-bytes-consed) consed))
                    (calls (- (count-calls) calls))
                    (after (take-heap-histogram)))
               (when (eq epoch sb-kernel::*gc-epoch*)
                 (return (list (cons "calls" calls) (cons "consed" consed)
                               (cons "kinds" (heap-difference before after)))))))))

;;; Locks

(defun slot-address (object name)
  "The address of the slot NAME, a string, of OBJECT, a structure."
  ;; SBCL's own functions for the slot are not the same in all versions
  (let ((slot (find name (sb-kernel:dd-slots
                          (sb-kernel:find-defstruct-description (type-of object)))
                    :key #'sb-kernel:dsd-name :test #'string=)))
    (+ (- (sb-kernel:get-lisp-obj-address object) sb-vm:instance-pointer-lowtag)
       (ash (+ sb-vm:instance-slots-offset (sb-kernel:dsd-index slot)) sb-vm:word-shift))))

(defun lock-address (object)
  "The address of the futex at which threads wait for OBJECT, if it is a mutex or a waitqueue; else
nil."
  (typecase object
    (sb-thread:mutex (slot-address object "STATE"))
    (sb-thread:waitqueue (slot-address object "TOKEN"))))

(defun lock-label (object)
  (typecase object
    (sb-thread:mutex (format nil "mutex ~A" (or (sb-thread:mutex-name object) "without a name")))
    (t (format nil "condition ~A" (or (sb-thread:waitqueue-name object) "without a name")))))

(defun write-locks (path)
  "Write to PATH a line for each mutex and condition: its address in hexadecimal and its name.
Return the path."
  (let ((found '()))
    (sb-sys:without-gcing
      (sb-vm:map-allocated-objects (lambda (object type size)
                                     (declare (ignore type size))
                                     (let ((address (lock-address object)))
                                       (when address (push (cons address object) found))))
                                   :all))
    (with-open-file (stream path :direction :output :if-exists :supersede
                                 :external-format :utf-8)
      (loop for (address . object) in found
            do (format stream "~X ~A~%" address (substitute #\Space #\Newline
                                                            (lock-label object)))))
    path))

;;; SBCL's profiler

(defun trace-name (info)
  "The label of a frame by the profiler's data; an empty label if the profiler does not know the
frame."
  (typecase info
    (sb-di:debug-fun (function-label (sb-di:debug-fun-name info)))
    (string info)
    (null "")
    (symbol (function-label info))
    (t "")))

(defun profiler-traces ()
  "The record of SBCL's profiler, a vector: for each sample (marker . end), the thread, and for each
frame, innermost first, its description and a place."
  (let ((data (multiple-value-list (sb-sprof::convert-raw-data))))
    (if (vectorp (first data)) (first data) (first (first data)))))

(defun count-traces (traces)
  "A table from lists of a thread's name and labels of frames, innermost first, to counts."
  (let ((table (make-hash-table :test 'equal))
        (labels (make-hash-table :test 'eq)))
    (loop with start = 0
          while (< start (length traces))
          do (let ((end (cdr (aref traces start))))
               (incf (gethash
                      (cons (sb-thread:thread-name (aref traces (1+ start)))
                            (loop for i from (+ start 2) below end by 2
                                  for info = (aref traces i)
                                  collect (or (gethash info labels)
                                              (setf (gethash info labels) (trace-name info)))))
                      table 0))
               (setf start end)))
    table))

(defun sample-stacks (mode milliseconds path)
  "Sample all threads by SBCL's profiler in MODE, :cpu or :alloc, for this time, and write to PATH a
line for each stack: how often it was seen, the thread's name and the frames, innermost first, with
tabs between."
  (sb-sprof:reset)
  (sb-sprof:start-profiling :mode mode :threads :all :max-samples 200000
                            :sample-interval 1/1000)
  (let ((calls (count-calls)) (consed (sb-ext:get-bytes-consed)))
    (sleep (/ milliseconds 1000))
    (setf calls (- (count-calls) calls)
          consed (- (sb-ext:get-bytes-consed) consed))
    (sb-sprof:stop-profiling)
    (with-open-file (stream path :direction :output :if-exists :supersede
                                 :external-format :utf-8)
      (maphash (lambda (stack count) (format stream "~D~{~C~A~}~%" count
                                             (loop for name in stack
                                                   collect #\Tab
                                                   collect (substitute #\Space #\Tab name))))
               (count-traces (profiler-traces))))
    (sb-sprof:reset)
    (list (cons "calls" calls) (cons "consed" consed))))

;;; The thread

(defun answer-command (line)
  "The answer to the command LINE, as data for WRITE-JSON."
  (let* ((space (or (position #\Space line) (length line)))
         (word (subseq line 0 space))
         (rest (string-trim " " (subseq line space))))
    (cond ((string= word "counters") (counters))
          ((string= word "map") (list (cons "path" (write-perf-map rest))))
          ((string= word "locks") (list (cons "path" (write-locks rest))))
          ((string= word "sample")
           (destructuring-bind (mode milliseconds path) (uiop:split-string rest :separator " ")
             (sample-stacks (if (string= mode "alloc") :alloc :cpu) (parse-integer milliseconds)
                            path)))
          ((string= word "heap-histogram")
           (or (heap-histogram (/ (parse-integer rest) 1000)) :null))
          (t (list (cons "error" (format nil "the command ~A is unknown" word)))))))

(defun run-agent ()
  (loop for line = (read-line *standard-input* nil)
        while line
        do (format t "profile: ~A~%"
                   (write-json (handler-case (answer-command line)
                                 (error (error) (list (cons "error" (princ-to-string error)))))))
           (finish-output)))

(defun start-agent-if-asked ()
  "If the environment has CLGRPC_PROFILE=1, start the thread that answers the requests of `clgrpc
profile`."
  (when (equal "1" (sb-ext:posix-getenv "CLGRPC_PROFILE"))
    (time-collections)
    (sb-thread:make-thread #'run-agent :name "clgrpc profile")))
