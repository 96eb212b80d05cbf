;;;; The command `load`: its exit codes.

(in-package #:clgrpc.tests.tools)
(in-suite :clgrpc.tools)

(test load-says-by-its-exit-code-how-the-run-was
  (with-serve (program address "interop")
    (flet ((code (data &rest options)
             (values (apply #'run-line "load" "-n" "20" "-c" "2" "-d" data "-O" "json" address
                            "grpc.testing.TestService/UnaryCall" options)))
           (failing () "{\"responseStatus\": {\"code\": 5, \"message\": \"nowhere\"}}"))
      (is (= 0 (code "{}")))
      (is (= 3 (code (failing))))
      (is (= 4 (code "{}" "--fail-if" "p50 > 1ns")))
      (is (= 0 (code "{}" "--fail-if" "p50 > 1s")))
      (is (= 4 (code (failing) "--fail-if" "errors > 19")))
      (is (= 0 (code (failing) "--fail-if" "errors > 20")) "only the condition counts")
      (is (= 2 (code "{}" "--fail-if" "p50 is high")))
      (is (= 2 (code "{\"noSuchField\": 1}"))))))
