;;;; TLS between saved cores, and what the options for it refuse.

(in-package #:clgrpc.tests.tools)

(defun libraries (program)
  "The files that PROGRAM, running, has mapped, as one text."
  (uiop:read-file-string (format nil "/proc/~D/maps" (support:program-pid program))))

(test serve-over-tls
  (flet ((certificate (name) (support:certificate-file name)))
    (with-serve (program address "route-guide" "--tls-cert" (certificate "server.pem")
                                 "--tls-key" (certificate "server.key")
                                 "--tls-other" (format nil "~A,~A" (certificate "elsewhere.pem")
                                                       (certificate "elsewhere.key"))
                                 "--client-ca" (certificate "ca.pem"))
      (flet ((client (&rest arguments)
               (support:run-to-end (support:clgrpc-program)
                                   (list* "routeguide-client" address arguments))))
        (multiple-value-bind (code lines)
            (client "--tls-ca" (certificate "ca.pem") "--tls-cert" (certificate "client.pem")
                    "--tls-key" (certificate "client.key") "--tls-name" "a.test.example")
          (is (= 0 code) "~{~A~%~}" lines))
        ;; another name, with a certificate of its own
        (multiple-value-bind (code lines)
            (client "--tls-ca" (certificate "ca.pem") "--tls-cert" (certificate "client.pem")
                    "--tls-key" (certificate "client.key") "--tls-name" "elsewhere.example")
          (is (= 0 code) "~{~A~%~}" lines))
        (multiple-value-bind (code lines) (client "--tls-ca" (certificate "ca.pem"))
          (is (= 1 code))
          (is (search "certificate required" (format nil "~{~A~%~}" lines))))
        (multiple-value-bind (code lines) (client "--tls-ca" "system")
          (is (= 1 code))
          (is (search "certificate verify failed" (format nil "~{~A~%~}" lines)))))
      (is (search "libssl" (libraries program)))
      (is (eql 0 (support:terminate-program program))))))

(test serve-plaintext-without-openssl
  (with-serve (program address "route-guide")
    (is (= 0 (run-line "routeguide-client" address)))
    (is (not (search "libssl" (libraries program))))
    (is (not (search "libcrypto" (libraries program))))))

(test tls-options-refused
  (flet ((complaint (&rest arguments)
           (multiple-value-bind (code output error-output) (apply #'run-line arguments)
             (is (string= "" output))
             (is (one-line-p error-output))
             (list code error-output))))
    (loop for (wanted text . arguments)
            in '((2 "need --tls-cert" "serve" "greeter" "--tls-key" "x")
                 (2 "need --tls-cert" "serve" "greeter" "--client-ca" "x")
                 (2 "give --tls-cert, or an address of this machine"
                  "serve" "greeter" "--console" "0.0.0.0:0")
                 (2 "give --tls-cert" "serve" "greeter" "--console" "127.0.0.1:0,[::]:0")
                 (2 "need --tls-cert" "serve" "greeter" "--tls-other" "x")
                 (2 "CERT[,KEY] is expected" "serve" "greeter" "--tls-other" "x,")
                 (1 "does not exist" "serve" "greeter" "--tls-cert" "no-such-file")
                 (2 "need --tls-ca" "routeguide-client" "127.0.0.1:1" "--tls-name" "x")
                 (2 "needs --tls-cert" "routeguide-client" "127.0.0.1:1" "--tls-ca" "system"
                  "--tls-key" "x")
                 (1 "cannot be read" "routeguide-client" "127.0.0.1:1" "--tls-ca" "no-such-file"))
          do (destructuring-bind (code error-output) (apply #'complaint arguments)
               (is (= wanted code))
               (is (search text error-output) "~A" error-output)))))
