;;;; Our client against grpc-go's server: what `peer scenario-client` asks of servers, asked of our
;;;; client. Every call has a time-out, so that nothing can hang unnoticed.

(in-package #:clgrpc.tests.interop)

(defparameter *limit-seconds* 60
  "The time-out of calls that should end by themselves.")

(defmacro with-go-server ((channel &optional (server (gensym "SERVER"))
                                             (address (gensym "ADDRESS")))
                          &body body)
  "Run BODY with CHANNEL to a `peer scenario-server`, the program SERVER at ADDRESS."
  (let ((peer (gensym "PEER")))
    `(let ((,peer (need-peer)))
       (with-server-program (,server ,address ,peer "scenario-server" "-max-receive-octets"
                                     (princ-to-string *max-receive-octets*))
         (grpc:with-channel (,channel ,address :max-receive-octets *max-receive-octets*)
           ,@body)))))

;;; Messages

(defun payload (size)
  (testing:make-payload :body (make-array size :element-type '(unsigned-byte 8)
                                               :initial-element 7)))

(defun echo-request (size &key (pause-us 0))
  "A request of SIZE octets that asks for as many back after PAUSE-US microseconds."
  (testing:make-streaming-output-call-request
   :payload (payload size)
   :response-parameters (vector (testing:make-response-parameters :size size
                                                                  :interval-us pause-us))))

(defun response-size (response)
  (length (testing:payload-body (testing:streaming-output-call-response-payload response))))

(defun size-of (i)
  "The size of message I of a stream tells its place."
  (mod i 97))

(defun sizes-request (count)
  "A request of COUNT messages whose sizes tell their places."
  (testing:make-streaming-output-call-request
   :response-parameters (coerce (loop for i below count
                                      collect (testing:make-response-parameters :size (size-of i)))
                                'vector)))

(defun counter (count function)
  "A generator of (FUNCTION i) for each I under COUNT, then nil."
  (let ((i -1))
    (lambda () (when (< (incf i) count) (funcall function i)))))

(defun check-sizes (count call)
  "Check that CALL answers with COUNT messages whose sizes tell their places, and then ends well."
  (let ((i 0))
    (grpc:do-messages (response call)
      (unless (= (size-of i) (response-size response))
        (fail "message ~D has ~D octets" i (response-size response)))
      (incf i))
    (is (= count i))
    (is (eq :ok (grpc:call-status call)))))

(defun greet (channel name &key (timeout *limit-seconds*))
  (helloworld:hello-reply-message
   (helloworld.greeter:say-hello channel (helloworld:make-hello-request :name name)
                                 :timeout timeout)))

(defun greet-async (channel name &key (timeout *limit-seconds*))
  (grpc:call-async #'helloworld.greeter:say-hello channel
                   (helloworld:make-hello-request :name name) :timeout timeout))

(defun check-serves (channel)
  (is (string= "Hello, Ada!" (greet channel "Ada"))))

;;; Streams

(test our-client-streams-down
  (with-go-server (channel)
    (check-sizes 10000 (test-service:streaming-output-call channel (sizes-request 10000)
                                                           :timeout *limit-seconds*))))

(test our-client-streams-up
  (with-go-server (channel)
    (let ((reply (test-service:streaming-input-call
                  channel
                  (counter 10000 (lambda (i) (testing:make-streaming-input-call-request
                                              :payload (payload (size-of i)))))
                  :timeout *limit-seconds*)))
      (is (= (loop for i below 10000 sum (size-of i))
             (testing:streaming-input-call-response-aggregated-payload-size reply))))))

(test our-client-streams-both-ways
  (with-go-server (channel)
    (check-sizes 10000 (test-service:full-duplex-call
                        channel (counter 10000 (lambda (i) (echo-request (size-of i))))
                        :timeout *limit-seconds*))))

(test our-client-plays-ping-pong
  (with-go-server (channel)
    (grpc:with-call (call (test-service:full-duplex-call channel :open :timeout *limit-seconds*))
      (dotimes (i 2000)
        (grpc:send call (echo-request (size-of i)))
        (unless (= (size-of i) (response-size (grpc:receive call)))
          (fail "message ~D" i)))
      (grpc:close-send call)
      (is (null (grpc:receive call))))))

;;; Sizes

(test our-client-sends-nothing
  (with-go-server (channel)
    (dotimes (i 100)
      (is (typep (test-service:empty-call channel (testing:make-empty) :timeout *limit-seconds*)
                 'testing:empty)))
    (check-sizes 0 (test-service:full-duplex-call
                    channel
                    (counter 100 (fn (_i) (testing:make-streaming-output-call-request)))
                    :timeout *limit-seconds*))))

(defun check-big-messages (channel size count)
  (dotimes (i count)
    (let ((response (test-service:unary-call
                     channel (testing:make-simple-request :response-size size
                                                          :payload (payload size))
                     :timeout *limit-seconds*)))
      (is (= size (length (testing:payload-body (testing:simple-response-payload response)))))))
  (grpc:with-call (call (test-service:full-duplex-call channel :open :timeout *limit-seconds*))
    (dotimes (i count)
      (grpc:send call (echo-request size))
      (is (= size (response-size (grpc:receive call)))))
    (grpc:close-send call)
    (is (null (grpc:receive call)))))

(test our-client-sends-1m
  (with-go-server (channel) (check-big-messages channel (* 1024 1024) 8)))

(test our-client-sends-16m
  (with-go-server (channel) (check-big-messages channel (* 16 1024 1024) 2)))

(test our-client-refuses-a-message-too-long
  (with-go-server (channel)
    (signals grpc:resource-exhausted
      (test-service:unary-call
       channel (testing:make-simple-request :response-size (1+ *max-receive-octets*))
       :timeout *limit-seconds*))
    (signals grpc:resource-exhausted
      (test-service:unary-call
       channel (testing:make-simple-request :payload (payload (1+ *max-receive-octets*)))
       :timeout *limit-seconds*))
    (check-serves channel)))

;;; Many at once

(test our-client-makes-100-calls-at-once
  (with-go-server (channel)
    (let ((futures (loop repeat 100 collect (greet-async channel "delay:200"))))
      ;; one after another they would take 20 seconds
      (is (loop for future in futures
                always (string= "Hello, delay:200!"
                                (helloworld:hello-reply-message (grpc:await future))))))
    (let ((calls (loop repeat 100
                       collect (test-service:full-duplex-call channel :open
                                                              :timeout *limit-seconds*))))
      (dolist (call calls) (grpc:send call (echo-request 10)))
      (dolist (call calls) (is (= 10 (response-size (grpc:receive call)))))
      (dolist (call calls) (grpc:close-send call))
      (dolist (call calls) (is (null (grpc:receive call)))))))

(test our-client-is-called-by-many-threads
  (with-go-server (channel)
    (let ((threads (loop for i below 20
                         collect (let ((name (format nil "thread ~D" i)))
                                   (in-thread (loop repeat 100
                                                    always (string= (format nil "Hello, ~A!" name)
                                                                    (greet channel name))))))))
      (dolist (thread threads)
        (is (eq t (sb-thread:join-thread thread :default nil :timeout *limit-seconds*)))))))

(test our-client-has-100-channels
  (with-go-server (channel server address)
    (check-serves channel)
    (let ((channels (loop repeat 100 collect (grpc:make-channel address))))
      (unwind-protect
           (let ((before (os:open-descriptor-count (program-pid server))))
             (mapc #'check-serves channels)
             (is (<= (+ before 100) (os:open-descriptor-count (program-pid server)))))
        (mapc #'grpc:close-channel channels)))))

(test our-client-waits-for-sleepers
  (with-go-server (channel)
    (let ((sleepers (loop repeat 10
                          collect (test-service:full-duplex-call channel :open
                                                                 :timeout *limit-seconds*))))
      (dolist (call sleepers) (grpc:send call (echo-request 1 :pause-us 1000000)))
      (loop repeat 100 do (check-serves channel))
      (dolist (call sleepers)
        (is (= 1 (response-size (grpc:receive call))))
        (grpc:close-send call)
        (is (null (grpc:receive call)))))))

;;; Ends before the end

(test our-client-cancels
  (with-go-server (channel)
    (loop for future in (loop repeat 20 collect (greet-async channel "delay:3600000"))
          do (grpc:cancel future)
             (signals grpc:cancelled (grpc:await future)))
    (dotimes (i 20)
      (let ((call (test-service:full-duplex-call channel :open :timeout *limit-seconds*)))
        (grpc:send call (echo-request 10))
        (is (= 10 (response-size (grpc:receive call))))
        (grpc:cancel call)
        (signals grpc:cancelled (grpc:receive call))
        (is (eq :cancelled (grpc:call-status call)))))
    ;; a form that is left cancels what runs
    (let ((left nil))
      (grpc:with-call (call (test-service:full-duplex-call channel :open :timeout *limit-seconds*))
        (grpc:send call (echo-request 10))
        (grpc:receive call)
        (setf left call))
      (signals grpc:cancelled (grpc:receive left)))
    (check-serves channel)))

(test our-client-keeps-deadlines
  (with-go-server (channel)
    (check-serves channel)
    (signals grpc:deadline-exceeded (greet channel "delay:3600000" :timeout 0.3))
    (loop for future in (loop repeat 20
                              collect (greet-async channel "delay:3600000" :timeout 0.3))
          do (signals grpc:deadline-exceeded (grpc:await future)))
    (let ((call (test-service:full-duplex-call channel :open :timeout 0.3)))
      (signals grpc:deadline-exceeded (grpc:receive call)))
    (check-serves channel)))

(test our-client-survives-its-server
  "All calls end with :unavailable when the server is killed; none hangs."
  (with-go-server (channel server)
    (check-serves channel)
    (let ((futures (loop repeat 10 collect (greet-async channel "delay:3600000")))
          (calls (loop repeat 10
                       collect (test-service:full-duplex-call channel :open
                                                              :timeout *limit-seconds*))))
      (dolist (call calls)
        (grpc:send call (echo-request 10))
        (is (= 10 (response-size (grpc:receive call)))))
      (kill-program server)
      (dolist (future futures) (signals grpc:unavailable (grpc:await future)))
      (dolist (call calls) (signals grpc:unavailable (grpc:receive call)))
      (with-signalled (error grpc:unavailable (greet channel "Ada"))
        (is (search "refused" (string-downcase (princ-to-string error)))
            "~A" error)))))

;;; What comes with the messages

(test our-client-understands-statuses
  (with-go-server (channel)
    (loop for code from 1 to 16
          do (dolist (message (list "" "plain"
                                    (format nil "100% off, ~C~C and λ → 🙂" #\Tab #\Newline)))
               (handler-case
                   (progn
                     (test-service:unary-call
                      channel
                      (testing:make-simple-request
                       :response-status (testing:make-echo-status :code code :message message))
                      :timeout *limit-seconds*)
                     (fail "no error for the code ~D" code))
                 (grpc:rpc-error (error)
                   (is (eq (grpc:code-status code) (grpc:rpc-error-status error)))
                   (is (string= message (grpc:rpc-error-message error)))))))
    (signals grpc:unimplemented
      (test-service:unimplemented-call channel (testing:make-empty) :timeout *limit-seconds*))))

;;; The commands

(test our-interop-client
  (let ((peer (need-peer)))
    (with-server-program (server address peer "scenario-server")
      (let ((port (subseq address (1+ (position #\: address :from-end t)))))
        (dolist (name '("empty_unary" "ping_pong" "custom_metadata" "special_status_message"
                        "cancel_after_first_response" "timeout_on_sleeping_server"))
          (multiple-value-bind (code lines)
              (run-to-end (testee-program)
                          (list "interop-client" "--server_host" "127.0.0.1"
                                "--server_port" port "--test_case" name))
            (is (eql 0 code) "exit code ~D:~{~%      ~A~}" code lines)))))))

(test our-route-guide-client
  (let ((peer (need-peer)))
    (with-server-program (server address peer "routeguide-server")
      (multiple-value-bind (code lines)
          (run-to-end (testee-program) (list "routeguide-client" address))
        (is (eql 0 code) "exit code ~D:~{~%      ~A~}" code lines)))))

(test our-call-by-grpc-go-reflection
  "Its files have the names of ours and are others: SimpleResponse has a hostname there."
  (let ((peer (need-peer)))
    (with-server-program (server address peer "scenario-server")
      (flet ((ours (&rest arguments)
               (multiple-value-list (run-to-end (testee-program) arguments))))
        (is (member "  string hostname = 6;"
                    (second (ours "describe" address "grpc.testing.SimpleResponse"))
                    :test #'string=))
        (is (equal '(0 ("{" "  \"payload\": {" "    \"body\": \"AAAA\"" "  }" "}"))
                   (ours "call" address "grpc.testing.TestService/UnaryCall"
                        "-d" "{\"responseSize\": 3, \"responseType\": \"COMPRESSABLE\"}")))
        (is (eql (+ 64 7)
                 (first (ours "call" address "grpc.testing.TestService/UnaryCall"
                             "-d" "{\"responseStatus\": {\"code\": 7}}"))))))))

;;; Compression

(test our-client-compresses
  "grpc-go answers in the encoding it is asked in, and has only gzip."
  (with-go-server (channel)
    (flet ((ask (size &rest options)
             (multiple-value-bind (reply call)
                 (apply #'test-service:unary-call
                        channel (testing:make-simple-request :response-size size
                                                             :payload (payload size))
                        :timeout *limit-seconds* options)
               (is (= size (length (testing:payload-body (testing:simple-response-payload reply)))))
               (grpc:received-compressed-p call))))
      (dolist (size '(1 1000 20000 1000000))
        (is-true (ask size :compression :gzip))
        (is-false (ask size)))
      ;; it refuses others without saying which it accepts
      (signals grpc:unimplemented (ask 1000 :compression :deflate))
      (is-true (ask 1000 :compression :gzip)))
    (grpc:with-call (call (test-service:full-duplex-call channel :open :compression :gzip
                                                         :timeout *limit-seconds*))
      (loop for (size compress) in '((10 t) (5000 nil) (5000 t) (300000 t))
            do (grpc:send call (echo-request size) :compress compress)
               (is (= size (response-size (grpc:receive call))))
               (is-true (grpc:received-compressed-p call)))
      (grpc:close-send call)
      (is (null (grpc:receive call))))))

;;; Unix sockets

(test our-client-over-unix-sockets
  (let ((peer (need-peer)))
    (let ((path (free-unix-path)))
      (with-server-program (server address peer "scenario-server"
                                   "-listen" (format nil "unix:~A" path))
        (is (string= (format nil "unix:~A" path) address))
        (dolist (target (list address (format nil "unix://~A" path)))
          (grpc:with-channel (channel target)
            (check-serves channel)
            (check-sizes 1000 (test-service:full-duplex-call
                               channel (counter 1000 (lambda (i) (echo-request (size-of i))))
                               :timeout *limit-seconds*))
            (multiple-value-bind (reply call)
                (test-service:empty-call channel (testing:make-empty) :timeout *limit-seconds*)
              (declare (ignore reply))
              (is (string= address (grpc:call-peer call))))))))))
