;;;; `clgrpc gateway` in front of `clgrpc serve`.

(in-package #:clgrpc.tests.tools)

(defmacro with-gateway-program ((program address target &rest arguments) &body body)
  "Run BODY while `bin/clgrpc gateway TARGET ARGUMENTS` listens at ADDRESS, on a free port."
  `(support:with-server-program (,program ,address (support:clgrpc-program) "gateway" ,target
                                          ,@arguments "--listen" "127.0.0.1:0")
     ,@body))

(defun helloworld-file ()
  (uiop:native-namestring
   (asdf:system-relative-pathname "clgrpc" "proto/examples/helloworld.proto")))

(defun greet-in-json (address)
  "What the greeter at ADDRESS answers over Connect."
  (uiop:run-program (list "curl" "-s" "--noproxy" "*" "--max-time" "20"
                          "-H" "content-type: application/json" "-d" "{\"name\": \"Ada\"}"
                          (format nil "http://~A/helloworld.Greeter/SayHello" address))
                    :output '(:string :stripped t) :ignore-error-status t))

(test gateway-before-a-server
  "gRPC of all kinds, Connect with types from reflection or from a file, and a drain."
  (with-serve (program address "greeter,route-guide")
    (flet ((try (gateway front)
             (is (string= "{\"message\":\"Hello, Ada!\"}" (greet-in-json front)))
             (multiple-value-bind (code output) (run-line "routeguide-client" front)
               (is (= 0 code))
               (is (search "RouteChat" output)))
             (is (= 0 (support:terminate-program gateway)))))
      (with-gateway-program (gateway front address) (try gateway front))
      (with-gateway-program (gateway front address "--types" (helloworld-file))
        (try gateway front)))))

(test gateway-finds-types-later
  "A gateway may start before the server behind it; it looks for types again."
  (let ((address (with-serve (program address "greeter" "--limits" "reuse-port=true") address)))
    (with-gateway-program (gateway front address "--renew" "0.1")
      (is (not (search "Hello" (greet-in-json front))))
      (support:with-server-program (program same (support:testee-program) "serve" "greeter"
                                            "--listen" address "--limits" "reuse-port=true")
        (is (string= address same))
        (eventually (search "Hello, Ada!" (greet-in-json front)))))))

(test gateway-without-types-says-so
  "Without a server behind it the gateway begins, and the standard error has the reason why only
calls by gRPC are forwarded."
  (let* ((*error-output* (make-string-output-stream)))
    (grpc:with-channel (channel "127.0.0.1:1")
      (is (null (clgrpc.tools::first-types (grpc:make-gateway-service channel) channel))))
    (let ((text (get-output-stream-string *error-output*)))
      (is-true (one-line-p text))
      (is (search "no types yet, so only calls by gRPC are forwarded: " text))
      (is (search "Connection refused" text)))))

(test gateway-arguments
  (is (= 2 (run-line "gateway")))
  (is (= 1 (run-line "gateway" "127.0.0.1:1" "--types" "no-such.proto" "--listen" "127.0.0.1:0")))
  (fails-p 2 "/ cannot be read: " "gateway" "127.0.0.1:1" "--types" "/" "--listen" "127.0.0.1:0")
  (is (= 2 (run-line "gateway" "127.0.0.1:1" "--behind-name" "x" "--listen" "127.0.0.1:0"))))

(test a-gateway-logs-when-its-types-change
  "Not when they are as before; where they cannot be read, the reason."
  (grpc:with-channel (channel "127.0.0.1:1")
    (let ((service (grpc:make-gateway-service channel)) (known nil))
      (flet ((renew (file)
               (with-logged (events)
                 (setf known (clgrpc.tools::renew-gateway service channel file '() known))
                 (events))))
        (is (equal '((:info :gateway-types :methods 3)) (renew (helloworld-file))))
        (is (null (renew (helloworld-file))))
        (destructuring-bind ((level name . plist)) (renew "/nonexistent.proto")
          (is (equal '(:warning :gateway-types-unknown) (list level name)))
          (is (search "/nonexistent.proto" (getf plist :reason))))
        (is (null (renew (helloworld-file))))))))
