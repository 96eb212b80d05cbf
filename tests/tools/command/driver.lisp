;;;; Several workers of gRPC's benchmarks driven as one.

(in-package #:clgrpc.tests.tools)

(defun call-with-workers (count function)
  "Call FUNCTION with the addresses of COUNT workers and that of a server for them to call."
  (let ((servers (loop repeat count
                       collect (grpc:start-server (list (make-instance 'tools::worker-service
                                                                       :host "127.0.0.1")))))
        (target (grpc:start-server (list (make-instance 'tools:bench-service))
                                   :execution :inline)))
    (unwind-protect (funcall function (mapcar #'grpc:server-address servers)
                             (grpc:server-address target))
      (dolist (server (cons target servers)) (grpc:stop-server server :drain 0)))))

(test workers-are-driven-as-one
  (call-with-workers
   2
   (lambda (workers target)
     (let ((seconds '()))
       (dolist (options '((:concurrency 6 :connections 4) (:streaming t) (:rate 1500)))
         (let ((run (apply #'tools::drive-workers workers target
                           :seconds 1 :warm-up-seconds 0.1 :request-size 10 :response-size 10
                           :progress (lambda (second) (push second seconds))
                           options)))
           (is (plusp (load:run-count run)))
           (is (= (load:run-count run) (load:histogram-count (load:run-latency run))
                  (reduce #'+ (load:run-seconds run) :key #'load:second-row-count)))
           (is (equal '("OK") (mapcar #'load:status-row-name (load:run-statuses run))))
           (is (< 0 (load:histogram-min (load:run-latency run))
                  (load:histogram-quantile (load:run-latency run) 1/2)
                  (load:histogram-max (load:run-latency run))))
           (is (< 9/10 (/ (load:run-duration-ns run) 1000000000) 30))
           (is (plusp (load:run-cpu-ns run)))
           (when (getf options :rate)
             (is (eq :open (load:run-loop-kind run)))
             (is (< 1100 (load:run-count run) 2000)))))
       (is (equal '(1 1 1) seconds))))))

(test failures-of-driven-calls-are-counted
  (call-with-workers
   1
   (lambda (workers target)
     ;; the reply would be longer than a channel takes
     (let ((run (tools::drive-workers workers target :seconds 1 :warm-up-seconds 0.1
                                                     :concurrency 2 :response-size 5000000)))
       (is (plusp (load:run-count run)))
       (is (zerop (load:histogram-count (load:run-latency run))))
       (is (equal '("ResourceExhausted")
                  (mapcar #'load:status-row-name (load:run-statuses run))))))))

(test a-worker-that-is-not-there-is-told-of
  (signals grpc:unavailable
    (tools::drive-workers '("127.0.0.1:1") "127.0.0.1:1" :seconds 1)))

(test load-by-workers-reports
  (call-with-workers
   2
   (lambda (workers target)
     (multiple-value-bind (code output)
         (run-line "load" "--workers" (format nil "~{~A~^,~}" workers) "-z" "1s" "-c" "4"
                   "--connections" "2" "-d" "{\"responseSize\": 10}" "-O" "json" target
                   "grpc.testing.BenchmarkService/UnaryCall")
       (is (= 0 code))
       (is (plusp (first (said (base:parse-json output) "count"))))
       (let ((run (clgrpc.report:parse-run output)))
         (is (equal 4 (cdr (assoc "concurrency" (load:run-options run) :test #'string=))))
         (is (equal target (cdr (assoc "host" (load:run-options run) :test #'string=))))))
     (multiple-value-bind (code output)
         (run-line "load" "--workers" (first workers) "-z" "1s" "--rps" "200" "--rounds" "2"
                   "--warm-up" "0.1s" target "grpc.testing.BenchmarkService/UnaryCall")
       (is (= 0 code))
       (is (search "Rounds:" output))
       (is (null (search "0 made" output)))
       (is (null (search "Sent:" output)) "that is not known"))
     (multiple-value-bind (code output error-output)
         (run-line "load" "--workers" (first workers) "-z" "1s" "-t" "5s" "--loops" "2" target
                   "grpc.testing.BenchmarkService/UnaryCall")
       (declare (ignore output))
       (is (= 2 code))
       (is (search "--loops, --timeout cannot be used with --workers" error-output)))
     (is (= 2 (run-line "load" "--workers" (first workers) "-z" "1s" target "a.B/C")))
     (is (= 2 (run-line "load" "--workers" (first workers) target
                        "grpc.testing.BenchmarkService/UnaryCall"))))))

(defun terminate-this ()
  "Send SIGTERM to this process, in a LOAD:CALL-TERMINABLE, and wait until that has noted it."
  (sb-unix:unix-kill (sb-unix:unix-getpid) sb-unix:sigterm)
  (loop until (load:terminated-p) do (sleep 0.01)))

(test sigterm-between-rounds
  "Those that were made are reported as ended early, and no more is made, not even begun."
  (let ((made 0))
    (flet ((make-run ()
             (when (= 2 (incf made)) (terminate-this))
             (load:make-run :count 1 :duration-ns 1000)))
      (let ((run (tools::repeat-rounds 5 #'make-run)))
        (is (= 2 made))
        (is (= 2 (load:run-count run) (length (load:run-rounds run))))
        (is (eq :terminated (load:run-ended-early run)))))))

(test sigterm-after-the-last-round
  "Nothing was ended early. And then SIGTERM has the function again that it had before."
  (let ((called (sb-thread:make-semaphore)) (made 0))
    (clgrpc.os:handle-signal sb-unix:sigterm (lambda () (sb-thread:signal-semaphore called)))
    (unwind-protect
         (let ((run (tools::repeat-rounds 2 (lambda ()
                                              (when (= 2 (incf made)) (terminate-this))
                                              (load:make-run :count 1 :duration-ns 1000)))))
           (is (= 2 (length (load:run-rounds run))))
           (is (null (load:run-ended-early run)))
           (is (= 0 (sb-thread:semaphore-count called)))
           (sb-unix:unix-kill (sb-unix:unix-getpid) sb-unix:sigterm)
           (is-true (sb-thread:wait-on-semaphore called :timeout 10)))
      (clgrpc.os:reset-signal sb-unix:sigterm))))

(test sigterm-before-workers-measure
  "In the warm-up the run ends, with a report of almost nothing; before, while a worker does not
answer, the round does not count."
  (call-with-workers
   1
   (lambda (workers target)
     (with-replaced (('tools::sleep-unless-ended
                      (lambda (function &rest arguments)
                        (terminate-this)
                        (apply function arguments))))
       (let ((run (load:call-terminable
                   (lambda ()
                     (tools::drive-workers workers target
                                           :seconds 100 :warm-up-seconds 100)))))
         (is (eq :terminated (load:run-ended-early run)))
         (is (> 50 (/ (load:run-duration-ns run) 1000000000)))))
     (let ((silent (grpc:start-server (make-instance 'silent-worker))) (made 0))
       (unwind-protect
            (let ((run (tools::repeat-rounds
                        3
                        (lambda ()
                          (case (incf made)
                            (1 (load:make-run :count 1 :duration-ns 1000))
                            (t (handler-case (tools::drive-workers
                                              (list (grpc:server-address silent)) target)
                                 (grpc:cancelled ()
                                   (error 'load:run-failed :text "cancelled")))))))))
              (is (= 2 made))
              (is (= 1 (load:run-count run)))
              (is (eq :terminated (load:run-ended-early run))))
         (grpc:stop-server silent :drain 0))))))

(defclass silent-worker (grpc.testing:worker-service) ())

(defmethod grpc.testing.worker-service:run-client ((service silent-worker) call &key)
  (sb-unix:unix-kill (sb-unix:unix-getpid) sb-unix:sigterm)
  call)

(test workers-end-with-their-driver
  "At SIGTERM the driver reports what has been counted, and leaves; then no worker calls any more."
  (call-with-workers
   2
   (lambda (workers target)
     (support:with-program (loading (support:clgrpc-program) "load" target
                                    "grpc.testing.BenchmarkService/UnaryCall" "--workers"
                                    (format nil "~{~A~^,~}" workers) "-z" "100s" "-O" "json"
                                    "--warm-up" "0.1s" "--rounds" "3")
       (sleep 2.5)
       (support:signal-program loading sb-unix:sigterm)
       (let ((run (clgrpc.report:parse-run (support:program-line loading))))
         (is (= 143 (support:program-exit-code loading)))
         (is (eq :interrupted (load:run-ended-early run)))
         (is (plusp (load:run-count run)))
         (is (equal '("OK") (mapcar #'load:status-row-name (load:run-statuses run))))))
     (dolist (worker workers)
       (grpc:with-channel (channel worker)
         (is (plusp (testing:core-response-cores
                     (grpc.testing.worker-service:core-count channel (testing:make-core-request)
                                                             :timeout 10)))))))))
