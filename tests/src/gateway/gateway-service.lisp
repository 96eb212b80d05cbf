;;;; Calls through a gateway to a probe; the gateway knows the probe's methods or not.

(in-package #:clgrpc.tests.gateway)

(defun bench-methods ()
  "The methods of the probe, as a gateway knows them."
  (grpc:pool-methods
   (grpc:make-type-pool (list (protobuf:file-of-symbol "lab.Bench")))
   :raw t))

(defun call-with-gateway (function handlers methods &rest options)
  "Call FUNCTION with a channel to a gateway that knows METHODS, its server and its service, in
front of a probe with HANDLERS."
  (call-with-log
   '()
   (lambda ()
     (with-started (behind (apply #'start-probe handlers options) :drain 5)
       (grpc:with-channel (inner (grpc:server-address behind))
         (let* ((service (grpc:make-gateway-service inner :methods methods))
                (server (grpc:start-server service
                                           :protocols '(:grpc :grpc-web :connect :rest))))
           (unwind-protect
                (grpc:with-channel (channel (grpc:server-address server))
                  (funcall function channel server service))
             (grpc:stop-server server :drain 5))))))))

(defmacro with-gateway ((channel server &key (service (gensym "SERVICE")) (methods ''()))
                        (&rest handlers)
                        &body body)
  "Evaluate BODY with CHANNEL to SERVER, a gateway that knows METHODS, in front of a probe."
  `(call-with-gateway (lambda (,channel ,server ,service)
                        (declare (ignorable ,channel ,server ,service))
                        ,@body)
                      (list ,@handlers) ,methods))

(defmacro by-either ((channel &rest handlers) &body body)
  "Evaluate BODY with CHANNEL to a gateway that knows the methods, and to one that does not."
  (let ((methods (gensym "METHODS")) (server (gensym "SERVER")))
    `(dolist (,methods (list '() (bench-methods)))
       (with-gateway (,channel ,server :methods ,methods) (,@handlers) ,@body))))

(test all-kinds-of-calls-are-forwarded
  (by-either (channel :ask #'double :watch #'count-up :collect #'add-up :chat #'echo)
    (is (= 42 (number-of (ask channel (note 21)))))
    (is (equal '(0 1 2) (numbers (watch channel (note 3)))))
    (is (= 6 (number-of (collect channel (list (note 1) (note 2) (note 3))))))
    (is (equal '(7 8) (numbers (chat channel (list (note 7) (note 8))))))
    (let ((call (chat channel :open)))
      (dotimes (i 20)
        (grpc:send call (note i))
        (is (= i (number-of (grpc:receive call)))))
      (grpc:close-send call)
      (is (null (grpc:receive call))))))

(test metadata-goes-both-ways
  (by-either (channel :ask (lambda (request call)
                             (grpc:send-metadata
                              call (list (assoc "a" (grpc:call-metadata call) :test #'string=)
                                         (cons "from" (cdr (assoc "x-forwarded-for"
                                                                  (grpc:call-metadata call)
                                                                  :test #'string=)))))
                             (setf (grpc:call-trailers call) '(("t" . "2")))
                             (double request call)))
    (multiple-value-bind (reply call) (ask channel (note 1) :metadata '(("a" . "1")))
      (is (= 2 (number-of reply)))
      (flet ((value (name) (cdr (assoc name (grpc:call-metadata call) :test #'string=))))
        (is (string= "1" (value "a")))
        (is (string= "127.0.0.1" (value "from"))))
      (is (string= "2" (cdr (assoc "t" (grpc:call-trailers call) :test #'string=)))))))

(test the-client-s-address-is-the-last-of-one-header
  "This holds however many such headers the client has sent: backend servers trust the last."
  (by-either (channel :ask (lambda (request call)
                             (grpc:send-metadata
                              call (loop for (name . value) in (grpc:call-metadata call)
                                         when (string= "x-forwarded-for" name)
                                           collect (cons "from" value)))
                             (double request call)))
    (multiple-value-bind (reply call)
        (ask channel (note 1) :metadata '(("x-forwarded-for" . "10.1.1.1")
                                          ("x-forwarded-for" . "6.6.6.6")))
      (is (= 2 (number-of reply)))
      (is (equal '("10.1.1.1, 6.6.6.6, 127.0.0.1")
                 (loop for (name . value) in (grpc:call-metadata call)
                       when (string= "from" name) collect value))))))

(test statuses-go-back-with-their-details
  (flet ((refuse (request call)
           (declare (ignore request))
           (grpc:send-metadata call '(("h" . "1")))
           (setf (grpc:call-trailers call) '(("t" . "2")))
           (grpc:fail :not-found "no such note" :details (list (note 7)))))
    (by-either (channel :ask #'refuse :watch #'refuse :collect #'refuse :chat #'refuse)
      (flet ((check (function)
               (with-signalled (error grpc:not-found (funcall function))
                 (is (string= "no such note" (grpc:rpc-error-message error)))
                 (is (= 7 (number-of (first (grpc:rpc-error-details error)))))
                 (is (string= "1" (cdr (assoc "h" (grpc:call-metadata
                                                   (grpc:rpc-error-call error))
                                              :test #'string=))))
                 (is (string= "2" (cdr (assoc "t" (grpc:rpc-error-trailers error)
                                              :test #'string=)))))))
        (check (lambda () (ask channel (note 1))))
        (check (lambda () (numbers (watch channel (note 1)))))
        (check (lambda () (collect channel (list (note 1)))))
        (check (lambda () (numbers (chat channel (list (note 1))))))))))

(test one-gateway-of-several-servers
  "A stopped server of the same gateway is not involved in another server's calls, which use their
own server's threads."
  (with-gateway (channel server :service service) (:chat #'echo)
    (is-true (grpc:stop-server (grpc:start-server service) :drain 5))
    (signals grpc:misuse (grpc:start-server (list service (grpc:make-gateway-service channel))))
    (let ((call (chat channel :open)))
      (grpc:send call (note 1))
      (is (= 1 (number-of (grpc:receive call))))
      (is (null (find "clgrpc gateway" (sb-thread:list-all-threads)
                      :key #'sb-thread:thread-name :test #'equal)))
      (grpc:close-send call)
      (is (null (grpc:receive call))))))

(test a-channel-that-is-closed-is-unavailable
  "The gateway does not log this, since each call would add a line."
  (dolist (methods (list '() (bench-methods)))
    (call-with-log
     '()
     (lambda ()
       (let* ((inner (grpc:make-channel "127.0.0.1:1"))
              (server (grpc:start-server (grpc:make-gateway-service inner :methods methods))))
         (grpc:close-channel inner)
         (grpc:with-channel (channel (grpc:server-address server))
           (flet ((check (function)
                    (with-signalled (error grpc:unavailable (funcall function))
                      (is (string= "the gateway's channel is closed"
                                   (grpc:rpc-error-message error))))))
             (check (lambda () (ask channel (note 1))))
             (check (lambda () (numbers (watch channel (note 1)))))
             (check (lambda () (collect channel (list (note 1)))))
             (check (lambda () (numbers (chat channel (list (note 1))))))))
         (grpc:stop-server server :drain 5))))))

(test what-is-not-there-is-not-there
  (by-either (channel)
    (signals grpc:unimplemented (ask channel (note 1)))
    (signals grpc:unimplemented (numbers (chat channel (list (note 1)))))))

(test the-time-that-is-left-goes-along
  (by-either (channel :ask (fn (_request call) (note (ceiling (grpc:time-remaining call)))))
    (is (<= 900 (number-of (ask channel (note 1) :timeout 1000)) 1000))))

(test a-client-that-leaves-cancels-the-call-behind
  (let ((begun (make-signal)) (left (make-signal)))
    (flet ((wait (request call)
             (declare (ignore request))
             (grpc:on-cancel call (lambda () (signal-it left)))
             (signal-it begun)
             call))
      (by-either (channel :watch #'wait :chat #'wait)
        (dolist (function (list (lambda () (watch channel (note 1)))
                                (lambda () (chat channel :open))))
          (let ((call (funcall function)))
            (is-true (await-signal begun))
            (grpc:cancel call)
            (is-true (await-signal left))))))))

(test a-slow-client-holds-the-server-back
  "The backend server sends only what has room on the way to a client that does not read."
  (let ((sent (list 0)) (total 2000))
    (flet ((pour (request call)
             (dotimes (i total)
               (grpc:send call request)
               (sb-ext:atomic-incf (car sent)))))
      (by-either (channel :watch #'pour)
        (setf (car sent) 0)
        (let ((call (watch channel (note 1 :body 10000))) (before -1))
          (is (= 1 (number-of (grpc:receive call))))
          ;; until it stands still
          (eventually (prog1 (and (< 0 before) (= before (car sent)))
                        (setf before (car sent))
                        (await-signal (make-signal) :seconds 0.2)))
          (is (< (car sent) total))
          (is (= (1- total) (length (numbers call))))
          (is (= total (car sent))))))))

(defun post-json (server method text)
  "Connect's answer to TEXT, a request of METHOD in JSON."
  (string-right-trim "|" (curl server (format nil "/lab.Bench/~A" method)
                               "-H" "content-type: application/json" "-d" text)))

(test requests-that-end-by-an-error-cancel-the-call-behind
  "An error that is not a call's ends the thread that forwards requests: then the backend server
does not wait for the rest of them."
  (with-gateway (channel server) (:collect (handling (stream)
                                             (grpc:do-messages (message stream))
                                             (note 1)))
    (let ((forwarded (collect channel :open :timeout 60)))
      (signals grpc:misuse (clgrpc.gateway::send-requests 'no-call forwarded #'identity))
      (signals grpc:cancelled (grpc:receive forwarded)))))

(test answers-that-are-no-messages
  "By gRPC, octets from another server are forwarded unchanged. In JSON they end the call as its
server's fault; the gateway logs no error, since they could fill its log."
  (call-with-log
   '()
   (lambda ()
     (let* ((octets (coerce '(255 255 255) 'octets))
            (behind (grpc:start-server
                     (grpc:make-generic-service
                      (fn (_method requests call)
                        (grpc:receive requests)
                        (grpc:send call (grpc:raw-message octets)))))))
       (grpc:with-channel (inner (grpc:server-address behind))
         (let ((server (grpc:start-server (grpc:make-gateway-service inner :methods (bench-methods))
                                          :protocols '(:grpc :connect))))
           (is (search "\"internal\",\"message\":\"the answer cannot be parsed"
                       (post-json server "Ask" "{\"number\": 21}")))
           (grpc:with-channel (channel (grpc:server-address server))
             (signals grpc:internal (ask channel (note 1))))
           (grpc:stop-server server :drain 5)))
       (grpc:stop-server behind :drain 5)))))

(test known-methods-are-called-in-json
  (with-gateway (channel server :service service :methods (bench-methods))
      (:ask #'double)
    (is (string= "{\"number\":\"42\"}" (post-json server "Ask" "{\"number\": 21}")))
    (is (search "\"invalid_argument\"" (post-json server "Ask" "{\"number\": {}}")))
    (setf (grpc:generic-service-methods service) '())
    (is (not (search "42" (post-json server "Ask" "{\"number\": 21}"))))
    (is (= 42 (number-of (ask channel (note 21)))) "gRPC needs no types")
    (setf (grpc:generic-service-methods service) (bench-methods))
    (is (string= "{\"number\":\"42\"}" (post-json server "Ask" "{\"number\": 21}")))))

(defun call-with-heap-promised (function)
  "Call FUNCTION while no more of the heap can be promised."
  (let ((octets (clgrpc.base:heap-size)))
    (sb-ext:atomic-incf (car clgrpc.base::**promised**) octets)
    (unwind-protect (funcall function)
      (settle-octets octets))))

(test raw-messages-have-their-room-promised
  "A message converted to or from JSON is decoded on the way, which may take many times its octets:
only if the heap has room, however short the message is. A message that takes little passes."
  (let ((behind (start-probe (list :ask (handling (request)
                                          (note 1 :body (number-of request)))))))
    (grpc:with-channel (inner (grpc:server-address behind))
      (let* ((server (grpc:start-server (grpc:make-gateway-service inner :methods (bench-methods))
                                        :protocols '(:connect) :room-wait-seconds 0))
             (long (make-string 20000 :initial-element #\x)))
        (flet ((answered (number &optional (text ""))
                 (let ((answer (post-json server "Ask" (format nil "{\"number\":~D,\"text\":\"~A\"}"
                                                               number text))))
                   (cond ((search "\"body\":" answer) :body)
                         ((search "\"resource_exhausted\"" answer) :exhausted)
                         (t answer)))))
          (is (eq :body (answered 20000)))
          (is (eq :body (answered 10 long)))
          (call-with-heap-promised
           (lambda ()
             (is (eq :exhausted (answered 20000)) "the room for an answer is lacking")
             (is (eq :exhausted (answered 10 long)) "the room for a request is lacking")
             (is (eq :body (answered 10)))))
          (is (eq :body (answered 20000)))
          (grpc:stop-server server :drain 5))))
    (grpc:stop-server behind :drain 5)))

(test room-for-raw-messages
  "The estimate for a message that is not decoded is at least what it takes when decoded."
  (let* ((type (protobuf:make-raw-type "lab.Note" (protobuf:find-message-type "lab.Note")))
         (octets (coerce (loop repeat 5000 collect #x22 collect 0) 'octets)))
    (flet ((wanted (count) (protobuf:decoded-room type count 100000000)))
      (multiple-value-bind (message inside)
          (protobuf:parse-json-message "lab.Note" (protobuf:message-json
                                                   (protobuf:parse-message "lab.Note" octets)))
        (is (= 5000 (length (lab:note-parts message))))
        (is (< (* 5000 50) inside (wanted (length octets)))))
      (is (< (wanted 100) 20000))
      (is (< (- (protobuf:decoded-room type 10000 0) 80000) (* 100 10000))))))

(test requests-that-cannot-be-sent-on
  "A request that the gateway's channel may not send ends the call with that error, and cancels the
call to the backend server, which waits for the request."
  (call-with-log
   '()
   (lambda ()
     (dolist (methods (list '() (bench-methods)))
       (let* ((begun (make-signal))
              (left (make-signal))
              (behind (start-probe (list :collect (lambda (stream call)
                                                    (grpc:on-message
                                                     stream
                                                     (fn (_note) (signal-it begun)))
                                                    (grpc:on-cancel call
                                                                    (lambda () (signal-it left)))
                                                    call)))))
         (grpc:with-channel (inner (grpc:server-address behind) :max-send-octets 1000)
           (let ((server (grpc:start-server (grpc:make-gateway-service inner :methods methods))))
             (grpc:with-channel (channel (grpc:server-address server))
               (let ((call (collect channel :open :timeout 60)))
                 (grpc:send call (note 1))
                 (is-true (await-signal begun))
                 (grpc:send call (note 1 :body 2000))
                 (signals grpc:resource-exhausted (grpc:receive call))
                 (is-true (await-signal left)))
               (signals grpc:resource-exhausted
                 (ask channel (note 1 :body 2000) :timeout 60)))
             (grpc:stop-server server :drain 5)))
         (grpc:stop-server behind :drain 5))))))

(test errors-of-a-thread-beside-a-call-are-logged
  "Without a reserve thread it is a new thread."
  (with-started (server (start-probe (list :ask (lambda (note call)
                                                  (clgrpc.gateway::run-beside call #'error)
                                                  (double note call)))))
    (grpc:with-channel (channel (grpc:server-address server))
      (with-logged (events :gateway-error)
        (with-replaced (('clgrpc.loop:run-on-reserve (constantly nil)))
          (ask channel (note 1))
          (is-true (wait-until #'events)))
        (is (eq :error (first (first (events)))))))))
