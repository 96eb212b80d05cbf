;;;; The client of a worker of gRPC's benchmarks: calls of BenchmarkService on several channels, one
;;;; after the other or at random times, by callbacks on the channels' loops.

(in-package #:clgrpc.tools)

(defconstant +most-worker-channels+ 1000
  "The maximum number of channels for which a driver may ask.")
(defconstant +most-worker-calls+ 100000
  "The maximum number of calls at one time on all channels of a client.")
(defconstant +most-behind+ 20000
  "The maximum number of calls of an open loop that are under way at one time; further calls that
are due are not made.")

(defstruct (worker-channel (:copier nil))
  "A channel of a worker's client, and the results of its calls."
  (channel nil :type grpc:channel :read-only t) ; the channel that the calls are made on
  (lock (sb-thread:make-mutex :name "clgrpc worker") :read-only t) ; guards the slots below
  ;; latencies of calls with status ok, or of round trips
  (latencies (load:make-histogram) :type load:histogram)
  (results '() :type list)              ; an alist of numbers of statuses and counts of calls
  (running 0 :type fixnum))             ; calls under way, of an open loop

(defstruct (load-client (:copier nil))
  "The client of a worker."
  (config nil :type testing:client-config :read-only t) ; the driver's settings
  (worker-channels '() :type list)      ; the client's channels
  (begin (read-clocks) :type clock-reading) ; the time since which the client counts
  (stopped nil :type boolean)           ; true: the client begins no more calls
  (pacer nil :type (or null sb-thread:thread))) ; the thread that begins the calls of an open loop

(defun request-of (config)
  "The request for which CONFIG, a ClientConfig, asks."
  (let* ((payload (testing:client-config-payload-config config))
         (params (and payload (testing:payload-config-simple-params payload))))
    (when (and payload (not params))
      (grpc:fail :unimplemented "Only payloads of simple_params can be sent."))
    (testing:make-simple-request
     :response-size (if params (testing:simple-proto-params-resp-size params) 0)
     :payload (payload-of-size :compressable
                               (if params (testing:simple-proto-params-req-size params) 0)))))

(defun note-result (worker-channel status start-ns)
  "Note that a call of WORKER-CHANNEL that began at START-NS has ended with STATUS."
  (let ((ns (- (monotonic-ns) start-ns)) (code (grpc:status-code status)))
    (sb-thread:with-mutex ((worker-channel-lock worker-channel))
      (when (eq :ok status) (load:record-value (worker-channel-latencies worker-channel) ns))
      (let ((known (assoc code (worker-channel-results worker-channel))))
        (if known (incf (cdr known))
            (push (cons code 1) (worker-channel-results worker-channel)))))))

(defun call-once (worker-channel request start-ns then)
  "Make a unary call on WORKER-CHANNEL that counts from START-NS; call THEN on its loop once it has
ended."
  (let ((call (grpc:call-async #'grpc.testing.benchmark-service:unary-call
                               (worker-channel-channel worker-channel)
                               request :wait-for-ready t)))
    (grpc:on-end call (lambda ()
                        (note-result worker-channel (grpc:call-status call) start-ns)
                        (funcall then)))))

(defmacro unless-stopped ((client) &body body)
  "Evaluate BODY unless CLIENT is stopped; its channels may be closed meanwhile."
  `(unless (load-client-stopped ,client)
     (handler-case (progn ,@body)
       ((or grpc:rpc-error misuse) (error)
         (unless (load-client-stopped ,client) (error error))))))

(defun call-again-and-again (client worker-channel request)
  "Make unary calls on WORKER-CHANNEL, each when the previous call has ended."
  (unless-stopped (client)
    (call-once worker-channel request (monotonic-ns)
               (lambda () (call-again-and-again client worker-channel request)))))

(defun talk (client worker-channel request)
  "Send REQUEST on a stream of WORKER-CHANNEL, and again after each answer. Begin a new stream after
the number of messages that the config gives."
  (let ((call (grpc.testing.benchmark-service:streaming-call (worker-channel-channel worker-channel)
                                                             :open
                                                              :wait-for-ready t))
        (limit (testing:client-config-messages-per-stream (load-client-config client)))
        (trips 0)
        (start-ns (monotonic-ns)))
    (declare (type fixnum trips) (type nanoseconds start-ns))
    (flet ((answered (message)
             (declare (ignore message))
             (note-result worker-channel :ok start-ns)
             (incf trips)
             (cond ((or (load-client-stopped client) (= trips limit)) (grpc:close-send call))
                   (t (setf start-ns (monotonic-ns))
                      (grpc:try-send call request))))
           (ended ()
             (unless (eq :ok (grpc:call-status call))
               (note-result worker-channel (grpc:call-status call) start-ns))
             (unless-stopped (client) (talk client worker-channel request))))
      (grpc:on-message call #'answered)
      (grpc:on-end call #'ended)
      (grpc:send call request))))

(defun begin-worker-calls (client request rate)
  "Begin calls of CLIENT, RATE a second at random times, on each channel in turn until it is
stopped. Latencies count from a call's due time."
  (let ((due (monotonic-ns)) (random (make-random-state t)))
    (loop for worker-channels = (load-client-worker-channels client) then
          (or (rest worker-channels) (load-client-worker-channels client))
          for worker-channel = (first worker-channels)
          until (load-client-stopped client)
          do (incf due (floor (* +ns-per-second+ (- (log (- 1d0 (random 1d0 random))))) rate))
             ;; the wait is in pieces, since the client may be stopped meanwhile
             (loop for ahead = (- due (monotonic-ns))
                   while (and (> ahead 50000) (not (load-client-stopped client)))
                   do (sleep (ns-seconds (min ahead 100000000))))
             (when (< (worker-channel-running worker-channel) +most-behind+)
               (sb-thread:with-mutex ((worker-channel-lock worker-channel))
                                     (incf (worker-channel-running worker-channel)))
               (unless-stopped (client)
                 (call-once worker-channel request (min due (monotonic-ns))
                            (lambda ()
                              (sb-thread:with-mutex ((worker-channel-lock worker-channel))
                                (decf (worker-channel-running worker-channel))))))))))

(defun offered-rate (poisson)
  "The calls per second that POISSON, a driver's PoissonParams, asks for, limited to a range that
the arithmetic can handle."
  (let ((rate (testing:poisson-params-offered-load poisson)))
    (unless (and (finite-p rate) (plusp rate))
      (grpc:fail :invalid-argument "offered_load must be positive and finite."))
    (clamp rate 1d-3 1d9)))

(defun begin-calls (client)
  (let* ((config (load-client-config client))
         (request (request-of config))
         (load (testing:client-config-load-params config))
         (poisson (and load (testing:load-params-poisson load)))
         (rate (and poisson (offered-rate poisson)))
         (kind (testing:client-config-rpc-type config)))
    (flet ((in-each-slot (function)
             (dolist (worker-channel (load-client-worker-channels client))
               (loop repeat (testing:client-config-outstanding-rpcs-per-channel config)
                     do (funcall function client worker-channel request)))))
      (cond ((and rate (eq :unary kind))
             (setf (load-client-pacer client)
                   (sb-thread:make-thread #'begin-worker-calls
                                          :name "clgrpc worker"
                                          :arguments (list client request rate))))
            ((and (eq :unary kind)) (in-each-slot #'call-again-and-again))
            ((and (eq :streaming kind) (not rate)) (in-each-slot #'talk))
            (t (grpc:fail :unimplemented
                          "This worker makes unary calls or, without a rate, round trips."))))))

(defun start-load-client (config credentials)
  "A LOAD-CLIENT with the settings of CONFIG, over TLS if CONFIG asks for it, by CREDENTIALS."
  (let ((targets (testing:client-config-server-targets config))
        (channels (max 1 (testing:client-config-client-channels config)))
        (client (make-load-client :config config)))
    (when (or (zerop (length targets)) (> channels +most-worker-channels+)
              (> (* channels (testing:client-config-outstanding-rpcs-per-channel config))
                 +most-worker-calls+))
      (grpc:fail :invalid-argument "The setup has no target, or too many channels or calls."))
    (setf (load-client-worker-channels client)
          (loop for i below channels
                collect (make-worker-channel :channel
                                             (grpc:make-channel (elt targets
                                                                     (mod i (length targets)))
                                                                :credentials credentials))))
    (handler-bind ((error (lambda (error) (declare (ignore error)) (stop-load-client client))))
      (begin-calls client))
    client))

(defun stop-load-client (client)
  "Stop CLIENT: begin no more calls, and end the calls under way."
  (setf (load-client-stopped client) t)
  (dolist (worker-channel (load-client-worker-channels client))
    (grpc:close-channel (worker-channel-channel worker-channel)))
  (when (load-client-pacer client) (sb-thread:join-thread (load-client-pacer client) :default nil))
  nil)

(defun take-channel-figures (worker-channel reset)
  "Return two values: the latencies and the results that WORKER-CHANNEL has collected. If RESET is
true, forget them afterwards."
  (sb-thread:with-mutex ((worker-channel-lock worker-channel))
    (multiple-value-prog1
     (values (load:merge-histograms (list (worker-channel-latencies worker-channel)))
                                  (copy-alist (worker-channel-results worker-channel)))
      (when reset
        (setf (worker-channel-latencies worker-channel) (load:make-histogram)
              (worker-channel-results worker-channel) '())))))

(defun client-stats (client reset)
  "The ClientStats of CLIENT since its last reset; if RESET is true, reset them now."
  (let ((histograms '()) (results '()) (now (read-clocks)))
    (dolist (worker-channel (load-client-worker-channels client))
      (multiple-value-bind (latencies counts) (take-channel-figures worker-channel reset)
        (push latencies histograms)
        (loop for (code . count) in counts
              do (incf (getf results code 0) count))))
    (prog1 (apply #'testing:make-client-stats
                  :latencies (histogram-data (load:merge-histograms histograms)
                                             (testing:client-config-histogram-params
                                              (load-client-config client)))
                  :request-results (loop for (code count) on results by #'cddr
                                         collect (testing:make-request-result-count
                                                  :status-code code :count count))
                  (times-since (load-client-begin client) now))
      (when reset (setf (load-client-begin client) now)))))
