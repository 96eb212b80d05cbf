;;;; What FiveAM knows of a suite, and reasons to skip a test. Until FiveAM 1.4.2 a suite has a hash
;;;; table of its tests, from 1.4.3 on a bundle that has one.

(in-package #:clgrpc.tests.support)

(defun suite-tests (suite)
  "The tests of SUITE, in no order, without those of the suites in it."
  (let ((tests (fiveam::tests suite)))
    (loop for name being the hash-keys of (if (hash-table-p tests)
                                              tests
                                              (slot-value tests 'fiveam::tests))
          for test = (fiveam:get-test name)
          unless (typep test 'fiveam::test-suite) collect test)))

(defun patient-seconds (seconds)
  "After how many seconds what a test waits for is taken not to come, if SECONDS is what this
machine's own processor needs at most: ten times as many if CLGRPC_EMULATED says that qemu runs
this."
  (if (uiop:getenvp "CLGRPC_EMULATED") (* 10 seconds) seconds))

(defmacro exhausting-a-stack (&body body)
  "BODY, in which a thread comes to the end of its stack. SBCL may die if another has it stop for a
collection just then (doc/sbcl-stack-and-collector.lisp), so one is made before, and none is due for
a while. Skip the test if CLGRPC_EMULATED says that qemu runs this: Lisp does not survive the end of
a stack there, not even alone."
  `(cond ((uiop:getenvp "CLGRPC_EMULATED")
          (fiveam:skip "under qemu nobody survives the end of a stack"))
         (t (sb-ext:gc)
            ,@body)))

(defun skip-on-slow-machine (control &rest arguments)
  "Report the test as skipped, since this machine is too slow, or too busy, for what it is to show.
The text of CONTROL and ARGUMENTS says how that was seen. .ci/run knows the words before it."
  (fiveam:skip "this machine is too slow: ~?" control arguments))
