;;;; Runs every FiveAM suite whose name begins with CLGRPC and reports: one line per suite, each
;;;; skip with its reason, each failure with its details, and last `N passed, N failed, N skipped`,
;;;; which counts tests, not checks. A layer's tests need no registration but to be loaded.
;;;;
;;;; SLOWEST=20 names at the end the twenty tests that took longest, and says of each suite when it
;;;; ran and how much of the processor's time it took.
;;;;
;;;; REPEATS=2 runs tests that fail again, each alone, if no more than two do. One that passes then
;;;; is named as NOT STEADY below its failure and counts as passed. CI uses it: one of four thousand
;;;; tests may meet a pause of the machine. Its fault is corrected all the same.
;;;;
;;;; A suite fails as well if it leaves threads or file descriptors behind. A test that takes longer
;;;; than *SLOW-SECONDS* is named with its time; one that takes longer than *TEST-LIMIT-SECONDS*
;;;; ends its process, since nothing can stop it safely.
;;;;
;;;; Given several processors, five suites run at once, each in a process of its own, forked when
;;;; all is loaded: three that mostly wait beside two that compute, as long as there are both. What
;;;; a process prints is kept and printed when it ends. A process that dies is a failure of its
;;;; suite.

(in-package #:clgrpc.tests)

(defparameter *test-limit-seconds* (support:patient-seconds 600)
  "How long one test may take before its process is given up.")

(defparameter *slow-seconds* 10 "A test that takes longer is named, with its time.")

(defstruct (tally (:copier nil))
  (suite nil :read-only t)              ; its name
  (passed 0)
  (failed 0)
  (skipped 0)
  (checks 0)
  (failures '() :type list)             ; the names of the tests that failed, newest first
  (costs '() :type list)                ; a COST of each test, newest first
  (remarks '() :type list))             ; texts for below the suite's line, newest first

(defstruct (cost (:type list) (:copier nil))
  "What a test, or a suite, took. It is printed and read."
  (name "" :type string)
  (start 0 :type real)                  ; the internal real time at which it began
  (seconds 0 :type real)
  (processor-seconds 0 :type real))     ; of this process and of programs that it ran to their end

(defun remark (tally control &rest arguments)
  (push (format nil "~?" control arguments) (tally-remarks tally)))

;;; What to run

(defun suite-word (suite)
  "What SUITES= calls SUITE: its name after `CLGRPC.`."
  (let ((name (string-downcase (support:test-name suite))))
    (subseq name (min (length name) (length "clgrpc.")))))

(defun suite-rank (suite)
  "Where SUITE's system stands among those that clgrpc-tests names; the others come last."
  (or (position (format nil "clgrpc-tests/~A" (first (uiop:split-string (suite-word suite)
                                                                       :separator ".")))
                (asdf:system-depends-on (asdf:find-system "clgrpc-tests")) :test #'string=)
      most-positive-fixnum))

(defun chosen-suites (only)
  "The suites to run, lower layers first; if ONLY holds words, those that it names."
  (stable-sort (loop for name in (remove-duplicates (fiveam:test-names))
                     for suite = (fiveam:get-test name)
                     when (and (support:suite-p suite)
                               (uiop:string-prefix-p "clgrpc" (string-downcase name))
                               (or (null only)
                                   (member (suite-word suite) only :test #'string=)))
                       collect suite)
               #'< :key #'suite-rank))

;;; One test

(defun call-with-time-limit (function name)
  "Call FUNCTION; if that takes too long, say so with a backtrace of this thread and end the
process."
  (let* ((done (sb-thread:make-semaphore :name "test done"))
         (tested (sb-thread:main-thread))
         (watch (sb-thread:make-thread
                 (lambda ()
                   (unless (sb-thread:wait-on-semaphore done :timeout *test-limit-seconds*)
                     (format t "~&The test ~A takes longer than ~D seconds.~%" name
                             *test-limit-seconds*)
                     ;; nothing is to be saved any more, so an interruption does no harm
                     (sb-thread:interrupt-thread tested (lambda ()
                                                          (sb-debug:print-backtrace :count 60)
                                                          (finish-output)
                                                          (sb-ext:exit :code 3 :abort t)))
                     (sb-thread:wait-on-semaphore done :timeout 10)
                     (sb-ext:exit :code 3 :abort t)))
                 :name "test time limit")))
    (unwind-protect (funcall function)
      (sb-thread:signal-semaphore done)
      (sb-thread:join-thread watch))))

(defun failure-text (test failures trace)
  "What to print of TEST, whose FAILURES are the checks that failed. TRACE is what FiveAM printed: a
character for each check, then the backtrace of an error."
  (format nil "FAILED ~A~{~%    ~A~}~@[~%~A~]" (support:test-name test)
          (mapcar (lambda (failure)
                    (substitute #\Space #\Newline (or (support:check-reason failure) "")))
                  failures)
          (let ((start (search "Backtrace for:" trace)))
            (when start
              ;; below RUN-IT are the frames of FiveAM and of this file
              (subseq trace start (search "FIVEAM::RUN-IT" trace :start2 start))))))

(defun seconds-since (start)
  "How many seconds have passed since START, an internal real time."
  (/ (- (get-internal-real-time) start) internal-time-units-per-second))

(defun processor-seconds ()
  "Processor time of this process, and of the programs that it started and that have ended."
  (flet ((spent (who)
           (multiple-value-bind (ok user system) (sb-unix:unix-getrusage who)
             (if ok (/ (+ user system) 1000000) 0))))
    (+ (spent sb-unix:rusage_self) (spent sb-unix:rusage_children))))

(defun run-one (test tally)
  (let* ((results '())
         (start (get-internal-real-time))
         (cpu (processor-seconds))
         (trace (with-output-to-string (fiveam:*test-dribble*)
                  (let ((fiveam:*on-error* :backtrace)
                        (fiveam:*print-names* nil))
                    (setf results (call-with-time-limit (lambda () (fiveam:run test))
                                                        (support:test-name test))))))
         (failures (remove-if-not #'support:failed-check-p results))
         (skip (find-if #'support:skipped-check-p results))
         (seconds (seconds-since start))
         (processor-seconds (- (processor-seconds) cpu)))
    (push (make-cost :name (string-downcase (support:test-name test)) :start start :seconds seconds
                     :processor-seconds processor-seconds)
          (tally-costs tally))
    (when (< *slow-seconds* seconds)
      (remark tally "~A took ~,1F s, ~,1F of them the processor's" (support:test-name test) seconds
              processor-seconds))
    (incf (tally-checks tally) (length results))
    (cond (failures
           (incf (tally-failed tally))
           (push (support:test-name test) (tally-failures tally))
           (remark tally "~A" (failure-text test failures trace)))
          (skip
           (incf (tally-skipped tally))
           (remark tally "skipped ~A: ~A" (support:test-name test) (support:check-reason skip)))
          (t (incf (tally-passed tally))))))

;;; Leaks

(defun descriptor-names ()
  "An alist from each open file descriptor of this process to what it is."
  (loop for descriptor in (os:open-descriptors)
        for target = (ignore-errors
                      (sb-posix:readlink (format nil "/proc/self/fd/~D" descriptor)))
        when target                     ; some thread may have closed it meanwhile
          collect (cons descriptor target)))

(defun leaked-threads (before)
  "The threads alive now that were not in BEFORE, after some patience with those that are ending."
  (loop for thread in (set-difference (sb-thread:list-all-threads) before)
        do (sb-thread:join-thread thread :timeout 5 :default nil)
        when (sb-thread:thread-alive-p thread) collect thread))

(defun backtrace-of (thread)
  "What THREAD, which lives though it should have ended, is doing."
  (let ((text "it takes no interrupt")
        (told (sb-thread:make-semaphore)))
    (ignore-errors                      ; it may end just now
     (sb-thread:interrupt-thread thread
                                 (lambda ()
                                   (setf text (with-output-to-string (stream)
                                                (sb-debug:print-backtrace :stream stream
                                                                          :count 30)))
                                   (sb-thread:signal-semaphore told)))
     (sb-thread:wait-on-semaphore told :timeout 2))
    text))

(defun call-checking-leaks (function tally)
  (let ((threads (sb-thread:list-all-threads))
        (descriptors (descriptor-names)))
    (funcall function)
    (let ((leaked-threads (leaked-threads threads))
          (leaked-descriptors (set-difference (descriptor-names) descriptors :test #'equal)))
      (when leaked-threads
        (incf (tally-failed tally))
        (remark tally "FAILED leaked threads:~:{~%    ~A~%~A~}"
                (mapcar (lambda (thread) (list thread (backtrace-of thread))) leaked-threads)))
      (when (> (length leaked-descriptors) (length (set-difference descriptors (descriptor-names)
                                                                   :test #'equal)))
        (incf (tally-failed tally))
        (remark tally "FAILED leaked descriptors:~{ ~A~}" (mapcar #'cdr leaked-descriptors))))))

;;; One suite

(defun call-with-folder (function)
  "Call FUNCTION with the path of a new folder, which is where temporary files go meanwhile, those
of programs that are started, too: other runs of tests choose the same names."
  (let ((before (namestring (uiop:temporary-directory)))
        (folder (format nil "~Aclgrpc-tests-~36R/" (namestring (uiop:temporary-directory))
                        (random (expt 36 8) (make-random-state t)))))
    (flet ((choose (path)
             (setf uiop:*temporary-directory* (pathname path)
                   (uiop:getenv "TMPDIR") path)))
      (ensure-directories-exist folder)
      (choose folder)
      (unwind-protect (funcall function folder)
        (choose before)
        (uiop:delete-directory-tree (pathname folder) :validate t)))))

(defun run-suite (suite &optional (tests (support:suite-tests suite)))
  "Run TESTS of SUITE, print its line and remarks, and return its tally."
  (let ((tally (make-tally :suite (support:test-name suite)))
        (start (get-internal-real-time)))
    (call-checking-leaks (lambda ()
                           (call-with-folder (lambda (folder)
                                               (declare (ignore folder))
                                               (dolist (test tests)
                                                 (run-one test tally)))))
                         tally)
    (format t "~&~24A ~4D passed  ~3D failed  ~3D skipped  ~7D checks  ~6,2F s~%"
            (string-downcase (support:test-name suite)) (tally-passed tally) (tally-failed tally)
            (tally-skipped tally) (tally-checks tally)
            (seconds-since start))
    (format t "~{  ~A~%~}" (reverse (tally-remarks tally)))
    (finish-output)
    tally))

;;; Processes

(defparameter *most-computing* 2 "So many suites that compute run at once.")

(defparameter *waiting-suites*
  '("abuse" "tools" "etcd" "transports" "workflow" "discovery" "client" "faults" "promise" "loop"
    "program" "console" "interop" "cluster" "server" "loop.poll" "load.misbehaviour" "web" "memory"
    "channelz" "abuse.heap" "base" "promise.idle" "logs" "dns")
  "The suites that mostly wait, those that take longest first.")

(defparameter *long-suites*
  '("architecture" "manual" "protobuf" "chapters" "fuzz" "workflow.seeds" "simulation.seeds"
    "report" "promise.memory" "promise.image" "examples" "profile" "balance" "sim"
    "raft-example.seeds" "sim.seeds" "mutants")
  "Of the suites that compute those that take longest, and begin before the others.")

(defparameter *lonely-suites* '("promise.sleeping" "profile.server" "load")
  "The suites that nothing runs beside, since it would be seen in what they measure.")

(defun waits-p (suite)
  (member (suite-word suite) *waiting-suites* :test #'string=))

(defun lonely-p (suite)
  (member (suite-word suite) *lonely-suites* :test #'string=))

(defun in-order (suites words)
  "SUITES, those that WORDS name first, in their order."
  (stable-sort (copy-list suites) #'<
               :key (lambda (suite)
                      (or (position (suite-word suite) words :test #'string=)
                          most-positive-fixnum))))

(defun next-suite (left running)
  "Which of the suites LEFT to start beside those RUNNING, or nil if it is better to wait: as many
as *MOST-COMPUTING* compute while others wait."
  (let* ((social (remove-if #'lonely-p left))
         (waiting (in-order (remove-if-not #'waits-p social) *waiting-suites*))
         (computing (in-order (remove-if #'waits-p social) *long-suites*)))
    (cond ((some #'lonely-p running) nil)
          ((and computing (< (count-if-not #'waits-p running) *most-computing*))
           (first computing))
          (waiting (first waiting))
          (running nil)
          (t (first left)))))

(defstruct (job (:copier nil))
  "A process that runs a suite."
  (suite nil :read-only t)
  (tests '() :read-only t)              ; those of its tests that it runs
  (pid 0)
  (output nil :read-only t)             ; the path of what it prints
  (result nil :read-only t))            ; the path of how many of its tests passed and so on

(defun run-job (job)
  "Run the suite of JOB, whose process this is, and end it."
  (unwind-protect
       (let ((file (sb-posix:open (job-output job) (logior sb-posix:o-creat sb-posix:o-wronly)
                                  #o600)))
         (sb-posix:dup2 file 1)
         (sb-posix:dup2 file 2)
         (sb-posix:close file)
         (let ((tally (run-suite (job-suite job) (job-tests job))))
           (with-open-file (stream (job-result job) :direction :output)
             (with-standard-io-syntax
               (prin1 (list (tally-passed tally) (tally-failed tally) (tally-skipped tally)
                            (tally-failures tally) (tally-costs tally))
                      stream)))))
    (finish-output)
    (finish-output *error-output*)
    (sb-ext:exit :code 1 :abort t)))

(defun start-job (suite folder &optional (tests (support:suite-tests suite)))
  "Run TESTS of SUITE in a process of its own, which leaves in FOLDER what comes of it."
  (flet ((path (type) (format nil "~A~A.~A" folder (suite-word suite) type)))
    (let ((job (make-job :suite suite :tests tests :output (path "output")
                         :result (path "result"))))
      (finish-output)
      (let ((pid (sb-posix:fork)))
        (when (zerop pid)
          (run-job job))
        (setf (job-pid job) pid)
        job))))

(defun job-tally (job)
  "What came of JOB, whose process has ended. That it ended too early is a failure."
  (let ((suite (support:test-name (job-suite job))))
    (if (probe-file (job-result job))
        (with-open-file (stream (job-result job))
          (destructuring-bind (passed failed skipped failures costs)
              (with-standard-io-syntax (read stream))
            (make-tally :suite suite :passed passed :failed failed :skipped skipped
                        :failures failures :costs costs)))
        (make-tally :suite suite :failed 1))))

(defun print-job (job tally)
  "Print what JOB, of which TALLY came, has printed."
  (fresh-line)
  (when (probe-file (job-output job))
    ;; a test may have printed anything
    (write-string (uiop:read-file-string (job-output job)
                                         :external-format '(:utf-8 :replacement #\?))))
  (unless (probe-file (job-result job))
    (format t "~&~24A FAILED: its process ended before its tests did~%"
            (string-downcase (support:test-name (job-suite job)))))
  (finish-output)
  tally)

(defun run-in-processes (suites count)
  "Run SUITES, at most COUNT at once, each in a process of its own; return their tallies."
  (sb-ext:gc :full t)                   ; so that those processes need not copy what is loaded
  (call-with-folder
   (lambda (folder)
     (let ((left suites) (running '()))
       (flet ((start ()
                (loop for suite = (and (< (length running) count)
                                       (next-suite left (mapcar #'job-suite running)))
                      while suite
                      do (setf left (remove suite left))
                         (push (start-job suite folder) running))))
         (loop initially (start)
               while running
               collect (let ((job (find (sb-posix:wait) running :key #'job-pid)))
                         (setf running (remove job running))
                         (start)
                         (print-job job (job-tally job)))))))))

;;; Tests that are not steady

(defun run-alone (suite name)
  "Run the test NAME of SUITE in a process of its own, with nothing beside it; true if it passes."
  (call-with-folder
   (lambda (folder)
     (let ((job (start-job suite folder (list (fiveam:get-test name)))))
       (sb-posix:waitpid (job-pid job) 0)
       (zerop (tally-failed (print-job job (job-tally job))))))))

(defun repeat-failures (suites tallies most &key (run-alone #'run-alone))
  "Run each test that failed once more, alone, if the failures of TALLIES are no more than MOST. A
test that passes then counts as passed, and is named as not steady. What is no test's failure, such
as a leak or a process that died, stays, and so do the failures of its suite."
  (when (<= 1 (reduce #'+ tallies :key #'tally-failed) most)
    (loop for tally in tallies
          for suite = (find (tally-suite tally) suites :key #'support:test-name)
          when (= (tally-failed tally) (length (tally-failures tally))) ; no leak, no dead process
            do (dolist (name (tally-failures tally))
                 (when (funcall run-alone suite name)
                   (decf (tally-failed tally))
                   (incf (tally-passed tally))
                   (format t "~&NOT STEADY: ~A failed beside others, see above, and passed alone~%"
                           name))))))

;;; What takes long

(defun suite-cost (tally)
  (let ((costs (tally-costs tally)))
    (flet ((sum (reader) (reduce #'+ costs :key reader)))
      (make-cost :name (string-downcase (tally-suite tally))
                 :start (reduce #'min costs :key #'cost-start)
                 :seconds (sum #'cost-seconds)
                 :processor-seconds (sum #'cost-processor-seconds)))))

(defun print-costs (tallies count start)
  "Print when each suite of TALLIES ran, counted from START, an internal real time, and what it and
the COUNT tests that took longest took."
  (flet ((show (cost suite)
           (format t "~8,1F ~8,1F ~8,1F  ~A~@[ ~A~]~%"
                   (/ (- (cost-start cost) start) internal-time-units-per-second)
                   (cost-seconds cost) (cost-processor-seconds cost) (cost-name cost) suite)))
    (format t "~&   start  seconds processor's~%")
    (loop for cost in (sort (mapcar #'suite-cost (remove nil tallies :key #'tally-costs))
                            #'< :key #'cost-start)
          do (show cost nil))
    (terpri)
    (loop for (cost . suite)
            in (sort (loop for tally in tallies
                           append (loop for cost in (tally-costs tally)
                                        collect (cons cost (string-downcase
                                                            (tally-suite tally)))))
                     #'> :key (lambda (entry) (cost-seconds (car entry))))
          repeat count
          do (show cost suite))))

;;; All

(defun run-suites (&key only (processes 1) (slowest 0) (repeats 0))
  "Run all suites, or those that the list of words ONLY names, such as \"hpack\", at most PROCESSES
at once; more than one only in an image without further threads. Print the report, with the SLOWEST
tests that took longest; return true if nothing failed, and as second value the names of the suites
in which something did. With more than one process, up to REPEATS tests that fail are run again."
  (let* ((start (get-internal-real-time))
         (suites (chosen-suites (remove "" only :test #'string=)))
         (*compile-verbose* nil)        ; some tests compile files
         (tallies (progn
                    ;; what tests break on purpose is not for the terminal
                    (setf (sb-ext:symbol-global-value 'clgrpc:*log-function*) nil)
                    (if (or (= 1 processes) (null (rest suites)))
                        (mapcar #'run-suite suites)
                        (run-in-processes suites processes)))))
    (when (< 1 processes)
      (repeat-failures suites tallies repeats))
    (when (plusp slowest)
      (print-costs tallies slowest start))
    (flet ((sum (reader) (reduce #'+ tallies :key reader)))
      (format t "~D passed, ~D failed, ~D skipped~%"
              (sum #'tally-passed) (sum #'tally-failed) (sum #'tally-skipped))
      (finish-output)
      (values (and suites (zerop (sum #'tally-failed)))
              (loop for tally in tallies
                    when (plusp (tally-failed tally)) collect (tally-suite tally))))))

(defun test-system ()
  "Run all suites; signal SUPPORT:TESTS-FAILED if a test failed. ASDF:TEST-SYSTEM calls it."
  (multiple-value-bind (passed failed) (run-suites)
    (unless passed
      (error 'support:tests-failed :suites failed))))
