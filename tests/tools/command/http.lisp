;;;; The client of HTTP/1.1, against servers of ours and against none.

(in-package #:clgrpc.tests.tools)
(in-suite :clgrpc.tools)

(test urls-are-read
  (is (equal '("127.0.0.1" 9464 "/metrics") (tools::parse-url "http://127.0.0.1:9464/metrics")))
  (is (equal '("::1" 80 "/") (tools::parse-url "http://[::1]:80")))
  (is (equal '("host" 80 "/") (tools::parse-url "http://host")))
  (dolist (wrong '("" "https://x/" "http://" "http://:80/" "http://x:0/" "http://x:70000/"))
    (signals tools::usage-error (tools::parse-url wrong))))

(test what-is-there-is-got
  (let* ((length 300000)
         (server (grpc:start-server
                  '() :http (list (grpc:http-handler
                                   "/long" (lambda (request)
                                             (declare (ignore request))
                                             (values 200 '() (make-string
                                                              length :initial-element #\x))))
                                  (grpc:http-handler
                                   "/never" (lambda (request)
                                              (grpc:begin-response request))))))
         (base (format nil "http://~A" (grpc:server-address server))))
    (unwind-protect
         (flet ((get-url (path &rest arguments)
                  (apply #'tools::get-over-http
                         (tools::parse-url (concatenate 'string base path)) arguments)))
           (multiple-value-bind (status octets) (get-url "/long" :timeout 20)
             (is (= 200 status))
             (is (= length (length octets))))
           (is (= 404 (get-url "/nothing" :timeout 20)))
           (signals tools:failure (get-url "/never" :timeout 0.2)))
      (grpc:stop-server server :drain 0))
    (signals tools:failure (tools::get-over-http (tools::parse-url base) :timeout 5)
             "nobody listens there any more")))

(test servers-without-http-are-no-answer
  (let ((server (grpc:start-server (make-instance 'clgrpc.examples:greeter))))
    (unwind-protect
         (progn
           (signals tools:failure
             (tools::get-over-http (tools::parse-url (format nil "http://~A/"
                                                             (grpc:server-address server)))
                                   :timeout 20))
           (is (null (tools::find-metrics (grpc:server-address server)))))
      (grpc:stop-server server :drain 0))))
