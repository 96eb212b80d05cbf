;;;; The cases of gRPC's document "Interop Test Case Descriptions", for a client. A case is a
;;;; function of a channel. A function returns if the server has met the document's requirements,
;;;; and signals an error otherwise. All cases that need no cloud are here except cacheable_unary:
;;;; gRPC no longer has the GET requests of this case, and grpc-go's server has no handler for it.

(in-package #:clgrpc.testee)

(defvar *interop-cases* '() "An alist from the name of a case to its function.")

(defmacro define-interop-case (name (channel) documentation &body body)
  "Define the case NAME, a string."
  `(setf *interop-cases*
         (append (remove ,name *interop-cases* :key #'car :test #'string=)
                 (list (cons ,name (lambda (,channel)
                                     ,documentation
                                     (declare (ignorable ,channel))
                                     ,@body))))))

(defun run-interop-case (name channel)
  "Play the case NAME to the server of CHANNEL. Signal a FAILURE or the RPC-ERROR of a call if the
case does not pass."
  (funcall (find-interop-case name) channel)
  nil)

(defun find-interop-case (name)
  (the function (or (cdr (assoc name *interop-cases* :test #'string=))
                    (refuse "no case is called ~S; the cases are ~{~A~^, ~}" name
                            (mapcar #'car *interop-cases*)))))

(defun expect-that (true control &rest arguments)
  "Unless TRUE is true, fail the case with the text that CONTROL and ARGUMENTS format."
  (unless true (apply #'fail-command control arguments)))

(defun expect-status (status function)
  "Fail the case unless FUNCTION, which makes a call, signals the RPC-ERROR of STATUS."
  (let ((found (handler-case (progn (funcall function) :ok)
                 (grpc:rpc-error (error) (grpc:rpc-error-status error)))))
    (expect-that (eq status found) "the call ended with ~(~A~), not ~(~A~)" found status)))

(defparameter *interop-timeout* 30 "The maximum number of seconds of a call of a case.")

(defun bool-value (value)
  (testing:make-bool-value :value value))

(defun zeros (size)
  (testing:make-payload :body (make-octets size)))

(defun expect-payload (payload size)
  (let ((found (and payload (length (testing:payload-body payload)))))
    (expect-that (eql size found) "a payload of ~D octets came, not of ~D" found size)))

(defun expect-compressed (call expected)
  (expect-that (eq expected (grpc:received-compressed-p call))
               "a message came ~:[~;un~]compressed" expected))

;;; Cases with one request and one response

(define-interop-case "empty_unary" (channel)
    "Nothing for nothing."
  (let ((reply (grpc.testing.test-service:empty-call channel (testing:make-empty)
                                                     :timeout *interop-timeout*)))
    (expect-that (grpc:message= (testing:make-empty) reply) "the reply is not empty")))

(defun large-request (&rest fields)
  (apply #'testing:make-simple-request :response-size 314159 :payload (zeros 271828) fields))

(define-interop-case "large_unary" (channel)
    "Messages that do not fit a frame."
  (expect-payload (testing:simple-response-payload
                   (grpc.testing.test-service:unary-call channel (large-request)
                                                         :timeout *interop-timeout*))
                  314159))

;;; Streams

(define-interop-case "client_streaming" (channel)
    "The server adds up the sizes of a stream."
  (let ((size (testing:streaming-input-call-response-aggregated-payload-size
               (grpc.testing.test-service:streaming-input-call
                channel (loop for size in '(27182 8 1828 45904)
                              collect (testing:make-streaming-input-call-request
                                       :payload (zeros size)))
                :timeout *interop-timeout*))))
    (expect-that (= 74922 size) "the server counted ~D octets, not 74922" size)))

(defun interop-output-request (sizes &key payload (interval-us 0) status)
  (testing:make-streaming-output-call-request
   :payload (and payload (zeros payload))
   :response-status status
   :response-parameters (loop for size in sizes
                              collect (testing:make-response-parameters
                                       :size size :interval-us interval-us))))

(defun expect-response (response size)
  (expect-that response "the stream ended where ~D octets were to come" size)
  (expect-payload (testing:streaming-output-call-response-payload response) size))

(define-interop-case "server_streaming" (channel)
    "The server sends a stream of the requested sizes."
  (let ((sizes '(31415 9 2653 58979)))
    (grpc:with-call (call (grpc.testing.test-service:streaming-output-call
                           channel (interop-output-request sizes) :timeout *interop-timeout*))
      (dolist (size sizes) (expect-response (grpc:receive call) size))
      (expect-that (null (grpc:receive call)) "the stream has more messages than requested"))))

(defmacro with-dialogue ((call channel &rest options) &body body)
  "Evaluate BODY with CALL bound to a FullDuplexCall on CHANNEL."
  `(grpc:with-call (,call (grpc.testing.test-service:full-duplex-call
                           ,channel :open :timeout *interop-timeout* ,@options))
     ,@body))

(define-interop-case "ping_pong" (channel)
    "Each request is sent when the response to the previous one has been received."
  (with-dialogue (call channel)
    (loop for (size payload) in '((31415 27182) (9 8) (2653 1828) (58979 45904))
          do (grpc:send call (interop-output-request (list size) :payload payload))
             (expect-response (grpc:receive call) size))
    (grpc:close-send call)
    (expect-that (null (grpc:receive call)) "the stream does not end")))

(define-interop-case "empty_stream" (channel)
    "A stream without messages in either direction."
  (with-dialogue (call channel)
    (grpc:close-send call)
    (expect-that (null (grpc:receive call)) "a message came")))

;;; Metadata and status

(defparameter *echoed-metadata*
  `(("x-grpc-test-echo-initial" . "test_initial_metadata_value")
    ("x-grpc-test-echo-trailing-bin"
     . ,(coerce '(#xAB #xAB #xAB) '(vector (unsigned-byte 8))))))

(defun expect-echo (call)
  (flet ((echoed-p (name metadata)
           (equalp (cdr (assoc name *echoed-metadata* :test #'string=))
                   (cdr (assoc name metadata :test #'string=)))))
    (expect-that (echoed-p "x-grpc-test-echo-initial" (grpc:call-metadata call))
                 "the initial metadata was not echoed")
    (expect-that (echoed-p "x-grpc-test-echo-trailing-bin" (grpc:call-trailers call))
                 "the trailing metadata was not echoed")))

(define-interop-case "custom_metadata" (channel)
    "Metadata comes back, as initial and as trailing metadata."
  (multiple-value-bind (reply call)
      (grpc.testing.test-service:unary-call channel (large-request) :metadata *echoed-metadata*
                                                                    :timeout *interop-timeout*)
    (expect-payload (testing:simple-response-payload reply) 314159)
    (expect-echo call))
  (with-dialogue (call channel :metadata *echoed-metadata*)
    (grpc:send call (interop-output-request '(314159) :payload 271828))
    (expect-response (grpc:receive call) 314159)
    (grpc:close-send call)
    (expect-that (null (grpc:receive call)) "the stream does not end")
    (expect-echo call)))

(defun expect-message (message function)
  "Fail the case unless FUNCTION, which makes a call, ends with UNKNOWN and MESSAGE."
  (handler-case (progn (funcall function) (fail-command "the call ended well"))
    (grpc:unknown (error)
      (expect-that (string= message (grpc:rpc-error-message error))
                   "the message of the status is ~S, not ~S" (grpc:rpc-error-message error)
                   message))))

(defun ask-for-status (channel message)
  (let ((status (testing:make-echo-status :code 2 :message message)))
    (expect-message message
                    (lambda ()
                      (grpc.testing.test-service:unary-call
                       channel (testing:make-simple-request :response-status status)
                       :timeout *interop-timeout*)))
    status))

(define-interop-case "status_code_and_message" (channel)
    "The server ends calls as it is asked to."
  (let ((status (ask-for-status channel "test status message")))
    (expect-message "test status message"
                    (lambda ()
                      (with-dialogue (call channel)
                        (grpc:send call (interop-output-request '() :status status))
                        (grpc:close-send call)
                        (grpc:receive call))))))

(define-interop-case "special_status_message" (channel)
    "White space and characters beyond the Basic Multilingual Plane in the message of a status."
  (ask-for-status channel (format nil "~C~C~Ctest with whitespace~C~Cand Unicode BMP ☺ and ~
                                       non-BMP 😈~C~C~C"
                                  #\Tab #\Newline #\Newline #\Return #\Newline
                                  #\Tab #\Newline #\Newline)))

(define-interop-case "unimplemented_method" (channel)
    "A method that the service does not have."
  (expect-status :unimplemented
                 (lambda ()
                   (grpc.testing.test-service:unimplemented-call
                    channel (testing:make-empty) :timeout *interop-timeout*))))

(define-interop-case "unimplemented_service" (channel)
    "A service that the server does not have."
  (expect-status :unimplemented
                 (lambda ()
                   (grpc.testing.unimplemented-service:unimplemented-call
                    channel (testing:make-empty) :timeout *interop-timeout*))))

;;; Cases in which calls end early

(define-interop-case "cancel_after_begin" (channel)
    "A call is cancelled before anything is sent."
  (let ((call (grpc.testing.test-service:streaming-input-call
               channel :open :metadata *echoed-metadata* :timeout *interop-timeout*)))
    (grpc:cancel call)
    (expect-status :cancelled (lambda () (grpc:receive call)))))

(define-interop-case "cancel_after_first_response" (channel)
    "A dialogue is cancelled after a first answer."
  (with-dialogue (call channel)
    (grpc:send call (interop-output-request '(31415) :payload 27182))
    (expect-response (grpc:receive call) 31415)
    (grpc:cancel call)
    (expect-status :cancelled (lambda () (grpc:receive call)))))

(define-interop-case "timeout_on_sleeping_server" (channel)
    "The deadline passes while the server sleeps."
  (expect-status :deadline-exceeded
                 (lambda ()
                   (grpc:with-call (call (grpc.testing.test-service:full-duplex-call
                                          channel :open :timeout 1/1000))
                     (grpc:send call (interop-output-request '(1) :payload 27182
                                                                  :interval-us 1000000))
                     (grpc:receive call)))))

;;; Load reports

(defun test-report (cpu memory utilization &optional cost)
  (testing:make-test-orca-report
   :cpu-utilization cpu :memory-utilization memory
   :request-cost (and cost `(("cost" . ,cost))) :utilization `(("util" . ,utilization))))

(define-interop-case "orca_per_rpc" (channel)
    "The server reports the load that the request gives, in a trailer (gRFC A51)."
  (multiple-value-bind (reply call)
      (grpc.testing.test-service:unary-call
       channel (testing:make-simple-request
                :orca-per-query-report (test-report 0.821d0 0.5847d0 0.30499d0 3456.32d0))
       :timeout *interop-timeout*)
    (declare (ignore reply))
    (let ((report (cdr (assoc "endpoint-load-metrics-bin" (grpc:call-trailers call)
                              :test #'string=))))
      (expect-that (and report
                        (grpc:message=
                         (orca-load-report (test-report 0.821d0 0.5847d0 0.30499d0 3456.32d0))
                         (grpc:parse-message 'xds.data.orca.v3:orca-load-report report)))
                   "the load report is missing or differs"))))

(defun await-orca-report (reports expected)
  "Receive on REPORTS, a call with a deadline, until the OrcaLoadReport EXPECTED comes."
  (loop for report = (grpc:receive reports)
        do (expect-that report "the stream of load reports ended")
        until (grpc:message= expected report)))

(define-interop-case "orca_oob" (channel)
    "The server reports the load that the request gives, on a stream of reports (gRFC A51). In the
document a balancing policy subscribes to that stream; here the case itself does, on the same
channel."
  (grpc:with-call (reports (orca-methods:stream-core-metrics
                            channel (orca:make-orca-load-report-request
                                     :report-interval (grpc:seconds-duration 1/10))
                            :timeout *interop-timeout*))
    (with-dialogue (call channel)
      (dolist (report (list (test-report 0.821d0 0.5847d0 0.30499d0)
                            (test-report 0.29309d0 0.2d0 0.2039d0)))
        (grpc:send call (testing:make-streaming-output-call-request
                         :response-parameters (list (testing:make-response-parameters :size 1))
                         :orca-oob-report report))
        (expect-response (grpc:receive call) 1)
        (await-orca-report reports (orca-load-report report)))
      (grpc:close-send call)
      (expect-that (null (grpc:receive call)) "the stream does not end"))))

;;; Soak

(defstruct (soak (:copier nil))
  "The flags of the cases of soak; see the command interop-client."
  (iterations 10)
  (threads 1)
  (max-failures 0)
  (max-latency-ms 1000)
  (timeout-seconds 10)
  (pause-ms 0)
  (request-size 271828)
  (response-size 314159))

(defvar *soak* (make-soak))
(defvar *soak-connect* nil "A function that returns another channel to the server of a case.")

(defun soak-call (channel)
  (expect-payload (testing:simple-response-payload
                   (grpc.testing.test-service:unary-call
                    channel (testing:make-simple-request
                             :response-size (soak-response-size *soak*)
                             :payload (zeros (soak-request-size *soak*)))
                    :timeout *interop-timeout*))
                  (soak-response-size *soak*)))

(defun call-in-time-p (call)
  "Call CALL, which makes a call. Return true if that ends well and soon enough."
  (let ((start (monotonic-ns)))
    (and (handler-case (progn (funcall call) t)
           (clgrpc-error () nil))
         (<= (- (monotonic-ns) start) (* 1000000 (soak-max-latency-ms *soak*))))))

(defun soak-on-thread (soak count call end)
  "Make COUNT calls by CALL. Return the number of calls that failed, or were not made before the
time END, in nanoseconds."
  (let ((*soak* soak)
        (pause-ns (* 1000000 (soak-pause-ms soak))))
    (loop repeat count
          for start = (monotonic-ns)
          count (or (< end start) (not (call-in-time-p call)))
          do (let ((left (- (+ start pause-ns) (monotonic-ns))))
               (when (plusp left) (sleep (/ left 1d9)))))))

(defun soak (call)
  "Make the calls of *SOAK* by CALL; fail the case if too many of them fail."
  (let* ((soak *soak*)
         (share (floor (soak-iterations soak) (soak-threads soak)))
         (end (+ (monotonic-ns) (* 1000000000 (soak-timeout-seconds soak))))
         (threads (loop repeat (soak-threads soak)
                        collect (sb-thread:make-thread #'soak-on-thread :name "soak"
                                                       :arguments (list soak share call end))))
         (failures (reduce #'+ (mapcar #'sb-thread:join-thread threads))))
    (expect-that (zerop (mod (soak-iterations soak) (soak-threads soak)))
                 "the iterations cannot be divided among ~D threads" (soak-threads soak))
    (expect-that (<= failures (soak-max-failures soak))
                 "~D of ~D calls failed, came too late or were not made" failures
                 (soak-iterations soak))))

(define-interop-case "rpc_soak" (channel)
    "Many large calls on one channel."
  (soak (lambda () (soak-call channel))))

(define-interop-case "channel_soak" (channel)
    "Many large calls, each on a channel of its own."
  (let ((connect *soak-connect*))
    (expect-that connect "another channel cannot be made")
    (soak (lambda ()
            (let ((channel (funcall connect)))
              (unwind-protect (soak-call channel)
                (grpc:close-channel channel)))))))

;;; Compression

(define-interop-case "client_compressed_unary" (channel)
    "The server must notice whether a request is compressed: the first request is uncompressed but
marked as compressed."
  (flet ((ask (expected compression)
           (testing:simple-response-payload
            (grpc.testing.test-service:unary-call
             channel (large-request :expect-compressed (bool-value expected))
             :compression compression :timeout *interop-timeout*))))
    (expect-status :invalid-argument (lambda () (ask t :identity)))
    (expect-payload (ask t :gzip) 314159)
    (expect-payload (ask nil :identity) 314159)))

(define-interop-case "server_compressed_unary" (channel)
    "The server must compress an answer if and only if the request asks for it."
  (dolist (wanted '(t nil))
    (multiple-value-bind (reply call)
        (grpc.testing.test-service:unary-call
         channel (large-request :response-compressed (bool-value wanted))
         :timeout *interop-timeout*)
      (expect-payload (testing:simple-response-payload reply) 314159)
      (expect-compressed call wanted))))

(define-interop-case "client_compressed_streaming" (channel)
    "This does what client_compressed_unary does, for each message of a stream."
  (flet ((input (expected size)
           (testing:make-streaming-input-call-request :expect-compressed (bool-value expected)
                                                      :payload (zeros size))))
    (expect-status :invalid-argument
                   (lambda ()
                     (grpc.testing.test-service:streaming-input-call
                      channel (list (input t 27182)) :timeout *interop-timeout*)))
    (grpc:with-call (call (grpc.testing.test-service:streaming-input-call
                           channel :open :compression :gzip :timeout *interop-timeout*))
      (grpc:send call (input t 27182) :compress t)
      (grpc:send call (input nil 45904) :compress nil)
      (grpc:close-send call)
      (let ((size (testing:streaming-input-call-response-aggregated-payload-size
                   (grpc:receive call))))
        (expect-that (= 73086 size) "the server counted ~D octets, not 73086" size)))))

(define-interop-case "server_compressed_streaming" (channel)
    "This does what server_compressed_unary does, for each message of a stream."
  (let ((expected '((t 31415) (nil 92653))))
    (grpc:with-call (call (grpc.testing.test-service:streaming-output-call
                           channel
                           (testing:make-streaming-output-call-request
                            :response-parameters
                            (loop for (compressed size) in expected
                                  collect (testing:make-response-parameters
                                           :size size :compressed (bool-value compressed))))
                           :timeout *interop-timeout*))
      (grpc:do-messages (response call)
        (destructuring-bind (compressed size) (or (pop expected) '(nil 0))
          (expect-payload (testing:streaming-output-call-response-payload response) size)
          (expect-compressed call compressed))))
    (expect-that (null expected) "~D messages did not come" (length expected))))
