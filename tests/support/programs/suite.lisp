;;;; What FiveAM knows of suites, tests and checks and does not export; the tests of a layer for
;;;; ASDF:TEST-SYSTEM; and how a test ends that cannot be run here. Until FiveAM 1.4.2 a suite has a
;;;; hash table of its tests, from 1.4.3 on a bundle that has one.

(in-package #:clgrpc.tests.support)

(defun test-name (test)
  "The name of TEST, a test or a suite."
  (fiveam::name test))

(defun suite-p (test)
  "True if TEST, a test or a suite, is a suite."
  (typep test 'fiveam::test-suite))

(defun failed-check-p (check)
  "True if CHECK, a result of FIVEAM:RUN, is a failure."
  (fiveam::test-failure-p check))

(defun skipped-check-p (check)
  "True if CHECK, a result of FIVEAM:RUN, says that its test was skipped."
  (fiveam::test-skipped-p check))

(defun check-reason (check)
  "The text of CHECK, which has failed or was skipped; or nil."
  (fiveam::reason check))

(defun suite-tests (suite)
  "The tests of SUITE, in no order, without those of the suites in it."
  (let ((tests (fiveam::tests suite)))
    (loop for name being the hash-keys of (if (hash-table-p tests)
                                              tests
                                              (slot-value tests 'fiveam::tests))
          for test = (fiveam:get-test name)
          unless (suite-p test) collect test)))

;;; ASDF:TEST-SYSTEM of one layer

(define-condition tests-failed (error)
  ((suites :initarg :suites :reader tests-failed-suites))
  (:report (lambda (condition stream)
             (format stream "Tests failed in~{ ~(~A~)~^,~}." (tests-failed-suites condition))))
  (:documentation "Tests failed in SUITES, a list of their names. Signalled by ASDF:TEST-SYSTEM."))

(defun layer-suites (layer)
  "The suites of LAYER, a word such as \"loop\": those named CLGRPC.LAYER and CLGRPC.LAYER.PART."
  (let ((name (format nil "clgrpc.~A" layer)))
    (loop for symbol in (fiveam:test-names)
          for suite = (fiveam:get-test symbol)
          when (and (suite-p suite)
                    (or (string-equal name symbol)
                        (uiop:string-prefix-p (string-upcase (format nil "~A." name))
                                              (string-upcase symbol))))
            collect suite)))

(defun test-layer (layer)
  "Run the tests of LAYER, a word such as \"loop\", and print what FiveAM says of them. Signal
TESTS-FAILED if one failed, and an error if there are none."
  (let ((suites (or (layer-suites layer)
                    (error "There are no tests of ~A." layer))))
    (let ((failed (loop for suite in suites
                        unless (fiveam:explain! (fiveam:run (suite-tests suite)))
                          collect (test-name suite))))
      (when failed (error 'tests-failed :suites failed)))))

;;; How much a test does

(defun at-length (short full)
  "How much of something a test does: FULL if `make endurance` runs it (CLGRPC_ENDURANCE says so),
else SHORT."
  (if (uiop:getenvp "CLGRPC_ENDURANCE") full short))

(defun patient-seconds (seconds)
  "After how many seconds what a test waits for is taken not to come, if SECONDS is what this
machine's own processor needs at most: ten times as many if CLGRPC_EMULATED says that qemu runs
this."
  (if (uiop:getenvp "CLGRPC_EMULATED") (* 10 seconds) seconds))

;;; Waiting

(defun wait-until (predicate &key (seconds (patient-seconds 60)))
  "Wait until PREDICATE is true, at most SECONDS, and return its value; for states of which no thread
is notified. PREDICATE is called all the time for 10 ms, then each millisecond, since other threads
need the processor."
  (loop with quiet = (sb-thread:make-semaphore)
        with begin = (get-internal-real-time)
        for value = (funcall predicate)
        for waited = (/ (- (get-internal-real-time) begin) internal-time-units-per-second)
        until (or value (> waited seconds))
        do (if (< waited 1/100)
               (sb-thread:thread-yield)
               (sb-thread:wait-on-semaphore quiet :timeout 0.001)) ; which nobody signals
        finally (return value)))

(defmacro eventually (form &rest options)
  "Check that FORM becomes true; OPTIONS are those of WAIT-UNTIL."
  `(fiveam:is-true (wait-until (lambda () ,form) ,@options) "~S has not become true" ',form))

;;; Skipped tests

(defmethod fiveam::test-lambda :around ((test fiveam::test-case))
  (let ((function (call-next-method)))
    (lambda () (catch 'test-skipped (funcall function)))))

(defun skip-test (control &rest arguments)
  "End the test under way, from any function that its thread has called, and report it as skipped.
The text of CONTROL and ARGUMENTS says why."
  (fiveam:skip "~?" control arguments)
  (throw 'test-skipped nil))

(defmacro exhausting-a-stack (&body body)
  "BODY, in which a thread comes to the end of its stack. SBCL may die if another has it stop for a
collection just then (doc/sbcl-stack-and-collector.lisp), so one is made before, and none is due for
a while. Skip the test if CLGRPC_EMULATED says that qemu runs this: Lisp does not survive the end of
a stack there, not even alone."
  `(progn
     (when (uiop:getenvp "CLGRPC_EMULATED")
       (skip-test "under qemu nobody survives the end of a stack"))
     (sb-ext:gc)
     ,@body))

(defun skip-on-slow-machine (control &rest arguments)
  "End the test as skipped, since this machine is too slow, or too busy, for what it is to show.
The text of CONTROL and ARGUMENTS says how that was seen. .ci/run knows the words before it."
  (skip-test "this machine is too slow: ~?" control arguments))
