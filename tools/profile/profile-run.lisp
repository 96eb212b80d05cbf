;;;; A profile: records taken while a load runs, and their evaluation as plain data, in the form
;;;; that WRITE-JSON writes and PARSE-JSON reads. All reports read these data.

(in-package #:clgrpc.profile)

;;; Data

(defun member-of (data &rest names)
  "The value in DATA, alists with string keys, at the path NAMES; nil if DATA lacks it."
  (loop for name in names
        do (setf data (and (consp data) (cdr (assoc name data :test #'string=)))))
  (if (eq :null data) nil data))

(defun share (part whole)
  (if (plusp whole) (float (/ part whole) 1d0) 0d0))

(defun rows (table function &key (most 1000) (least 0))
  "A vector of the values of FUNCTION for the keys and counts of TABLE, the highest counts first."
  (declare (type function function))
  (let ((entries (loop for key being the hash-keys of table using (hash-value count)
                       when (> count least) collect (cons key count))))
    (setf entries (sort entries (lambda (a b)
                                  (or (> (cdr a) (cdr b))
                                      (and (= (cdr a) (cdr b))
                                           (string< (princ-to-string (car a))
                                                    (princ-to-string (car b))))))))
    (map 'vector (lambda (entry) (funcall function (car entry) (cdr entry)))
         (subseq entries 0 (min most (length entries))))))

;;; CPU

(defun calls-between (record)
  "The number of calls of the process during RECORD, or nil if the process has not reported it."
  (counted "calls" (record-before record) (record-after record)))

(defconstant +longest-switch-ns+ 3000
  "The maximum time between samples, in nanoseconds, for which one switch of threads can be the
reason.")

(defun unsampled-ns (kernel-ns sampled-ns switches)
  "The CPU time, in nanoseconds, that the kernel counted and the samples lack, as far as SWITCHES
between threads can be the reason, because no sample can be taken during a switch."
  (max 0 (min (- kernel-ns sampled-ns) (* switches +longest-switch-ns+))))

(defun cpu-rows (table period-ns calls extra-name extra-ns kernel-ns)
  "The rows of a profile from TABLE, which maps names to numbers of samples, with one more row, for
EXTRA-NS."
  (let ((rows (coerce (rows table (lambda (name samples) (cons name (* samples period-ns))))
                      'list)))
    (when (plusp extra-ns)
      (setf rows (sort (append rows (list (cons extra-name extra-ns))) #'> :key #'cdr)))
    (map 'vector (lambda (row)
                   (object "name" (car row) "ns" (cdr row)
                           "share" (share (cdr row) kernel-ns)
                           "nsPerCall" (and calls (plusp calls)
                                            (float (/ (cdr row) calls) 1d0))))
         rows)))

(defun function-rows (sums period-ns calls)
  (rows (sums-own sums)
        (lambda (name samples)
          (object "name" name "ns" (* samples period-ns)
                  "share" (share samples (sums-samples sums))
                  "wholeNs" (* (gethash name (sums-whole sums) 0) period-ns)
                  "nsPerCall" (and calls (plusp calls)
                                   (float (/ (* samples period-ns) calls) 1d0))))
        :most 200))

(defun user-function-rows (sums period-ns)
  "The functions of users, by the time that is spent in them and in functions that they call."
  (let ((whole (make-hash-table :test 'equal)))
    (maphash (lambda (name samples)
               (when (equal "user code" (lisp-area name)) (setf (gethash name whole) samples)))
             (sums-whole sums))
    (rows whole
          (lambda (name samples)
            (object "name" name "wholeNs" (* samples period-ns)
                    "share" (share samples (sums-samples sums))
                    "ns" (* (gethash name (sums-own sums) 0) period-ns)))
          :most 50)))

(defun thread-rows (sums pid period-ns)
  (let ((names (make-hash-table :test 'equal)))
    (maphash (lambda (thread samples)
               (incf (gethash (if (stringp thread) thread (thread-name pid thread)) names 0)
                     samples))
             (sums-threads sums))
    (rows names (lambda (name samples)
                  (object "name" name "ns" (* samples period-ns)
                          "share" (share samples (sums-samples sums)))))))

(defun node-data (node period-ns least)
  "NODE as JSON, without nodes of fewer than LEAST samples."
  (let ((children (sort (loop for child being the hash-values of (node-children node)
                              when (>= (node-samples child) least) collect child)
                        #'> :key #'node-samples)))
    (object "name" (if (node-frame node) (frame-name (node-frame node)) "all")
            "area" (and (node-frame node) (frame-area (node-frame node)))
            "kind" (and (node-frame node)
                        (string-downcase (frame-kind (node-frame node))))
            "ns" (* period-ns (node-samples node))
            "children" (and children
                            (map 'vector (lambda (child) (node-data child period-ns least))
                                 children)))))

(defun cpu-data (sums record pid period-ns source)
  "The CPU part of the profile of the process PID, made from SUMS, the samples of RECORD, which
SOURCE has taken every PERIOD-NS."
  (let* ((before (record-before record)) (after (record-after record))
         (calls (calls-between record))
         (kernel-ns (max 0 (- (reading-cpu-ns after) (reading-cpu-ns before))))
         (slept (switches-between before after))
         (preempted (nth-value 1 (switches-between before after)))
         (sampled-ns (* (sums-samples sums) period-ns))
         (unsampled-ns (unsampled-ns kernel-ns sampled-ns (+ slept preempted))))
    (object
     "source" source
     "seconds" (/ (- (reading-ns after) (reading-ns before)) 1d9)
     "calls" calls
     "kernelNs" kernel-ns
     "sampledNs" sampled-ns
     "betweenNs" unsampled-ns
     "samples" (sums-samples sums)
     "periodNs" period-ns
     "explained" (- 1 (share (sums-unknown-samples sums) (sums-samples sums)))
     "frames" (sums-frames sums)
     "unknownFrames" (sums-unknown-frames sums)
     "slept" slept
     "preempted" preempted
     "areas" (cpu-rows (sums-areas sums) period-ns calls "kernel: switch" unsampled-ns kernel-ns)
     "phases" (cpu-rows (sums-phases sums) period-ns calls "switch" unsampled-ns kernel-ns)
     "functions" (function-rows sums period-ns calls)
     "userFunctions" (user-function-rows sums period-ns)
     "threads" (thread-rows sums pid period-ns)
     "flame" (node-data (sums-root sums) period-ns
                        (max 1 (floor (sums-samples sums) 2000))))))

;;; Allocation

(defun octet-rows (table sums octets-per-call)
  (rows table (lambda (name samples)
                (object "name" name "share" (share samples (sums-samples sums))
                        "octetsPerCall" (* octets-per-call (share samples (sums-samples sums)))))
        :most 100))

(defun allocation-data (sums answer)
  "The allocation part of the profile, made from SUMS, of allocations, and the agent's ANSWER, or
nil if there were no calls. A new region is counted for the object that did not fit into the
previous region; therefore larger objects are seen more often than their share."
  (let ((calls (member-of answer "calls")) (consed (member-of answer "consed")))
    (when (and calls (plusp calls) (plusp (sums-samples sums)))
      (let ((octets-per-call (float (/ consed calls) 1d0)))
        (object "samples" (sums-samples sums)
                "octetsPerCall" octets-per-call
                "functions" (octet-rows (sums-own sums) sums octets-per-call))))))

;;; System calls and waits

(defun tally-rows (table calls)
  (let ((tallies (sort (loop for tally being the hash-values of table collect tally) #'>
                       :key #'tally-ns)))
    (map 'vector (lambda (tally)
                   (object "name" (tally-name tally) "lock" (tally-lock tally)
                           "count" (tally-count tally)
                           "failed" (tally-failed tally)
                           "perCall" (and calls (plusp calls)
                                          (float (/ (tally-count tally) calls) 1d0))
                           "ns" (tally-ns tally) "longestNs" (tally-longest-ns tally)))
         tallies)))

(defun off-cpu-data (sums pid)
  "The off-CPU part of the profile of the process PID, made from SUMS, the stacks in which its
threads have slept, or nil if SUMS has no such stacks."
  (when (plusp (sums-samples sums))
    (object "ns" (sums-samples sums)
            "threads" (thread-rows sums pid 1)
            "flame" (node-data (sums-root sums) 1 (max 1 (floor (sums-samples sums) 2000))))))

(defun event-data (events record pid)
  (let* ((calls (calls-between record))
         (before (record-before record)) (after (record-after record))
         (slept (events-slept events)) (preempted (events-preempted events)))
    (object "source" (events-source events)
            "seconds" (/ (- (reading-ns after) (reading-ns before)) 1d9)
            "calls" calls
            "systemCalls" (tally-rows (events-calls events) calls)
            "futexes" (tally-rows (events-futexes events) calls)
            "sleeps" (tally-rows (events-sleeps events) calls)
            "offCpu" (off-cpu-data (events-off-cpu events) pid)
            "slept" slept
            "preempted" preempted
            "switchesPerCall" (and slept calls (plusp calls)
                                   (float (/ (+ slept preempted) calls) 1d0)))))

;;; The counts that the process keeps itself

(defun agent-data (before after)
  "The process's own counts between two READINGs, or nil if the process has no agent."
  (when-let ((calls (counted "calls" before after)))
    (flet ((per-call (count) (and (plusp calls) (float (/ count calls) 1d0))))
      (let ((consed (counted "consed" before after)))
        (object "calls" calls
                "turns" (counted "turns" before after)
                "consed" consed
                "octetsPerCall" (per-call consed)
                "collections" (counted "collections" before after)
                "collectionNs" (counted "collectionNs" before after)
                "longestCollectionNs" (member-of (reading-counters after)
                                                 "longestCollectionNs")
                "heap" (member-of (reading-counters after) "heap")
                "batonLent" (counted "batonsLent" before after)
                "batonTakenOver" (counted "batonsLost" before after))))))

(defun kind-area (kind)
  "The subsystem that objects of KIND, as the agent names it, belong to."
  (flet ((begins-p (prefix) (uiop:string-prefix-p prefix kind)))
    (cond ((begins-p "message ") "messages")
          ((or (begins-p "structure ") (begins-p "closure "))
           (or (lisp-area (subseq kind (1+ (position #\Space kind)))) "lisp"))
          (t "conses, vectors, numbers"))))

(defun histogram-data (heap-histogram)
  "The agent's HEAP-HISTOGRAM per call, or nil if it is missing or there were no calls. The counts
by kind are scaled to the sum of consed octets, because they alone include the objects that were
allocated while the heap was counted."
  (let* ((calls (member-of heap-histogram "calls"))
         (consed (member-of heap-histogram "consed"))
         (kinds (member-of heap-histogram "kinds"))
         (octets (reduce #'+ kinds :key (lambda (row) (member-of row "octets")))))
    (when (and calls (plusp calls) (plusp octets))
      (flet ((per-call (row name)
               (float (/ (* (member-of row name) consed) octets calls) 1d0)))
        (object "calls" calls
                "octetsPerCall" (float (/ consed calls) 1d0)
                "areas" (let ((areas (make-hash-table :test 'equal)))
                          (loop for row across kinds
                                do (incf (gethash (kind-area (member-of row "kind")) areas 0d0)
                                         (per-call row "octets")))
                          (rows areas (lambda (name octets)
                                        (object "name" name "octetsPerCall" octets))
                                :least 1/10))
                "kinds" (map 'vector
                             (lambda (row)
                               (object "name" (member-of row "kind")
                                       "octetsPerCall" (per-call row "octets")
                                       "objectsPerCall" (per-call row "objects")))
                             (remove-if (lambda (row) (< (* 1000 (member-of row "octets")) octets))
                                        kinds)))))))

;;; Load

(defun load-command (load address)
  "LOAD, a shell command, with ADDRESS in place of {address}."
  (loop for place = (search "{address}" load)
        while place
        do (setf load (concatenate 'string (subseq load 0 place) address
                                   (subseq load (+ place (length "{address}"))))))
  load)

(defun start-load (load address in-flight said)
  "Start the load LOAD, a shell command or :bench, on ADDRESS; return its process. The standard
error of the process is written to the file at SAID."
  (if (eq :bench load)
      (let ((process (sb-ext:run-program (program-path "self")
                                         (list "bench-client" address "--in-flight"
                                               (princ-to-string in-flight)
                                               "--milliseconds" "3600000")
                                         :wait nil :input :stream :output nil :error said
                                         :if-error-exists :append)))
        (terpri (sb-ext:process-input process))
        (finish-output (sb-ext:process-input process))
        process)
      (sb-ext:run-program "/bin/sh" (list "-c" (load-command load address))
                          :wait nil :input nil :output nil
                          :error said :if-error-exists :append
                          :environment (cons (format nil "CLGRPC_ADDRESS=~A" address)
                                             (sb-ext:posix-environ)))))

(defun end-load (process)
  "End PROCESS, a load, and the processes that it has started."
  (flet ((kill (signal)
           ;; the other processes may run even if PROCESS has ended
           (sb-ext:process-kill process signal :process-group)))
    (kill sb-unix:sigterm)
    (loop repeat 200
          while (sb-ext:process-alive-p process)
          do (sleep 1/100))
    (kill sb-unix:sigkill)
    (sb-ext:process-wait process)
    (sb-ext:process-close process)))

(defun check-load (process said)
  "Signal a PROFILE-ERROR if PROCESS, a load, has ended, because then the profiled process had
nothing to do for a part of the time. The standard error of PROCESS is in the file at SAID."
  (unless (sb-ext:process-alive-p process)
    (fail "the load has ended, ~:[by signal~;with~] ~D, before the profile: ~A"
          (eq :exited (sb-ext:process-status process)) (sb-ext:process-exit-code process)
          (let ((text (string-trim '(#\Space #\Newline) (uiop:read-file-string said))))
            (if (string= "" text) "it has said nothing" (bounded-text text))))))

(defun call-with-load (function subject load in-flight warm-seconds directory)
  "Call FUNCTION while LOAD runs on SUBJECT, and has run for WARM-SECONDS, and return its value.
LOAD is a shell command, :bench, or nil for no load. Signal a PROFILE-ERROR if the load ends before
FUNCTION returns. The load's standard error is written to a file in DIRECTORY."
  (declare (type function function))
  (if (null load)
      (funcall function)
      (let* ((said (format nil "~A/load.errors" directory))
             (process (start-load load
                                  (if (subject-process subject)
                                      (subject-address subject)
                                      (fail "a load needs an address; let profile start it"))
                                  in-flight said)))
        (unwind-protect
             (progn
               (sleep warm-seconds)
               (check-load process said)
               (prog1 (funcall function)
                 (check-load process said)))
          (end-load process)))))

;;; A profile

(defun subject-symbolizer (subject directory)
  "The SYMBOLIZER of the functions of SUBJECT, whose map is written to DIRECTORY if SUBJECT can be
asked for it."
  (let* ((pid (subject-pid subject))
         (path (format nil "~A/map" directory))
         (map (if (subject-process subject)
                  (progn (ask subject (format nil "map ~A" path)) path)
                  (asked-perf-map pid))))
    (make-symbolizer :program (or (program-path pid) "")
                     :functions (and (same-program-p pid) (program-functions))
                     :made (read-perf-map map)
                     :mappings (read-mappings pid))))

(defun call-with-directory (function)
  "Call FUNCTION with the path of a new directory, which is removed when FUNCTION has ended."
  (declare (type function function))
  (let ((directory (string-right-trim
                    '(#\Newline)
                    (with-output-to-string (stream)
                      (sb-ext:run-program "mktemp" '("-d") :search t :output stream)))))
    (unwind-protect (funcall function directory)
      (uiop:delete-directory-tree (uiop:ensure-directory-pathname directory)
                                  :validate (constantly t) :if-does-not-exist :ignore))))

(defun sample-cpu (subject seconds directory perf)
  "Sample SUBJECT's CPU for SECONDS, with perf if PERF is true, else with SBCL's profiler. Return a
function of a symbolizer that makes data of the samples."
  (let ((pid (subject-pid subject)))
    (flet ((path (name) (format nil "~A/~A" directory name)))
      (cond (perf
             (let ((record (record subject (sampling-arguments pid) seconds (path "cpu.data"))))
               (lambda (symbolizer)
                 (cpu-data (record-sums record pid symbolizer) record pid +period-ns+ "perf"))))
            ((subject-process subject)
             (let* ((before (take-reading subject))
                    (path (path "cpu.stacks"))
                    (answer (ask-to-sample subject "cpu" seconds path))
                    (record (make-record :path path :before before
                                         :after (take-reading subject))))
               (when (member-of answer "error")
                 (fail "SBCL's profiler: ~A" (member-of answer "error")))
               (lambda (symbolizer)
                 (declare (ignore symbolizer))
                 (let ((sums (file-stacks path)))
                   ;; SBCL's timer has the kernel's tick, whatever interval is requested
                   (cpu-data sums record pid
                             (floor (- (reading-cpu-ns (record-after record))
                                       (reading-cpu-ns before))
                                    (max 1 (sums-samples sums)))
                             "sb-sprof")))))
            (t (fail "perf is missing, or the kernel does not allow it (/proc/sys/kernel/~
                      perf_event_paranoid is ~D); a process that profile starts can be sampled ~
                      without it" (paranoia)))))))

(defun ask-to-sample (subject mode seconds path)
  (ask subject (format nil "sample ~A ~D ~A" mode (ceiling (* 1000 seconds)) path)
       :seconds (+ 60 (ceiling seconds))))

(defun ask-for-locks (subject path)
  "A list of one stream, from which the addresses of SUBJECT's locks can be read; SUBJECT's agent
writes them to the file PATH. Return nil if SUBJECT has no agent."
  (when (subject-process subject)
    (ask subject (format nil "locks ~A" path))
    (list (make-string-input-stream (uiop:read-file-string path :external-format :utf-8)))))

(defun follow-events (subject seconds directory perf)
  "Follow the system calls of SUBJECT for SECONDS, with perf if PERF is true and the kernel allows
it, else with strace. Return a function that takes a symbolizer and returns data about these calls;
nil if both programs are missing."
  (let ((pid (subject-pid subject)))
    (flet ((path (name) (format nil "~A/~A" directory name)))
      (cond ((and perf (tracepoints-there-p))
             (let* ((before (ask-for-locks subject (path "locks.before")))
                    (record (record subject (tracing-arguments pid) seconds
                                    (path "events.data")))
                    (after (ask-for-locks subject (path "locks.after")))
                    (locks (read-locks (append before after))))
               (lambda (symbolizer)
                 (event-data (record-events record pid symbolizer locks) record pid))))
            ((program-there-p "strace")
             (let ((record (strace subject seconds (path "strace"))))
               (lambda (symbolizer)
                 (declare (ignore symbolizer))
                 (event-data (with-open-file (stream (record-path record))
                               (parse-strace stream))
                             record pid))))))))

(defun allocation (subject seconds directory)
  "The allocating functions, as SBCL's profiler in the agent of SUBJECT finds them, or nil if
SUBJECT has no agent."
  (when (subject-process subject)
    (let* ((path (format nil "~A/alloc.stacks" directory))
           (answer (ask-to-sample subject "alloc" seconds path)))
      (and (member-of answer "consed")
           (with-open-file (stream path :external-format :utf-8)
             (allocation-data (sum-allocation stream) answer))))))

(defconstant +few-unknown+ 1/10 "If more than this share of the frames, or of the functions that ran
at a sample, have no name, the report mentions it and names a remedy.")
(defconstant +few-samples+ 100 "The number of samples below which the report gives the possible
error of shares.")

(defun unseen-lines (subject cpu events)
  "A vector of texts about the parts that a profile of SUBJECT, with the data CPU and EVENTS, lacks,
and about the reasons."
  (let ((unknown (max (share (member-of cpu "unknownFrames") (member-of cpu "frames"))
                      (- 1 (member-of cpu "explained"))))
        (samples (member-of cpu "samples")))
    (coerce
     (append
      (when (< samples +few-samples+)
        ;; two standard deviations of a share of a half
        (list (format nil "where most of the time went: the process used little, so there ~
                           ~:[are~;is~] ~D sample~:P, and a share may be wrong by ~D ~
                           points. A load, or more --seconds, gives more"
                      (= 1 samples) samples (min 100 (round 100 (sqrt (max 1 samples)))))))
      (when (< +few-unknown+ unknown)
        (list (format nil "names of functions that were compiled in the process: it has not ~
                           reported their addresses. A program whose main function is RUN-SERVER ~
                           reports them when it is asked; in others call ~
                           (clgrpc.program:write-perf-map) before")))
      (cond ((null events)
             (list (format nil "system calls, waits, switches of thread: perf's tracepoints and ~
                                strace are missing")))
            ((string= "strace" (member-of events "source"))
             (list (format nil "waits on locks, switches of thread, how long the longest system ~
                                call took: strace only counts. For these perf must run as root, ~
                                with tracefs mounted ~
                                (mount -t tracefs tracefs /sys/kernel/tracing)"))))
      (unless (subject-process subject)
        (list (format nil "figures a call, batons, turns, allocation, names of locks: a process ~
                           reports them only if profile has started it"))))
     'vector)))

(defun call-while-it-runs (function subject)
  "Call FUNCTION; signal a PROFILE-ERROR in place of its errors if the process of SUBJECT has ended
meanwhile."
  (handler-bind ((error (lambda (error)
                          (declare (ignore error))
                          (unless (runs-p (subject-pid subject))
                            (fail "the process has ended before the profile was complete")))))
    (funcall function)))

(defun take-profile (subject seconds directory perf)
  "The profile of SUBJECT, which is under load, as data. CPU is sampled for SECONDS, with perf if
PERF is true."
  (let* ((begin (take-reading subject))
         (cpu (sample-cpu subject seconds directory perf))
         (end (take-reading subject))
         (events (follow-events subject (min 1 seconds) directory perf))
         (allocation (allocation subject (min 1 seconds) directory))
         (heap-histogram (ask subject "heap-histogram 1000" :seconds 60))
         ;; the symbolizer is made last, so that it includes code that was compiled meanwhile
         (symbolizer (subject-symbolizer subject directory))
         (cpu (funcall cpu symbolizer))
         (events (and events (funcall events symbolizer))))
    (object "clgrpcProfile" 1
            "version" **version**
            "pid" (subject-pid subject)
            "cpu" cpu
            "events" events
            "counters" (agent-data begin end)
            "allocation" allocation
            "heapHistogram" (histogram-data heap-histogram)
            "unseen" (unseen-lines subject cpu events))))

(defun without-flame (profile)
  "PROFILE, the profile of one of several rounds, without its flame graphs."
  (flet ((without (name alist) (remove name alist :key #'car :test #'string=)))
    (loop for (name . part) in profile
          collect (cons name (cond ((string= "cpu" name) (without "flame" part))
                                   ((string= "events" name) (without "offCpu" part))
                                   (t part))))))

(defun cpu-per-call (profile)
  (let ((calls (member-of profile "cpu" "calls")) (ns (member-of profile "cpu" "kernelNs")))
    (if (and calls (plusp calls)) (/ ns calls) ns)))

(defun one-of-rounds (profiles)
  "That profile among PROFILES, the rounds of one load, whose CPU time per call is the median. If
there are several PROFILES, the returned profile gets all of them as its rounds."
  (let ((middle (elt (sort (copy-list profiles) #'< :key #'cpu-per-call)
                     (floor (1- (length profiles)) 2))))
    (append middle
            (when (rest profiles) (object "rounds" (map 'vector #'without-flame profiles))))))

(defun profile (&key pid command load (in-flight 100) (seconds 3) (warm-seconds 1) (rounds 1)
                  (sampler :auto))
  "Profile the process PID, or this program started with COMMAND, a list of strings, for SECONDS,
ROUNDS times. LOAD is a shell command in which {address} stands for the process's address, or
:bench; it starts WARM-SECONDS before the first round and runs during all of them. SAMPLER is :perf,
:sbcl, which works only with COMMAND, or :auto, perf if it is installed. Return the profile, data
for WRITE-JSON: the round whose CPU time per call is the median, and all rounds. Signal a
PROFILE-ERROR if no profile can be made."
  (call-with-directory
   (lambda (directory)
     (let ((subject (if pid (running-subject pid) (start-subject command)))
           (perf (case sampler
                   (:auto (perf-there-p))
                   (:perf (or (perf-there-p) (fail "perf is missing"))))))
       (unwind-protect
            (call-with-load
             (lambda ()
               (append (one-of-rounds
                        (loop repeat rounds
                              collect (call-while-it-runs
                                       (lambda () (take-profile subject seconds directory perf))
                                       subject)))
                       (object "command" (and command (coerce command 'vector))
                               "load" (if (stringp load) load (and load "bench-client")))))
             subject load in-flight warm-seconds directory)
         (end-subject subject))))))
