;;;; The driver of workers, which worker-command.lisp makes: it lets several workers of gRPC's
;;;; benchmarks, ours or another implementation's, call one server, and combines their measurements
;;;; to one RUN.

(in-package #:clgrpc.tools)

(defconstant +driver-resolution+ 0.005d0 "The relative width of the buckets in which workers count
latencies.")

(defconstant +driver-patience-seconds+ 20
  "The maximum number of seconds that a worker may take to answer.")

(defun share (whole count i)
  "The part of WHOLE for the worker number I of COUNT, if all workers get equal parts."
  (- (floor (* whole (1+ i)) count) (floor (* whole i) count)))

(defun worker-config (target i count &key streaming rate connections concurrency request-size
                                       response-size)
  "The ClientConfig for worker number I of COUNT workers; the options are those of DRIVE-WORKERS."
  (let ((channels (max 1 (share connections count i))))
    (testing:make-client-config
     :server-targets (list target)
     :client-type :async-client
     :client-channels channels
     :outstanding-rpcs-per-channel (max 1 (ceiling (share concurrency count i) channels))
     :rpc-type (if streaming :streaming :unary)
     :load-params (if rate
                      (testing:make-load-params
                       :poisson (testing:make-poisson-params
                                 :offered-load (float (/ rate count) 1d0)))
                      (testing:make-load-params :closed-loop (testing:make-closed-loop-params)))
     :payload-config (testing:make-payload-config
                      :simple-params (testing:make-simple-proto-params
                                      :req-size request-size :resp-size response-size))
     :histogram-params (testing:make-histogram-params :resolution +driver-resolution+
                                                      :max-possible 60d9))))

(defun data-histogram (data)
  "The histogram of DATA, HistogramData of a worker."
  (load:restore-histogram
   (loop for count across (testing:histogram-data-bucket data)
         for bucket from 0
         when (plusp count)
           collect (cons (round (expt (1+ +driver-resolution+) (+ bucket 1/2))) count))
   :sum (round (testing:histogram-data-sum data))
   :min (round (testing:histogram-data-min-seen data))
   :max (round (testing:histogram-data-max-seen data))))

(defun tell-workers (calls messages)
  "Send each of CALLS its message; return the ClientStats that they answer."
  (mapc #'grpc:send calls messages)
  (loop for call in calls
        for status = (grpc:receive call)
        collect (or (and status (testing:client-status-stats status))
                    (grpc:fail :unavailable "A worker has ended."))))

(defun mark-workers (calls)
  "The present ClientStats of CALLS, counted since their last reset."
  (tell-workers calls (mapcar (lambda (call)
                                (declare (ignore call))
                                (testing:make-client-args :mark (testing:make-mark :reset t)))
                              calls)))

(defun merged-results (stats)
  "The statuses of calls, by all of STATS: an alist from the number of a status to a count."
  (let ((counts '()))
    (dolist (one stats counts)
      (map nil (lambda (result)
                 (let ((code (testing:request-result-count-status-code result))
                       (count (testing:request-result-count-count result)))
                   (if (assoc code counts)
                       (incf (cdr (assoc code counts)) count)
                       (push (cons code count) counts))))
           (testing:client-stats-request-results one)))))

(defun stats-row (stats)
  "A row of a RUN, from STATS, which workers have reported at one time."
  (let* ((latency (load:merge-histograms (mapcar (lambda (one)
                                                   (data-histogram
                                                    (testing:client-stats-latencies one)))
                                                 stats)))
         (results (merged-results stats))
         (errors (reduce #'+ (remove 0 results :key #'car) :key #'cdr)))
    (load:make-second-row :count (+ errors (load:histogram-count latency)) :errors errors
                          :latency latency)))

(defun status-text (code)
  "The name of the status with the number CODE, as grpc-go writes it."
  (case code
    (0 "OK")
    (t (if-let ((status (grpc:code-status code)))
         (remove #\Space (string-capitalize (substitute #\Space #\- (string status))))
         (format nil "Code(~D)" code)))))

(defun run-of-rows (rows stats begin-ns target &key streaming rate connections)
  "The RUN made from ROWS, one for each second since BEGIN-NS; STATS are all reports of workers."
  (let* ((latency (load:merge-histograms (map 'list #'load:second-row-latency rows)))
         (count (reduce #'+ rows :key #'load:second-row-count))
         (results (remove 0 (merged-results stats) :key #'car)))
    (load:make-run
     :target target
     :method (if streaming
                 "grpc.testing.BenchmarkService/StreamingCall"
                 "grpc.testing.BenchmarkService/UnaryCall")
     :kind (if streaming :bidi :unary)
     :started-unix-ns (- (real-time-ns) (- (monotonic-ns) begin-ns))
     :duration-ns (- (monotonic-ns) begin-ns)
     :loop-kind (if rate :open :closed) :intended-rps rate
     :count count
     :latency latency :all-latency latency
     :statuses (sort (append
                      (when (plusp (load:histogram-count latency))
                        (list (load:make-status-row :name "OK" :code 0
                                                    :count (load:histogram-count latency)
                                                    :latency latency)))
                           (loop for (code . count) in results
                                 collect (load:make-status-row :name (status-text code) :code code
                                                               :count count)))
                     #'> :key #'load:status-row-count)
     :seconds (coerce rows 'vector)
     :messages-sent count :messages-received (load:histogram-count latency)
     :connections connections
     :cpu-ns (round (* +ns-per-second+
                       (reduce #'+ stats :key (lambda (one)
                                                (+ (testing:client-stats-time-user one)
                                                   (testing:client-stats-time-system one)))))))))

(defun sleep-unless-ended (ns termination)
  "Sleep for NS, and return nil. Return :INTERRUPTED if the user has interrupted the sleep, or
:TERMINATED as soon as SIGTERM has come, which signals TERMINATION, a semaphore."
  (handler-case (and (or (load:terminated-p)
                         (sb-thread:wait-on-semaphore termination
                                                      :timeout (max 1/1000 (ns-seconds ns))))
                     :terminated)
    (sb-sys:interactive-interrupt () :interrupted)))

(defun tell-rows (calls begin-ns seconds progress termination over)
  "Ask CALLS, whose measurement began at BEGIN-NS, once a second, SECONDS times, for their counts.
Return a list of the answers, lists of ClientStats, and the reason why the run ended early, or nil
if it did not. OVER is that reason if the run has ended already, else nil. PROGRESS is that of
DRIVE-WORKERS, TERMINATION that of SLEEP-UNLESS-ENDED."
  (let ((told '()))
    (loop for second from 1 to seconds
          for ended = (or over
                          (sleep-unless-ended (- (+ begin-ns (* second +ns-per-second+))
                                                 (monotonic-ns))
                                              termination))
          do (push (mark-workers calls) told)
             (funcall progress second)
          until ended
          finally (return (values (reverse told) ended)))))

(defun drive-workers (addresses target &key streaming rate (connections 1) (concurrency 50)
                                         (seconds 10) (warm-up-seconds 1) (request-size 0)
                                         (response-size 0) (progress (constantly nil)))
  "Let the workers at ADDRESSES call grpc.testing.BenchmarkService at TARGET together for SECONDS, a
positive integer, after WARM-UP-SECONDS. The workers call UnaryCall, or make round trips of
StreamingCall if STREAMING is true. With RATE they begin RATE calls a second at random times.
Without RATE the workers keep CONCURRENCY calls under way: each ended call is followed by another.
All workers together use CONNECTIONS connections. PROGRESS is called with the number of each second
that has passed. Return a RUN, whose CPU time is that of all workers; if the user interrupts, or the
process gets SIGTERM, the RUN covers the finished part. Signal RPC-ERRORs of the workers, and an
RPC-ERROR if SIGTERM comes before the workers have begun."
  (let ((count (length addresses)) (channels '()) (calls '()))
    (flet ((begin (address)
             (let ((channel (grpc:make-channel address)))
               (push channel channels)
               (let ((call (grpc.testing.worker-service:run-client
                            channel :open
                            :timeout (+ warm-up-seconds seconds +driver-patience-seconds+))))
                 (push call calls)
                 call)))
           (set-up ()
             (tell-workers calls
                           (loop for i below count
                                 collect (testing:make-client-args
                                          :setup (worker-config
                                                  target i count
                                                  :streaming streaming :rate rate
                                                  :connections connections
                                                  :concurrency concurrency
                                                  :request-size request-size
                                                  :response-size response-size)))))
           (cancel-all () (mapc #'grpc:cancel calls))
           (measure (termination)
             (let ((ended (sleep-unless-ended (seconds-ns warm-up-seconds) termination))
                   (begin-ns (progn (mark-workers calls) (monotonic-ns))))
               (multiple-value-bind (told ended)
                   (tell-rows calls begin-ns seconds progress termination ended)
                 (let ((run (run-of-rows (mapcar #'stats-row told) (reduce #'append told) begin-ns
                                         target
                                         :streaming streaming :rate rate
                                         :connections (max count connections))))
                   (setf (load:run-ended-early run) ended)
                   run)))))
      (unwind-protect
           (load:call-terminable
            (lambda ()
              (mapc #'begin addresses)
              (load:call-until-termination #'cancel-all #'set-up)
              (let ((termination (sb-thread:make-semaphore :name "clgrpc load")))
                (load:call-until-termination
                 (lambda () (sb-thread:signal-semaphore termination))
                 (lambda () (measure termination))))))
        (cancel-all)
        (mapc #'grpc:close-channel channels)))))
