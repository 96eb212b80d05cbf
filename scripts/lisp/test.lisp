;;;; Save an image with all tests, loaded strictly, as CLGRPC_OUTPUT; it runs them when it is
;;;; started, and exits with 1 if one failed. CLGRPC_SUITES, a list of words such as "hpack http2",
;;;; chooses suites; otherwise all run. CLGRPC_SLOWEST is the number of slowest tests whose times
;;;; are printed, CLGRPC_REPEATS the most failed tests that are run again. Five suites run at once
;;;; if there are two processors; one alone, or on one processor (taskset -c 0), runs in the image
;;;; itself. CLGRPC_MUTANTS, the words of `scripts/mutants`, makes the image judge mutants instead.
;;;;
;;;; A full collection, of which tests make thousands, takes a tenth of the time in a saved image:
;;;; the collector does not move saved objects, so forked processes share them.

(load (merge-pathnames "../load.lisp" *load-truename*))
(in-package #:clgrpc.scripts)

(load-strictly "clgrpc-tests")

(defun run-mutants (words)
  (quit (uiop:symbol-call '#:clgrpc.tests.mutants '#:main
                          (remove "" (uiop:split-string words) :test #'string=))))

(defun run-tests ()
  (when (uiop:getenv "CLGRPC_MUTANTS")
    (run-mutants (uiop:getenv "CLGRPC_MUTANTS")))
  (quit (if (uiop:symbol-call '#:clgrpc.tests '#:run-suites
                              :only (uiop:split-string (or (uiop:getenvp "CLGRPC_SUITES") ""))
                              :processes (if (and (< 1 (uiop:symbol-call '#:clgrpc.os
                                                                         '#:processor-count))
                                                  ;; a forked process may hang in a lock of qemu's
                                                  (not (uiop:getenvp "CLGRPC_EMULATED")))
                                             5
                                             1)
                              :slowest (parse-integer (or (uiop:getenvp "CLGRPC_SLOWEST") "0"))
                              :repeats (parse-integer (or (uiop:getenvp "CLGRPC_REPEATS") "0")))
            0
            1)))

(sb-ext:disable-debugger)
(sb-ext:save-lisp-and-die (uiop:getenvp "CLGRPC_OUTPUT") :toplevel #'run-tests)
