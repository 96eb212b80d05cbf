;;;; grpc.testing.TestService as our own client sees it; `make conformance` shows it to grpc-go's.

(in-package #:clgrpc.tests.tools)
(in-suite :clgrpc.tools)

(test interop-unary
  (with-offer (channel "interop")
    (is (typep (interop-methods:empty-call channel (testing:make-empty) :timeout 10)
               'testing:empty))
    (is (= 314159 (body-size (interop-methods:unary-call channel (simple-request 314159)
                                                         :timeout 10))))
    (signals grpc:unimplemented
      (interop-methods:unimplemented-call channel (testing:make-empty) :timeout 10))))

(defun octets (&rest octets)
  (coerce octets '(vector (unsigned-byte 8))))

(defparameter *echoed* `(("x-grpc-test-echo-initial" . "test_initial_metadata_value")
                         ("x-grpc-test-echo-trailing-bin" . ,(octets #xAB #xAB #xAB))))

(defun echoes-p (call)
  (flet ((same-p (name metadata)
           (equalp (cdr (assoc name *echoed* :test #'string=))
                   (cdr (assoc name metadata :test #'string=)))))
    (and (same-p "x-grpc-test-echo-initial" (grpc:call-metadata call))
         (same-p "x-grpc-test-echo-trailing-bin" (grpc:call-trailers call)))))

(test interop-metadata
  (with-offer (channel "interop")
    (multiple-value-bind (reply call)
        (interop-methods:unary-call channel (simple-request 1) :metadata *echoed* :timeout 10)
      (is (= 1 (body-size reply)))
      (is-true (echoes-p call)))
    (grpc:with-call (call (interop-methods:full-duplex-call channel :open :metadata *echoed*
                                                                          :timeout 10))
      (grpc:close-send call)
      (is (null (grpc:receive call)))
      (is-true (echoes-p call)))))

(test interop-status
  (with-offer (channel "interop")
    (let ((status (testing:make-echo-status
                   :code 2
                   :message (format nil "~C~%test with whitespace~C~%and Unicode BMP ☺ and ~
                                         non-BMP 😈~C~%" #\Tab #\Return #\Tab))))
      (flet ((status-of (function)
               (handler-case (progn (funcall function) :none)
                 (grpc:unknown (error) (grpc:rpc-error-message error)))))
        (is (string= (testing:echo-status-message status)
                     (status-of (lambda ()
                                  (interop-methods:unary-call
                                   channel (testing:make-simple-request :response-status status)
                                   :timeout 10)))))
        (is (string= (testing:echo-status-message status)
                     (status-of (lambda ()
                                  (grpc:do-messages
                                      (response
                                       (interop-methods:full-duplex-call
                                        channel (list (testing:make-streaming-output-call-request
                                                       :response-status status))
                                        :timeout 10))
                                    (fail "a response ~A" response))))))))))

(test interop-load-report
  (with-offer (channel "interop")
    (multiple-value-bind (reply call)
        (interop-methods:unary-call
         channel (testing:make-simple-request
                  :orca-per-query-report (testing:make-test-orca-report
                                          :cpu-utilization 0.821d0 :memory-utilization 0.5847d0
                                          :request-cost '(("cost" . 3456.32d0))
                                          :utilization '(("util" . 0.30499d0))))
         :timeout 10)
      (declare (ignore reply))
      (let ((octets (cdr (assoc "endpoint-load-metrics-bin" (grpc:call-trailers call)
                                :test #'string=))))
        (is (grpc:message=
             (xds.data.orca.v3:make-orca-load-report
              :cpu-utilization 0.821d0 :mem-utilization 0.5847d0
              :request-cost '(("cost" . 3456.32d0)) :utilization '(("util" . 0.30499d0)))
             (grpc:parse-message 'xds.data.orca.v3:orca-load-report octets)))))))

(defun output-request (&rest sizes)
  (testing:make-streaming-output-call-request
   :response-parameters (mapcar (lambda (size)
                                  (testing:make-response-parameters :size size :interval-us 500))
                                sizes)))

(defun response-sizes (call)
  (let ((sizes '()))
    (grpc:do-messages (response call (nreverse sizes))
      (push (length (testing:payload-body (testing:streaming-output-call-response-payload
                                           response)))
            sizes))))

(test interop-streams
  (with-offer (channel "interop")
    (is (equal '(31415 9 2653 58979)
               (response-sizes (interop-methods:streaming-output-call
                                channel (output-request 31415 9 2653 58979) :timeout 10))))
    (is (= 74922
           (testing:streaming-input-call-response-aggregated-payload-size
            (interop-methods:streaming-input-call
             channel (loop for size in '(27182 8 1828 45904)
                           collect (testing:make-streaming-input-call-request
                                    :payload (tools::payload-of-size :compressable size)))
             :timeout 10))))
    (dolist (function (list #'interop-methods:full-duplex-call #'interop-methods:half-duplex-call))
      (is (equal '(1 2 3 4)
                 (response-sizes (funcall function channel
                                          (list (output-request 1 2) (output-request)
                                                (output-request 3 4))
                                          :timeout 10))))
      (is (null (response-sizes (funcall function channel '() :timeout 10)))))))

(test interop-ping-pong
  (with-offer (channel "interop")
    (grpc:with-call (call (interop-methods:full-duplex-call channel :open :timeout 10))
      (loop for size in '(31415 9 2653 58979)
            do (grpc:send call (output-request size))
               (is (= size (length (testing:payload-body
                                    (testing:streaming-output-call-response-payload
                                     (grpc:receive call)))))))
      (grpc:close-send call)
      (is (null (grpc:receive call))))))

(test interop-cases
  (with-offer (channel "interop")
    (let ((tools::*soak-connect* (lambda () (grpc:make-channel (grpc:channel-target channel)))))
      (loop for (name) in tools::*interop-cases*
            do (finishes (tools::run-interop-case name channel)))))
  ;; a server that knows nothing of all this does not pass, but cases that are cancelled early do
  (with-offer (channel "bench")
    (loop for (name) in tools::*interop-cases*
          unless (member name '("unimplemented_method" "unimplemented_service"
                                "cancel_after_begin" "timeout_on_sleeping_server")
                         :test #'string=)
            do (signals base:clgrpc-error (tools::run-interop-case name channel)))))

(test interop-client
  (with-serve (program address "interop")
    (let ((port (subseq address (1+ (position #\: address)))))
      (flet ((play (&rest arguments)
               (apply #'run-line "interop-client" "--server_host" "127.0.0.1"
                      "--server_port" port arguments)))
        (multiple-value-bind (code output) (play "--test_case=all")
          (is (= 0 code))
          (is (= (length tools::*interop-cases*) (count #\Newline output))))
        (multiple-value-bind (code output error-output) (play "--test_case" "none")
          (is (= 2 code))
          (is (string= "" output))
          (is (search "there is no case" error-output)))
        (multiple-value-bind (code output error-output)
            (play "--use_tls" "--ca_file" (support:certificate-file "ca.pem")
                  "--test_case" "empty_unary")
          (declare (ignore output))
          (is (= 1 code))
          (is (search "empty_unary: UNAVAILABLE" error-output)))
        (is (= 2 (play "--ca_file" "x")))
        (is (= 2 (play "--use_tls=yes")))))))
