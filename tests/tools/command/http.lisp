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

(test answers-that-never-pause-have-a-deadline
  "Octets that are there already do not count once it has passed."
  (let* ((server (grpc:start-server '() :http (list (grpc:http-handler
                                                     "/" (lambda (request)
                                                           (declare (ignore request))
                                                           (values 200 '() "x"))))))
         (end-ns (+ (base:monotonic-ns) 60000000000))
         (socket (destructuring-bind (host port path)
                     (tools::parse-url (format nil "http://~A/" (grpc:server-address server)))
                   (declare (ignore path))
                   (tools::connect-to host port end-ns))))
    (unwind-protect
         (progn
           (tools::send-request socket
                                (base:string-octets
                                 (format nil "GET / HTTP/1.1~C~%host: x~C~%~C~%" #\Return #\Return
                                         #\Return))
                                end-ns)
           (tools::await-socket socket clgrpc.os:+event-in+ end-ns)
           (signals tools:failure (tools::receive-some socket (base:make-octets 10) 0))
           (is (= 10 (tools::receive-some socket (base:make-octets 10) end-ns))))
      (clgrpc.os:close-descriptor socket)
      (grpc:stop-server server :drain 0))))

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
