;;;; The conformance testee, request by request and over a pipe of octets.

(in-package #:clgrpc.tests.tools)
(in-suite :clgrpc.tools)

(defun conform (output &rest arguments)
  (tools::answer-conformance
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
        (dotimes (i 2) (tools::write-framed (grpc:serialize request) out #'(setf base:u32le)))))
    (uiop:with-temporary-file (:pathname answers :type "octets")
      (with-open-file (in path :element-type 'base:octet)
        (with-open-file (out answers :direction :output :if-exists :supersede
                                     :element-type 'base:octet)
          (is (= 0 (tools::serve-conformance in out)))))
      (with-open-file (in answers :element-type 'base:octet)
        (dotimes (i 2)
          (is (eq :protobuf-payload
                  (nth-value 1 (conformance:conformance-response-result
                                (grpc:parse-message 'conformance:conformance-response
                                                      (tools::read-framed in #'base:u32le)))))))
        (is (null (tools::read-framed in #'base:u32le)))))))

(test connect-client-calls-connect-server
  "The two ends of the ConnectRPC suite by themselves, without its runner."
  (let ((server (grpc:start-server (make-instance 'tools::connect-service))))
    (unwind-protect
         (let* ((address (grpc:server-address server))
                (colon (position #\: address)))
           (flet ((try (method type definition &rest more)
                    (tools::try-call
                     (apply #'connect:make-client-compat-request
                            :host (subseq address 0 colon)
                            :port (parse-integer address :start (1+ colon))
                            :method method :stream-type type
                            :request-messages (list (protobuf:any-pack definition))
                            :request-headers (list (connect:make-header :name "x-a"
                                                                        :value '("1" "2")))
                            more))))
             (let* ((result (try "Unary" :stream-type-unary
                                 (connect:make-unary-request
                                  :response-definition
                                  (connect:make-unary-response-definition
                                   :response-data (base:octets-of 1 2)
                                   :response-trailers (list (connect:make-header
                                                             :name "x-bin" :value '("AQI")))))
                                 :timeout-ms 20000))
                    (payload (aref (connect:client-response-result-payloads result) 0))
                    (info (connect:conformance-payload-request-info payload)))
               (is (equalp (base:octets-of 1 2) (connect:conformance-payload-data payload)))
               (is (<= 1 (connect:conformance-payload.request-info-timeout-ms info) 20000))
               (is (equalp #("1" "2")
                           (connect:header-value
                            (find "x-a" (connect:conformance-payload.request-info-request-headers
                                         info)
                                  :key #'connect:header-name :test #'string=))))
               (is (equalp #("AQI") (connect:header-value
                                     (aref (connect:client-response-result-response-trailers
                                            result)
                                           0)))))
             (let* ((result (try "ServerStream" :stream-type-server-stream
                                 (connect:make-server-stream-request
                                  :response-definition
                                  (connect:make-stream-response-definition
                                   :response-data (list (base:octets-of 1) (base:octets-of 2))
                                   :error (connect:make-error :code :code-aborted
                                                              :message "enough")))))
                    (error (connect:client-response-result-error result)))
               (is (= 2 (length (connect:client-response-result-payloads result))))
               (is (eq :code-aborted (connect:error-code error)))
               (is (string= "enough" (connect:error-message error))))))
      (grpc:stop-server server))))
