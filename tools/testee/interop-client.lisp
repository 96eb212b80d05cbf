;;;; `interop-client`: the cases of interop-case.lisp by the flags that the interoperability clients
;;;; of all gRPC implementations have, so that it fits their scripts.

(in-package #:clgrpc.testee)

(defun interop-credentials (use-tls use-test-ca ca-file host-override)
  (when (and use-test-ca (not ca-file))
    (refuse "--use_test_ca wants the test authority's certificate as --ca_file"))
  (cond (use-tls (client-credentials (or ca-file "system") nil nil host-override))
        ((or ca-file host-override)
         (refuse "--ca_file, --use_test_ca and --server_host_override need --use_tls"))))

(define-command "interop-client"
    (()
     ((server_host "HOST" #'identity "localhost" "The host of the server.")
      (server_port "PORT" (integer-parser 1 65535) 8080 "The port of the server.")
      (test_case "CASE" #'identity "large_unary"
                 "The case, as gRPC's interop-test-descriptions.md names it, or `all` of them.")
      (use_tls "[BOOLEAN]" #'parse-boolean nil "Speak TLS.")
      (use_test_ca "[BOOLEAN]" #'parse-boolean nil
                   "Trust the certificate of --ca_file, and no other; --ca_file alone does
      the same.")
      (ca_file "FILE" #'identity nil
               "The certificates to trust (PEM) with --use_tls; by default the system's.")
      (server_host_override "NAME" #'identity nil
                            "The name that the server's certificate must be for.")
      (soak_iterations "N" (integer-parser 1 1000000) 10 "The calls of the soak cases.")
      (soak_num_threads "N" (integer-parser 1 1000) 1
                        "The threads among which the calls of the soak cases are divided.")
      (soak_max_failures "N" (integer-parser 0 1000000) 0
                         "The maximum number of calls of a soak case that fail, or take too long.")
      (soak_per_iteration_max_acceptable_latency_ms
       "MS" (integer-parser 1 1000000) 1000
       "The time after which a call of a soak case is too slow.")
      (soak_overall_timeout_seconds "SECONDS" (integer-parser 1 1000000) 10
                                    "The time by which all calls of a soak case must be over.")
      (soak_min_time_ms_between_rpcs "MS" (integer-parser 0 1000000) 0
                                     "The minimum time between the beginnings of two calls of a
      thread in a soak case.")
      (soak_request_size "OCTETS" (integer-parser 0 100000000) 271828
                         "The size of the payload of a request in the soak cases.")
      (soak_response_size "OCTETS" (integer-parser 0 100000000) 314159
                          "The size of the payload of a response in the soak cases.")))
    "Run a case of gRPC's interoperability tests against a server. Prints the name of each case that
passes; exits with 1 when one fails."
  (let* ((credentials (interop-credentials use_tls use_test_ca ca_file server_host_override))
         (address (format nil (if (find #\: server_host) "[~A]:~D" "~A:~D")
                          server_host server_port))
         (names (if (string= test_case "all") (mapcar #'car *interop-cases*) (list test_case)))
         (*soak*
           (make-soak :iterations soak_iterations :threads soak_num_threads
                      :max-failures soak_max_failures
                      :max-latency-ms soak_per_iteration_max_acceptable_latency_ms
                      :timeout-seconds soak_overall_timeout_seconds
                      :pause-ms soak_min_time_ms_between_rpcs
                      :request-size soak_request_size :response-size soak_response_size))
         (*soak-connect* (lambda () (grpc:make-channel address :credentials credentials))))
    (mapc #'find-interop-case names)
    (dolist (name names)
      (grpc:with-channel (channel address :credentials credentials)
        (handler-case (run-interop-case name channel)
          (clgrpc-error (error) (fail-command "~A: ~A" name error))))
      (format t "~A passed~%" name)))
  0)
