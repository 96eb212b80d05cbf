;;;; `testee connect-server`, `connect-gateway` and `connect-client`: the programs that the
;;;; ConnectRPC conformance suite tests: our server and gateway with all protocols, our client with
;;;; gRPC. The runner sends its requests, to serve or to make calls, in messages on standard input,
;;;; each after its length in four octets, big-endian; answers go to standard output.

(in-package #:clgrpc.testee)

;;; Headers of the suite and metadata: in headers the values of -bin keys are base64

(defun binary-key-p (key) (uiop:string-suffix-p key "-bin"))

(defun headers-metadata (headers)
  "HEADERS, a vector of the suite's Header messages, as metadata."
  (loop for header across headers
        for key = (string-downcase (connect:header-name header))
        append (loop for value across (connect:header-value header)
                     collect (cons key (if (binary-key-p key) (decode-base64 value) value)))))

(defun metadata-headers (metadata)
  "METADATA as a list of Header messages, one for each key."
  (let ((headers '()))
    (loop for (key . value) in metadata
          for text = (if (stringp value) value (encode-base64 value))
          for known = (assoc key headers :test #'string=)
          do (if known
                 (push text (cdr known))
                 (push (list key text) headers)))
    (loop for (key . values) in (nreverse headers)
          collect (connect:make-header :name key :value (nreverse values)))))

;;; The server

(defclass connect-service (connect:conformance-service) ()
  (:documentation "connectrpc.conformance.v1.ConformanceService."))

(defun request-info (call requests)
  "The request info of the handler's CALL, with REQUESTS, a list of messages."
  (let ((seconds (grpc:time-remaining call)))
    (apply #'connect:make-conformance-payload.request-info
           :request-headers (metadata-headers (grpc:call-metadata call))
           :requests (mapcar #'protobuf:any-pack requests)
           (when seconds (list :timeout-ms (max 0 (round (* 1000 seconds))))))))

(defun payload (data &optional info)
  (let ((payload (connect:make-conformance-payload :data data)))
    (when info (setf (connect:conformance-payload-request-info payload) info))
    payload))

(defun fail-as-told (error &optional info)
  "End the call with the status in ERROR, a message of the suite, and with INFO among the details."
  (grpc:fail (grpc:code-status (grpc:enum-number 'connect:code (connect:error-code error)))
             (connect:error-message error)
             :details (append (coerce (connect:error-details error) 'list)
                              (and info (list info)))))

(defun pause-ms (milliseconds)
  (when (plusp milliseconds) (sleep (/ milliseconds 1000))))

(defun answer-once (call definition requests)
  "Return the payload, or signal the error, that DEFINITION, a UnaryResponseDefinition or nil,
specifies."
  (let ((info (request-info call requests)))
    (if (null definition)
        (payload (make-octets 0) info)
        (let ((headers (connect:unary-response-definition-response-headers definition)))
          (when (plusp (length headers)) (grpc:send-metadata call (headers-metadata headers)))
          (setf (grpc:call-trailers call)
                (headers-metadata
                 (connect:unary-response-definition-response-trailers definition)))
          (pause-ms (connect:unary-response-definition-response-delay-ms definition))
          (multiple-value-bind (value case)
              (connect:unary-response-definition-response definition)
            (case case
              (:error (fail-as-told value info))
              (:response-data (payload value info))
              (t (payload (make-octets 0) info))))))))

(defmethod connect-methods:unary ((service connect-service) request &key call)
  (connect:make-unary-response
   :payload (answer-once call (connect:unary-request-response-definition request)
                         (list request))))

(defmethod connect-methods:idempotent-unary ((service connect-service) request &key call)
  (connect:make-idempotent-unary-response
   :payload (answer-once call (connect:idempotent-unary-request-response-definition request)
                         (list request))))

(defun received-messages (stream)
  (let ((requests '()))
    (grpc:do-messages (request stream (nreverse requests)) (push request requests))))

(defmethod connect-methods:client-stream ((service connect-service) stream &key call)
  (let ((requests (received-messages stream)))
    (connect:make-client-stream-response
     :payload (answer-once call
                           (and requests
                                (connect:client-stream-request-response-definition
                                 (first requests)))
                           requests))))

(defun begin-stream (call definition)
  (grpc:send-metadata call (headers-metadata
                            (connect:stream-response-definition-response-headers definition)))
  (setf (grpc:call-trailers call)
        (headers-metadata (connect:stream-response-definition-response-trailers definition))))

(defun send-all (call definition requests make)
  "Send the responses of DEFINITION, by MAKE, a constructor with a :payload; the first describes
REQUESTS."
  (let ((info (request-info call requests)))
    (loop for data across (connect:stream-response-definition-response-data definition)
          do (pause-ms (connect:stream-response-definition-response-delay-ms definition))
             (grpc:send call (funcall make :payload (payload data (shiftf info nil)))))
    (let ((error (connect:stream-response-definition-error definition)))
      (when error (fail-as-told error info)))))

(defmethod connect-methods:server-stream ((service connect-service) request &key call)
  (when-let ((definition (connect:server-stream-request-response-definition request)))
    (begin-stream call definition)
    (send-all call definition (list request) #'connect:make-server-stream-response)))

(defmethod connect-methods:bidi-stream ((service connect-service) stream &key call)
  (let* ((first (grpc:receive stream))
         (definition (and first (connect:bidi-stream-request-response-definition first))))
    (when definition (begin-stream call definition))
    (cond ((null first))
          ((connect:bidi-stream-request-full-duplex first)
           (converse call stream first definition))
          (t (let ((requests (cons first (received-messages stream))))
               (when definition
                 (send-all call definition requests #'connect:make-bidi-stream-response)))))))

(defun converse (call stream first definition)
  "Answer each request, FIRST to begin with, with the next response of DEFINITION."
  (let* ((data (if definition
                   (connect:stream-response-definition-response-data definition)
                   #()))
         (error (and definition (connect:stream-response-definition-error definition)))
         (sent 0))
    (loop for request = first then (grpc:receive stream)
          while (and request (< sent (length data)))
          do (pause-ms (connect:stream-response-definition-response-delay-ms definition))
             (grpc:send call (connect:make-bidi-stream-response
                              :payload (payload (aref data sent)
                                                (if (zerop sent)
                                                    (request-info call (list request))
                                                    (connect:make-conformance-payload.request-info
                                                     :requests (list (protobuf:any-pack
                                                                      request)))))))
             (incf sent)
          finally (when error
                    (fail-as-told error (and (zerop sent) (request-info call (list first)))))
                  ;; more responses than requests
                  (loop for i from sent below (length data)
                        do (pause-ms (connect:stream-response-definition-response-delay-ms
                                      definition))
                           (grpc:send call (connect:make-bidi-stream-response
                                            :payload (payload (aref data i))))))))

(defun suite-credentials (own roots)
  "TLS credentials of OWN, a TLSCreds message or nil, and ROOTS, octets of PEM, maybe none."
  (apply #'grpc:tls-credentials
         (append (when own
                   (list :certificate (octets-string (connect:tls-creds-cert own))
                         :key (octets-string (connect:tls-creds-key own))))
                 (when (plusp (length roots)) (list :roots (octets-string roots))))))

(defun serialized-compat-response (server request credentials)
  "The octets that report the address of SERVER to the suite, which has requested it by REQUEST with
CREDENTIALS."
  (let* ((address (grpc:server-address server))
         (colon (position #\: address :from-end t)))
    (grpc:serialize
     (connect:make-server-compat-response
      :host (subseq address 0 colon)
      :port (parse-integer address :start (1+ colon))
      :pem-cert (if (connect:server-compat-request-use-tls request)
                    (connect:tls-creds-cert credentials)
                    (make-octets 0))))))

(defun serve-for-suite (service request output)
  "Start the server of SERVICE for REQUEST, report its address on OUTPUT, and serve until the suite
ends it."
  (let* ((limit (connect:server-compat-request-message-receive-limit request))
         (credentials (connect:server-compat-request-server-creds request))
         (roots (connect:server-compat-request-client-tls-cert request))
         (server (apply #'grpc:start-server service
                        :protocols '(:grpc :grpc-json :grpc-web :connect)
                        :credentials (when (connect:server-compat-request-use-tls request)
                                       (suite-credentials credentials roots))
                        (when (plusp limit) (list :max-receive-octets limit)))))
    (program:call-with-ending
     (lambda (ending)
       (unwind-protect
            (progn
              (write-framed (serialized-compat-response server request credentials) output
                            #'(setf u32be))
              (program:await-end ending))
         (grpc:stop-server server)))))
  0)

(defun read-compat-request (input)
  (protobuf:parse-message 'connect:server-compat-request (read-framed input #'u32be)))

(defun serve-connect-suite (input output)
  "Serve as the only request on INPUT requires."
  (serve-for-suite (make-instance 'connect-service) (read-compat-request input) output))

;;; The gateway

(defun conformance-methods ()
  "The methods of the suite, as a gateway knows them."
  (grpc:pool-methods
   (grpc:make-type-pool
    (list (protobuf:file-of-symbol "connectrpc.conformance.v1.ConformanceService")))
   :raw t))

(defun call-with-server-behind (function program)
  "Call FUNCTION with the address of a gRPC server of the suite: of PROGRAM, which is started as the
suite starts one, or if that is nil of ours."
  (if program
      (let ((process (uiop:launch-program (list program) :input :stream :output :stream
                                                         :element-type '(unsigned-byte 8))))
        (unwind-protect
             (let ((input (uiop:process-info-input process)))
               (write-framed (grpc:serialize
                              (connect:make-server-compat-request
                               :protocol :protocol-grpc :http-version :http-version-2
                               :message-receive-limit (expt 2 24))) ; without this option the limit
                                                                    ; is 0
                             input #'(setf u32be))
               (finish-output input)
               (let ((response (protobuf:parse-message
                                'connect:server-compat-response
                                (read-framed (uiop:process-info-output process) #'u32be))))
                 (funcall function
                          (format nil "~A:~D" (connect:server-compat-response-host response)
                                  (connect:server-compat-response-port response)))))
          (uiop:terminate-process process)
          (uiop:wait-process process)))
      (let ((server (grpc:start-server (make-instance 'connect-service))))
        (unwind-protect (funcall function (grpc:server-address server))
          (grpc:stop-server server :drain 0)))))

(defun forward-for-connect-suite (input output)
  "Serve through a gateway, as the only request on INPUT specifies. The server that it calls is the
program that the environment's CLGRPC_CONNECT_BEHIND names, or ours."
  (call-with-server-behind
   (lambda (address)
     (grpc:with-channel (channel address)
       (serve-for-suite (grpc:make-gateway-service channel :methods (conformance-methods))
                        (read-compat-request input) output)))
   (sb-ext:posix-getenv "CLGRPC_CONNECT_BEHIND")))

;;; The client

(defun stub-named (name)
  (or (loop for method in (method:service-methods (make-instance 'connect-service))
            when (string= name (method:rpc-method-name method))
              return (fdefinition (method:rpc-method-function-name method)))
      (misuse "There is no method ~S." name)))

(defun call-options (request)
  "The keyword arguments of the stub for REQUEST, a ClientCompatRequest."
  (append (list :metadata (headers-metadata (connect:client-compat-request-request-headers request))
                :compression (if (eq :compression-gzip
                                     (connect:client-compat-request-compression request))
                                 :gzip
                                 :identity))
          (when (connect:has-client-compat-request-timeout-ms request)
            (list :timeout (/ (connect:client-compat-request-timeout-ms request) 1000)))))

(defstruct (compat-case (:copier nil))
  "A call under way: its results so far, payloads the latest first."
  (request nil)
  (call nil)
  (payloads '())
  (unsent 0)
  (error nil))

(defun cancel-timing (compat-case)
  "Return two values: the value of COMPAT-CASE's rule for cancelling, a number or an Empty, and the
rule's kind. Both are nil if COMPAT-CASE has no such rule."
  (let ((cancel (connect:client-compat-request-cancel (compat-case-request compat-case))))
    (if cancel (connect:client-compat-request.cancel-cancel-timing cancel) (values nil nil))))

(defun maybe-cancel (compat-case timing &optional count)
  "Cancel the call of COMPAT-CASE if its rule requires that at TIMING and, if COUNT is given, after
COUNT responses."
  (multiple-value-bind (value case) (cancel-timing compat-case)
    (when (and (eq timing case) (or (null count) (= count value)))
      (when (eq timing :after-close-send-ms) (pause-ms value))
      (grpc:cancel (compat-case-call compat-case)))))

(defun note-response (compat-case response)
  (push (or (grpc:field-value response "payload") (connect:make-conformance-payload))
        (compat-case-payloads compat-case)))

(defun receive-all (compat-case)
  (maybe-cancel compat-case :after-num-responses 0)
  (loop for response = (grpc:receive (compat-case-call compat-case))
        while response
        do (note-response compat-case response)
           (maybe-cancel compat-case :after-num-responses
                         (length (compat-case-payloads compat-case)))))

(defun send-requests (compat-case messages &optional (after (constantly nil)))
  "Send MESSAGES on the call of COMPAT-CASE, and call AFTER after each. Note the number of messages
that could not be sent."
  (loop for (message . rest) on messages
        do (pause-ms (connect:client-compat-request-request-delay-ms
                      (compat-case-request compat-case)))
           (unless (handler-case (grpc:send (compat-case-call compat-case) message)
                     (grpc:rpc-error () nil))
             (setf (compat-case-unsent compat-case) (1+ (length rest)))
             (return))
           (funcall after)))

(defun converse-as-client (compat-case messages)
  "Send each of MESSAGES, and receive an answer after each."
  (let ((open t))
    (send-requests compat-case messages
                   (lambda ()
                     (let ((response (and open (grpc:receive (compat-case-call compat-case)))))
                       (cond (response
                              (note-response compat-case response)
                              (maybe-cancel compat-case :after-num-responses
                                            (length (compat-case-payloads compat-case))))
                             (t (setf open nil))))))))

(defun make-the-call (compat-case channel stub options)
  (let* ((request (compat-case-request compat-case))
         (kind (connect:client-compat-request-stream-type request))
         (messages (map 'list #'protobuf:any-unpack
                        (connect:client-compat-request-request-messages request))))
    (flet ((begin (request)
             (setf (compat-case-call compat-case) (apply stub channel request options)))
           (close-send ()
             (maybe-cancel compat-case :before-close-send)
             (grpc:close-send (compat-case-call compat-case))
             (maybe-cancel compat-case :after-close-send-ms)))
      (ecase kind
        (:stream-type-unary
         (let ((future (apply #'grpc:call-async stub channel (first messages) options)))
           (setf (compat-case-call compat-case) future)
           (maybe-cancel compat-case :after-close-send-ms)
           (note-response compat-case (grpc:await future))))
        (:stream-type-server-stream
         (begin (first messages))
         (maybe-cancel compat-case :after-close-send-ms)
         (receive-all compat-case))
        (:stream-type-client-stream
         (begin :open)
         (send-requests compat-case messages)
         (close-send)
         (receive-all compat-case))
        (:stream-type-half-duplex-bidi-stream
         (begin :open)
         (send-requests compat-case messages)
         (close-send)
         (receive-all compat-case))
        (:stream-type-full-duplex-bidi-stream
         (begin :open)
         (converse-as-client compat-case messages)
         (close-send)
         (receive-all compat-case))))))

(defun error-message (error)
  "ERROR, an RPC-ERROR, as a message of the suite."
  (let ((octets (grpc:rpc-error-details-octets error)))
    (connect:make-error
     :code (grpc:status-code (grpc:rpc-error-status error))
     :message (grpc:rpc-error-message error)
     :details (if octets
                  (handler-case (google.rpc:status-details
                                 (grpc:parse-message 'google.rpc:status octets))
                    (grpc:protobuf-error () '()))
                  '()))))

(defun try-call (request)
  "Make the call that REQUEST, a ClientCompatRequest, describes; return the result."
  (let ((compat-case (make-compat-case :request request))
        (limit (connect:client-compat-request-message-receive-limit request))
        (roots (connect:client-compat-request-server-tls-cert request)))
    (grpc:with-channel (channel (format nil "~A:~D" (connect:client-compat-request-host request)
                                        (connect:client-compat-request-port request))
                                :credentials
                                (when (plusp (length roots))
                                  (suite-credentials
                                   (connect:client-compat-request-client-tls-creds request)
                                   roots))
                                :max-receive-octets (if (plusp limit) limit 4194304))
      (handler-case (make-the-call compat-case channel
                                   (stub-named (connect:client-compat-request-method request))
                                   (call-options request))
        (grpc:rpc-error (error)
          (setf (compat-case-error compat-case) error)
          (unless (compat-case-call compat-case)
            (setf (compat-case-call compat-case) (grpc:rpc-error-call error)))))
      (let* ((call (compat-case-call compat-case))
             (result (connect:make-client-response-result
                      :response-headers (and call (metadata-headers (grpc:call-metadata call)))
                      :response-trailers (and call (metadata-headers (grpc:call-trailers call)))
                      :payloads (reverse (compat-case-payloads compat-case))
                      :num-unsent-requests (compat-case-unsent compat-case))))
        (when (compat-case-error compat-case)
          (setf (connect:client-response-result-error result)
                (error-message (compat-case-error compat-case))))
        result))))

(defun answer-compat-request (request)
  (let ((name (connect:client-compat-request-test-name request)))
    (handler-case (connect:make-client-compat-response :test-name name :response (try-call request))
      (error (error)
        (connect:make-client-compat-response
         :test-name name
         :error (connect:make-client-error-result :message (princ-to-string error)))))))

(defun call-for-connect-suite (input output)
  "Make the calls that the requests on INPUT describe, up to 16 at once, until INPUT ends. Write the
result of each call to OUTPUT."
  (let ((lock (sb-thread:make-mutex))
        (free (sb-thread:make-semaphore :count 16))
        (threads '()))
    (loop for octets = (read-framed input #'u32be)
          while octets
          do (sb-thread:wait-on-semaphore free)
             (push (sb-thread:make-thread
                    (lambda (octets)
                      (let ((response (answer-compat-request
                                       (grpc:parse-message 'connect:client-compat-request octets))))
                        (sb-thread:with-mutex (lock)
                          (write-framed (grpc:serialize response) output #'(setf u32be))))
                      (sb-thread:signal-semaphore free))
                    :arguments (list octets))
                   threads))
    (mapc #'sb-thread:join-thread threads))
  0)
