;;;; grpc.testing.TestService as our own client sees it; `make conformance` shows it to grpc-go's.

(in-package #:clgrpc.tests.tools)

(test interop-unary
  (with-offer (channel "interop")
    (is (typep (interop-methods:empty-call channel (testing:make-empty) :timeout 10)
               'testing:empty))
    (is (= 314159 (body-size (interop-methods:unary-call channel (simple-request 314159)
                                                         :timeout 10))))
    (signals grpc:unimplemented
      (interop-methods:unimplemented-call channel (testing:make-empty) :timeout 10))))

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
                                    :payload (tools:payload-of-size :compressable size)))
             :timeout 10))))
    (dolist (function (list #'interop-methods:full-duplex-call #'interop-methods:half-duplex-call))
      (is (equal '(1 2 3 4)
                 (response-sizes (funcall function channel
                                          (list (output-request 1 2) (output-request)
                                                (output-request 3 4))
                                          :timeout 10))))
      (is (null (response-sizes (funcall function channel '() :timeout 10)))))))

(defun report-request (cpu)
  (testing:make-streaming-output-call-request
   :response-parameters (list (testing:make-response-parameters :size 1))
   :orca-oob-report (testing:make-test-orca-report :cpu-utilization cpu)))

(defun next-cpu (reports)
  (xds.data.orca.v3:orca-load-report-cpu-utilization (grpc:receive reports)))

(defun subscribe (channel &rest fields)
  (orca-methods:stream-core-metrics
   channel (apply #'orca:make-orca-load-report-request fields) :timeout 60))

(test load-reports-out-of-band
  (with-offer (channel "interop")
    (grpc:with-call (reports (subscribe channel))
      (is (zerop (next-cpu reports)))
      (grpc:with-call (first (interop-methods:full-duplex-call channel :open :timeout 60))
        (grpc:with-call (second (interop-methods:full-duplex-call channel :open :timeout 60))
          (grpc:send first (report-request 0.25d0))
          (is (grpc:receive first))
          ;; this one waits until the first is over
          (grpc:send second (report-request 0.5d0))
          (is (loop repeat 100 thereis (= 0.25d0 (next-cpu reports))))
          (is (loop repeat 5 always (= 0.25d0 (next-cpu reports))))
          (grpc:close-send first)
          (is (null (grpc:receive first)))
          (is (grpc:receive second))
          (is (loop repeat 100 thereis (= 0.5d0 (next-cpu reports)))))))
    ;; the first report comes at once, however long the interval
    (dolist (seconds '(-1 0 1000000000))
      (grpc:with-call (reports (subscribe channel :report-interval
                                          (grpc:seconds-duration seconds)))
        (is (= 0.5d0 (next-cpu reports)))))))

(test load-reports-end-with-the-server
  (multiple-value-bind (services execution)
      (tools::offered-services (tools::parse-services "interop"))
    (let ((server (grpc:start-server services :listen "127.0.0.1:0" :execution execution)))
      (unwind-protect
           (grpc:with-channel (channel (grpc:server-address server))
             (grpc:with-call (reports (subscribe channel :report-interval
                                                 (grpc:seconds-duration 60)))
               (is (zerop (next-cpu reports)))
               (grpc:stop-server server)
               (with-signalled (error grpc:unavailable (grpc:receive reports))
                 (is (string= "the server is stopping" (grpc:rpc-error-message error))))))
        (grpc:stop-server server)))))

(test interop-cases
  "Each passes, and all calls have a timeout; 27 have the long request, those of soaks among them."
  (with-offer (plain "interop")
    (let ((calls '()))
      (flet ((connect ()
               (grpc:make-channel
                (grpc:channel-target plain)
                :interceptors (list (fn (_method request options next)
                                      (push (list request (getf options :timeout)) calls)
                                      (funcall next request options)))))
             (long-p (request)
               (let ((payload (and (typep request 'testing:simple-request)
                                   (testing:simple-request-payload request))))
                 (and payload (= 271828 (length (testing:payload-body payload)))))))
        (let ((testee::*soak-connect* #'connect) (channel (connect)))
          (loop for (name) in testee::*interop-cases*
                do (finishes (testee::run-interop-case name channel)))
          (grpc:close-channel channel))
        (is (every #'second calls))
        (is (= 27 (count-if #'long-p calls :key #'first))))))
  ;; a server that knows nothing of all this does not pass, but cases that are cancelled early do
  (with-offer (channel "bench")
    (loop for (name) in testee::*interop-cases*
          unless (member name '("unimplemented_method" "unimplemented_service"
                                "cancel_after_begin" "timeout_on_sleeping_server")
                         :test #'string=)
            do (signals base:clgrpc-error (testee::run-interop-case name channel)))))

(test interop-client
  (with-serve (program address "interop")
    (let ((port (subseq address (1+ (position #\: address)))))
      (flet ((play (&rest arguments)
               (apply #'run-line "interop-client" "--server_host" "127.0.0.1"
                      "--server_port" port arguments)))
        (multiple-value-bind (code output) (play "--test_case=all")
          (is (= 0 code))
          (is (= (length testee::*interop-cases*) (count #\Newline output))))
        (multiple-value-bind (code output error-output) (play "--test_case" "none")
          (is (= 2 code))
          (is (string= "" output))
          (is (search "no case is called" error-output)))
        (multiple-value-bind (code output error-output)
            (play "--use_tls" "--ca_file" (support:certificate-file "ca.pem")
                  "--test_case" "empty_unary")
          (declare (ignore output))
          (is (= 1 code))
          (is (search "empty_unary: UNAVAILABLE" error-output)))
        (is (= 2 (play "--ca_file" "x")))
        (is (= 2 (play "--use_tls=yes")))))))
