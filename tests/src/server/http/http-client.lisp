;;;; HTTP/1.1 by clients of other projects: curl, and Python's http.client and ssl (http-client.py).
;;;; In plaintext and over TLS, where ALPN chooses the version. Skipped where a client is missing.

(in-package #:clgrpc.tests.server)

(defun run-client (name &rest arguments)
  "Run the program NAME to its end; return its exit code and its output, by WITHOUT-DATES. Without
the program the test is skipped."
  (multiple-value-bind (code lines) (support:run-to-end (support:need-program name) arguments)
    (values code (without-dates (format nil "~{~A~%~}" lines)))))

(defun certified (name &rest arguments)
  "Credentials of a server that shows the certificate NAME of the tests."
  (apply #'grpc:tls-credentials :certificate (support:certificate-file (format nil "~A.pem" name))
         :key (support:certificate-file (format nil "~A.key" name)) arguments))

(defun web-url (server path &key (scheme "http"))
  (format nil "~A://~A~A" scheme (grpc:server-address server) path))

(defun curl (server path &rest arguments)
  "The output of curl with ARGUMENTS for PATH over plaintext, and its exit code."
  (multiple-value-bind (code text)
      (apply #'run-client "curl" "-qsS" "--noproxy" "*" "--max-time" "20"
             (append arguments (list (web-url server path))))
    (values text code)))

(defun curl-over-tls (server path &rest arguments)
  "As CURL over TLS, trusting the root of the tests."
  (multiple-value-bind (code text)
      (apply #'run-client "curl" "-qsS" "--noproxy" "*" "--max-time" "20"
             "--cacert" (support:certificate-file "ca.pem")
             (append arguments (list (web-url server path :scheme "https"))))
    (values text code)))

(defparameter *version* '("-w" "\\n%{http_version} %{http_code}\\n")
  "Arguments that make curl print the version of HTTP and the status.")

(test curl-over-plaintext
  "Keep-alive, HEAD, bodies with a length and in chunks, 100-continue, HTTP/1.0 and HTTP/2."
  (with-web (server)
    (is (string= "/a?b=c|1.1 200|" (apply #'curl server "/a?b=c" "--http1.1" *version*)))
    (is (string= "/a|1.1 200|" (apply #'curl server "/a" "--http1.0" *version*)))
    (is (string= "/a|2 200|" (apply #'curl server "/a" "--http2-prior-knowledge" *version*)))
    (is (string= "not you|1.1 403|" (apply #'curl server "/fails" *version*)))
    (is (string= "|1.1 204|" (apply #'curl server "/empty" *version*)))
    (is (string= "HTTP/1.1 200 OK|content-type: text/plain; charset=utf-8|content-length: 2||"
                 (curl server "/a" "-I")))
    ;; two requests, of which the second needs no connection
    (is (string= "/b 1|/a 0|" (curl server "/a" (web-url server "/b")
                                    "-w" " %{num_connects}\\n")))
    (is (string= "hello|1.1 200|" (apply #'curl server "/echo" "-d" "hello" *version*)))
    (is (string= (concatenate 'string "HTTP/1.1 100 Continue||HTTP/1.1 200 OK|content-type: x/y|"
                              "content-length: 5||hello|")
                 (curl server "/echo" "-i" "-H" "Expect: 100-continue" "-d" "hello")))
    (is (string= "not with this method|1.1 405|"
                 (apply #'curl server "/a" "-H" "Expect: 100-continue" "-d" "hello"
                        *version*)))))

(test curl-that-waits-for-100-over-http2
  "A client that waits for the status 100 gets it over HTTP/2 as well, and sends the body; a request
without a body, or without the expectation, gets none."
  (with-web (server)
    (flet ((answered (&rest arguments)
             (apply #'curl server "/echo" "-i" "--http2-prior-knowledge"
                    "--expect100-timeout" "100" arguments)))
      (is (eql 0 (search "HTTP/2 100 ||HTTP/2 200 |"
                         (answered "-H" "Expect: 100-continue" "-d" "hello"))))
      (is (search "||hello" (answered "-H" "Expect: 100-continue" "-d" "hello")))
      (is (eql 0 (search "HTTP/2 200 |" (answered "-d" "hello"))))
      (is (null (search "HTTP/2 100 " (answered "-H" "Expect: 100-continue")))))))

(test curl-uploads
  "A body in chunks, longer than any buffer, comes back whole; one that is too long is refused."
  (uiop:with-temporary-file (:pathname path :stream stream)
    (let ((body (format nil "~{~36R~}" (loop for i below 60000 collect (* i i)))))
      (write-string body stream)
      (close stream)
      (with-web (server)
        (dolist (fields '("Transfer-Encoding: chunked" "X-Length: given"))
          (let ((heard (curl server "/echo" "-T" (uiop:native-namestring path) "-H" fields)))
            (is (string= (format nil "~A|" body) heard)))))
      (with-web (server :options (:max-fallback-body-octets 1000))
        (dolist (fields '("Transfer-Encoding: chunked" "X-Length: given"))
          (is-true (search "|1.1 413|"
                           (apply #'curl server "/echo" "-T" (uiop:native-namestring path)
                                  "-H" fields *version*))))))))

(defun call-with-ticker (function)
  "Call FUNCTION with a handler that begins a response of server-sent events, and with a function
that waits until a request has come and returns it."
  (let ((asked (make-signal)) (request nil))
    (funcall function
             (grpc:http-handler
              "/events" (lambda (its)
                          (setf request its)
                          (grpc:begin-response
                           its :headers '(("content-type" . "text/event-stream")))
                          (signal-it asked)
                          its))
             (lambda ()
               (is-true (await-signal asked))
               request))))

(defun check-ticker (program await-request)
  "Check that PROGRAM gets each event before the next one is sent."
  (let ((request (funcall await-request)))
    (dotimes (i 3)
      (is-true (grpc:send-chunk request (format nil "data: ~D~%~%" i)))
      (is (string= (format nil "data: ~D" i) (support:program-line program)))
      (is (string= "" (support:program-line program))))
    (grpc:end-response request)
    (is (null (support:program-line program)))
    (is (eql 0 (support:program-exit-code program)))))

(test curl-hears-events
  "Events arrive when they are sent, over both versions, in plaintext and over TLS."
  (dolist (options '(("--http1.1") ("--http2-prior-knowledge") ("--http1.0")))
    (call-with-ticker
     (lambda (handler await-request)
       (with-web (server :handlers (list handler))
         (support:call-with-program
          (lambda (program) (check-ticker program await-request))
          "/usr/bin/env" (append '("curl" "-qsSN" "--noproxy" "*") options
                                 (list (web-url server "/events"))))))))
  (dolist (options '(("--http1.1") ("--http2")))
    (call-with-ticker
     (lambda (handler await-request)
       (with-web (server :handlers (list handler) :options (:credentials (certified "server")))
         (support:call-with-program
          (lambda (program) (check-ticker program await-request))
          "/usr/bin/env" (append '("curl" "-qsSN" "--noproxy" "*" "--cacert")
                                 (list (support:certificate-file "ca.pem")) options
                                 (list (web-url server "/events" :scheme "https")))))))))

(test curl-over-tls
  "ALPN chooses the version: HTTP/2 if both are offered. A client without ALPN speaks HTTP/1.1."
  (with-web (server :options (:credentials (certified "server")))
    (loop for (version . arguments) in '(("1.1" "--http1.1") ("2" "--http2")
                                         ("1.1" "--http1.1" "--no-alpn")
                                         ("1.1" "--http1.1" "--tls-max" "1.2")
                                         ("2" "--http2" "--tls-max" "1.2"))
          do (is (string= (format nil "/a|~A 200|" version)
                          (apply #'curl-over-tls server "/a" (append arguments *version*)))
                 "~A" arguments))
    (is (string= "/b 1|/a 0|" (curl-over-tls server "/a" "--http1.1"
                                             (web-url server "/b" :scheme "https")
                                             "-w" " %{num_connects}\\n")))
    (is (string= "hello|1.1 200|"
                 (apply #'curl-over-tls server "/echo" "--http1.1" "-d" "hello"
                        "-H" "Transfer-Encoding: chunked" "-H" "Expect: 100-continue"
                        *version*)))))

(test credentials-are-read-with-the-server
  "The server reads those that accept HTTP/1.1 as well, if it speaks it; connections read none."
  (let ((roles '()))
    (with-replaced (('clgrpc.loop:check-credentials
                     (lambda (function credentials role)
                       (push role roles)
                       (funcall function credentials role))))
      (dolist (http1 '(t nil))
        (with-web (server :options (:credentials (certified "server") :http1 http1)))))
    (is (equal '(:http-server :server) (reverse roles)))))

(test servers-without-http1-over-tls
  "A server that does not speak HTTP/1.1 accepts only HTTP/2."
  (with-web (server :options (:credentials (certified "server") :http1 nil))
    (is (string= "/a|2 200|" (apply #'curl-over-tls server "/a" "--http2" *version*)))
    (dolist (arguments '(("--http1.1") ("--http1.1" "--no-alpn")))
      (is (plusp (nth-value 1 (apply #'curl-over-tls server "/a" arguments)))))))

(test curl-with-a-certificate
  "Over HTTP/1.1, a server that requires certificates refuses clients with none or a wrong one."
  (with-web (server :options (:credentials (certified "server" :client-certificates :require
                                                               :roots (support:certificate-file
                                                                       "ca.pem"))))
    (flet ((ask-as (name)
             (apply #'curl-over-tls server "/a" "--http1.1"
                    "--cert" (support:certificate-file (format nil "~A.pem" name))
                    "--key" (support:certificate-file (format nil "~A.key" name))
                    *version*)))
      (is (string= "/a|1.1 200|" (ask-as "client")))
      (is (plusp (nth-value 1 (ask-as "stranger"))))
      (is (plusp (nth-value 1 (curl-over-tls server "/a" "--http1.1")))))))

(defun python-says (server &rest arguments)
  "The output of http-client.py, which talks to SERVER."
  (multiple-value-bind (code text)
      (apply #'run-client "python3" (support:root-file "tests/src/server/http/http-client.py")
             (grpc:server-address server) arguments)
    (is (eql 0 code) "~A" text)
    text))

(defparameter *python-answers*
  (format nil "~{~A|~}"
          '("GET /a 200 /a" "HEAD /a 200 content-length 2" "POST chunked 200 300000 alike"
            "POST length 200 300000 alike" "one connection: True"))
  "What http-client.py prints of a server that is right.")

(test python-over-plaintext-and-tls
  "Python's requests on one connection; ALPN as its ssl reports it."
  (with-web (server)
    (is (string= *python-answers* (python-says server "plaintext"))))
  (let ((root (support:certificate-file "ca.pem")))
    (with-web (server :options (:credentials (certified "server")))
      (loop for (offered agreed) in '(("http/1.1" "http/1.1") ("" "None"))
            do (is (string= (format nil "ALPN ~A|~A" agreed *python-answers*)
                            (python-says server "requests" root offered))))
      (loop for (offered agreed) in '(("h2,http/1.1" "h2") ("http/1.1,h2" "h2")
                                      ("spdy/3,http/1.1" "http/1.1") ("h2" "h2"))
            do (is (string= (format nil "ALPN ~A|" agreed)
                            (python-says server "agree" root offered))))
      (let ((text (python-says server "agree" root "spdy/3")))
        (is-true (search "no application protocol" text) "~A" text)))
    (with-web (server :options (:credentials (certified "server" :client-certificates :require
                                                                 :roots root)))
      (is (string= (format nil "ALPN http/1.1|~A" *python-answers*)
                   (python-says server "requests" root "http/1.1"
                                (support:certificate-file "client.pem")
                                (support:certificate-file "client.key")))))))
