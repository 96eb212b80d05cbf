(in-package #:clgrpc.tests.tools)

(test demo
  (multiple-value-bind (code output error-output) (run-line "demo")
    (is (= 0 code))
    (is (string= "" error-output))
    (dolist (text '("GetFeature" "ListFeatures" "RecordRoute" "RouteChat"
                    "Berkshire Valley Management Area Trail" "The server stops."))
      (is (search text output) "~A is missing in ~A" text output))))

(test client-without-server
  (let ((address (let ((server (grpc:start-server '() :listen "127.0.0.1:0")))
                   (prog1 (grpc:server-address server)
                     (grpc:stop-server server)))))
    (multiple-value-bind (code output error-output) (run-line "routeguide-client" address)
      (declare (ignore output))
      (is (= 1 code))
      (is (one-line-p error-output))
      (is (search "UNAVAILABLE" error-output)))))
