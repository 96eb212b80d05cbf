;;;; `testee policy`: a client that a runner drives through scenarios of names, addresses, service
;;;; configs, retries, hedging, balancing and limits. From each line the client reads a JSON object,
;;;; an op with its number, and writes another, its result. Many ops are under way at once, each on
;;;; a thread of its own. The RPCs are those of grpc.testing.TestService.

(in-package #:clgrpc.testee)

(defconstant +most-ops+ 1000 "The maximum number of ops that are under way at one time.")

(defconstant +longest-op+ (expt 2 24) "The maximum number of octets of a line.")

(define-condition unsupported-op (clgrpc-error)
  ((text :initarg :text :reader unsupported-op-text))
  (:report (lambda (condition stream) (write-string (unsupported-op-text condition) stream)))
  (:documentation "An op asks for TEXT, which does not exist here."))

(defstruct (policy-runner (:copier nil))
  "The state of a connection to the test's runner, on the side of the testee."
  (output nil :type (or null stream) :read-only t) ; the stream of octets to the runner
  (observer nil :read-only t)           ; the observer of the channels that it makes, or nil
  (lock (sb-thread:make-mutex :name "clgrpc lab") :read-only t) ; guards OUTPUT and CHANNELS
  (channels (make-hash-table :test #'equal) :type hash-table :read-only t) ; channels by their names
  ;; a semaphore that counts the places for further operations
  (places (sb-thread:make-semaphore :count +most-ops+) :read-only t))

;;; Ops, alists as PARSE-JSON makes them

(defun op-value (op name &optional default)
  "The value of NAME in OP, or DEFAULT if that is null or absent."
  (let ((value (cdr (assoc name op :test #'string=))))
    (if (member value '(nil :null)) default value)))

(defun op-object (op name)
  (let ((value (op-value op name)))
    (unless (listp value) (misuse "~A is an object, not ~S." name value))
    value))

(defun op-integer (op name &optional default)
  (let ((value (op-value op name default)))
    (unless (or (eq value default) (typep value '(integer 0 4294967295)))
      (misuse "~A is an integer from 0 on, not ~S." name value))
    value))

(defun op-seconds (op name)
  "The value of NAME in OP, a number of milliseconds, in seconds, or nil if it is absent."
  (let ((milliseconds (op-integer op name)))
    (and milliseconds (/ milliseconds 1000))))

;;; Channels

(defparameter *policy-runner-options*
  '(("dnsServiceConfig" :dns-service-config boolean)
    ("dnsMinIntervalMs" :resolve-interval-seconds seconds)
    ("retryEnabled" :retry boolean)
    ("maxRetryAttempts" :max-attempts count)
    ("retryBufferBytes" :replay-octets count)
    ("maxReceiveBytes" :max-receive-octets count)
    ("idleTimeoutMs" :idle-seconds seconds)
    ("backoffInitialMs" :backoff-initial-seconds seconds)
    ("backoffMaxMs" :backoff-maximum-seconds seconds)
    ("connectTimeoutMs" :connect-timeout-seconds seconds)
    ("keepaliveTimeMs" :keepalive-seconds seconds)
    ("keepaliveTimeoutMs" :keepalive-timeout-seconds seconds)
    ("keepaliveWithoutCalls" :keepalive-without-calls boolean)
    ("maxConcurrentRequests" :max-concurrent-requests count)
    ("maxConnectionsPerSubchannelLimit" :max-connections-per-subchannel count))
  "The options of channels in ops, their rows of the options table, and the types of their values.")

(defun policy-runner-option (options name row kind)
  "The option NAME, the row ROW of KIND, of the object OPTIONS as a plist; empty if the option is
missing."
  (let ((value (if (eq kind 'boolean)
                   (op-value options name)
                   (op-integer options name))))
    (cond ((null value) '())
          ((find-option-row row)
           (list row (ecase kind
                       (boolean (eq :true value))
                       (count value)
                       (seconds (/ value 1000)))))
          ((string= name "dnsMinIntervalMs") '())
          (t (error 'unsupported-op :text name)))))

(defun policy-runner-channel-arguments (op)
  "The keyword arguments of MAKE-CHANNEL that OP asks for."
  (let ((options (op-object op "options"))
        (config (op-value op "serviceConfig")))
    (append (loop for (name row kind) in *policy-runner-options*
                  append (policy-runner-option options name row kind))
            ;; off by default, as in the protocol
            '(:keepalive-seconds 0)
            (when config (list :service-config (write-json config))))))

(defun open-policy-runner-channel (policy-runner op)
  "Make the channel that OP asks for."
  (let ((name (op-value op "name"))
        (target (op-value op "target")))
    (let ((channel (apply #'grpc:make-channel target
                          :observer (policy-runner-observer policy-runner)
                          (policy-runner-channel-arguments op))))
      (sb-thread:with-mutex ((policy-runner-lock policy-runner))
        (setf (gethash name (policy-runner-channels policy-runner)) channel))))
  '(("ok" . :true)))

(defun policy-runner-channel (policy-runner op)
  (let ((name (op-value op "channel")))
    (or (sb-thread:with-mutex ((policy-runner-lock policy-runner))
                              (gethash name (policy-runner-channels policy-runner)))
        (misuse "There is no channel ~S." name))))

(defun state-name (state)
  (substitute #\_ #\- (symbol-name state)))

(defun connect-policy-runner-channel (channel)
  "Make CHANNEL leave :idle, without waiting for the result."
  (handler-case (grpc:ensure-connected channel :timeout 0)
    (grpc:rpc-error () nil))
  '(("ok" . :true)))

(defun await-policy-runner-state (channel op)
  "Wait for one of the states that OP lists."
  (let ((want (coerce (op-value op "want" #()) 'list))
        (end (+ (monotonic-ns) (seconds-ns (or (op-seconds op "timeoutMs") 0)))))
    (loop for state = (grpc:channel-state channel)
          for name = (state-name state)
          for left = (- end (monotonic-ns))
          do (cond ((member name want :test #'equal)
                    (return `(("ok" . :true) ("state" . ,name))))
                   ((or (<= left 0)
                        (not (grpc:wait-for-state-change channel state
                                                         :timeout (ns-seconds left))))
                    (return `(("state" . ,(state-name (grpc:channel-state channel))))))))))

;;; One RPC

(defun zero-payload (octets)
  (unless (<= octets +max-payload-octets+)
    (misuse "A payload has at most ~D octets, not ~D." +max-payload-octets+ octets))
  (zeros octets))

(defun policy-runner-call-options (op index)
  "The options of the stub that OP asks for; {i} in metadata stands for INDEX."
  (let ((timeout (op-seconds op "timeoutMs"))
        (wait (op-value op "waitForReady"))
        (metadata (op-object op "metadata")))
    (append (when timeout (list :timeout timeout))
            (when wait (list :wait-for-ready (eq :true wait)))
            (when metadata
              (list :metadata
                    (loop for (name . value) in metadata
                          collect (cons (string-downcase name)
                                        (uiop:frob-substrings value '("{i}")
                                                              (princ-to-string index)))))))))

(defun send-policy-runner-requests (call op request refusal)
  "Send REQUEST on CALL as often, and at such intervals, as OP requires. If CALL has not ended but
may not send REQUEST, cancel CALL and put the RPC-ERROR into the car of REFUSAL."
  (handler-case
      (loop for rest downfrom (max 1 (op-integer op "messages" 1))
            while (and (plusp rest)
                       (null (grpc:call-status call))
                       (grpc:send call request))
            do (when (> rest 1) (pause-ms (op-integer op "intervalMs" 0)))
            finally (grpc:close-send call))
    (grpc:rpc-error (error)
      ;; the receiver sees the status of a call
      (unless (grpc:call-status call)
        (setf (car refusal) error)
        (grpc:cancel call)))))

(defun unwritten-method ()
  "A method for which no code was made."
  (let ((empty (protobuf:find-message-type "grpc.testing.Empty")))
    (method:make-rpc-method :name "Nothing" :service-name "grpc.testing.TestService"
                            :path "/grpc.testing.TestService/Nothing" :kind :unary
                            :request-type empty :response-type empty)))

(defun begin-policy-runner-call (channel op options refusal)
  "Begin the RPC that OP asks for on CHANNEL with OPTIONS of its stub, and return the call. REFUSAL
is that of SEND-POLICY-RUNNER-REQUESTS."
  (let ((method (op-value op "method" "unary"))
        (payload (zero-payload (op-integer op "payloadBytes" 0)))
        (size (op-integer op "responseBytes" 0)))
    (flet ((response-parameters (count interval-us)
             (loop repeat count
                   collect (testing:make-response-parameters :size size
                                                             :interval-us interval-us)))
           (open-stream (stub request)
             (let ((call (apply stub channel :open options)))
               (sb-thread:make-thread #'send-policy-runner-requests
                                      :arguments (list call op request refusal)
                                                                    :name "clgrpc lab requests")
               call)))
      (cond ((string= method "unary")
             (apply #'grpc:call-async #'grpc.testing.test-service:unary-call channel
                    (testing:make-simple-request :response-size size :payload payload) options))
            ((string= method "server-stream")
             (apply #'grpc.testing.test-service:streaming-output-call channel
                    (testing:make-streaming-output-call-request
                     :payload payload
                     :response-parameters (response-parameters
                                           (max 1 (op-integer op "messages" 1))
                                           (* 1000 (op-integer op "intervalMs" 0))))
                    options))
            ((string= method "client-stream")
             (open-stream #'grpc.testing.test-service:streaming-input-call
                          (testing:make-streaming-input-call-request :payload payload)))
            ((string= method "bidi")
             (open-stream #'grpc.testing.test-service:full-duplex-call
                          (testing:make-streaming-output-call-request
                           :payload payload :response-parameters (response-parameters 1 0))))
            ((string= method "unimplemented")
             (apply #'grpc:call-async #'grpc.testing.test-service:unimplemented-call channel
                    (testing:make-empty) options))
            ((string= method "unknown")
             (apply #'grpc:call-async #'grpc.testing.unimplemented-service:unimplemented-call
                    channel (testing:make-empty) options))
            ((string= method "generic")
             (apply #'method:invoke channel (unwritten-method) (testing:make-empty) :async t
                    options))
            (t (error 'unsupported-op :text method))))))

(defun first-value (name metadata)
  (let ((value (cdr (assoc name metadata :test #'string=))))
    (and (stringp value) value)))

(defun joined-texts (metadata)
  "METADATA as a JSON object: the texts of each key, with commas between them."
  (let ((object '()))
    (loop for (name . value) in metadata
          for known = (assoc name object :test #'string=)
          do (cond ((not (stringp value))) ; binary
                   (known (setf (cdr known) (concatenate 'string (cdr known) "," value)))
                   (t (push (cons name value) object))))
    (nreverse object)))

(defun policy-runner-result (call code message received started-ns)
  "The answer about CALL, or about no call if CALL is nil, which ended with these values."
  (let* ((headers (and call (grpc:call-metadata call)))
         (trailers (and call (grpc:call-trailers call)))
         (backend (or (first-value "x-backend" headers) (first-value "x-backend" trailers))))
    `(("code" . ,code) ("message" . ,message)
      ,@(when backend `(("backend" . ,backend)))
      ("elapsedMs" . ,(/ (- (monotonic-ns) started-ns) 1d6))
      ("received" . ,received)
      ("trailers" . ,(joined-texts trailers)))))

(defun perform-policy-runner-call (channel op &optional (index 0))
  "Make the RPC that OP asks for on CHANNEL, the INDEXth of several; return its result."
  (let ((started-ns (monotonic-ns))
        (cancel (op-seconds op "cancelAfterMs"))
        (call nil) (timer nil) (received 0) (refusal (list nil)))
    (unwind-protect
         (handler-case
             (progn
               (setf call (begin-policy-runner-call channel op (policy-runner-call-options op index)
                                                    refusal))
               (when cancel
                 (setf timer (sb-ext:make-timer (lambda () (grpc:cancel call)) :thread t))
                 (sb-ext:schedule-timer timer (max cancel 1/1000)))
               (cond ((member (op-value op "method" "unary")
                              '("server-stream" "client-stream" "bidi") :test #'string=)
                      (loop while (grpc:receive call) do (incf received)))
                     (t (grpc:await call)
                        (incf received)))
               (policy-runner-result call 0 "" received started-ns))
           (grpc:rpc-error (error)
             (let ((error (or (car refusal) error)))
               (policy-runner-result call (grpc:status-code (grpc:rpc-error-status error))
                                     (grpc:rpc-error-message error) received started-ns)))
           (misuse (error)
             (unless (eq :shutdown (grpc:channel-state channel)) (error error))
             (policy-runner-result nil (grpc:status-code :unavailable) (princ-to-string error) 0
                                   started-ns)))
      (when timer (sb-ext:unschedule-timer timer)))))

;;; Several RPCs

(defun tally (values)
  "A JSON object with the number of times that each of VALUES, strings, occurs."
  (let ((counts '()))
    (dolist (value values counts)
      (let ((known (assoc value counts :test #'string=)))
        (if known (incf (cdr known)) (push (cons value 1) counts))))))

(defun policy-runner-summary (results)
  "The answer about the calls that had RESULTS."
  (let* ((times (sort (map 'vector (lambda (result) (op-value result "elapsedMs")) results) #'<))
         (count (length times)))
    (flet ((share (numerator denominator)
             (if (zerop count)
                 0
                 (aref times (min (1- count) (floor (* count numerator) denominator))))))
      `(("byCode" . ,(tally (loop for result in results
                                  collect (princ-to-string (op-value result "code")))))
        ("byBackend" . ,(tally (loop for result in results
                                     for backend = (op-value result "backend")
                                     when backend collect backend)))
        ("p50ms" . ,(share 1 2)) ("p99ms" . ,(share 99 100)) ("maxms" . ,(share 1 1))))))

(defun perform-policy-runner-calls (channel op)
  "Make the RPCs that OP asks for on CHANNEL."
  (let* ((count (op-integer op "count" 0))
         (workers (max 1 (op-integer op "parallel" 1)))
         (interval-ms (op-integer op "intervalMs" 0))
         (one (remove "intervalMs" op :key #'car :test #'string=))
         (lock (sb-thread:make-mutex :name "clgrpc lab calls"))
         (next 0) (results '()) (failure nil))
    (unless (<= workers +most-ops+)
      (misuse "There are at most ~D workers, not ~D." +most-ops+ workers))
    (flet ((work ()
             (handler-case
                 (loop for first = t then nil
                       for index = (sb-thread:with-mutex (lock)
                                     (and (< next count) (null failure) (1- (incf next))))
                       while index
                       do (unless first (pause-ms interval-ms))
                          (let ((result (perform-policy-runner-call channel one index)))
                            (sb-thread:with-mutex (lock) (push result results))))
               (error (error) (setf failure error)))))
      (mapc #'sb-thread:join-thread
            (loop repeat (min workers (max 1 count))
                  collect (sb-thread:make-thread #'work :name "clgrpc lab worker")))
      (when failure (error failure))
      (policy-runner-summary results))))

;;; Answers

(defun perform-op (policy-runner op)
  "Do OP; return its answer."
  (let ((name (op-value op "op" "")))
    (flet ((op-p (known) (string= name known))
           (channel () (policy-runner-channel policy-runner op)))
      (cond ((op-p "hello") '(("ok" . :true)))
            ((op-p "channel") (open-policy-runner-channel policy-runner op))
            ((op-p "call") (perform-policy-runner-call (channel) op))
            ((op-p "calls") (perform-policy-runner-calls (channel) op))
            ((op-p "state") `(("state" . ,(state-name (grpc:channel-state (channel))))))
            ((op-p "connect") (connect-policy-runner-channel (channel)))
            ((op-p "awaitState") (await-policy-runner-state (channel) op))
            ((op-p "close") (grpc:close-channel (channel)) '(("ok" . :true)))
            (t (error 'unsupported-op :text name))))))

(defun tell (policy-runner op answer)
  "Send ANSWER, an object, the result of OP, to the runner of POLICY-RUNNER."
  (let ((line (string-octets
               (format nil "~A~%" (write-json (acons "id" (op-value op "id" :null) answer))))))
    (sb-thread:with-mutex ((policy-runner-lock policy-runner))
      (write-sequence line (policy-runner-output policy-runner))
      (finish-output (policy-runner-output policy-runner)))))

(defun answer-op (policy-runner op)
  "Do OP and send its result to the runner of POLICY-RUNNER."
  (tell policy-runner op (handler-case (perform-op policy-runner op)
                           (unsupported-op (condition)
                             `(("unsupported" . :true) ("error" . ,(princ-to-string condition))))
                           (error (error) `(("error" . ,(princ-to-string error)))))))

(defun take-op (policy-runner op)
  "Answer OP on a thread of its own. If OP makes a channel, this returns only when the channel is
made."
  (cond ((equal "channel" (op-value op "op")) (answer-op policy-runner op))
        ((sb-thread:try-semaphore (policy-runner-places policy-runner))
         (sb-thread:make-thread (lambda ()
                                  (unwind-protect (answer-op policy-runner op)
                                    (sb-thread:signal-semaphore
                                     (policy-runner-places policy-runner))))
                                :name "clgrpc lab op"))
        (t (tell policy-runner op '(("error" . "too many ops are under way"))))))

(defun read-op-line (input)
  "The octets of the next line of INPUT without its end, or nil at the end of INPUT."
  (let ((line (make-array 256 :element-type 'octet :adjustable t :fill-pointer 0)))
    (loop for octet = (read-byte input nil)
          until (member octet '(nil 10))
          do (when (= (length line) +longest-op+)
               (misuse "A line has more than ~D octets." +longest-op+))
             (vector-push-extend octet line)
          finally (return (if (or octet (plusp (length line)))
                              (coerce line 'octets)
                              nil)))))

(defun be-driven (input output &key observer)
  "Do the ops in the lines of the stream INPUT until it ends; write the result of each to the stream
OUTPUT. OBSERVER is the observer of the channels, or nil."
  (loop with policy-runner = (make-policy-runner :output output :observer observer)
        for line = (read-op-line input)
        while line
        do (handler-case (unless (every (lambda (octet) (member octet '(9 13 32))) line)
                           (take-op policy-runner (parse-json line)))
             ((or json-error limit-exceeded) (error)
               (format *error-output* "~A~%" error))))
  0)
