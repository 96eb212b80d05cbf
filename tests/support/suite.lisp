;;;; What FiveAM knows of a suite. Until FiveAM 1.4.2 a suite has a hash table of its tests, from
;;;; 1.4.3 on a bundle that has one.

(in-package #:clgrpc.tests.support)

(defun suite-tests (suite)
  "The tests of SUITE, in no order, without those of the suites in it."
  (let ((tests (fiveam::tests suite)))
    (loop for name being the hash-keys of (if (hash-table-p tests)
                                              tests
                                              (slot-value tests 'fiveam::tests))
          for test = (fiveam:get-test name)
          unless (typep test 'fiveam::test-suite) collect test)))

(defmacro unless-emulated (&body body)
  "BODY, unless CLGRPC_EMULATED says that qemu runs this: Lisp does not survive the end of a stack
there, not even alone."
  `(if (uiop:getenvp "CLGRPC_EMULATED")
       (fiveam:skip "under qemu nobody survives the end of a stack")
       (progn ,@body)))
