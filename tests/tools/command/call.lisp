;;;; `list`, `describe` and `call` against servers with reflection, in this process and as programs.

(in-package #:clgrpc.tests.tools)

(defmacro with-reflected ((address &key (services '(make-instance 'clgrpc.examples:route-guide))
                                     (reflection '(grpc:reflection-services)) observer)
                          &body body)
  "Run BODY while SERVICES listen at ADDRESS, with REFLECTION beside them."
  (let ((server (gensym "SERVER")))
    `(let* ((,server (grpc:start-server (append (list ,services) ,reflection)
                                        :listen "127.0.0.1:0" :observer ,observer))
            (,address (grpc:server-address ,server)))
       (unwind-protect (progn ,@body)
         (grpc:stop-server ,server)))))

(defun prints-p (text &rest arguments)
  "True if the command line ARGUMENTS succeeds and prints TEXT."
  (multiple-value-bind (code output error-output) (apply #'run-line arguments)
    (is (= 0 code) "exit code ~D: ~A" code error-output)
    (is (string= text output))))

(defun lines (&rest lines)
  (format nil "~{~A~%~}" lines))

(defun fails-p (expected text &rest arguments)
  "True if the command line ARGUMENTS exits with the code EXPECTED and complains with TEXT."
  (multiple-value-bind (code output error-output) (apply #'run-line arguments)
    (declare (ignore output))
    (is (= expected code) "exit code ~D: ~A" code error-output)
    (is (search text error-output) "~A" error-output)))

(defparameter *methods*
  '("routeguide.RouteGuide.GetFeature" "routeguide.RouteGuide.ListFeatures"
    "routeguide.RouteGuide.RecordRoute" "routeguide.RouteGuide.RouteChat"))

(defparameter *route-guide-proto*
  (namestring (asdf:system-relative-pathname "clgrpc" "proto/examples/route_guide.proto")))

(test list-services
  (with-reflected (address)
    (prints-p (lines "grpc.reflection.v1.ServerReflection"
                     "grpc.reflection.v1alpha.ServerReflection" "routeguide.RouteGuide")
              "list" address)
    (apply #'prints-p (apply #'lines *methods*) (list "list" address "routeguide.RouteGuide"))
    (fails-p 1 "routeguide.Nothing" "list" address "routeguide.Nothing")
    (fails-p 1 "is not a service" "list" address "routeguide.Point"))
  (prints-p (lines "routeguide.RouteGuide") "list" "--proto" *route-guide-proto*)
  (prints-p (apply #'lines *methods*)
            "list" "--proto" *route-guide-proto* "routeguide.RouteGuide")
  (fails-p 2 "ADDRESS is missing" "list"))

(test openapi-of-a-file
  "The document of the routes that a service config gives, or a message that says what is wrong."
  (uiop:with-temporary-file (:stream stream :pathname path :direction :output)
    (format stream "http:~% rules:~% - selector: routeguide.RouteGuide.GetFeature~%   ~
                    get: /v1/features/{latitude}~%")
    :close-stream
    (multiple-value-bind (code output)
        (run-line "openapi" "--proto" *route-guide-proto* "--rules" (uiop:native-namestring path)
                  "--title" "Routes")
      (is (= 0 code))
      (let ((document (protobuf:parse-json-message 'google.protobuf:struct output)))
        (is (search "\"/v1/features/{latitude}\"" (protobuf:message-json document)))
        (is (search "\"title\":\"Routes\"" (protobuf:message-json document))))))
  (loop for (path-end more word)
          in `(("{altitude}" "" "altitude")
               ("x" ,(format nil "additional_bindings:~%   - get: /v1/features/x") "same requests"))
        do (uiop:with-temporary-file (:stream stream :pathname path :direction :output)
             (format stream "http:~% rules:~% - selector: routeguide.RouteGuide.GetFeature~%   ~
                             get: /v1/features/~A~%   ~A~%" path-end more)
             :close-stream
             (fails-p 1 word "openapi" "--proto" *route-guide-proto*
                      "--rules" (uiop:native-namestring path)))))

(defun described (&rest arguments)
  "The lines that `describe ARGUMENTS` prints, but for comments."
  (multiple-value-bind (code output error-output) (apply #'run-line "describe" arguments)
    (is (= 0 code) "exit code ~D: ~A" code error-output)
    (remove-if (lambda (line)
                 (or (string= "" line) (uiop:string-prefix-p "//" (string-left-trim " " line))))
               (uiop:split-string output :separator '(#\Newline)))))

(test describe-symbols
  (with-reflected (address)
    (is (equal '("routeguide.Point is a message:" "message Point {"
                 "  int32 latitude = 1;" "  int32 longitude = 2;" "}")
               (described address "routeguide.Point")))
    (is (equal (list "routeguide.RouteGuide.RouteChat is a method:"
                     (format nil "rpc RouteChat ( stream .routeguide.RouteNote ) returns ~
                                  ( stream .routeguide.RouteNote );"))
               (described address "routeguide.RouteGuide.RouteChat")))
    (is (equal (described address "routeguide.RouteGuide.RouteChat")
               (described address "routeguide.RouteGuide/RouteChat")))
    (is (equal '("grpc.reflection.v1.ServerReflectionResponse.original_request is a field:"
                 ".grpc.reflection.v1.ServerReflectionRequest original_request = 2;")
               (described address
                          "grpc.reflection.v1.ServerReflectionResponse.original_request")))
    (multiple-value-bind (code output) (run-line "describe" address)
      (is (= 0 code))
      (is (search "service ServerReflection {" output))
      (is (search "rpc GetFeature ( .routeguide.Point ) returns ( .routeguide.Feature );"
                  output)))
    (multiple-value-bind (code output)
        (run-line "describe" address "grpc.reflection.v1.ServerReflectionRequest")
      (is (= 0 code))
      (is (search "  oneof message_request {" output))
      (is (search "    string file_by_filename = 3;" output)))
    (fails-p 1 "there is no symbol x.Y" "describe" address "x.Y")
    (fails-p 2 "so write -d @ <point.json" "call" address "routeguide.RouteGuide/GetFeature"
             "-d" "@point.json")))

(test call-of-each-kind
  (with-reflected (address)
    (flet ((method (name) (format nil "routeguide.RouteGuide/~A" name)))
      (prints-p (lines "{"
                       "  \"name\": \"Berkshire Valley Management Area Trail, Jefferson, NJ, USA\","
                       "  \"location\": {" "    \"latitude\": 409146138,"
                       "    \"longitude\": -746188906" "  }" "}")
                "call" "-d" "{\"latitude\": 409146138, \"longitude\": -746188906}" address
                (method "GetFeature"))
      (multiple-value-bind (code output)
          (run-line "call" "-d" "{\"lo\": {\"latitude\": 400000000, \"longitude\": -750000000},
                                  \"hi\": {\"latitude\": 420000000, \"longitude\": -730000000}}"
                    address (method "ListFeatures"))
        (is (= 0 code))
        (is (< 50 (count #\{ output))))
      (multiple-value-bind (code output)
          (run-line "call" "-d" "{\"latitude\": 1} {\"latitude\": 2}{\"latitude\": 3}" address
                    (method "RecordRoute"))
        (is (= 0 code))
        (is (search "\"pointCount\": 3" output)))
      (let* ((note "{\"location\": {\"latitude\": 77}, \"message\": \"n }\\\" é\"}")
             (*standard-input* (make-string-input-stream (format nil "~A~%~A" note note))))
        (multiple-value-bind (code output) (run-line "call" "-d" "@" address (method "RouteChat"))
          (is (= 0 code))
          (is (search "\"message\": \"n }\\\" é\"" output))))
      (prints-p "" "call" address (method "RouteChat"))
      (prints-p (lines "{" "  \"name\": \"\"," "  \"location\": {" "    \"latitude\": 0,"
                       "    \"longitude\": 0" "  }" "}")
                "call" "--emit-defaults" "-d" "{}" address (method "GetFeature")))))

(test call-goes-wrong
  (with-reflected (address)
    (fails-p 1 "latitud" "call" "-d" "{\"latitud\": 1}" address "routeguide.RouteGuide/GetFeature")
    (fails-p 1 "takes one request" "call" "-d" "{} {}" address "routeguide.RouteGuide/GetFeature")
    (fails-p 1 "latitud" "call" "-d" "{} {\"latitud\": 1}" address
             "routeguide.RouteGuide/RecordRoute")
    (fails-p 1 "routeguide.RouteGuide has no method Nothing; it has GetFeature" "call" address
             "routeguide.RouteGuide/Nothing")
    (fails-p 2 "package.Service/Method" "call" address "Nothing")
    (fails-p 2 "name: value" "call" address "a.B/C" "-H" "nothing")
    (fails-p 2 "base64" "call" address "a.B/C" "-H" "x-bin: !")
    (fails-p 2 "a duration is expected" "call" address "a.B/C" "--timeout" "1x")
    (fails-p 2 "a duration above 0" "call" address "a.B/C" "--timeout" "0s")
    (is (= 0 (run-line "call" "--data" "{}" address "routeguide.RouteGuide/GetFeature"
                       "--timeout" "20s"))))
  ;; without reflection: types from the file, and none without
  (with-reflected (address :reflection '())
    (fails-p 1 "no reflection" "list" address)
    (multiple-value-bind (code output)
        (run-line "call" "--proto" *route-guide-proto* "-d" "{\"latitude\": 1}" address
                  "routeguide.RouteGuide.RecordRoute")
      (is (= 0 code))
      (is (search "pointCount" output)))))

(test call-falls-back-to-v1alpha
  (with-reflected (address :reflection (rest (grpc:reflection-services)))
    (apply #'prints-p (apply #'lines *methods*) (list "list" address "routeguide.RouteGuide"))))

(test call-ends-with-a-status
  (with-reflected (address :services (make-instance 'testee:interop-service))
    (flet ((call (&rest arguments)
             (apply #'run-line "call" address "grpc.testing.TestService/UnaryCall" arguments)))
      (multiple-value-bind (code output error-output)
          (call "-d" "{\"responseStatus\": {\"code\": 5, \"message\": \"nowhere\"}}")
        (is (= 69 code))
        (is (string= "" output))
        (is (string= (lines "ERROR:" "  Code: NotFound" "  Message: nowhere") error-output)))
      (multiple-value-bind (code output error-output)
          (run-line "call" address "grpc.testing.TestService/UnimplementedCall")
        (is (= 76 code))
        (is (string= "" output))
        (is (search "Unimplemented" error-output)))
      (is (= 0 (call "-d" "{\"responseSize\": 3}" "-H" "x-grpc-test-echo-initial: a"
                     "-H" "x-grpc-test-echo-trailing-bin: q6ur" "--timeout" "20")))
      (is (= (+ 64 4)
             (run-line "call" address "grpc.testing.TestService/StreamingOutputCall"
                       "--timeout" "0.5" "-d"
                       "{\"responseParameters\": [{\"size\": 1, \"intervalUs\": 2000000}]}"))))))

(defparameter *evil*
  (format nil "a~C]0;title~C~C[31m~C~%forged: line~C~C" (code-char 27) (code-char 7)
          (code-char #x9B) #\Return (code-char 127) (code-char #x202E))
  "What changes a terminal's title and colours, and makes lines, if it is printed as it is.")

(defclass evil-reflection (grpc.reflection.v1:server-reflection) ())

(defmethod grpc.reflection.v1.server-reflection:server-reflection-info
    ((service evil-reflection) requests &key call)
  (grpc:do-messages (request requests)
    (grpc:send
     call
     (if (string= "" (grpc.reflection.v1:server-reflection-request-list-services request))
         (grpc.reflection.v1:make-server-reflection-response
          :error-response (grpc.reflection.v1:make-error-response
                           :error-code 5 :error-message *evil*))
         (grpc.reflection.v1:make-server-reflection-response
          :list-services-response
          (grpc.reflection.v1:make-list-service-response
           :service (list (grpc.reflection.v1:make-service-response :name *evil*)
                          (grpc.reflection.v1:make-service-response
                           :name (make-string 100000 :initial-element #\x)))))))))

(defun harmless-p (text lines)
  "True if TEXT has at most LINES and nothing in it moves a terminal, and shows that something did."
  (and (<= (count #\Newline text) lines)
       (search "\\x1b]0;title\\x07\\x9b[31m\\r" text)
       (search "\\x7f\\u{202e}" text)
       (every (lambda (char) (or (char= char #\Newline) (not (base:unsafe-char-p char)))) text)))

(test what-reflection-says-does-not-reach-the-terminal
  (with-reflected (address :services (make-instance 'testee:interop-service)
                           :reflection (list (make-instance 'evil-reflection)))
    (multiple-value-bind (code output) (run-line "list" address)
      (is (= 0 code))
      (is-true (harmless-p output 2) "~S" (subseq output 0 (min 200 (length output))))
      (is (< (length output) 11000)))
    (multiple-value-bind (code output error-output) (run-line "list" address "a.B")
      (declare (ignore output))
      (is (= 1 code))
      (is-true (harmless-p error-output 1) "~S" error-output))))

(defclass guarded-reflection (grpc.reflection.v1:server-reflection) ())

(defmethod grpc.reflection.v1.server-reflection:server-reflection-info
    ((service guarded-reflection) requests &key call)
  (unless (equal '("x-key" . "k") (assoc "x-key" (grpc:call-metadata call) :test #'string=))
    (grpc:fail :unauthenticated "no key"))
  (grpc:do-messages (request requests)
    (grpc:send call (grpc.reflection.v1:make-server-reflection-response
                     :list-services-response
                     (grpc.reflection.v1:make-list-service-response
                      :service (list (grpc.reflection.v1:make-service-response :name "a.B")))))))

(test questions-of-reflection-have-the-headers
  "A server may want a token for its reflection as for its other methods."
  (with-reflected (address :reflection (list (make-instance 'guarded-reflection)))
    (prints-p (lines "a.B") "list" address "-H" "x-key: k")
    (fails-p 1 "no key" "list" address)))

(defclass confused-reflection (grpc.reflection.v1:server-reflection) ())

(defmethod grpc.reflection.v1.server-reflection:server-reflection-info
    ((service confused-reflection) requests &key call)
  (grpc:do-messages (request requests)
    (grpc:send call (grpc.reflection.v1:make-server-reflection-response))))

(test answers-of-reflection-to-other-questions
  "Are the server's fault, not ours."
  (with-reflected (address :reflection (list (make-instance 'confused-reflection)))
    (fails-p 1 "answers another question than list_services" "list" address)
    (fails-p 1 "answers another question than file_containing_symbol" "describe" address "a.B")))

(test what-a-status-says-does-not-reach-the-terminal
  (with-reflected (address :services (make-instance 'testee:interop-service))
    (multiple-value-bind (code output error-output)
        (run-line "call" address "grpc.testing.TestService/UnaryCall" "-d"
                  (base:write-json `(("responseStatus" . (("code" . 5) ("message" . ,*evil*))))))
      (declare (ignore output))
      (is (= 69 code))
      (is-true (harmless-p error-output 3) "~S" error-output)))
  (with-reflected (address)
    (multiple-value-bind (code output)
        (run-line "call" address "routeguide.RouteGuide/RouteChat" "-d"
                  (let ((note (base:write-json `(("location" . (("latitude" . 78)))
                                                       ("message" . ,*evil*)))))
                    (format nil "~A ~A" note note)))
      (is (= 0 code))
      (is (search "a\\u001B]0;title\\u0007\\u009B[31m\\r\\nforged: line\\u007F\\u202E" output))
      (is (notany #'base:unsafe-char-p (remove #\Newline output))))))

(test call-from-the-saved-core
  (with-serve (program address "greeter")
    (multiple-value-bind (code lines)
        (support:run-to-end (support:clgrpc-program)
                            (list "call" address "helloworld.Greeter/SayHello"
                                  "-d" "{\"name\": \"Adá\"}"))
      (is (eql 0 code))
      (is (equal '("{" "  \"message\": \"Hello, Adá!\"" "}") lines)))
    (multiple-value-bind (code lines)
        (support:run-to-end (support:clgrpc-program) (list "list" address))
      (is (eql 0 code))
      (is (member "helloworld.Greeter" lines :test #'string=)))))

(test an-interrupt-ends-a-call
  "C-c in the terminal ends the program with 130, as of other programs, and says nothing."
  (with-serve (program address "interop")
    (support:with-program (client (support:clgrpc-program) "call" address
                                  "grpc.testing.TestService/StreamingOutputCall" "-d"
                                  "{\"responseParameters\": [{\"size\": 1},
                                    {\"size\": 1, \"intervalUs\": 60000000}]}")
      ;; it waits for the second response
      (is (string= "{" (support:program-line client)))
      (loop until (string= "}" (support:program-line client)))
      (support:signal-program client sb-unix:sigint)
      (is (null (support:program-line client)))
      (is (eql 130 (support:program-exit-code client))))))

(defclass chain-reflection (grpc.reflection.v1:server-reflection)
  ((delay :initarg :delay :reader delay)
   (padding :initarg :padding :reader padding))
  (:documentation "Reflection of files without end, each of which imports the next: each answer is
put off until DELAY has passed, and each file has PADDING octets."))

(defmethod grpc.reflection.v1.server-reflection:server-reflection-info
    ((service chain-reflection) call &key)
  (grpc:do-messages (request call)
    (let* ((asked (protobuf:field-value request "file_by_filename"))
           (number (if (plusp (length asked)) (parse-integer asked) 0))
           (file (google.protobuf:make-file-descriptor-proto
                  :name (princ-to-string number) :dependency (list (princ-to-string (1+ number)))
                  :package (format nil "p~D" number)
                  :message-type (list (google.protobuf:make-descriptor-proto
                                       :name (make-string (padding service)
                                                          :initial-element #\a))))))
      (when (plusp (delay service))
        (sb-thread:wait-on-semaphore (sb-thread:make-semaphore) :timeout (delay service)))
      (grpc:send call (grpc.reflection.v1:make-server-reflection-response
                       :file-descriptor-response
                       (grpc.reflection.v1:make-file-descriptor-response
                        :file-descriptor-proto (list (protobuf:serialize file))))))))

(defun fails-with-chain (text delay padding &rest arguments)
  (with-reflected (address :services (make-instance 'chain-reflection :delay delay
                                                                      :padding padding)
                           :reflection '())
    (apply #'fails-p 1 text "describe" address "p0.M" arguments)))

(test one-deadline-for-all-questions
  "A server that answers each question in time, and has another one asked each time."
  (fails-with-chain "DEADLINE_EXCEEDED" 1/4 1 "--timeout" "1"))

(test the-octets-of-all-files-are-bounded
  (fails-with-chain "more than 16777216 octets" 0 3000000))

;;; Fleets

(test call-waits-for-ready
  "For a server that is not there yet, without reflection and with it."
  (let* ((server (grpc:start-server (make-instance 'clgrpc.examples:route-guide)
                                    :listen "127.0.0.1:0"))
         (address (grpc:server-address server)))
    (grpc:stop-server server :drain 0)
    (is (= 78 (run-line "call" address "routeguide.RouteGuide/GetFeature")))
    (let ((late (in-thread
                  (sleep 0.3)
                  (grpc:start-server (cons (make-instance 'clgrpc.examples:route-guide)
                                           (grpc:reflection-services))
                                     :listen address))))
      (unwind-protect
           (prints-p (lines "{" "  \"location\": {}" "}")
                     "call" "--wait-for-ready" "--timeout" "20" address
                     "routeguide.RouteGuide/GetFeature")
        (grpc:stop-server (sb-thread:join-thread late))))))

(test call-balances
  (with-reflected (address)
    (flet ((call (&rest options)
             (apply #'run-line "call" address "routeguide.RouteGuide/GetFeature" options)))
      (dolist (name '("round_robin" "round-robin" "ROUND_ROBIN"))
        (is (= 0 (call "--balance" name))))
      (is (= 2 (call "--balance" "by_name")))))
  (fails-p 2 "pick_first, " "call" "a:1" "a.B/C" "--balance" "by_name"))

(test service-configs-of-the-command-line
  (fails-p 2 "methodConfig[0].timeout" "call" "a:1" "a.B/C" "--service-config"
           " {\"methodConfig\":[{\"name\":[{}],\"timeout\":\"never\"}]}")
  (fails-p 2 "JSON" "call" "a:1" "a.B/C" "--service-config" "{")
  (fails-p 2 "/dev/zero cannot be read: it is longer than" "call" "a:1" "a.B/C" "--service-config"
           "/dev/zero")
  (fails-p 2 "/nowhere.json cannot be read" "call" "a:1" "a.B/C" "--service-config"
           "/nowhere.json")
  (is (stringp (tools::parse-config-argument
                "{\"loadBalancingConfig\":[{\"outlier_detection_experimental\":
                    {\"childPolicy\":[{\"round_robin\":{}}]}}]}"))
      "policies below policies")
  (uiop:with-temporary-file (:stream stream :pathname path)
    (write-string "{\"loadBalancingConfig\":[{\"round_robin\":{}}]}" stream)
    :close-stream
    (is (string= "{\"loadBalancingConfig\":[{\"round_robin\":{}}]}"
                 (tools::parse-config-argument (namestring path))))))

(test call-follows-a-service-config
  (with-reflected (address :services (make-instance 'testee:interop-service))
    (flet ((call (config)
             (run-line "call" address "grpc.testing.TestService/StreamingOutputCall"
                       "--service-config"
                       (format nil "{\"methodConfig\":[{\"name\":[{\"service\":
                                    \"grpc.testing.TestService\"}],~A}]}"
                               config)
                       "-d" "{\"responseParameters\": [{\"size\": 1, \"intervalUs\": 300000}]}")))
      (is (= 0 (call "\"timeout\":\"60s\"")))
      (is (= (+ 64 4) (call "\"timeout\":\"0.05s\"")))
      (is (= (+ 64 8) (call "\"maxResponseMessageBytes\":2"))))))
