;;;; Runs every FiveAM suite whose name begins with CLGRPC and reports: one line per suite, each
;;;; skip with its reason, each failure with its details, and last `N passed, N failed, N skipped`,
;;;; which counts tests, not checks. A layer's tests need no registration but to be loaded.
;;;;
;;;; A suite fails as well if it leaves threads or file descriptors behind. A test that takes longer
;;;; than *TEST-LIMIT-SECONDS* ends the whole run, since nothing can stop it safely.

(in-package #:clgrpc.tests)

(defparameter *test-limit-seconds* (support:patient-seconds 600)
  "How long one test may take before the run is given up.")

(define-condition tests-failed (error)
  ((count :initarg :count))
  (:report (lambda (condition stream)
             (format stream "~D test~:P failed." (slot-value condition 'count))))
  (:documentation "Signalled by TEST-SYSTEM."))

(defstruct (tally (:copier nil))
  (passed 0)
  (failed 0)
  (skipped 0)
  (checks 0)
  (remarks '() :type list))             ; texts for below the suite's line, newest first

(defun remark (tally control &rest arguments)
  (push (format nil "~?" control arguments) (tally-remarks tally)))

;;; What to run

(defun suite-word (suite)
  "What SUITES= calls SUITE: its name after `CLGRPC.`."
  (let ((name (string-downcase (fiveam::name suite))))
    (subseq name (min (length name) (length "clgrpc.")))))

(defun suite-rank (suite)
  "Where SUITE's system stands among those that clgrpc/tests names; the others come last."
  (or (position (format nil "clgrpc/tests/~A" (first (uiop:split-string (suite-word suite)
                                                                       :separator ".")))
                (asdf:system-depends-on (asdf:find-system "clgrpc/tests")) :test #'string=)
      most-positive-fixnum))

(defun chosen-suites (only)
  "The suites to run, lower layers first; if ONLY holds words, those that it names."
  (stable-sort (loop for name in (remove-duplicates (fiveam:test-names))
                     for suite = (fiveam:get-test name)
                     when (and (typep suite 'fiveam::test-suite)
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
  (format nil "FAILED ~A~{~%    ~A~}~@[~%~A~]" (fiveam::name test)
          (mapcar (lambda (failure)
                    (substitute #\Space #\Newline (or (fiveam::reason failure) "")))
                  failures)
          (let ((start (search "Backtrace for:" trace)))
            (when start
              ;; below RUN-IT are the frames of FiveAM and of this file
              (subseq trace start (search "FIVEAM::RUN-IT" trace :start2 start))))))

(defun run-one (test tally)
  "Run TEST and add what came of it to TALLY."
  (let* ((results '())
         (trace (with-output-to-string (fiveam:*test-dribble*)
                  (let ((fiveam:*on-error* :backtrace)
                        (fiveam:*print-names* nil))
                    (setf results (call-with-time-limit (lambda () (fiveam:run test))
                                                        (fiveam::name test))))))
         (failures (remove-if-not #'fiveam::test-failure-p results))
         (skip (find-if #'fiveam::test-skipped-p results)))
    (incf (tally-checks tally) (length results))
    (cond (failures
           (incf (tally-failed tally))
           (remark tally "~A" (failure-text test failures trace)))
          (skip
           (incf (tally-skipped tally))
           (remark tally "skipped ~A: ~A" (fiveam::name test) (fiveam::reason skip)))
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

(defun call-checking-leaks (function tally)
  (let ((threads (sb-thread:list-all-threads))
        (descriptors (descriptor-names)))
    (funcall function)
    (let ((leaked-threads (leaked-threads threads))
          (leaked-descriptors (set-difference (descriptor-names) descriptors :test #'equal)))
      (when leaked-threads
        (incf (tally-failed tally))
        (remark tally "FAILED leaked threads:~{ ~A~}" leaked-threads))
      (when (> (length leaked-descriptors) (length (set-difference descriptors (descriptor-names)
                                                                   :test #'equal)))
        (incf (tally-failed tally))
        (remark tally "FAILED leaked descriptors:~{ ~A~}" (mapcar #'cdr leaked-descriptors))))))

;;; All

(defun run-suite (suite)
  "Run SUITE, print its line and remarks, and return its tally."
  (let ((tally (make-tally))
        (start (get-internal-real-time)))
    (call-checking-leaks (lambda ()
                           (dolist (test (support:suite-tests suite))
                             (run-one test tally)))
                         tally)
    (format t "~&~24A ~4D passed  ~3D failed  ~3D skipped  ~7D checks  ~6,2F s~%"
            (string-downcase (fiveam::name suite)) (tally-passed tally) (tally-failed tally)
            (tally-skipped tally) (tally-checks tally)
            (/ (- (get-internal-real-time) start) internal-time-units-per-second))
    (format t "~{  ~A~%~}" (reverse (tally-remarks tally)))
    (finish-output)
    tally))

(defun run-suites (&key only)
  "Run all suites, or those that the list of words ONLY names, such as \"hpack\". Print the report;
return true if nothing failed, and as second value how many tests did."
  (let* ((suites (chosen-suites (remove "" only :test #'string=)))
         (*compile-verbose* nil)        ; some tests compile files
         (tallies (progn
                    ;; what tests break on purpose is not for the terminal
                    (setf (sb-ext:symbol-global-value 'clgrpc:*log-function*) nil)
                    (mapcar #'run-suite suites))))
    (flet ((sum (reader) (reduce #'+ tallies :key reader)))
      (format t "~D passed, ~D failed, ~D skipped~%"
              (sum #'tally-passed) (sum #'tally-failed) (sum #'tally-skipped))
      (finish-output)
      (values (and suites (zerop (sum #'tally-failed))) (sum #'tally-failed)))))

(defun test-system ()
  "Run all suites; signal TESTS-FAILED if a test failed. This is what ASDF:TEST-SYSTEM calls."
  (multiple-value-bind (passed count) (run-suites)
    (unless passed
      (error 'tests-failed :count count))))
