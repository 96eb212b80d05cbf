;;;; The command `load`: the knee of a server, and what a server counted itself.

(in-package #:clgrpc.tests.tools)
(in-suite :clgrpc.tools)

(test the-knee-is-found
  "By doubling and halving, to within five per cent, from below and from above, in few steps."
  (loop for (knee first) in '((1000 100) (1000 5000) (37 100) (100000 100))
        do (let ((tried 0))
             (multiple-value-bind (good bad)
                 (tools::find-knee (lambda (rate) (incf tried) (<= rate knee)) first)
               (is (<= (/ knee 21/20) good knee) "~A of ~A" good knee)
               (is (< knee bad))
               (is (<= tried 20) "~D steps" tried))))
  (is (null (tools::find-knee (constantly nil) 100)))
  (is (< 100000 (tools::find-knee (constantly t) 1))))

(test load-finds-the-knee-of-a-server
  (with-reflected (address :services (make-instance 'clgrpc.examples:greeter))
    (multiple-value-bind (code output error-output)
        (run-line "load" address "helloworld.Greeter/SayHello" "--knee" "p50 > 1ns" "-z" "50ms"
                  "--rps" "50")
      (declare (ignore output error-output))
      (is (= 1 code) "no rate has such a median"))
    (is (= 2 (run-line "load" address "helloworld.Greeter/SayHello" "--knee" "p50 > 1s" "--rounds"
                       "2")))))

(test load-tells-what-the-server-counted
  (let* ((metrics (grpc:make-metrics))
         (page (grpc:start-server '() :listen "127.0.0.1:0" :http (grpc:metrics-handler metrics))))
    (unwind-protect
         (with-reflected (address :services (make-instance 'clgrpc.examples:greeter)
                                  :observer metrics)
           (let ((run (load-line address "helloworld.Greeter/SayHello" "-n" "50" "-c" "2"
                                 "--server-metrics"
                                 (format nil "http://~A/metrics" (grpc:server-address page)))))
             (is (= 50 (cdr (assoc "count" (load:run-server run) :test #'string=))))
             (is (< 0 (cdr (assoc "p99" (load:run-server run) :test #'string=)) 10000000000))))
      (grpc:stop-server page :drain 0))))
