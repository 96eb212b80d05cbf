;;;; `interop-client`: the cases of interop-case.lisp by the flags that the interoperability clients
;;;; of all gRPC implementations have, so that it fits their scripts.

(in-package #:clgrpc.tools)

(defun interop-credentials (use-tls ca-file host-override)
  (cond (use-tls (client-credentials (or ca-file "system") nil nil host-override))
        ((or ca-file host-override)
         (refuse "--ca_file and --server_host_override go with --use_tls"))))

(define-command "interop-client"
    (()
     ((server_host "HOST" #'identity "localhost" "The host of the server.")
      (server_port "PORT" (integer-parser 1 65535) 8080 "Its port.")
      (test_case "CASE" #'identity "large_unary"
                 "The case, as gRPC's interop-test-descriptions.md names it, or `all` of them.")
      (use_tls "[BOOLEAN]" #'parse-boolean nil "Speak TLS.")
      (ca_file "FILE" #'identity nil
               "The certificates to trust (PEM) with --use_tls; without it the system's.")
      (server_host_override "NAME" #'identity nil
                            "The name that the server's certificate must be for.")
      (soak_iterations "N" (integer-parser 1 1000000) 10 "The calls of the soak cases.")))
    "Play a case of gRPC's interoperability tests to a server. Prints the name of each case that
passes; exits with 1 when one fails."
  (let* ((credentials (interop-credentials use_tls ca_file server_host_override))
         (address (format nil (if (find #\: server_host) "[~A]:~D" "~A:~D")
                          server_host server_port))
         (names (if (string= test_case "all") (mapcar #'car *interop-cases*) (list test_case)))
         (*soak-iterations* soak_iterations)
         (*soak-connect* (lambda () (grpc:make-channel address :credentials credentials))))
    (mapc #'find-interop-case names)
    (dolist (name names)
      (grpc:with-channel (channel address :credentials credentials)
        (handler-case (run-interop-case name channel)
          (clgrpc-error (error) (fail-command "~A: ~A" name error))))
      (format t "~A passed~%" name)))
  0)
