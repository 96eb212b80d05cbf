;;;; The worker of gRPC's benchmarks, driven as their driver does.

(in-package #:clgrpc.tests.tools)

(defmacro with-worker ((channel &rest options) &body body)
  "Evaluate BODY with CHANNEL one to a worker."
  `(let ((server (grpc:start-server (list (make-instance 'tools::worker-service
                                                         :host "127.0.0.1" ,@options)))))
     (unwind-protect (grpc:with-channel (,channel (grpc:server-address server)) ,@body)
       (grpc:stop-server server :drain 0))))

(defun set-up-server (call &rest config)
  "Have CALL, of RunServer, begin a server; return its status."
  (grpc:send call (testing:make-server-args
                   :setup (apply #'testing:make-server-config config)))
  (grpc:receive call))

(defun set-up-client (call port &rest config)
  "Have CALL, of RunClient, begin calls of a server at PORT; return its status."
  (grpc:send call (testing:make-client-args
                   :setup (apply #'testing:make-client-config
                                 :server-targets (list (format nil "127.0.0.1:~D" port))
                                 config)))
  (grpc:receive call))

(defun simple-payload (request-size response-size)
  (testing:make-payload-config
   :simple-params (testing:make-simple-proto-params :req-size request-size
                                                    :resp-size response-size)))

(defun mark-client (call &optional (reset t))
  "The ClientStats that CALL tells now."
  (grpc:send call (testing:make-client-args :mark (testing:make-mark :reset reset)))
  (testing:client-status-stats (grpc:receive call)))

(defun latency-count (stats)
  (testing:histogram-data-count (testing:client-stats-latencies stats)))

(test figures-are-taken-once-if-they-are-reset
  (grpc:with-channel (channel "127.0.0.1:1")
    (let ((worker-channel (tools::make-worker-channel :channel channel)))
      (flet ((figures (reset)
               (multiple-value-bind (latencies results)
                   (tools::take-channel-figures worker-channel reset)
                 (list (load:histogram-count latencies) results))))
        (dolist (status '(:ok :ok :unavailable))
          (tools::note-result worker-channel status 0))
        (is (equal '(2 ((14 . 1) (0 . 2))) (figures nil)))
        (is (equal '(2 ((14 . 1) (0 . 2))) (figures t)))
        (is (equal '(0 nil) (figures nil)))))))

(defun rate-of (stats)
  "How many calls a second STATS count."
  (/ (latency-count stats) (testing:client-stats-time-elapsed stats)))

(defun call-driven (function &rest config)
  "Call FUNCTION with the calls of RunClient and RunServer of a worker that calls itself as CONFIG
says."
  (with-worker (channel)
    (grpc:with-call (server-call (worker-methods:run-server channel :open :timeout 60))
      (let ((port (testing:server-status-port (set-up-server server-call))))
        (is (< 0 port 65536))
        (grpc:with-call (client-call (worker-methods:run-client channel :open :timeout 60))
          (is-true (apply #'set-up-client client-call port config))
          (funcall function client-call server-call)
          (grpc:close-send client-call)
          (is (null (grpc:receive client-call)))
          (grpc:close-send server-call)
          (is (null (grpc:receive server-call))))))))

(defun await-latencies (call count)
  "The ClientStats of CALL once it tells of COUNT latencies or more; nil if that takes too long."
  (loop repeat 400
        for stats = (mark-client call nil)
        when (<= count (latency-count stats)) return stats
        do (sleep 0.02)))

(test a-worker-calls-in-a-closed-loop
  (call-driven
   (lambda (client server)
     (let* ((stats (await-latencies client 2000))
            (latencies (testing:client-stats-latencies stats))
            (buckets (testing:histogram-data-bucket latencies))
            (results (testing:client-stats-request-results stats)))
       (is (= (testing:histogram-data-count latencies) (reduce #'+ buckets)))
       (is (< 0 (testing:histogram-data-min-seen latencies)
              (/ (testing:histogram-data-sum latencies) (testing:histogram-data-count latencies))
              (testing:histogram-data-max-seen latencies)))
       (is (= (1+ (floor (log 60d9 1.01d0))) (length buckets)))
       ;; the buckets are where the least and the greatest value are
       (flet ((bucket (ns) (floor (log ns 1.01d0))))
         (is (<= (abs (- (bucket (testing:histogram-data-min-seen latencies))
                         (position-if #'plusp buckets)))
                 1))
         (is (<= (abs (- (bucket (testing:histogram-data-max-seen latencies))
                         (position-if #'plusp buckets :from-end t)))
                 1)))
       (is (equal '(0) (map 'list #'testing:request-result-count-status-code results)))
       (is (plusp (testing:client-stats-time-elapsed stats)))
       (is (plusp (+ (testing:client-stats-time-user stats)
                     (testing:client-stats-time-system stats))))
       ;; a mark without reset goes on counting, one with it begins anew
       (let ((before (latency-count (mark-client client))))
         (is (<= (testing:histogram-data-count latencies) before)))
       (is-true (await-latencies client 10))
       (grpc:send server (testing:make-server-args :mark (testing:make-mark :reset t)))
       (let* ((status (grpc:receive server)) (stats (testing:server-status-stats status)))
         (is (plusp (testing:server-stats-time-elapsed stats)))
         (is (<= (testing:server-stats-idle-cpu-time stats)
                 (testing:server-stats-total-cpu-time stats)))
         (is (plusp (testing:server-status-cores status))))))
   :rpc-type :unary :outstanding-rpcs-per-channel 5 :client-channels 2
   :payload-config (simple-payload 10 20)
   :histogram-params (testing:make-histogram-params :resolution 0.01d0 :max-possible 60d9)))

(test a-worker-waits-for-its-servers
  "Calls that begin before their server can be reached wait for it; they are no failures."
  (with-worker (channel)
    (let ((port 0))
      (flet ((call-with-server (function)
               (grpc:with-call (call (worker-methods:run-server channel :open :timeout 60))
                 (setf port (testing:server-status-port (set-up-server call :port port)))
                 (funcall function)
                 (grpc:close-send call)
                 (is (null (grpc:receive call))))))
        (call-with-server (constantly nil)) ; its port is free afterwards
        (grpc:with-call (client (worker-methods:run-client channel :open :timeout 60))
          (is-true (set-up-client client port :rpc-type :unary :client-channels 1
                                  :outstanding-rpcs-per-channel 1))
          (is (= 0 (latency-count (mark-client client))))
          (call-with-server
           (lambda ()
             (let ((stats (await-latencies client 10)))
               (is-true stats)
               (is (equal '(0) (map 'list #'testing:request-result-count-status-code
                                    (testing:client-stats-request-results stats)))))
             (grpc:close-send client)
             (is (null (grpc:receive client))))))))))

(test a-worker-talks-in-streams
  (call-driven (fn (client _server)
                 (let ((stats (await-latencies client 500)))
                   (is-true stats)
                   (is (equal '(0) (map 'list #'testing:request-result-count-status-code
                                        (testing:client-stats-request-results stats))))))
               :rpc-type :streaming :outstanding-rpcs-per-channel 3 :client-channels 2
               :messages-per-stream 7))

(test a-worker-calls-at-random-times
  "Some 2,000 calls begin a second. A machine that is busy delays calls and leaves none out, so the
rate since the mark comes to that however it began."
  (call-driven (fn (client _server)
                 (mark-client client)
                 ;; five deviations of half a second's
                 (is-true (loop repeat 20
                                do (sleep 0.5)
                                thereis (< 1600 (rate-of (mark-client client nil)) 2400))))
               :rpc-type :unary :client-channels 2
               :load-params (testing:make-load-params
                             :poisson (testing:make-poisson-params :offered-load 2000d0))))

(defparameter *wrong-loads*
  (list 0d0 -1d0 sb-ext:double-float-positive-infinity
        (sb-kernel:make-double-float #x7FF80000 0))
  "Offered loads that are refused. A compiler that sees the NaN in a loop may compare it.")

(test a-worker-says-what-it-cannot-do
  (with-worker (channel)
    (flet ((refused (condition &rest config)
             (grpc:with-call (call (worker-methods:run-client channel :open :timeout 10))
               (handler-case (progn (apply #'set-up-client call 1 config) nil)
                 (grpc:rpc-error (error) (is (typep error condition)) t)))))
      (is-true (refused 'grpc:unimplemented :rpc-type :streaming-both-ways))
      (is-true (refused 'grpc:unimplemented
                        :payload-config (testing:make-payload-config
                                         :bytebuf-params (testing:make-byte-buffer-params))))
      (is-true (refused 'grpc:invalid-argument :client-channels 1001))
      (dolist (load *wrong-loads*)
        (is-true (refused 'grpc:invalid-argument
                          :load-params (testing:make-load-params
                                        :poisson (testing:make-poisson-params
                                                  :offered-load load)))))
      (is-true (refused 'grpc:failed-precondition
                        :security-params (testing:make-security-params :use-test-ca t))))
    (grpc:with-call (call (worker-methods:run-server channel :open :timeout 10))
      (grpc:send call (testing:make-server-args :mark (testing:make-mark)))
      (signals grpc:invalid-argument (grpc:receive call)))))

(test no-number-of-a-driver-ends-a-worker
  "Numbers of any size are taken as the nearest that can be computed with; a NaN of a histogram is
ignored."
  (let ((nan (sb-kernel:make-double-float #x7FF80000 0)))
    (dolist (load (list least-positive-double-float most-positive-double-float))
      (call-driven (fn (client _server) (is-true (mark-client client)))
                   :rpc-type :unary :client-channels 1
                   :load-params (testing:make-load-params
                                 :poisson (testing:make-poisson-params :offered-load load))))
    (loop for (resolution most) in (list (list nan 1d9) (list 0.5d0 nan) (list 1d300 1d300)
                                         (list 0.5d0 sb-ext:double-float-positive-infinity)
                                         (list 1d308 -1d0))
          for data = (tools::histogram-data (load:make-histogram)
                                            (testing:make-histogram-params
                                             :resolution resolution :max-possible most))
          do (is (plusp (length (testing:histogram-data-bucket data)))))
    (signals grpc:invalid-argument
      (tools::histogram-data (load:make-histogram)
                             (testing:make-histogram-params
                              :resolution least-positive-double-float :max-possible 1d9)))))

(test a-worker-tells-of-cores-and-ends
  (let ((ended 0))
    (with-worker (channel :quit (lambda () (incf ended)))
      (is (plusp (testing:core-response-cores
                  (worker-methods:core-count channel (testing:make-core-request) :timeout 10))))
      (worker-methods:quit-worker channel (testing:make-void) :timeout 10))
    (is (= 1 ended))))

(test a-worker-listens-at-a-host
  "Its servers do, too, at other ports."
  (fails-p 2 "a host and a port are wanted" "qps-worker" "--listen" "unix:/tmp/worker"))
