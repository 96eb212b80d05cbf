;;;; Load everything strictly, run the tests, and exit with 1 if one failed. CLGRPC_SUITES, a list
;;;; of words such as "hpack http2", chooses suites; otherwise all run. Two run at once if there are
;;;; two processors; one alone, or on one processor (taskset -c 0), runs in this image.

(load (merge-pathnames "load.lisp" *load-truename*))
(in-package #:clgrpc.scripts)

(load-strictly "clgrpc/tests")
(quit (if (uiop:symbol-call '#:clgrpc.tests '#:run-suites
                            :only (uiop:split-string (or (uiop:getenvp "CLGRPC_SUITES") ""))
                            :processes (min 2 (uiop:symbol-call '#:clgrpc.os
                                                                '#:processor-count)))
          0
          1))
