;;;; Load everything strictly, run the tests, and exit with 1 if one failed. CLGRPC_SUITES, a list
;;;; of words such as "hpack http2", chooses suites; otherwise all run.

(load (merge-pathnames "load.lisp" *load-truename*))
(in-package #:clgrpc.scripts)

(load-strictly "clgrpc/tests")
(quit (if (uiop:symbol-call '#:clgrpc.tests '#:run-suites
                            :only (uiop:split-string (or (uiop:getenvp "CLGRPC_SUITES") "")))
          0
          1))
