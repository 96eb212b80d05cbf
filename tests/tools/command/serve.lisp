;;;; The saved core as users run it.

(in-package #:clgrpc.tests.tools)

(test serve-and-end
  (dolist (signal (list sb-unix:sigterm sb-unix:sigint))
    (with-serve (program address "greeter,route-guide" "--loops" "2")
      (grpc:with-channel (channel address)
        (is (string= "Hello, Ada!"
                     (helloworld:hello-reply-message
                      (helloworld.greeter:say-hello
                       channel (helloworld:make-hello-request :name "Ada") :timeout 10)))))
      (multiple-value-bind (code output) (run-line "routeguide-client" address)
        (is (= 0 code))
        (is (search "RouteChat" output)))
      (support:signal-program program signal)
      (is (null (support:program-line program)) "nothing more is printed")
      (is (= 0 (support:program-exit-code program))))))

(test rehearsal
  (is-true (tools:rehearse)))

(test serve-counts
  (with-serve (program address "bench")
    (grpc:with-channel (channel address)
      (dotimes (i 7)
        (bench-methods:unary-call channel (simple-request 1) :timeout 10)))
    (support:signal-program program sb-unix:sigusr1)
    (let* ((line (support:program-line program))
           (space (position #\Space line)))
      (is (string= "turns=" line :end2 6))
      (is (<= 7 (parse-integer line :start 6 :end space)))
      (is (string= " calls=7" (subseq line space))))))

(test serve-drains
  "A call that runs when SIGTERM comes is answered."
  (with-serve (program address "greeter")
    (grpc:with-channel (channel address)
      (let ((greeting (grpc:call-async #'helloworld.greeter:say-hello channel
                                       (helloworld:make-hello-request :name "delay:500")
                                       :timeout 10)))
        ;; a call behind it on the same connection, so that it has certainly arrived
        (helloworld.greeter:say-hello channel (helloworld:make-hello-request :name "Ada")
                                      :timeout 10)
        (support:signal-program program sb-unix:sigterm)
        (is (string= "Hello, delay:500!"
                     (helloworld:hello-reply-message (grpc:await greeting))))))
    (is (null (support:program-line program)))
    (is (= 0 (support:program-exit-code program)))))

(test serve-limits-messages
  (with-serve (program address "interop" "--max-receive-octets" "100")
    (grpc:with-channel (channel address)
      (flet ((call (size)
               (interop-methods:unary-call
                channel (testing:make-simple-request
                         :payload (tools:payload-of-size :compressable size))
                :timeout 10)))
        (is (= 0 (body-size (call 50))))
        (signals grpc:resource-exhausted (call 200))
        (is (= 0 (body-size (call 50))) "the connection lives on")))))

(test serve-with-limits
  (with-serve (program address "greeter" "--limits" "max-connections=1,reuse-port=true")
    (support:with-server-program (other same (support:clgrpc-program) "serve" "greeter"
                                        "--limits" "reuse-port=true" "--listen" address)
      (is (string= address same) "they share the port")
      (is (= 0 (support:terminate-program other)))
      (grpc:with-channel (channel address)
        (helloworld.greeter:say-hello channel (helloworld:make-hello-request :name "Ada")
                                      :timeout 10)
        (grpc:with-channel (second address)
          (signals grpc:unavailable
            (helloworld.greeter:say-hello second (helloworld:make-hello-request :name "Ada")
                                          :timeout 10)))))))

(test limits-of-the-command-line
  (is (equal '(:backlog 1 :drain-seconds 20) (tools::parse-limits "backlog=1,drain-seconds=20")))
  (dolist (wrong '("" "backlog" "backlog=" "backlog=x" "backlog=0" "none=1" "backlog=1,"))
    (signals tools::usage-error (tools::parse-limits wrong))))

(test serve-collects
  (let ((text (with-output-to-string (*standard-output*)
                (with-input-from-string (*standard-input* (format nil "~%~%"))
                  (tools::collect-at-each-line)))))
    (is (= 2 (count #\Newline text)))
    (is (= 0 (search "heap=" text)))
    (is (< 1000000 (parse-integer text :start 5 :junk-allowed t)))))

(test serve-refuses
  (multiple-value-bind (code lines)
      (support:run-to-end (support:clgrpc-program) '("serve" "greeter" "--loops" "none"))
    (is (= 2 code))
    (is (= 1 (length lines))))
  (multiple-value-bind (code lines)
      (support:run-to-end (support:clgrpc-program) '("--version"))
    (is (= 0 code) "the core does not answer it itself")
    (is (equal "clgrpc" (first (uiop:split-string (first lines)))))))

(test address-in-use
  (with-serve (program address "greeter")
    (multiple-value-bind (code lines)
        (support:run-to-end (support:clgrpc-program) (list "serve" "greeter" "--listen" address))
      (is (= 1 code))
      (is (= 1 (length lines)) "~S" lines))))

(test serve-several-addresses
  (let ((path (uiop:with-temporary-file (:pathname path :type "sock")
                (uiop:native-namestring path))))
    (support:with-server-program (program address (support:clgrpc-program) "serve" "greeter"
                                  "--listen" (format nil "127.0.0.1:0,unix:~A" path))
      (let ((other (support:server-address program)))
        (is (string= (format nil "unix:~A" path) other))
        (dolist (address (list address other))
          (grpc:with-channel (channel address)
            (is (string= "Hello, Ada!"
                         (helloworld:hello-reply-message
                          (helloworld.greeter:say-hello
                           channel (helloworld:make-hello-request :name "Ada") :timeout 10))))))
        (is (= 0 (support:terminate-program program)))
        (is (null (probe-file path)))))))

(test programs-trace-as-the-environment-says
  "To the standard error, which is read here with the standard output; without it nothing."
  (with-serve (program address "greeter")
    (flet ((call (&rest environment)
             (multiple-value-bind (code lines)
                 (support:run-to-end
                  "/usr/bin/env"
                  (append environment
                          (list (support:clgrpc-program) "call" address
                                "helloworld.Greeter/SayHello" "-d" "{\"name\": \"Ada\"}")))
               (is (eql 0 code))
               (format nil "~{~A~%~}" lines))))
      (let ((traced (call "GRPC_TRACE=call,http" "GRPC_VERBOSITY=debug")))
        (is (search "Hello, Ada!" traced))
        (is (search "TRACE call call-begun" traced))
        (is (search "TRACE http frame-sent" traced))
        (is (search "method=/helloworld.Greeter/SayHello" traced)))
      (is (null (search "TRACE" (call)))))))

(test serve-logs-each-call
  (support:with-program (program (support:clgrpc-program) "serve" "greeter" "--listen"
                                 "127.0.0.1:0" "--access-log" "--log-format" "json")
    (let* ((line (loop for line = (support:program-line program)
                       until (search "listening on" line)
                       finally (return line)))
           (address (subseq line (1+ (position #\Space line :from-end t)))))
      (grpc:with-channel (channel address)
        (helloworld.greeter:say-hello channel (helloworld:make-hello-request :name "Ada")
                                      :timeout 20))
      (let ((event (loop for line = (support:program-line program)
                         when (search "\"call\"" line) return (base:parse-json line))))
        (flet ((member-of (name) (cdr (assoc name event :test #'string=))))
          (is (equal '("info" "server" "/helloworld.Greeter/SayHello" "OK" 13 5)
                     (mapcar #'member-of '("level" "role" "method" "status" "octets_sent"
                                           "octets_received")))))))))

(test serve-tells-of-metrics
  "On an address of their own, with /healthz beside them."
  (with-serve (program address "greeter" "--metrics" "127.0.0.1:0")
    (let* ((line (support:program-line program))
           (url (subseq line (length "metrics at "))))
      (is (eql 0 (search "metrics at http://127.0.0.1:" line)))
      (grpc:with-channel (channel address)
        (helloworld.greeter:say-hello channel (helloworld:make-hello-request :name "Ada")
                                      :timeout 20))
      (flet ((get-lines (url)
               (nth-value 1 (support:run-to-end "/usr/bin/env"
                                                (list "curl" "-qsS" "--noproxy" "*"
                                                      "--max-time" "20" url)))))
        (is (find-if (lambda (line)
                       (and (uiop:string-prefix-p "grpc_server_call_started_total{" line)
                            (search "grpc_method=\"helloworld.Greeter/SayHello\"" line)
                            (uiop:string-suffix-p line " 1")))
                     (get-lines url)))
        (is (equal '("serving")
                   (get-lines (concatenate 'string (subseq url 0 (search "/metrics" url))
                                           "/healthz")))))
      (is (= 0 (support:terminate-program program))))))

(test serve-logs
  "In the format asked for, from the level asked for on."
  (support:with-program (program (support:clgrpc-program) "serve" "greeter" "--listen"
                                 "127.0.0.1:0" "--log-level" "info" "--log-format" "json")
    (let ((lines (loop for line = (support:program-line program)
                       collect line
                       until (search "listening on" line))))
      (support:signal-program program sb-unix:sigterm)
      (let ((events (loop for line in (append lines (loop for line = (support:program-line program)
                                                          while line collect line))
                          unless (search "listening on" line)
                            collect (cdr (assoc "event" (base:parse-json line)
                                                :test #'string=)))))
        ;; what is said of descriptors depends on how many the machine allows
        (is (equal '("server-started" "server-draining" "server-stopped")
                   (remove-if (lambda (event)
                                (member event '("max-connections-lowered" "descriptor-limit-raised")
                                        :test #'equal))
                              events))))))
  (multiple-value-bind (code output error-output)
      (run-line "serve" "greeter" "--access-log=2")
    (declare (ignore output))
    (is (plusp code))
    (is (search "from 0 to 1" error-output)))
  (multiple-value-bind (code output error-output)
      (run-line "serve" "greeter" "--log-level" "loud")
    (declare (ignore output))
    (is (plusp code))
    (is (search "debug, info" error-output))))

(defclass span-counter (trace-collector:trace-service)
  ((count :initform 0 :accessor counted-spans))
  (:documentation "A collector that counts spans."))

(defmethod trace-service:export ((counter span-counter) request &key)
  (loop for resource across (trace-collector:export-trace-service-request-resource-spans request)
        do (loop for scope across (spans:resource-spans-scope-spans resource)
                 do (incf (counted-spans counter) (length (spans:scope-spans-spans scope)))))
  (trace-collector:make-export-trace-service-response))

(defun greet-times (address count)
  (grpc:with-channel (channel address)
    (loop repeat count
          do (helloworld.greeter:say-hello channel (helloworld:make-hello-request :name "Ada")
                                           :timeout 10))))

(test serve-traces
  "As many as it says, to the collector; what waits goes there before it ends."
  (loop for (ratio shown spans) in '(("1" "1.0" 20) ("0" "0.0" 0))
        do (let* ((counter (make-instance 'span-counter))
                  (collector (grpc:start-server counter :listen "127.0.0.1:0"))
                  (target (grpc:server-address collector)))
             (unwind-protect
                  (with-serve (program address "greeter" "--otlp" target "--trace-sample" ratio)
                    (is (string= (format nil "recording ~A of the traces that begin here" shown)
                                 (support:program-line program)))
                    (is (string= (format nil "exporting metrics and spans to ~A" target)
                                 (support:program-line program)))
                    (greet-times address 20)
                    (is (= 0 (support:terminate-program program)))
                    (is (= spans (counted-spans counter))))
               (grpc:stop-server collector :drain 0)))))

(test serve-traces-for-the-log
  (with-serve (program address "greeter" "--trace-sample" "0" "--access-log")
    ;; among lines of the log, which another thread writes
    (is-true (loop for line = (support:program-line program)
                   while line
                     thereis (search "recording 0.0 of the traces that begin here, for the log only"
                                     line)))
    (greet-times address 1)
    (let ((line (loop for line = (support:program-line program)
                      when (search "method=/helloworld.Greeter/SayHello" line) return line)))
      (is (search "trace-id=" line) "~A" line))))

(test serve-tells-nothing-in-the-clear-if-it-has-a-certificate
  "The console and the metrics are shown over TLS as well, and the cookie goes nowhere else."
  (flet ((certificate (name) (support:certificate-file name)))
    (support:with-program (program (support:clgrpc-program) "serve" "greeter" "--listen"
                                   "127.0.0.1:0" "--metrics" "127.0.0.1:0" "--console" "127.0.0.1:0"
                                   "--tls-cert" (certificate "server.pem")
                                   "--tls-key" (certificate "server.key"))
      (let ((lines (loop for line = (support:program-line program)
                         collect line
                         until (search "console at" line))))
        (flet ((url-behind (words)
                 (let ((line (find-if (lambda (line) (search words line)) lines)))
                   (subseq line (length words))))
               (curl (url &rest arguments)
                 (uiop:run-program (list* "curl" "-qsS" "--noproxy" "*" "--max-time" "20"
                                          "--cacert" (certificate "ca.pem") url arguments)
                                   :output :string :error-output nil :ignore-error-status t)))
          (let ((metrics (url-behind "metrics at ")) (console (url-behind "console at ")))
            (is (search "clgrpc_server_connections" (curl metrics)))
            (is (search "; Secure" (curl console "-D" "-")))
            (dolist (url (list metrics console))
              (is (uiop:string-prefix-p "https://127.0.0.1:" url))
              (is (string= "" (curl (concatenate 'string "http" (subseq url 5)))))))))
      (is (= 0 (support:terminate-program program))))))

(test serve-shows-a-console
  "On an address of its own, which is printed with the token."
  (support:with-program (program (support:clgrpc-program) "serve" "greeter" "--listen"
                                 "127.0.0.1:0" "--console" "127.0.0.1:0")
    (let* ((lines (loop for line = (support:program-line program)
                        collect line
                        until (search "console at" line)))
           (url (subseq (first (last lines)) (length "console at "))))
      (is (search "listening on 127.0.0.1:" (first lines)))
      (is (eql 0 (search "http://127.0.0.1:" url)))
      (is (search "/console/?token=" url))
      (flet ((curl (&rest arguments)
               (uiop:run-program (list* "curl" "-s" "-o" "/dev/null" "-w" "%{http_code}" arguments)
                                 :output :string)))
        (is (string= "303" (curl url)))
        (is (string= "200" (curl "-L" "-c" "/dev/null" url)))
        (is (string= "401" (curl (subseq url 0 (position #\? url)))))))
    (is (= 0 (support:terminate-program program)))))
