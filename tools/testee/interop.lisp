;;;; grpc.testing.TestService, which gRPC's interoperability tests call (gRPC's document "Interop
;;;; Test Case Descriptions"): answers of the sizes and at the intervals that requests ask for,
;;;; metadata echoed, statuses as requested, compression as requested and as expected, ORCA load
;;;; reports per query and, by the service of orca.lisp, out of band (gRFC A51).
;;;; UnimplementedCall and the caching cases have no handler.
;;;;
;;;; Calls with one reply never wait and run inline; the streaming ones sleep between messages when
;;;; requests ask for it, and so are in the blocking style.

(in-package #:clgrpc.testee)

(defclass interop-service (testing:test-service load-report-service)
  ((reporter :initform (sb-thread:make-mutex :name "clgrpc reporter") :reader service-reporter))
  (:documentation "grpc.testing.TestService and OpenRcaService; a call that sets OpenRcaService's
report holds the lock REPORTER."))

(defparameter *interop-execution*
  '((grpc.testing.test-service:empty-call . :inline)
    (grpc.testing.test-service:unary-call . :inline)
    (grpc.testing.test-service:streaming-input-call . :inline)
    (grpc.testing.test-service:streaming-output-call . :blocking)
    (grpc.testing.test-service:full-duplex-call . :blocking)
    (grpc.testing.test-service:half-duplex-call . :blocking)
    (orca-methods:stream-core-metrics . :inline))
  "The :execution of the handlers of INTEROP-SERVICE; see START-SERVER.")

;;; What requests ask for besides messages

(defun echo-metadata (call)
  "Send the metadata that the interop clients want back, as initial and as trailing metadata."
  (let ((metadata (grpc:call-metadata call)))
    (flet ((entry (name) (assoc name metadata :test #'string=)))
      (let ((initial (entry "x-grpc-test-echo-initial"))
            (trailing (entry "x-grpc-test-echo-trailing-bin")))
        (when initial (grpc:send-metadata call (list initial)))
        (when trailing (push trailing (grpc:call-trailers call)))))))

(defun obey-status (status)
  "Fail the call if STATUS, a grpc.testing.EchoStatus or nil, requests a failure."
  (when (and status (/= 0 (testing:echo-status-code status)))
    (grpc:fail (grpc:code-status (testing:echo-status-code status))
               (testing:echo-status-message status))))

(defun obey-compression (call wanted)
  "Compress the answer of CALL if WANTED, a grpc.testing.BoolValue or nil, is true."
  (when (and wanted (testing:bool-value-value wanted))
    (setf (grpc:call-compression call) :gzip)))

(defun check-compression (call expected)
  "Fail CALL if its message came compressed but EXPECTED, a grpc.testing.BoolValue, is false, or
came uncompressed but EXPECTED is true. A nil EXPECTED checks nothing."
  (when (and expected
             (not (eq (testing:bool-value-value expected) (grpc:received-compressed-p call))))
    (grpc:fail :invalid-argument
               (format nil "the message came ~:[un~;~]compressed, which was not expected"
                       (grpc:received-compressed-p call)))))

(defun orca-load-report (report)
  "The OrcaLoadReport with the contents of REPORT, a grpc.testing.TestOrcaReport."
  (xds.data.orca.v3:make-orca-load-report
   :cpu-utilization (testing:test-orca-report-cpu-utilization report)
   :mem-utilization (testing:test-orca-report-memory-utilization report)
   :request-cost (testing:test-orca-report-request-cost report)
   :utilization (testing:test-orca-report-utilization report)))

(defun report-load (call report)
  "Send REPORT, a grpc.testing.TestOrcaReport, as the load report of this query (gRFC A51)."
  (push (cons "endpoint-load-metrics-bin" (grpc:serialize (orca-load-report report)))
        (grpc:call-trailers call)))

(defconstant +reporter-timeout+ 30
  "The maximum number of seconds that a call waits until another call has finished setting
reports.")

(defun become-reporter (service)
  "Wait until no other call sets the reports of SERVICE; then prevent others from doing so, and
return true."
  (or (sb-thread:grab-mutex (service-reporter service) :timeout +reporter-timeout+)
      (grpc:fail :aborted "another client sets the load reports")))

(defun pause (call seconds)
  "Wait SECONDS, or until CALL is cancelled."
  (let ((cancelled (sb-thread:make-semaphore :name "clgrpc interop")))
    (grpc:on-cancel call (lambda () (sb-thread:signal-semaphore cancelled)))
    (sb-thread:wait-on-semaphore cancelled :timeout seconds)))

(defun send-responses (call request)
  "Send the responses that REQUEST, a grpc.testing.StreamingOutputCallRequest, asks for."
  (map nil (lambda (parameters)
             (let ((interval-us (testing:response-parameters-interval-us parameters)))
               (when (plusp interval-us) (pause call (/ interval-us 1000000))))
             (grpc:send call (testing:make-streaming-output-call-response
                              :payload (payload-of-size
                                        (testing:streaming-output-call-request-response-type
                                         request)
                                        (testing:response-parameters-size parameters)))
                        :compress (let ((wanted (testing:response-parameters-compressed
                                                 parameters)))
                                    (and wanted (testing:bool-value-value wanted)))))
       (testing:streaming-output-call-request-response-parameters request)))

;;; The methods

(defmethod grpc.testing.test-service:empty-call ((service interop-service) request &key)
  (testing:make-empty))

(defmethod grpc.testing.test-service:unary-call ((service interop-service) request &key call)
  (check-compression call (testing:simple-request-expect-compressed request))
  (obey-compression call (testing:simple-request-response-compressed request))
  (echo-metadata call)
  (obey-status (testing:simple-request-response-status request))
  (let ((report (testing:simple-request-orca-per-query-report request)))
    (when report (report-load call report)))
  (answer-of-size request))

(defmethod grpc.testing.test-service:streaming-output-call ((service interop-service) request
                                                            &key call)
  (map nil (lambda (parameters)
             (obey-compression call (testing:response-parameters-compressed parameters)))
       (testing:streaming-output-call-request-response-parameters request))
  (send-responses call request))

(defmethod grpc.testing.test-service:streaming-input-call ((service interop-service) call &key)
  (let ((size 0))
    (grpc:on-message call (lambda (request)
                            (check-compression
                             call (testing:streaming-input-call-request-expect-compressed request))
                            (let ((payload (testing:streaming-input-call-request-payload request)))
                              (when payload
                                (incf size (length (testing:payload-body payload)))))))
    (grpc:on-half-close call (lambda ()
                               (grpc:reply call (testing:make-streaming-input-call-response
                                                 :aggregated-payload-size size))))
    call))

(defmethod grpc.testing.test-service:full-duplex-call ((service interop-service) requests
                                                       &key call)
  (echo-metadata call)
  (let ((reporter nil))
    (unwind-protect
         (grpc:do-messages (request requests)
           (obey-status (testing:streaming-output-call-request-response-status request))
           (when-let ((report (testing:streaming-output-call-request-orca-oob-report request)))
             (unless reporter (setf reporter (become-reporter service)))
             (setf (load-report service) (orca-load-report report)))
           (send-responses call request))
      (when reporter (sb-thread:release-mutex (service-reporter service))))))

(defmethod grpc.testing.test-service:half-duplex-call ((service interop-service) requests
                                                       &key call)
  (let ((kept '()))
    (grpc:do-messages (request requests)
      (push request kept))
    (dolist (request (reverse kept))
      (send-responses call request))))
