;;;; The command `load`: what its options do, what it prints where, and its exit codes. What servers
;;;; may do to it is in tests/tools/load/misbehaviour.lisp.

(in-package #:clgrpc.tests.tools)

(defparameter *route-guide* "routeguide.RouteGuide/")

(defun load-line (&rest arguments)
  "Run `load ARGUMENTS -O json`; return the RUN that it reports, its exit code and its complaints."
  (multiple-value-bind (code output error-output)
      (apply #'run-line "load" "-O" "json" arguments)
    (values (and (plusp (length output)) (clgrpc.report:parse-run output)) code error-output)))

(defun codes-of (run)
  "How many calls of RUN ended with which status, a plist by names."
  (loop for row in (load:run-statuses run)
        collect (load:status-row-name row) collect (load:status-row-count row)))

(defun option-of (run name)
  (cdr (assoc name (load:run-options run) :test #'string=)))

(defmacro with-greeter ((address) &body body)
  `(with-reflected (,address :services (make-instance 'clgrpc.examples:greeter)) ,@body))

(defun greet-for (milliseconds)
  (format nil "{\"name\": \"delay:~D\"}" milliseconds))

(defun call-with-file (function contents)
  "Call FUNCTION with the path of a file that has CONTENTS, a string or octets."
  (uiop:with-temporary-file (:pathname path)
    (if (stringp contents)
        (alexandria:write-string-into-file contents path :if-exists :supersede)
        (alexandria:write-byte-vector-into-file contents path :if-exists :supersede))
    (funcall function (uiop:native-namestring path))))

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
      (is (= 2 (code "{\"noSuchField\": 1}")))))
  (is (= 1 (run-line "load" "127.0.0.1:1" "a.B/C")))
  (is (= 1 (run-line "load" "--proto" *route-guide-proto* "127.0.0.1:1"
                     "routeguide.RouteGuide/GetFeature")))
  (with-greeter (address)
    (is (= 3 (run-line "load" address "helloworld.Greeter/SayHello" "-d" (greet-for 2000) "-z"
                       "0.1s" "-c" "2" "--duration-stop" "ignore"))
        "no call has ended")
    (is (= 1 (run-line "load" address "helloworld.Greeter/SayHello" "-o"
                       "/nowhere/report.json")))))

(test load-says-what-there-is-instead
  (with-greeter (address)
    (flet ((said (text &rest arguments)
             (multiple-value-bind (code output error-output) (apply #'run-line "load" arguments)
               (declare (ignore output))
               (is (plusp code))
               (is (search text error-output) "~A" error-output)
               (is (one-line-p error-output)))))
      (said "helloworld.Greeter has no method SayHelo; it has SayHello" address
            "helloworld.Greeter/SayHelo")
      (said "the server has no service helloworld.Greter; it has " address
            "helloworld.Greter/SayHello")
      (said "the server has no service helloworld; it has " address "helloworld.Greeter")
      (said "helloworld.Greeter has no method SayHelo" address "helloworld.Greeter/SayHelo")
      (said "no service is called x.Y; the services are routeguide.RouteGuide" "--proto"
            *route-guide-proto* address "x.Y/Z")
      (said "/nowhere/x.json cannot be read: No such file or directory" address
            "helloworld.Greeter/SayHello" "-D" "/nowhere/x.json")
      (said "/nowhere/x.json cannot be read: No such file or directory" address
            "helloworld.Greeter/SayHello" "--compare" "/nowhere/x.json")
      (said "/nowhere/x.json cannot be read: No such file or directory" address
            "helloworld.Greeter/SayHello" "--service-config" "/nowhere/x.json")
      (said "-z and -x are longer than 0" address "helloworld.Greeter/SayHello" "-z" "0")
      (said "/nowhere/x cannot be written: No such file or directory" address
            "helloworld.Greeter/SayHello" "-n" "1" "-o" "/nowhere/x")
      (said "cannot be written: Is a directory" address "helloworld.Greeter/SayHello" "-n" "1"
            "-o" "/tmp"))))

(test load-calls-of-all-kinds
  (with-reflected (address)
    (flet ((check (method sent received &rest options)
             (multiple-value-bind (run code error-output)
                 (apply #'load-line "-n" "10" "-c" "2" address
                        (concatenate 'string *route-guide* method) options)
               (is (= 0 code) "~A: ~A" method error-output)
               (is (equal '("OK" 10) (codes-of run)))
               (is (= sent (load:run-messages-sent run)) "~A" method)
               (is (eql received (load:run-messages-received run)) "~A" method)
               run)))
      (check "GetFeature" 10 10 "-d" "{\"latitude\": 1}")
      (check "ListFeatures" 10 1000 "-d"
             "{\"lo\":{\"latitude\":400000000,\"longitude\":-750000000},
               \"hi\":{\"latitude\":420000000,\"longitude\":-730000000}}")
      (check "RecordRoute" 20 10 "-d" "[{\"latitude\": 1}, {\"latitude\": 2}]")
      (let ((run (check "RecordRoute" 50 10 "-d" "{}" "--stream-call-count" "5"
                        "--stream-interval" "3ms")))
        (is (<= 12000000 (load:histogram-min (load:run-latency run))) "four pauses of 3 ms"))
      (check "RouteChat" 0 0)
      (multiple-value-bind (run code)
          (load-line "-n" "4" "-c" "1" address "routeguide.RouteGuide/RecordRoute" "-d" "{}"
                     "--stream-call-duration" "60ms" "--stream-interval" "10ms")
        (is (= 0 code))
        (is (<= 60000000 (load:histogram-min (load:run-latency run))))
        (is (< 8 (load:run-messages-sent run) 40)))
      (multiple-value-bind (run code)
          (load-line "-n" "4" "-c" "1" address "routeguide.RouteGuide/ListFeatures" "-d"
                     "{\"lo\":{\"latitude\":400000000,\"longitude\":-750000000},
                       \"hi\":{\"latitude\":420000000,\"longitude\":-730000000}}"
                     "--stream-call-count" "1")
        (is (= 0 code))
        (is (equal '("OK" 4) (codes-of run)) "as ghz has it")))))

(test load-takes-data-from-everywhere
  "JSON from the command line, a file, standard input; templates; octets from a file, and from
standard input."
  (with-reflected (address)
    (let ((route '("routeguide.RouteGuide/RecordRoute" "-n" "2" "-c" "1")))
      (flet ((sent (&rest options)
               (multiple-value-bind (run code error-output)
                   (apply #'load-line address (append route options))
                 (is (= 0 code) "~A" error-output)
                 (load:run-messages-sent run))))
        (is (= 6 (sent "-d" "[{}, {}, {}]")))
        (call-with-file (lambda (file) (is (= 6 (sent "-D" file)))) "[{}, {}, {}]")
        (call-with-file (lambda (file) (is (= 4 (sent "-B" file)))) (base:octets-of 2 8 1 0))
        (dolist (sign '("@" "-"))
          (let ((*standard-input* (make-string-input-stream "[{}]")))
            (is (= 2 (sent "-d" sign)))))
        (is (= 2 (sent "-d" "{\"latitude\": {{randomInt 1 9}}}")))
        (is (= 4 (sent "-d" "{\"latitude\": {{.RequestNumber}}}" "--stream-call-count" "2"
                       "--stream-dynamic-messages")))
        (is (= 2 (run-line "load" address "routeguide.RouteGuide/RecordRoute" "-d" "{}" "-D" "x")))
        (is (= 2 (run-line "load" address "routeguide.RouteGuide/RecordRoute" "-d"
                           "{{nothing}}")))
        (is (= 2 (run-line "load" address "routeguide.RouteGuide/RecordRoute" "-D"
                           "/nowhere/x.json"))))
      (call-with-file
       (lambda (file)
         (let ((output (uiop:run-program
                        (list* (support:clgrpc-program) "load" "-b" "-O" "json" address route)
                        :input file :output :string)))
           (is (= 6 (load:run-messages-sent (clgrpc.report:parse-run output))))))
       (base:octets-of 0 0 2 8 1)))))

(test the-text-of-the-standard-input-has-a-limit
  (flet ((text (most)
           (let ((*standard-input* (make-string-input-stream "abc")))
             (tools::read-standard-text :most most))))
    (is (string= "abc" (text 3)))
    (with-signalled (failure error (text 2))
      (is (search "longer than 2 characters" (princ-to-string failure))))))

(defclass listener (clgrpc.examples:greeter)
  ((heard :initform '() :accessor heard))
  (:documentation "Keeps the metadata x-a of calls."))

(defmethod helloworld.greeter:say-hello ((service listener) request &key call)
  (push (cdr (assoc "x-a" (grpc:call-metadata call) :test #'string=)) (heard service))
  (helloworld:make-hello-reply :message (helloworld:hello-request-name request)))

(test load-sends-metadata
  (let ((service (make-instance 'listener)))
    (with-reflected (address :services service)
      (flet ((check (heard &rest options)
               (setf (heard service) '())
               (is (= 0 (apply #'run-line "load" address "helloworld.Greeter/SayHello" "-n" "2"
                               "-c" "1" options)))
               (is (equal heard (reverse (heard service))))))
        (check '("b" "b") "-H" "x-a: b")
        (check '("c" "c") "-m" "{\"x-a\": \"c\"}")
        (check '("n0" "n1") "-m" "{\"x-a\": \"n{{.RequestNumber}}\"}")
        (call-with-file (lambda (file) (check '("d" "d") "-M" file)) "{\"x-a\": \"d\"}")
        (check '("e" "e") "-m" "{\"X-A\": \"e\"}")
        (check '("{{x}}" "{{x}}") "-m" "{\"x-a\": \"{{x}}\"}" "--disable-template-data")
        (check '(nil nil) "--reflect-metadata" "{\"x-a\": \"r\"}")
        (is (= 2 (run-line "load" address "helloworld.Greeter/SayHello" "--reflect-metadata"
                           "[1]")))
        (dolist (wrong '("{\"a b\": \"c\"}" "{\"a\": \"b\\nc\"}" "{\"grpc-x\": \"c\"}"
                         "{\"a\": \"{{.RequestNumber}}\\n\"}"))
          (is (= 2 (run-line "load" address "helloworld.Greeter/SayHello" "-m" wrong)) "~A" wrong))
        (is (= 2 (run-line "load" address "helloworld.Greeter/SayHello" "-m" "[1]")))))))

(test load-takes-command-lines-of-ghz
  (with-greeter (address)
    (flet ((line (&rest options)
             (apply #'load-line "--insecure" "-n" "4" "-c" "2" options)))
      (multiple-value-bind (run code) (line "--call" "helloworld.Greeter/SayHello" "--lb-strategy"
                                            "round_robin" address)
        (is (= 0 code))
        (is (equal "helloworld.Greeter/SayHello" (option-of run "call"))))
      (is (= 2 (nth-value 1 (line address))) "no method")
      (is (= 2 (nth-value 1 (line "--call" "a.B/C" address "a.B/C"))) "two of them")
      (flet ((latencies (&rest options)
               (load:histogram-count
                (load:run-latency
                 (apply #'line address "helloworld.Greeter/SayHello" "-d" (greet-for 400) "-t"
                        "50ms" options)))))
        (is (= 0 (latencies)))
        (is (= 4 (latencies "--count-errors"))))
      ;; a server that could not read it would refuse it
      (let* ((data (format nil "{\"name\": \"~A\"}" (make-string 20000 :initial-element #\x)))
             (run (line address "helloworld.Greeter/SayHello" "-d" data "-e")))
        (is (equal '("OK" 4) (codes-of run)))
        (is (< (load:run-octets-sent run) 10000))
        (is (eq :true (option-of run "enable-compression")))))))

(test load-takes-options-from-a-file
  "What the command line says counts more; a name that is no option is refused as there."
  (with-greeter (address)
    (flet ((try (text &rest options)
             (call-with-file (lambda (file) (apply #'load-line "--config" file options)) text)))
      (let ((run (try (format nil "{\"host\": ~S, \"call\": \"helloworld.Greeter/SayHello\",
                                    \"total\": 7, \"concurrency\": 3, \"insecure\": true,
                                    \"data\": {\"name\": \"x\"}, \"metadata\": {\"a\": \"b\"},
                                    \"async\": false, \"tags\": null}" address)
                      "-c" "2" "--total" "6")))
        (is (equal '("OK" 6) (codes-of run)))
        (is (eql 2 (option-of run "concurrency")))
        (is (equal '(("name" . "x")) (option-of run "data"))))
      (is (equal (format nil "clgrpc load: --config: /nowhere/x.json cannot be read: ~
                              No such file or directory~%")
                 (nth-value 2 (run-line "load" "--config" "/nowhere/x.json" address "a.B/C"))))
      (dolist (wrong '("{\"totl\": 1}" "[1]" "{" "{\"total\": \"x\"}"))
        (is (= 2 (nth-value 1 (try wrong address "helloworld.Greeter/SayHello"))) "~A" wrong)))))

(test load-waits-for-a-silent-server-as-long-as-it-is-told
  "To ask reflection, and to make calls."
  (support:with-silent-listener (address)
    (dolist (types (list '() (list "--proto" *route-guide-proto*)))
      (let ((begin (base:monotonic-ns)))
        (is (= 1 (apply #'run-line "load" address "routeguide.RouteGuide/GetFeature"
                        "--connect-timeout" "300ms" types)))
        (is (< (- (base:monotonic-ns) begin) 8000000000) "not the 10 s without it")))
    (is (search "cannot be reached: no answer in time"
                (nth-value 2 (run-line "load" address "routeguide.RouteGuide/GetFeature"
                                       "--proto" *route-guide-proto* "--skip-tls"
                                       "--connect-timeout" "300ms"))))))

(test load-without-reflection
  (with-reflected (address :reflection '())
    (flet ((code (&rest options)
             (values (apply #'run-line "load" address "routeguide.RouteGuide/GetFeature" "-n" "2"
                            "-c" "1" options))))
      (is (= 1 (code)))
      (is (= 0 (code "--proto" *route-guide-proto*)))
      (call-with-file (lambda (file) (is (= 0 (code "--protoset" file))))
                      (protobuf:descriptor-set-octets
                       (list (protobuf:file-of-symbol "routeguide.RouteGuide"))))
      (call-with-file (lambda (file) (is (= 2 (code "--protoset" file)))) "none"))))

(test load-over-tls
  (flet ((certificate (name) (support:certificate-file name)))
    (with-serve (program address "interop" "--tls-cert" (certificate "server.pem") "--tls-key"
                                 (certificate "server.key") "--client-ca" (certificate "ca.pem"))
      (flet ((code (&rest options)
               (values (apply #'run-line "load" address "grpc.testing.TestService/EmptyCall" "-n"
                              "4" "-c" "2" "--connections" "2" "--connect-timeout" "2s" options))))
        (let ((shown (list "--cert" (certificate "client.pem") "--key" (certificate "client.key"))))
          (is (= 0 (apply #'code "--cacert" (certificate "ca.pem") "--cname" "a.test.example"
                          shown)))
          (is (= 0 (apply #'code "--skipTLS" shown)))
          (is (= 1 (apply #'code "--cacert" (certificate "ca.pem") "--cname" "b.example.org"
                          shown)))
          (is (= 1 (apply #'code "--cacert" "system" shown)))
          (is (= 1 (code "--cacert" (certificate "ca.pem") "--cname" "a.test.example"))
              "the server asks for a certificate")
          (is (= 1 (code)) "plaintext")
          (is (= 2 (code "--insecure" "--skipTLS"))))))))

(test load-obeys-a-service-config-or-says-so
  (with-greeter (address)
    (flet ((try (config &rest options)
             (multiple-value-bind (run code error-output)
                 (apply #'load-line address "helloworld.Greeter/SayHello" "-n" "4" "-c" "4" "-d"
                        (greet-for 300) "--service-config" config options)
               (list (and run (codes-of run)) code error-output))))
      (destructuring-bind (codes code error-output)
          (try "{\"methodConfig\": [{\"name\": [{}], \"timeout\": \"0.05s\"}]}")
        (is (equal '("DeadlineExceeded" 4) codes))
        (is (= 3 code))
        (is (string= "" error-output)))
      (destructuring-bind (codes code error-output)
          (try "{\"healthCheckConfig\": {\"serviceName\": \"x\"},
                 \"loadBalancingConfig\": [{\"round_robin\": {}}]}")
        (is (equal '("OK" 4) codes))
        (is (= 0 code))
        (is (search "ignores settings of the service config: healthCheckConfig" error-output))
        (is (null (search "round_robin" error-output)) "which is obeyed")
        (is (one-line-p error-output)))
      (is (= 2 (second (try "{\"methodConfig\": [{\"name\": [{}], \"retryPolicy\": {
\"maxAttempts\": 2, \"initialBackoff\": \"1s\", \"maxBackoff\": \"1s\", \"backoffMultiplier\": 1,
\"retryableStatusCodes\": [\"UNAVAILABLE\"]}}]}")))))))

(test load-spreads-connections
  "Over the addresses of the target if the policy is round_robin, else to the first that answers."
  (with-greeter (one)
    (with-greeter (other)
      (flet ((backends (&rest options)
               (length (load:run-backends
                        (apply #'load-line (format nil "ipv4:~A,~A" one other)
                               "helloworld.Greeter/SayHello" "-n" "8" "-c" "4" "--connections" "4"
                               "--loops" "2" options)))))
        (is (= 1 (backends)))
        (is (= 2 (length (load:run-backends
                          (load-line (format nil "ipv4:~A,~A" one other)
                                     ;; so many that some are left when the second one is ready
                                     "helloworld.Greeter/SayHello" "-n" "20000"
                                     "--balance" "round_robin"))))
            "without --connections one to each")
        (multiple-value-bind (run code error-output)
            (load-line (format nil "ipv4:~A,~A" one other) "helloworld.Greeter/SayHello" "-n" "8"
                       "--balance" "round_robin" "--connections" "1")
          (declare (ignore run))
          (is (= 0 code))
          (is (search "1 of the 2 addresses" error-output)))
        (is (= 2 (backends "--balance" "round_robin")))
        (is (= 2 (backends "--service-config"
                           "{\"loadBalancingConfig\": [{\"round_robin\": {}}]}")))))))

(test load-schedules
  "So many calls are made as the area under the rate says."
  (with-greeter (address)
    (flet ((make (&rest options)
             (multiple-value-bind (run code error-output)
                 (apply #'load-line address "helloworld.Greeter/SayHello" "--together" "0" options)
               (is (= 0 code) "~A" error-output)
               run)))
      (let ((run (make "--load-schedule" "step" "--load-start" "100" "--load-step" "100"
                      "--load-end" "300" "--load-step-duration" "200ms" "-z" "800ms")))
        (is (<= 176 (load:run-count run) 184) "20 + 40 + 60 + 60, not ~D" (load:run-count run))
        (is (equal "step" (option-of run "load-schedule")))
        (is (eql 200000000 (option-of run "load-step-duration"))))
      (let ((run (make "--load-schedule" "line" "--load-start" "100" "--load-step" "200" "-z"
                       "1s")))
        (is (<= 196 (load:run-count run) 204) "100 and half of 200, not ~D" (load:run-count run)))
      (let ((run (make "--rps" "200" "-z" "500ms" "--poisson")))
        (is (< 50 (load:run-count run) 160)))
      ;; a worker makes ten calls of 50 ms in half a second, and fewer where the machine is busy
      (flet ((count-calls ()
               (load:run-count
                (make "--concurrency-schedule" "step" "--concurrency-start" "1"
                      "--concurrency-step" "2" "--concurrency-end" "5"
                      "--concurrency-step-duration" "500ms" "-z" "1500ms" "-d" (greet-for 50)))))
        (let ((count (loop repeat 5
                           for count = (count-calls)
                           until (< 45 count)
                           finally (return count))))
          (is (< 45 count 95) "at most 10 + 30 + 50, not ~D" count)))
      (is (= 2 (run-line "load" address "helloworld.Greeter/SayHello" "--load-schedule" "step")))
      (is (= 2 (run-line "load" address "helloworld.Greeter/SayHello" "--load-step" "5"))))))

(test load-takes-times-and-rates-at-their-ends
  "A run ends at a rate at which the second call is due in years, and steps have a length."
  (with-greeter (address)
    (flet ((code (&rest options)
             (values (apply #'run-line "load" address "helloworld.Greeter/SayHello" "-n" "1"
                            options))))
      (is (= 0 (code "--rps" "0.00000000001" "-z" "50ms")))
      (is (= 0 (code "--connect-timeout" "100s")))
      (is (member (code "--connect-timeout" "100ms") '(0 1)) "a busy machine may take longer")
      (is (= 2 (code "--connect-timeout" "0")))
      (is (= 2 (code "--load-schedule" "step" "--load-start" "5" "--load-step" "5"
                     "--load-step-duration" "0"))))))

(test load-refuses-what-it-would-ignore
  (with-greeter (address)
    (flet ((refused-p (text &rest options)
             (apply #'fails-p 2 text "load" address "helloworld.Greeter/SayHello" options)))
      (refused-p "--load-schedule step begins with --load-start, and --rps does not go with it"
                 "--load-schedule" "step" "--load-start" "5" "--load-step" "5" "--rps" "9")
      (refused-p "and -c does not go with it" "--concurrency-schedule" "line"
                 "--concurrency-start" "5" "--concurrency-step" "5" "-c" "9")
      (dolist (options '(("--poisson") ("--together" "5ms") ("--async")))
        (apply #'refused-p (format nil "~A needs --rps" (first options)) options))
      (dolist (options '(("-n" "5") ("-x" "5s") ("--rounds" "2")
                         ("--load-schedule" "line" "--load-start" "1" "--load-step" "1")))
        (apply #'refused-p (format nil "as -z; ~A cannot be used with it" (first options)) "--knee"
               "p99 > 1s" options))
      (refused-p "--together is a minute at most" "--rps" "5" "--together" "61s")
      (refused-p "from 0.5 calls a second on" "--knee" "p99 > 1s" "--rps" "0.2"))))

(test load-leaves-the-first-calls-out
  (with-greeter (address)
    (flet ((count-of (&rest options)
             (load:run-count (apply #'load-line address "helloworld.Greeter/SayHello" "-c" "2"
                                    options))))
      (is (= 50 (count-of "-n" "50")))
      (is (= 40 (count-of "-n" "50" "--skipFirst" "10")))
      (is (= 50 (count-of "-n" "50" "--warm-up" "50ms")))
      (is (= 200 (count-of)) "as ghz"))))

(test load-limits-what-is-under-way
  "In an open loop, too, unless --async; calls that wait count from when they were due. On a busy
machine some take longer."
  (with-greeter (address)
    (flet ((slowest (&rest options)
             (load:histogram-max
              (load:run-latency (apply #'load-line address "helloworld.Greeter/SayHello" "-n" "10"
                                       "--rps" "200" "-d" (greet-for 50) options)))))
      (is (< 400000000 (slowest "-c" "1")) "ten calls of 50 ms, one behind the other")
      (is (loop repeat 5 thereis (< (slowest "-c" "1" "--async") 300000000))))))

(test load-writes-every-format-everywhere
  (with-greeter (address)
    (loop for (format . text) in '(("summary" . "Response time histogram") ("json" . "\"count\":5")
                                   ("pretty" . "\"count\": 5")
                                   ("csv" . "duration (ms),status,error")
                                   ("html" . "<!DOCTYPE html>"))
          do (let ((arguments (list "load" address "helloworld.Greeter/SayHello" "-n" "5" "-c" "1"
                                    "-O" format)))
               (multiple-value-bind (code output error-output) (apply #'run-line arguments)
                 (is (= 0 code))
                 (is (search text output :test #'char-equal) "~A: ~A" format output)
                 (is (string= "" error-output)))
               (call-with-file
                (lambda (file)
                  (multiple-value-bind (code output)
                      (apply #'run-line (append arguments (list "-o" file)))
                    (is (= 0 code))
                    (is (string= "" output))
                    (is (search text (uiop:read-file-string file :external-format :utf-8)
                                :test #'char-equal))))
                "what was there before")))))

(test load-writes-to-any-file-once-it-has-a-report
  (call-with-file
   (lambda (file)
     (is (= 1 (run-line "load" "127.0.0.1:1" "a.B/C" "-o" file)))
     (is (string= "of yesterday" (uiop:read-file-string file)))
     (with-greeter (address)
       (let ((odd (format nil "~A [1]*?.json" file)))
         (is (= 0 (run-line "load" address "helloworld.Greeter/SayHello" "-n" "1" "-o" odd)))
         (is (plusp (length (base:file-octets odd))))
         (delete-file (sb-ext:parse-native-namestring odd)))
       (let ((pipe (format nil "~A.pipe" file)) (text nil))
         (uiop:run-program (list "mkfifo" pipe))
         (let ((reader (in-thread (setf text (uiop:read-file-string pipe)))))
           (is (= 0 (run-line "load" address "helloworld.Greeter/SayHello" "-n" "1" "-o" pipe)))
           (sb-thread:join-thread reader))
         (is (search "Requests/sec" text))
         (delete-file pipe))))
   "of yesterday"))

(test load-in-rounds-and-compared
  (with-greeter (address)
    (flet ((arguments (&rest more)
             (list* "load" address "helloworld.Greeter/SayHello" "-n" "20" "-c" "2" more)))
      (call-with-file
       (lambda (file)
         (is (= 0 (apply #'run-line (arguments "--rounds" "3" "-O" "json" "-o" file))))
         (let ((run (clgrpc.report:read-run-file file)))
           (is (= 3 (length (load:run-rounds run))))
           (is (= 60 (load:run-count run))))
         (multiple-value-bind (code output)
             (apply #'run-line (arguments "--rounds" "3" "--compare" file))
           (is (= 0 code))
           (is (search "Comparison:" output))
           (is (search "Medians of 3 and 3 rounds" output))
           (is (not (search "They differ in" output)) "~A" output))
         (let ((json (base:parse-json
                      (nth-value 1 (apply #'run-line (arguments "--rounds" "2" "-O" "json"
                                                                "--compare" file))))))
           (flet ((inside (object name) (cdr (assoc name object :test #'string=))))
             (is (plusp (length (inside (inside (inside json "clgrpc") "comparison")
                                        "figures"))))))
         (is (= 2 (apply #'run-line (arguments "-O" "csv" "--compare" file)))))
       "")
      ;; each round has its time, and is over then
      (let ((run (load-line address "helloworld.Greeter/SayHello" "--rounds" "2" "-n" "100000000"
                            "-x" "100ms")))
        (is (= 2 (length (load:run-rounds run)))))
      (is (= 2 (apply #'run-line (arguments "--compare" "/nowhere/x.json")))))))

(test load-tells-its-options-as-ghz
  (with-greeter (address)
    (let ((run (load-line address "helloworld.Greeter/SayHello" "-n" "6" "-c" "3" "--cpus" "1" "-t"
                          "5s" "--name" "a run" "--tags" "{\"k\": \"v\"}" "-d" "{\"name\": \"x\"}"
                          "--skipFirst" "1")))
      (is (string= "a run" (load:run-name run)))
      (is (equal '(("k" . "v")) (load:run-tags run)))
      (loop for (name value) in `(("host" ,address) ("call" "helloworld.Greeter/SayHello")
                                  ("total" 6) ("concurrency" 3) ("CPUs" 1) ("timeout" 5000000000)
                                  ("skipFirst" 1) ("insecure" :true) ("data" (("name" . "x"))))
            do (is (equal value (option-of run name)) "~A is ~A" name (option-of run name))))))

(test a-round-that-cannot-be-made
  "The rounds before it are reported, and the exit code says that not all could be made."
  (let ((made 0))
    (flet ((make-run ()
             (if (< (incf made) 3)
                 (load:make-run :count 1 :duration-ns 1000)
                 (error 'load:run-failed :text "nobody is there"))))
      (let* ((tools::*failed-round* nil)
             (run (tools::repeat-rounds 5 #'make-run)))
        (is (= 3 made))
        (is (= 2 (load:run-count run) (length (load:run-rounds run))))
        (is (string= "round 3 could not be made: nobody is there"
                     (handler-case (progn (tools::report-failed-round run) "")
                       (tools::failure (failure) (princ-to-string failure)))))
        (signals load:run-failed (tools::repeat-rounds 1 #'make-run) "the first is the run"))))
  (let ((server (grpc:start-server (make-instance 'clgrpc.examples:greeter)))
        (proto (uiop:native-namestring (support:root-file "proto/examples/helloworld.proto"))))
    (unwind-protect
         (multiple-value-bind (run code complaints)
             (let ((ender (in-thread
                            (loop until (< 3 (getf (grpc:server-statistics server) :calls))
                                  do (sleep 0.01))
                            (grpc:stop-server server :drain 5))))
               (multiple-value-prog1
                   (load-line (grpc:server-address server) "helloworld.Greeter/SayHello"
                              "--proto" proto "-n" "5" "-c" "1" "--rounds" "3"
                              "-d" (greet-for 50))
                 (sb-thread:join-thread ender)))
           (is (= 1 code))
           (is (= 5 (load:run-count run)))
           (is (search "could not be made" complaints)))
      (grpc:stop-server server :drain 0))))

;;; A terminal, a pipe, C-c

(defun interrupted-run (loading)
  "The run that the program LOADING reports after SIGINT."
  (let ((run (clgrpc.report:parse-run
              (format nil "~{~A~%~}" (loop for line = (support:program-line loading)
                                           while line collect line)))))
    (is (= 130 (support:program-exit-code loading)))
    (is (eq :interrupted (load:run-ended-early run)))
    run))

(test load-interrupted
  "C-c ends the run in order: what was done is reported, and the exit code says so."
  (with-serve (program address "greeter")
    (support:with-program (loading (support:clgrpc-program) "load" address
                                "helloworld.Greeter/SayHello" "-z" "100s" "--rps" "100" "-O"
                                "json" "--rounds" "5")
      (sleep 1.5)
      (support:signal-program loading sb-unix:sigint)
      (let ((run (interrupted-run loading)))
        (is (< 10 (load:run-count run) 2000))
        (is (equal (list "OK" (load:run-count run)) (codes-of run)))))))

(test load-ended-by-sigterm
  "The run is reported, in time for who sends SIGKILL after it, and the exit code is not one of
success: calls that hang are in the report."
  (with-reflected (address :services (make-instance 'sleeper))
    (support:with-program (loading (support:clgrpc-program) "load" address
                                   "helloworld.Greeter/SayHello" "-z" "100s" "--rps" "20" "-O"
                                   "json" "--rounds" "5" "--fail-if" "error-ratio > 0")
      (sleep 1.5)
      (support:signal-program loading sb-unix:sigterm)
      ;; the report is one line; what --fail-if says of it follows
      (let ((run (clgrpc.report:parse-run (support:program-line loading))))
        (loop while (support:program-line loading))
        (is (= 143 (support:program-exit-code loading)))
        (is (eq :interrupted (load:run-ended-early run)))
        (is (< 0 (load:run-under-way run) 100))
        (is (<= 2000000000 (load:run-oldest-under-way-ns run)))))))

(defclass sleeper (helloworld:greeter) ())

(defmethod helloworld.greeter:say-hello ((service sleeper) request &key)
  (declare (ignore request))
  (loop with call = (clgrpc:current-call)
        until (clgrpc:cancelled-p call) do (sleep 0.05))
  (helloworld:make-hello-reply))

(test load-interrupted-twice-at-once
  "As timeout(1) does: it is reported."
  (let ((service (make-instance 'listener)))
    (with-reflected (address :services service)
      (support:with-program (loading (support:clgrpc-program) "load" address
                                  "helloworld.Greeter/SayHello" "-z" "100s" "--rps" "100" "-O"
                                  "json" "-H" "x-a: b")
        (loop repeat 3000
              until (heard service)
              do (sleep 0.01))
        (loop repeat 2 do (support:signal-program loading sb-unix:sigint))
        (is (< 0 (load:run-count (interrupted-run loading)) 10000))))))

(test standard-input-that-is-closed
  "is at its end: SBCL would wait for ever."
  (multiple-value-bind (output error-output code)
      (uiop:run-program (list "sh" "-c"
                              "timeout 20 $0 load 127.0.0.1:1 a.B/C -d @ --proto \"$1\" <&-"
                              (support:clgrpc-program) *route-guide-proto*)
                        :output :string :error-output :string :ignore-error-status t)
    (declare (ignore output error-output))
    ;; it gets as far as to find no such service
    (is (= 1 code))))

(defun on-a-terminal (path &rest arguments)
  "What the program at PATH with ARGUMENTS prints on a terminal."
  (let ((process (sb-ext:run-program path arguments :wait nil :pty t :input t :output nil
                                                    :error t)))
    (unwind-protect
         (with-output-to-string (output)
           (loop for char = (ignore-errors (read-char (sb-ext:process-pty process) nil))
                 while char do (write-char char output)))
      (sb-ext:process-wait process)
      (sb-ext:process-close process))))

(test load-tells-how-it-goes-on-a-terminal
  "One line, rewritten, which is gone at the end; nothing of it in a pipe, or with --quiet."
  (with-serve (program address "greeter")
    (let ((arguments (list "load" address "helloworld.Greeter/SayHello" "-n" "120" "--rps" "100"))
          (erase (format nil "~C[K" #\Escape)))
      (flet ((shown (&rest options)
               (call-with-file (lambda (file)
                                 (apply #'on-a-terminal (support:clgrpc-program)
                                        (append arguments (list "-o" file) options)))
                               "")))
        (let ((text (shown)))
          (is (search " of 120" text))
          (is (search "/s" text))
          (is (not (find #\Newline text)))
          (is (uiop:string-suffix-p text erase)))
        (is (string= "" (shown "--quiet"))))
      (multiple-value-bind (output error-output code)
          (uiop:run-program (cons (support:clgrpc-program) arguments) :output :string
                                                                      :error-output :string
                                                                      :ignore-error-status t)
        (is (= 0 code))
        (is (string= "" error-output))
        (is (search "Requests/sec" output))))))

;;; Servers of others

(test load-of-grpc-go
  (let ((peer (support:need-peer)))
    (support:with-server-program (server address peer "scenario-server")
      (let ((proto (namestring (asdf:system-relative-pathname
                                "clgrpc" "proto/grpc/testing/test.proto")))
            (root (namestring (asdf:system-relative-pathname "clgrpc" "proto/"))))
        (flet ((try (data &rest options)
                 (multiple-value-bind (run code error-output)
                     (apply #'load-line address "grpc.testing.TestService/UnaryCall" "-d" data
                            "--proto" proto "-i" root options)
                   (is (not (null run)) "~A" error-output)
                   (list (and run (codes-of run)) code))))
          (is (equal '(("OK" 500) 0) (try "{\"responseSize\": 10}" "-n" "500" "-c" "20"
                                          "--connections" "2")))
          (is (equal '(("OK" 300) 0) (try "{}" "-n" "300" "--rps" "1000")))
          (is (equal '(("NotFound" 50) 3)
                     (try "{\"responseStatus\": {\"code\": 5, \"message\": \"no\"}}" "-n"
                          "50" "-c" "5")))
          (destructuring-bind (codes code)
              (try "[{}, {\"responseStatus\": {\"code\": 8, \"message\": \"no\"}}]" "-n" "100"
                   "-c" "5")
            (is (equal '(50 50) (remove-if #'stringp codes)))
            (is (= 3 code)))
          (support:signal-program server sb-unix:sigstop)
          (unwind-protect
               (is (equal '(nil 1)
                          (list nil (nth-value 1 (load-line
                                                  address "grpc.testing.TestService/UnaryCall"
                                                  "--proto" proto "-i" root
                                                  "--connect-timeout" "1s")))))
            (support:signal-program server sb-unix:sigcont)))))))

;;; Mixes

(defparameter *mix*
  "[{\"method\": \"routeguide.RouteGuide/GetFeature\", \"weight\": 3,
  \"data\": {\"latitude\": 409146138, \"longitude\": -746188906}},
 {\"method\": \"routeguide.RouteGuide/RecordRoute\",
  \"data\": [{\"latitude\": 1}, {\"latitude\": 2}]},
 {\"method\": \"routeguide.RouteGuide/Nothing\", \"weight\": 2}]"
  "A mix; the third is of a method that there is not.")

(defun real-mix ()
  "*MIX* with a method that there is in the place of the third."
  (let ((at (search "Nothing" *mix*)))
    (concatenate 'string (subseq *mix* 0 at) "ListFeatures" (subseq *mix* (+ 7 at)))))

(test a-mix-calls-methods-by-their-weights
  (with-serve (program address "route-guide")
    (multiple-value-bind (run code) (load-line address "--mix" (real-mix) "-n" "600" "-c" "5"
                                               "--loops" "2" "--connections" "2" "--rounds" "2")
      (is (= 0 code))
      (is (equal '(("routeguide.RouteGuide/GetFeature" 600 0)
                   ("routeguide.RouteGuide/RecordRoute" 200 0)
                   ("routeguide.RouteGuide/ListFeatures" 400 0))
                 (loop for row in (load:run-methods run)
                       collect (list (load:share-row-name row) (load:share-row-count row)
                                     (load:share-row-errors row)))))
      (is (every (lambda (row) (= (load:share-row-count row)
                                  (load:histogram-count (load:share-row-latency row))))
                 (load:run-methods run)))
      (is (= (+ 600 (* 2 200) 400) (load:run-messages-sent run)))
      (is (string= (format nil "~{~A~^, ~}" (mapcar #'load:share-row-name
                                                    (load:run-methods run)))
                   (load:run-method run)))
      (is (equalp #(3 1 2) (option-of run "weights"))))
    (let ((summary (nth-value 1 (call-with-file
                                 (lambda (file) (run-line "load" address "--mix" file "-n" "60"))
                                 (real-mix)))))
      (is (search "Methods:" summary))
      (is (search "routeguide.RouteGuide/RecordRoute" summary)))
    (is (null (load:run-methods (load-line address "routeguide.RouteGuide/GetFeature" "-n" "5")))
        "A method alone has no row.")))

(test a-mix-is-refused
  (flet ((said (text &rest arguments)
           (multiple-value-bind (code output error-output)
               (apply #'run-line "load" "127.0.0.1:1" "--mix" arguments)
             (declare (ignore output))
             (is (= 2 code))
             (is (search text error-output) "~A" error-output)
             (is (one-line-p error-output)))))
    (said "exclude each other" *mix* "-d" "{}")
    (said "exclude each other" *mix* "a.B/C")
    (said "an array of objects" "[]")
    (said "not JSON" "[")
    (said "an object with a \"method\"" "[{}]")
    (said "an object with a \"method\"" "[1]")
    (said "from 1 to 1000" "[{\"method\": \"a.B/C\", \"weight\": 0}]")
    (said "not \"wait\"" "[{\"method\": \"a.B/C\", \"wait\": 1}]")
    (said "cannot be read" "/nowhere/mix.json"))
  (with-serve (program address "route-guide")
    (multiple-value-bind (code output error-output) (run-line "load" address "--mix" *mix*)
      (declare (ignore output))
      (is (= 1 code))
      (is (search "no method Nothing" error-output)))))

(test turns-of-a-mix-are-spread
  (flet ((turns (&rest weights)
           (let ((requests (loop for weight in weights
                                 collect (load::%make-request :weight weight))))
             (map 'list (lambda (request) (position request requests))
                  (load::mix-requests requests)))))
    (is (equal '(0) (turns 1)))
    (is (equal '(0 1) (turns 1 1)))
    (is (equal '(0 0 1 0) (turns 3 1)))
    (is (equal '(0 1 0 2 0 1 0) (turns 4 2 1)))))
