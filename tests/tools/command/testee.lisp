;;;; The conformance testee, request by request and over a pipe of octets.

(in-package #:clgrpc.tests.tools)

(defun conform (output &rest arguments)
  (testee::answer-conformance
   (apply #'conformance:make-conformance-request :requested-output-format output
          `(,@arguments :message-type "protobuf_test_messages.proto3.TestAllTypesProto3"))))

(test a-message-from-every-format-to-every-format
  (let ((octets (base:octets-of 8 5)) (json "{\"optionalInt32\":5}")
        (text (format nil "optional_int32: 5~%")))
    (loop for (key value) in `((:protobuf-payload ,octets) (:json-payload ,json)
                               (:text-payload ,text))
          do (loop for (format expected) in `((:protobuf ,octets) (:json ,json)
                                              (:text-format ,text))
                   do (is (equalp expected (conformance:conformance-response-result
                                            (conform format key value))))))))

(test what-a-testee-cannot-do
  (flet ((outcome (&rest arguments)
           (nth-value 1 (conformance:conformance-response-result (apply #'conform arguments)))))
    (is (eq :parse-error (outcome :json :json-payload "{")))
    (is (eq :parse-error (outcome :json :protobuf-payload (base:octets-of 8))))
    (is (eq :parse-error (outcome :json :text-payload "x: 1")))
    (is (eq :serialize-error
            (outcome :json :text-payload "optional_timestamp { seconds: 253402300800 }")))
    (is (eq :skipped (outcome :jspb :json-payload "{}")))
    (is (eq :skipped (outcome :json :jspb-payload "[]")))
    (is (eq :runtime-error (outcome :json :json-payload "{}" :message-type "no.such.Type")))
    (is (eq :json-payload (outcome :json :json-payload "{\"x\":1}"
                                   :test-category :json-ignore-unknown-parsing-test)))))

(test the-testee-on-a-pipe
  (uiop:with-temporary-file (:pathname path :type "octets")
    (let ((request (conformance:make-conformance-request
                    :message-type "conformance.FailureSet" :requested-output-format :protobuf
                    :protobuf-payload (base:octets-of))))
      (with-open-file (out path :direction :output :if-exists :supersede :element-type 'base:octet)
        (dotimes (i 2) (testee::write-framed (grpc:serialize request) out #'(setf base:u32le)))))
    (uiop:with-temporary-file (:pathname answers :type "octets")
      (with-open-file (in path :element-type 'base:octet)
        (with-open-file (out answers :direction :output :if-exists :supersede
                                     :element-type 'base:octet)
          (is (= 0 (testee::serve-conformance in out)))))
      (with-open-file (in answers :element-type 'base:octet)
        (dotimes (i 2)
          (is (eq :protobuf-payload
                  (nth-value 1 (conformance:conformance-response-result
                                (grpc:parse-message 'conformance:conformance-response
                                                      (testee::read-framed in #'base:u32le)))))))
        (is (null (testee::read-framed in #'base:u32le)))))))

;;; The two ends of the ConnectRPC suite by themselves, without its runner

(defun suite-headers (headers)
  "HEADERS, of the suite, as a list of lists of a name and values, without those that HTTP adds."
  (loop for header across headers
        unless (member (connect:header-name header) '("user-agent" "x-forwarded-for")
                       :test #'string=)
          collect (cons (connect:header-name header) (coerce (connect:header-value header) 'list))))

(defun payload-summary (payload)
  "The data of PAYLOAD, and how many requests it describes, and the headers and whether there is a
deadline if it describes these."
  (let ((info (connect:conformance-payload-request-info payload)))
    (list* (coerce (connect:conformance-payload-data payload) 'list)
           (when info
             (let ((headers (suite-headers
                             (connect:conformance-payload.request-info-request-headers info)))
                   (ms (connect:conformance-payload.request-info-timeout-ms info)))
               (list* (length (connect:conformance-payload.request-info-requests info))
                      (append headers (when (< 0 ms 20001) '(:deadline)))))))))

(defun compat-result (address method type requests more)
  "What the client of the suite reports of a call of METHOD, of the stream TYPE, at ADDRESS, with
REQUESTS, the inner text of JSON objects of the type that METHOD takes, and MORE members of its own
request: payloads, headers, trailers, the error with the number of its details, and the number of
requests that were not sent."
  (let* ((colon (position #\: address))
         (response (testee::answer-compat-request
                    (protobuf:parse-json-message
                     'connect:client-compat-request
                     (format nil "{\"host\":\"~A\",\"port\":~A,\"method\":\"~A\",~
                                  \"streamType\":\"STREAM_TYPE_~A\",\"requestMessages\":[~{{~
                                  \"@type\":\"x/connectrpc.conformance.v1.~ARequest\",~A}~^,~}]~A}"
                             (subseq address 0 colon) (subseq address (1+ colon)) method type
                             (loop for request in requests append (list method request))
                             more))))
         (result (connect:client-compat-response-response response)))
    (if (null result)
        :no-result
        (let ((error (connect:client-response-result-error result)))
          (list (map 'list #'payload-summary (connect:client-response-result-payloads result))
                (suite-headers (connect:client-response-result-response-headers result))
                (suite-headers (connect:client-response-result-response-trailers result))
                (and error (list (connect:error-code error) (connect:error-message error)
                                 (length (connect:error-details error))))
                (connect:client-response-result-num-unsent-requests result))))))

(defparameter *compat-rows*
  (let ((head "\"responseHeaders\":[{\"name\":\"X-H\",\"value\":[\"1\",\"2\"]}],")
        (tail ",\"responseTrailers\":[{\"name\":\"x-bin\",\"value\":[\"AQI\"]}]")
        (alas "\"error\":{\"code\":\"CODE_ABORTED\",\"message\":\"alas\",\"details\":[{\"@type\":~
               \"x/google.protobuf.StringValue\",\"value\":\"y\"}]}"))
    (flet ((unary (response) (format nil "\"responseDefinition\":{~@?}" response))
           (stream (&optional (rest "") (duplex ""))
             (format nil "\"responseDefinition\":{~A\"responseData\":[\"AQ==\",\"Ag==\"]~@?~A}~A"
                     head rest tail duplex)))
      `(("Unary" "UNARY" (,(unary (format nil "~A\"responseData\":\"AQI=\"~A" head tail)))
                 ",\"requestHeaders\":[{\"name\":\"x-a\",\"value\":[\"1\",\"2\"]},
                    {\"name\":\"x-bin\",\"value\":[\"AQI\"]}],\"timeoutMs\":20000"
                 ((((1 2) 1 ("x-a" "1" "2") ("x-bin" "AQI") :deadline)) (("x-h" "1" "2"))
                  (("x-bin" "AQI")) nil 0))
        ("Unary" "UNARY" (,(unary alas)) "" (() () () (:code-aborted "alas" 2) 0))
        ("Unary" "UNARY" (,(unary "")) "" (((() 1)) () () nil 0))
        ("IdempotentUnary" "UNARY" (,(unary "\"responseData\":\"AQI=\"")) ""
                           ((((1 2) 1)) () () nil 0))
        ("Unary" "UNARY" (,(unary "\"responseDelayMs\":9000")) ",\"timeoutMs\":50"
                 (() () () (:code-deadline-exceeded :any 0) 0))
        ("Unary" "UNARY" (,(unary "\"responseDelayMs\":9000"))
                 ",\"cancel\":{\"afterCloseSendMs\":50}" (() () () (:code-canceled :any 0) 0))
        ("Unary" "UNARY" (,(unary "\"responseData\":\"AAAAAAAAAAAAAAAAAAAAAAAAAAAA\""))
                 ",\"messageReceiveLimit\":10" (() () () (:code-resource-exhausted :any 0) 0))
        ("ClientStream" "CLIENT_STREAM"
                        (,(unary "\"responseData\":\"AQ==\"") "\"requestData\":\"\"") ""
                        ((((1) 2)) () () nil 0))
        ("ClientStream" "CLIENT_STREAM" () "" (((() 0)) () () nil 0))
        ("ServerStream" "SERVER_STREAM" (,(stream)) ""
                        ((((1) 1) ((2))) (("x-h" "1" "2")) (("x-bin" "AQI")) nil 0))
        ("ServerStream" "SERVER_STREAM" (,(stream (format nil ",~A" alas))) ""
                        ((((1) 1) ((2))) (("x-h" "1" "2")) (("x-bin" "AQI"))
                         (:code-aborted "alas" 1) 0))
        ("ServerStream" "SERVER_STREAM" (,(unary alas)) "" (() () () (:code-aborted "alas" 2) 0))
        ("ServerStream" "SERVER_STREAM" ("\"requestData\":\"\"") "" (() () () nil 0))
        ("ServerStream" "SERVER_STREAM" (,(stream ",\"responseDelayMs\":200"))
                        ",\"cancel\":{\"afterNumResponses\":1}"
                        ((((1) 1)) (("x-h" "1" "2")) () (:code-canceled :any 0) 0))
        ("ServerStream" "SERVER_STREAM" (,(stream ",\"responseDelayMs\":9000"))
                        ",\"cancel\":{\"afterNumResponses\":0}"
                        (() :any () (:code-canceled :any 0) 0))
        ("BidiStream" "HALF_DUPLEX_BIDI_STREAM" (,(stream) "\"requestData\":\"\"") ""
                      ((((1) 2) ((2))) (("x-h" "1" "2")) (("x-bin" "AQI")) nil 0))
        ("BidiStream" "HALF_DUPLEX_BIDI_STREAM" () "" (() () () nil 0))
        ("BidiStream" "HALF_DUPLEX_BIDI_STREAM" (,(stream))
                      ",\"cancel\":{\"beforeCloseSend\":{}}"
                      (() :any () (:code-canceled :any 0) 0))
        ("BidiStream" "FULL_DUPLEX_BIDI_STREAM" (,(stream "" ",\"fullDuplex\":true")) ""
                      ((((1) 1) ((2))) (("x-h" "1" "2")) (("x-bin" "AQI")) nil 0))
        ("BidiStream" "FULL_DUPLEX_BIDI_STREAM"
                      (,(stream (format nil ",~A" alas) ",\"fullDuplex\":true")
                       "\"requestData\":\"\"" "\"requestData\":\"\"") ""
                      ((((1) 1) ((2) 1)) (("x-h" "1" "2")) (("x-bin" "AQI"))
                       (:code-aborted "alas" 1) 0))
        ("None" "UNARY" () "" :no-result))))
  "Rows of arguments of COMPAT-RESULT and its value, in which :ANY is anything.")

(defun like-p (expected value)
  (cond ((eq :any expected) t)
        ((consp expected) (and (consp value) (like-p (car expected) (car value))
                               (like-p (cdr expected) (cdr value))))
        (t (equal expected value))))

(test connect-client-calls-connect-server
  "Each kind of call, its answers, headers, trailers, errors, time and cancellation, and the same
through a gateway."
  (testee::call-with-server-behind
   (lambda (address)
     (grpc:with-channel (channel address)
       (let ((gateway (grpc:start-server (grpc:make-gateway-service
                                          channel :methods (testee::conformance-methods)))))
         (unwind-protect
              (loop for (method type requests more expected) in *compat-rows*
                    do (dolist (address (list address (grpc:server-address gateway)))
                         (let ((result (compat-result address method type requests more)))
                           (is (like-p expected result) "~A ~A ~A: ~S, not ~S" method requests more
                               result expected))))
           (grpc:stop-server gateway :drain 0)))))
   nil))

(defun file-octets (path)
  (base:ascii-octets (uiop:read-file-string path)))

(defun answer-summary (octets)
  "The name in OCTETS, a ClientCompatResponse, and the code of its error, nil, or :NO-RESULT."
  (let* ((answer (grpc:parse-message 'connect:client-compat-response octets))
         (result (connect:client-compat-response-response answer)))
    (list (connect:client-compat-response-test-name answer)
          (cond ((null result)
                 (is (search "There is no method" (connect:client-error-result-message
                                                   (connect:client-compat-response-error answer))))
                 :no-result)
                ((connect:client-response-result-error result)
                 (connect:error-code (connect:client-response-result-error result)))))))

(test connect-client-answers-each-request
  "Over TLS, with a certificate of its own if the suite gives one; requests that it cannot make have
a reason."
  (flet ((creds (name)
           (connect:make-tls-creds
            :cert (file-octets (support:certificate-file (format nil "~A.pem" name)))
            :key (file-octets (support:certificate-file (format nil "~A.key" name))))))
    (let* ((roots (file-octets (support:certificate-file "ca.pem")))
           (server (grpc:start-server (make-instance 'testee::connect-service)
                                      :credentials (testee::suite-credentials (creds "server")
                                                                              roots)))
           (address (grpc:server-address server)) (colon (position #\: address)))
      (flet ((request (name own method)
               (connect:make-client-compat-request
                :test-name name :host (subseq address 0 colon)
                :port (parse-integer address :start (1+ colon))
                :method method :stream-type :stream-type-unary :server-tls-cert roots
                :client-tls-creds own
                :request-messages (list (protobuf:any-pack (connect:make-unary-request))))))
        (unwind-protect
             (uiop:with-temporary-file (:pathname requests)
               (with-open-file (out requests :direction :output :if-exists :supersede
                                             :element-type 'base:octet)
                 (dolist (request (list (request "own" (creds "client") "Unary")
                                        (request "none" nil "Unary")
                                        (request "wrong" (creds "client") "Nothing")))
                   (testee::write-framed (grpc:serialize request) out #'(setf base:u32be))))
               (uiop:with-temporary-file (:pathname answers)
                 (with-open-file (in requests :element-type 'base:octet)
                   (with-open-file (out answers :direction :output :if-exists :supersede
                                                :element-type 'base:octet)
                     (is (= 0 (testee::call-for-connect-suite in out)))))
                 (with-open-file (in answers :element-type 'base:octet)
                   (is (equal '(("none" :code-unavailable) ("own" nil) ("wrong" :no-result))
                              (sort (loop for octets = (testee::read-framed in #'base:u32be)
                                          while octets
                                          collect (answer-summary octets))
                                    #'string< :key #'first))))))
          (grpc:stop-server server :drain 0))))))

;;; The services of `testee transcode`

(defun lab-answers (channel stub requests &rest options)
  "What STUB, called on CHANNEL with REQUESTS, texts in JSON, is answered, as JSON: one text, or a
list of a stream's, and last the status if that is not OK. With OPTIONS, of the stub; and the
headers and trailers that begin with x-, as second value."
  (let* ((method (method:stub-method stub)) (call nil)
         (requests (loop for request in requests
                         collect (protobuf:parse-json-message
                                  (method:rpc-method-request-type method) request)))
         (many (member (method:rpc-method-kind method) '(:client-streaming :bidi)))
         (answers (handler-case
                      (multiple-value-bind (result its-call)
                          (apply stub channel (if many requests (first requests)) options)
                        (setf call (or its-call result))
                        (if its-call
                            (protobuf:message-json result)
                            (let ((answers '()))
                              (handler-case
                                  (loop for answer = (grpc:receive result)
                                        while answer
                                        do (push (protobuf:message-json answer) answers))
                                (grpc:rpc-error (error)
                                  (push (grpc:rpc-error-status error) answers)))
                              (reverse answers))))
                    (grpc:rpc-error (error)
                      (setf call (grpc:rpc-error-call error))
                      (list (grpc:rpc-error-status error) (grpc:rpc-error-message error)
                            (map 'list #'google.protobuf:any-type-url
                                 (let ((octets (grpc:rpc-error-details-octets error)))
                                   (and octets (google.rpc:status-details
                                                (grpc:parse-message 'google.rpc:status
                                                                    octets))))))))))
    (values answers
            (loop for (name . value) in (append (grpc:call-metadata call)
                                                (grpc:call-trailers call))
                  when (uiop:string-prefix-p "x-" name) collect (cons name value)))))

(defparameter *lab-rows*
  (let ((url "type.googleapis.com/")
        (sha-of-ab "fb8e20fc2e4c3f248c60c39bd652f3c1347298bb977b8b4d5903b85055620603"))
    `((lab.web.v1.echo-service:get ("{\"name\":\"n\",\"i32\":5}")
                                   "{\"method\":\"Get\",\"request\":{\"name\":\"n\",\"i32\":5}}")
      (lab.web.v1.echo-service:answer-list
       ("{\"tags\":[\"a\"]}")
       ,(format nil "{\"method\":\"AnswerList\",\"request\":{\"tags\":[\"a\"]},\"list\":[\"a\"],~
                     \"amount\":\"42\"}"))
      (lab.web.v1.error-service:fail ("{}") "{}")
      (lab.web.v1.error-service:fail ("{\"code\":5,\"message\":\"m\"}") (:not-found "m" ()))
      (lab.web.v1.error-service:fail
       ("{\"code\":16,\"message\":\"m\",\"details\":1,\"metadata\":true}")
       (:unauthenticated "m" (,(format nil "~Agoogle.rpc.ErrorInfo" url)))
       (("x-fail" . "early") ("x-fail-trailer" . "late")))
      (lab.web.v1.error-service:fail
       ("{\"code\":99,\"details\":2}")
       (:unknown "" (,(format nil "~Agoogle.rpc.ErrorInfo" url)
                     ,(format nil "~Agoogle.rpc.BadRequest" url))))
      (lab.web.v1.error-service:fail
       ("{\"code\":3,\"details\":3}")
       (:invalid-argument "" (,(format nil "~Alab.web.v1.NotKnownToAnyone" url))))
      (lab.web.v1.error-service:fail ("{\"crash\":true}") (:internal "error in handler" ()))
      (lab.web.v1.stream-service:count
       ("{\"count\":2,\"size\":3}")
       ("{\"index\":1,\"filler\":\"xxx\"}" "{\"index\":2,\"filler\":\"xxx\"}")
       (("x-answer" . "first") ("x-answer-trailer" . "last")))
      (lab.web.v1.stream-service:count-names
       ("{\"count\":3,\"failAfter\":1}") ("{\"index\":1}" :aborted)
       (("x-answer" . "first") ("x-answer-trailer" . "last")))
      (lab.web.v1.stream-service:collect ("{\"name\":\"a\"}" "{\"name\":\"b\"}")
                                         "{\"count\":2,\"names\":[\"a\",\"b\"]}")
      (lab.web.v1.stream-service:chat ("{\"name\":\"a\"}" "{}")
                                      ("{\"method\":\"Chat\",\"request\":{\"name\":\"a\"}}"
                                       "{\"method\":\"Chat\",\"request\":{}}"))
      (lab.web.v1.body-service:upload-stream
       ("{\"name\":\"n\",\"file\":{\"data\":\"YQ==\"}}"
        "{\"name\":\"o\",\"file\":{\"contentType\":\"t\",\"data\":\"Yg==\"}}" "{}")
       ,(format nil "{\"name\":\"n\",\"contentType\":\"t\",\"size\":\"2\",\"sha256\":\"~A\",~
                     \"messages\":3}" sha-of-ab))
      (lab.web.v1.body-service:upload-raw
       ("{\"contentType\":\"t\",\"data\":\"YWI=\"}")
       ,(format nil "{\"contentType\":\"t\",\"size\":\"2\",\"sha256\":\"~A\",\"messages\":1}"
                sha-of-ab))
      (lab.web.v1.body-service:upload
       ("{\"name\":\"n\",\"file\":{\"data\":\"YWI=\"}}")
       ,(format nil "{\"name\":\"n\",\"size\":\"2\",\"sha256\":\"~A\",\"messages\":1}" sha-of-ab))
      (lab.web.v1.body-service:download ("{\"name\":\"ab\",\"size\":3,\"contentType\":\"t\"}")
                                        "{\"contentType\":\"t\",\"data\":\"YWJk\"}")
      (lab.web.v1.body-service:download-stream
       ("{\"name\":\"abcde\",\"size\":3,\"contentType\":\"t\",\"chunks\":2}")
       ("{\"contentType\":\"t\",\"data\":\"YWI=\"}" "{\"data\":\"Y2Rl\"}"))
      (lab.web.v1.body-service:download-stream ("{\"name\":\"ab\"}") ("{\"data\":\"YWI=\"}"))
      (lab.web.v1.body-service:echo-body ("{\"data\":\"YWI=\"}") "{\"data\":\"YWI=\"}")
      (lab.web.v1.meta-service:meta
       ("{\"send\":[\"X-A=1\",\"x-b-bin=AQI=\",\"none\"],\"sendTrailer\":[\"x-t=2\"]}")
       "{\"metadata\":{\"x-m\":\"1,2\",\"authorization\":\"x\",\"x-n-bin\":\"AQI=\"}}"
       (("x-a" . "1") ("x-b-bin" . ,(base:octets-of 1 2)) ("x-t" . "2"))
       :metadata (("x-m" . "1") ("x-m" . "2") ("authorization" . "x")
                  ("x-n-bin" . ,(base:octets-of 1 2)) ("y" . "0")))
      (lab.web.v1.meta-service:sleep ("{\"ms\":60,\"key\":\"k\"}") "{\"sleptMs\":60}")
      (lab.web.v1.meta-service:drip ("{\"ms\":70,\"key\":\"k\"}")
                                    ("{\"sleptMs\":50}" "{\"sleptMs\":70}"))
      (lab.web.v1.meta-service:sleep ("{\"ms\":9000,\"key\":\"k\"}")
                                     (:deadline-exceeded :any ()) () :timeout 1/10)
      (lab.web.v1.perf-service:unary ("{}") "{}")))
  "Rows of a stub, requests, answers, headers and trailers, and options.")

(test the-lab-of-the-web-answers
  "Each of its services, without the web; it counts the calls that sleep, and those that are left."
  (clrhash testee::**sleepers**)
  (let ((server (grpc:start-server
                 (mapcar #'make-instance
                         '(testee::web-echo testee::web-errors testee::web-streams
                           testee::web-bodies testee::web-metadata testee::web-perf)))))
    (unwind-protect
         (grpc:with-channel (channel (grpc:server-address server))
           (loop for (stub requests answers metadata . options) in *lab-rows*
                 do (multiple-value-bind (result its-metadata)
                        (apply #'lab-answers channel (fdefinition stub) requests options)
                      (is (like-p answers result) "~S ~S: ~S" stub requests result)
                      (is (equalp metadata its-metadata) "~S ~S: ~S" stub requests its-metadata)))
           (eventually (string= "{\"begun\":3,\"finished\":2,\"cancelled\":1}"
                                (lab-answers channel #'lab.web.v1.meta-service:seen
                                             '("{\"key\":\"k\"}"))))
           (let ((reply (lab-answers channel #'lab.web.v1.meta-service:meta '("{}") :timeout 20)))
             (is (search "\"hasDeadline\":1" reply))
             (is (< 9999 (parse-integer reply :start (length "{\"timeoutMs\":\"")
                                              :junk-allowed t)
                    20001))))
      (grpc:stop-server server :drain 0))))

;;; The testee of policy scenarios

(defmacro with-lab ((do &optional (address (gensym "ADDRESS"))) &body body)
  "Evaluate BODY with the function DO, of an op's name and the rest of it as JSON, which returns the
answer; a channel \"c\" leads to a server of the interop service at ADDRESS."
  (let ((server (gensym "SERVER")) (lab (gensym "LAB")))
    `(let* ((,server (grpc:start-server (make-instance 'testee:interop-service)))
            (,address (grpc:server-address ,server))
            (,lab (testee::make-policy-runner)))
       (flet ((,do (op &optional (rest "{}"))
                (testee::perform-op ,lab (acons "op" op (base:parse-json rest)))))
         (unwind-protect
              (progn (,do "channel" (format nil "{\"name\":\"c\",\"target\":\"~A\"}"
                                            ,address))
                     ,@body)
           (,do "close" "{\"channel\":\"c\"}")
           (grpc:stop-server ,server))))))

(defun said (answer &rest names)
  "What ANSWER has as NAMES."
  (mapcar (lambda (name) (cdr (assoc name answer :test #'string=))) names))

(test a-lab-makes-calls-of-all-kinds
  (with-lab (ask)
    (is (equal '("IDLE") (said (ask "state" "{\"channel\":\"c\"}") "state")))
    (is (equal '(:true) (said (ask "connect" "{\"channel\":\"c\"}") "ok")))
    (is (equal '(:true) (said (ask "awaitState" "{\"channel\":\"c\",\"want\":[\"READY\"],
                                                \"timeoutMs\":9000}")
                              "ok")))
    (flet ((call (rest)
             (let ((answer (ask "call" (format nil "{\"channel\":\"c\",\"timeoutMs\":20000~A}"
                                               rest))))
               (is (realp (first (said answer "elapsedMs"))))
               (said answer "code" "message" "received"))))
      (is (equal '(0 "" 1) (call "")))
      (is (equal '(0 "" 1) (call ",\"payloadBytes\":1000,\"responseBytes\":2000,\"color\":1")))
      (is (equal '(0 "" 1) (call ",\"method\":\"server-stream\"")))
      (is (equal '(0 "" 3) (call ",\"method\":\"server-stream\",\"messages\":3")))
      (is (equal '(0 "" 1) (call ",\"method\":\"client-stream\",\"messages\":3")))
      (is (equal '(0 "" 2) (call ",\"method\":\"bidi\",\"messages\":2,\"intervalMs\":20")))
      (dolist (method '("unknown" "generic")) ; no server has these
        (is (= 12 (first (call (format nil ",\"method\":\"~A\"" method))))))
      (signals testee::unsupported-op (call ",\"method\":\"none\""))
      (is (equal '(3 0) (remove-if #'stringp (call ",\"responseBytes\":1000000000")))))
    (is (equal '(:true "READY")
               (said (ask "awaitState"
                          "{\"channel\":\"c\",\"want\":[\"READY\"],\"timeoutMs\":9000}")
                     "ok" "state")))
    (is (equal '(nil "READY")
               (said (ask "awaitState"
                          "{\"channel\":\"c\",\"want\":[\"IDLE\"],\"timeoutMs\":20}")
                     "ok" "state")))))

(test a-lab-cancels-and-closes
  "A handler that waits between messages ends with its call: no thread is left when the suite ends."
  (with-lab (ask)
    (flet ((slow (rest)
             (let ((answer (ask "call"
                                (format nil "{\"channel\":\"c\",\"method\":\"server-stream\",~
                                             \"messages\":2,\"intervalMs\":9000,~A}" rest))))
               (is (< (first (said answer "elapsedMs")) 8000))
               (said answer "code"))))
      (is (equal '(1) (slow "\"cancelAfterMs\":50")))
      (is (equal '(4) (slow "\"timeoutMs\":50"))))
    (is (equal '(:true) (said (ask "close" "{\"channel\":\"c\"}") "ok")))
    (is (equal '("SHUTDOWN") (said (ask "state" "{\"channel\":\"c\"}") "state")))
    (is (equal '(14) (said (ask "call" "{\"channel\":\"c\"}") "code")))))

(test a-lab-tells-of-requests-that-are-too-long
  "Whether they are refused before the call begins or on its stream."
  (with-lab (ask address)
    (ask "channel" (format nil "{\"name\":\"short\",\"target\":\"~A\",\"serviceConfig\":~
                                {\"methodConfig\":[{\"name\":[{}],~
                                \"maxRequestMessageBytes\":10}]}}" address))
    (unwind-protect
         (dolist (method '("unary" "server-stream" "client-stream" "bidi"))
           (dotimes (known 2)           ; the config may be known or not
             (is (equal '(8)
                        (said (ask "call"
                                   (format nil "{\"channel\":\"short\",\"method\":\"~A\",~
                                                \"messages\":2,\"payloadBytes\":100,~
                                                \"timeoutMs\":20000}" method))
                              "code"))
                 "~A" method)))
      (ask "close" "{\"channel\":\"short\"}"))))

(test a-lab-counts-calls
  (with-lab (ask)
    (let ((answer (ask "calls" "{\"channel\":\"c\",\"count\":7,\"parallel\":2,
                                 \"metadata\":{\"x-i\":\"call {i}\"}}")))
      (is (equal '((("0" . 7)) nil) (said answer "byCode" "byBackend")))
      (is (apply #'<= (said answer "p50ms" "p99ms" "maxms"))))
    (is (equal '(nil) (said (ask "calls" "{\"channel\":\"c\"}") "byCode")))))

(test what-a-lab-is-told-of-metadata
  (is (equal '(:timeout 3/2 :wait-for-ready nil :metadata (("x-a" . "7 of 7")))
             (testee::policy-runner-call-options
              (base:parse-json "{\"timeoutMs\":1500,\"waitForReady\":false,
                                 \"metadata\":{\"X-A\":\"{i} of {i}\"}}")
              7)))
  (is (equal '() (testee::policy-runner-call-options '(("timeoutMs" . :null)) 0)))
  (is (equal '(("a" . "1,2") ("b" . "3"))
             (testee::joined-texts `(("a" . "1") ("b" . "3") ("a" . "2")
                                    ("c-bin" . ,(base:octets-of 1)))))))

(test what-a-lab-refuses
  (with-lab (ask)
    (signals testee::unsupported-op (ask "dance"))
    (signals testee::unsupported-op
      (ask "call" "{\"channel\":\"c\",\"method\":\"no-stream\"}"))
    (signals base:misuse (ask "state" "{\"channel\":\"d\"}"))
    (signals base:misuse (ask "call" "{\"channel\":\"c\",\"payloadBytes\":-1}"))
    (signals base:misuse (ask "calls" "{\"channel\":\"c\",\"parallel\":1001}"))
    (signals base:misuse (ask "channel" "{\"name\":\"e\",\"target\":\"http://a:1\"}"))
    (signals base:misuse
      (ask "channel" "{\"name\":\"e\",\"target\":\"a:1\",\"options\":{\"maxReceiveBytes\":-1}}"))))

(test a-lab-answers-line-by-line
  (uiop:with-temporary-file (:pathname path :type "octets")
    (with-open-file (out path :direction :output :if-exists :supersede)
      (format out "{\"id\":1,\"op\":\"hello\"}~2%not json~%{\"id\":2,\"op\":\"dance\"}~%~
                   {\"id\":3,\"op\":\"state\",\"channel\":\"x\"}"))
    (uiop:with-temporary-file (:pathname answers :type "octets")
      (with-open-file (in path :element-type 'base:octet)
        (with-open-file (out answers :direction :output :if-exists :supersede
                                     :element-type 'base:octet)
          (let ((*error-output* (make-broadcast-stream)))
            (is (= 0 (testee::be-driven in out))))
          (flet ((lines () (uiop:read-file-lines answers)))
            (loop repeat 200 until (= 3 (length (lines))) do (sleep 0.05))
            (is (equal '("{\"id\":1,\"ok\":true}" "{\"id\":2,\"unsupported\":true"
                         "{\"id\":3,\"error\":\"There is no channel")
                       (mapcar (lambda (line beginning)
                                 (subseq line 0 (min (length line) (length beginning))))
                               (sort (lines) #'string<)
                               '("{\"id\":1,\"ok\":true}" "{\"id\":2,\"unsupported\":true"
                                 "{\"id\":3,\"error\":\"There is no channel"))))))))))

(test calls-fail-as-their-metadata-ask
  "With the status of fail-code, in the first attempts if fail-attempts says how many, and once all
requests of a stream have come."
  (let ((server (grpc:start-server (make-instance 'testee:interop-service)
                                   :interceptors (list #'testee::refuse-as-asked)))
        (config "{\"methodConfig\":[{\"name\":[{}],\"retryPolicy\":{
                   \"maxAttempts\":3,\"initialBackoff\":\"0.01s\",\"maxBackoff\":\"0.01s\",
                   \"backoffMultiplier\":1,\"retryableStatusCodes\":[\"UNAVAILABLE\"]}}]}"))
    (unwind-protect
         (grpc:with-channel (channel (grpc:server-address server) :service-config config)
           (flet ((status (stub request &rest metadata)
                    (handler-case (progn (funcall stub channel request :metadata metadata
                                                                       :timeout 20)
                                         :ok)
                      (grpc:rpc-error (error) (grpc:rpc-error-status error)))))
             (loop for (metadata expected)
                     in '((() :ok)
                          ((("fail-code" . "5")) :not-found)
                          ((("fail-code" . "14")) :unavailable)
                          ((("fail-code" . "14") ("fail-attempts" . "0")) :ok)
                          ((("fail-code" . "14") ("fail-attempts" . "2")) :ok)
                          ((("fail-code" . "14") ("fail-attempts" . "3")) :unavailable)
                          ((("fail-code" . "5") ("fail-attempts" . "1")) :not-found)
                          ((("fail-code" . "x")) :ok))
                   do (is (eq expected (apply #'status #'interop-methods:unary-call
                                              (testing:make-simple-request) metadata))
                          "~S" metadata)
                      (is (eq expected (apply #'status #'interop-methods:streaming-input-call
                                              (list (testing:make-streaming-input-call-request))
                                              metadata))
                          "~S of a stream" metadata))))
      (grpc:stop-server server :drain 0))))

(test a-bench-client-says-what-it-measured
  "A line of JSON: whole seconds, and latencies in their order."
  (with-offer (channel "bench")
    (dolist (manner '(:one :threads :async))
      (let ((line (base:parse-json (with-output-to-string (*standard-output*)
                                     (testee::measure-calls manner channel 2 50)))))
        (destructuring-bind (calls messages seconds cpu mean p50 p99)
            (said line "calls" "messages" "seconds" "cpu_seconds" "mean_latency_us" "p50_us"
                  "p99_us")
          (is (= calls messages))
          (is (<= 0.05d0 seconds))
          (is (<= 0 cpu))
          (is (or (zerop calls) (plusp mean)) "threads may begin when the time is over")
          (is (<= 0 p50 p99)))))))
