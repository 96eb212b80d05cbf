;;;; The service as clients see it: each of its methods, counts after all kinds of calls, permanent
;;;; numbers, pages, and the removal of closed objects.

(in-package #:clgrpc.tests.channelz)

;;; Asking

(defun call-with-channelz (function)
  "Call FUNCTION with a channel to a server that only serves channelz."
  (with-started (server (grpc:start-server (make-instance 'grpc:channelz-service)) :drain 0)
    (grpc:with-channel (channelz (grpc:server-address server))
      (funcall function channelz))))

(defmacro with-channelz ((channelz) &body body)
  `(call-with-channelz (lambda (,channelz) ,@body)))

(defun top-channels (channelz &key (start 0) (most 0))
  "Two values: the channels, and whether they are the last."
  (let ((response (methods:get-top-channels
                   channelz (v1:make-get-top-channels-request :start-channel-id start
                                                              :max-results most)
                   :timeout +patience+)))
    (values (coerce (v1:get-top-channels-response-channel response) 'list)
            (v1:get-top-channels-response-end response))))

(defun servers (channelz &key (start 0) (most 0))
  (let ((response (methods:get-servers
                   channelz (v1:make-get-servers-request :start-server-id start :max-results most)
                   :timeout +patience+)))
    (values (coerce (v1:get-servers-response-server response) 'list)
            (v1:get-servers-response-end response))))

(defun sockets (channelz server &key (start 0) (most 0))
  (let ((response (methods:get-server-sockets
                   channelz (v1:make-get-server-sockets-request
                             :server-id server :start-socket-id start :max-results most)
                   :timeout +patience+)))
    (values (map 'list #'v1:socket-ref-socket-id
                 (v1:get-server-sockets-response-socket-ref response))
            (v1:get-server-sockets-response-end response))))

(defun the-channel (channelz number)
  (v1:get-channel-response-channel
   (methods:get-channel channelz (v1:make-get-channel-request :channel-id number)
                        :timeout +patience+)))

(defun the-subchannel (channelz number)
  (v1:get-subchannel-response-subchannel
   (methods:get-subchannel channelz (v1:make-get-subchannel-request :subchannel-id number)
                           :timeout +patience+)))

(defun the-server (channelz number)
  (v1:get-server-response-server
   (methods:get-server channelz (v1:make-get-server-request :server-id number)
                       :timeout +patience+)))

(defun the-socket (channelz number &key summary)
  (v1:get-socket-response-socket
   (methods:get-socket channelz (v1:make-get-socket-request :socket-id number :summary summary)
                       :timeout +patience+)))

(defun channel-number (channel)
  (channel-trace-number (client:core-channel-trace (client::channel-core channel))))

(defun server-number (server)
  (channel-trace-number (server:server-channel-trace server)))

(defun only-subchannel (channelz channel)
  "The Subchannel of CHANNEL, which has only one."
  (let ((refs (v1:channel-subchannel-ref (the-channel channelz (channel-number channel)))))
    (is (= 1 (length refs)))
    (the-subchannel channelz (v1:subchannel-ref-subchannel-id (elt refs 0)))))

(defun only-socket (channelz channel &rest options)
  "The Socket of CHANNEL, which has only one."
  (let ((refs (v1:subchannel-socket-ref (only-subchannel channelz channel))))
    (is (= 1 (length refs)))
    (apply #'the-socket channelz (v1:socket-ref-socket-id (elt refs 0)) options)))

(defun calls (data)
  "The counts of calls in DATA, of a channel or a server: started, succeeded, failed."
  (etypecase data
    (v1:channel-data (list (v1:channel-data-calls-started data)
                           (v1:channel-data-calls-succeeded data)
                           (v1:channel-data-calls-failed data)))
    (v1:server-data (list (v1:server-data-calls-started data)
                          (v1:server-data-calls-succeeded data)
                          (v1:server-data-calls-failed data)))))

(defun channel-calls (channelz channel)
  (calls (v1:channel-data (the-channel channelz (channel-number channel)))))

(defun server-calls (channelz server)
  (calls (v1:server-data (the-server channelz (server-number server)))))

(defun streams (socket)
  "The counts of streams in SOCKET: started, succeeded, failed."
  (let ((data (v1:socket-data socket)))
    (list (v1:socket-data-streams-started data) (v1:socket-data-streams-succeeded data)
          (v1:socket-data-streams-failed data))))

(defun event-texts (trace)
  (map 'list #'v1:channel-trace-event-description (v1:channel-trace-events trace)))

(defun state-of (data)
  (v1:channel-connectivity-state-state (v1:channel-data-state data)))

(defun age-seconds (timestamp)
  (abs (- (grpc:timestamp-unix-time timestamp)
          (- (get-universal-time) #.(encode-universal-time 0 0 0 1 1 1970 0)))))

;;; Counts

(test calls-are-counted-at-both-ends
  "Calls of all kinds, a call that fails and one that is cancelled: both ends have the same counts."
  (with-channelz (channelz)
    (with-probe (channel :server server)
        (:ask (lambda (note call)
                (if (zerop (number-of note))
                    (grpc:fail :not-found "none")
                    (double note call)))
         :watch #'count-up :collect #'add-up :chat #'echo)
      (is (equal '(0 0 0) (channel-calls channelz channel)))
      (is (= 42 (number-of (ask channel (note 21)))))
      (is (equal '(0 1 2) (numbers (watch channel (note 3)))))
      (is (= 3 (number-of (collect channel (list (note 1) (note 2))))))
      (is (equal '(7 8) (numbers (chat channel (list (note 7) (note 8))))))
      (is (typep (caught (ask channel (note 0))) 'grpc:not-found))
      (let ((call (chat channel :open)))
        (grpc:send call (note 1))
        (is (= 1 (number-of (grpc:receive call))))
        (grpc:cancel call))
      (eventually (equal '(6 4 2) (channel-calls channelz channel)))
      (eventually (equal '(6 4 2) (server-calls channelz server)))
      (let* ((subchannel (only-subchannel channelz channel))
             (socket (only-socket channelz channel))
             (data (v1:socket-data socket)))
        (is (equal '(6 4 2) (calls (v1:subchannel-data subchannel))))
        (is (equal '(6 5 1) (streams socket)) "an error ends its stream in order")
        (is (= 8 (v1:socket-data-messages-sent data)))
        (is (= 8 (v1:socket-data-messages-received data)))
        (is (> 60 (age-seconds (v1:socket-data-last-local-stream-created-timestamp data))))
        (is (null (v1:socket-data-last-remote-stream-created-timestamp data)))
        (is (> 60 (age-seconds (v1:socket-data-last-message-sent-timestamp data))))
        (is (> 60 (age-seconds (v1:socket-data-last-message-received-timestamp data))))
        (is (> 60 (age-seconds (v1:channel-data-last-call-started-timestamp
                                (v1:channel-data (the-channel channelz
                                                              (channel-number channel)))))))
        (is (> 60 (age-seconds (v1:server-data-last-call-started-timestamp
                                (v1:server-data (the-server channelz (server-number server)))))))
        ;; the other end of the same connection
        (destructuring-bind (number) (sockets channelz (server-number server))
          (let ((other (the-socket channelz number)))
            (eventually (equal '(6 5 1) (streams (the-socket channelz number))))
            (is (= 8 (v1:socket-data-messages-received (v1:socket-data other))))
            (is (= 8 (v1:socket-data-messages-sent (v1:socket-data other))))
            (is (null (v1:socket-data-last-local-stream-created-timestamp (v1:socket-data other))))
            (is (> 60 (age-seconds (v1:socket-data-last-remote-stream-created-timestamp
                                    (v1:socket-data other)))))
            (is (equalp (v1:socket-local socket) (v1:socket-remote other)))
            (is (equalp (v1:socket-remote socket) (v1:socket-local other)))))))))

(test calls-that-run-are-started-only
  (with-channelz (channelz)
    (with-probe (channel :server server) (:chat #'echo)
      (let ((call (chat channel :open)))
        (grpc:send call (note 1))
        (is (= 1 (number-of (grpc:receive call))))
        (is (equal '(1 0 0) (channel-calls channelz channel)))
        (is (equal '(1 0 0) (server-calls channelz server)))
        (is (equal '(1 0 0) (streams (only-socket channelz channel))))
        (is (equal '(1 0 0) (calls (v1:subchannel-data (only-subchannel channelz channel)))))
        (grpc:cancel call)
        (eventually (equal '(1 0 1) (channel-calls channelz channel)))
        (eventually (equal '(1 0 1) (server-calls channelz server)))
        (is (equal '(1 0 1) (streams (only-socket channelz channel))))
        (is (equal '(1 0 1) (calls (v1:subchannel-data (only-subchannel channelz channel)))))))))

(test calls-without-a-connection-are-counted
  (with-channelz (channelz)
    (let* ((server (start-probe '()))
           (address (grpc:server-address server)))
      (grpc:stop-server server :drain 0)
      (grpc:with-channel (channel address)
        (is (typep (caught (ask channel (note 1))) 'grpc:unavailable))
        (is (equal '(1 0 1) (channel-calls channelz channel)))
        (let* ((data (v1:channel-data (the-channel channelz (channel-number channel))))
               (events (v1:channel-trace-events (v1:channel-data-trace data))))
          (is (eq :transient-failure (state-of data)))
          (is (find :ct-warning events :key #'v1:channel-trace-event-severity)))
        (let ((data (v1:subchannel-data (only-subchannel channelz channel))))
          (is (equal '(0 0 0) (calls data)))
          (is (find-if (lambda (text) (search "an attempt to connect failed" text))
                       (event-texts (v1:channel-data-trace data)))))))))

(test a-server-is-reported-once-it-has-its-loops
  "A question that comes while a server starts is answered."
  (with-channelz (channelz)
    (let ((before nil))
      (with-replaced (('server::add-server-loop
                       (lambda (function &rest arguments)
                         (setf before (length (servers channelz)))
                         (apply function arguments))))
        (with-started (server (start-probe '()) :drain 0)
          (is (= (1+ before) (length (servers channelz)))))))))

;;; Traces

(test channels-tell-what-has-happened
  (with-channelz (channelz)
    (with-probe (channel :server server :channel-options '(:service-config "{}"))
        (:ask #'double)
      (ask channel (note 1))
      (let* ((message (the-channel channelz (channel-number channel)))
             (data (v1:channel-data message))
             (trace (v1:channel-data-trace data))
             (texts (event-texts trace))
             (subchannel (only-subchannel channelz channel)))
        (is (string= (grpc:server-address server) (v1:channel-data-target data)))
        (is (eq :ready (state-of data)))
        (is (eq :ready (state-of (v1:subchannel-data subchannel))))
        (is (= (length texts) (v1:channel-trace-num-events-logged trace)))
        (is (> 60 (age-seconds (v1:channel-trace-creation-timestamp trace))))
        (is (string= "channel created" (first texts)))
        (dolist (text '("the resolver has found 1 server" "service config adopted"
                        "state changed from IDLE to CONNECTING"
                        "state changed from CONNECTING to READY"))
          (is (find-if (lambda (event) (search text event)) texts) "~A is not in ~S" text texts))
        (let ((event (find "subchannel created" (v1:channel-trace-events trace) :test #'string=
                           :key #'v1:channel-trace-event-description)))
          (is (= (v1:subchannel-ref-subchannel-id (v1:subchannel-ref subchannel))
                 (v1:subchannel-ref-subchannel-id
                  (v1:channel-trace-event-subchannel-ref event))))
          (is (eq :ct-info (v1:channel-trace-event-severity event))))
        (is (find-if (lambda (event) (search "connected to" event))
                     (event-texts (v1:channel-data-trace (v1:subchannel-data subchannel)))))))))

(test servers-tell-what-has-happened
  (with-channelz (channelz)
    (with-probe (channel :server server) (:ask #'double)
      (let* ((message (the-server channelz (server-number server)))
             (texts (event-texts (v1:server-data-trace (v1:server-data message))))
             (listening (v1:server-listen-socket message)))
        (is (equal (list "server created"
                         (format nil "listening on ~A" (grpc:server-address server)))
                   texts))
        (is (= 1 (length listening)))
        (let ((socket (the-socket channelz (v1:socket-ref-socket-id (elt listening 0)))))
          (is (= (parse-integer (grpc:server-address server)
                                :start (1+ (position #\: (grpc:server-address server))))
                 (v1:address.tcp-ip-address-port
                  (v1:address-tcpip-address (v1:socket-local socket)))))
          (is (null (v1:socket-remote socket))))))))

(test traces-are-bounded
  (let ((channel-trace (make-channel-trace 1)))
    (dotimes (i 1000)
      (note-channel-event channel-trace i (format nil "~D" i))
      (is (<= (length (clgrpc.base::channel-trace-channel-events channel-trace))
              (* 2 clgrpc.base::+most-channel-events+))))
    (is (= 1000 (channel-trace-count channel-trace)))
    (is (equal (loop for i from (- 1000 clgrpc.base::+most-channel-events+) below 1000
                     collect (format nil "~D" i))
               (mapcar #'channel-event-text (channel-events channel-trace))))))

(test events-come-from-several-threads
  (let ((channel-trace (make-channel-trace 1)))
    (with-threads (thread 4)
      (dotimes (i 500) (note-channel-event channel-trace i "x")))
    (is (= 2000 (channel-trace-count channel-trace)))
    (is (= clgrpc.base::+most-channel-events+ (length (channel-events channel-trace))))))

;;; Numbers and pages

(test numbers-stay-and-are-not-used-again
  (with-channelz (channelz)
    (with-probe (channel :server server) (:ask #'double)
      (ask channel (note 1))
      (let ((subchannel (v1:subchannel-ref (only-subchannel channelz channel)))
            (socket (v1:socket-ref (only-socket channelz channel))))
        (ask channel (note 1))
        (is (equalp subchannel (v1:subchannel-ref (only-subchannel channelz channel))))
        (is (equalp socket (v1:socket-ref (only-socket channelz channel))))
        (let ((all (list (channel-number channel) (server-number server)
                         (v1:subchannel-ref-subchannel-id subchannel)
                         (v1:socket-ref-socket-id socket)
                         (first (sockets channelz (server-number server))))))
          (is (= 5 (length (remove-duplicates all))))
          (is (every #'plusp all))
          (grpc:with-channel (other (grpc:server-address server))
            (ask other (note 1))
            (is (< (reduce #'max all) (channel-number other)))))))))

(test lists-come-in-pages
  (with-channelz (channelz)
    (let ((channels (loop repeat 5 collect (grpc:make-channel "127.0.0.1:1"))))
      (unwind-protect
           (let ((numbers (mapcar #'channel-number channels))
                 (found '())
                 (start (channel-number (first channels))))
             (loop (multiple-value-bind (page end)
                       (top-channels channelz :start start :most 2)
                     (is (<= (length page) 2))
                     (dolist (channel page)
                       (push (v1:channel-ref-channel-id (v1:channel-ref channel)) found))
                     (when end (return))
                     (setf start (1+ (first found)))))
             (is (equal numbers (remove-if-not (lambda (number) (member number numbers))
                                                 (reverse found))))
             (is (apply #'> found)))
        (mapc #'grpc:close-channel channels)))
    (multiple-value-bind (none end) (top-channels channelz :start (ash 1 61))
      (is (null none))
      (is-true end))
    (is (typep (caught (top-channels channelz :start -1)) 'grpc:invalid-argument))
    (is (typep (caught (top-channels channelz :most -1)) 'grpc:invalid-argument))))

(test servers-and-their-sockets-come-in-pages
  (with-channelz (channelz)
    (with-probe (channel :server server :options '(:loops 2)) (:ask #'double)
      (let ((channels (loop repeat 5 collect (grpc:make-channel (grpc:server-address server)))))
        (unwind-protect
             (let ((number (server-number server)))
               (mapc (lambda (channel) (ask channel (note 1))) channels)
               (let ((all (sockets channelz number)))
                 (is (= 5 (length all)))
                 (is (apply #'< all))
                 (multiple-value-bind (some end) (sockets channelz number :most 2)
                   (is (equal (subseq all 0 2) some))
                   (is-false end))
                 (multiple-value-bind (some end)
                     (sockets channelz number :start (fifth all) :most 1)
                   (is (equal (last all) some))
                   (is-true end)))
               (is (= number (v1:server-ref-server-id
                              (v1:server-ref (first (servers channelz :start number :most 1)))))))
          (mapc #'grpc:close-channel channels))))))

(test unknown-numbers
  (with-channelz (channelz)
    (let ((none (new-number)))
      (dolist (function '(the-channel the-subchannel the-server the-socket sockets))
        (is (typep (caught (funcall function channelz none)) 'grpc:not-found) "~A" function)
        (is (typep (caught (funcall function channelz 0)) 'grpc:not-found) "~A" function)
        (is (typep (caught (funcall function channelz -1)) 'grpc:not-found) "~A" function)))))

;;; Sockets

(defun option-named (socket name)
  (find name (v1:socket-data-option (v1:socket-data socket)) :test #'string=
        :key #'v1:socket-option-name))

(test sockets-have-the-windows-of-both-ends
  "The local window is what the server grants to the client, the remote one what the client grants."
  (with-channelz (channelz)
    (with-probe (channel :options '(:connection-window-octets 1000000)
                         :channel-options '(:connection-window-octets 2000000))
        (:ask #'double)
      (ask channel (note 1))
      (let ((data (v1:socket-data (only-socket channelz channel))))
        (flet ((octets (reader) (google.protobuf:int64-value-value (funcall reader data))))
          (is (<= 900000 (octets #'v1:socket-data-local-flow-control-window) 1000000))
          (is (<= 1900000 (octets #'v1:socket-data-remote-flow-control-window) 2000000)))))))

(test sockets-have-the-kernels-options
  (with-channelz (channelz)
    (with-probe (channel) (:ask #'double)
      (ask channel (note 1))
      (let* ((socket (only-socket channelz channel))
             (info (grpc:any-unpack (v1:socket-option-additional
                                     (option-named socket "TCP_INFO"))))
             (linger (grpc:any-unpack (v1:socket-option-additional
                                       (option-named socket "SO_LINGER")))))
        (is (= 1 (v1:socket-option-tcp-info-tcpi-state info)) "established")
        (is (plusp (v1:socket-option-tcp-info-tcpi-snd-mss info)))
        (is (plusp (v1:socket-option-tcp-info-tcpi-rto info)))
        (is (plusp (v1:socket-option-tcp-info-tcpi-pmtu info)))
        (is (< 0 (v1:socket-option-tcp-info-tcpi-snd-cwnd info) 100000))
        (is (eql 0 (search "ESTABLISHED"
                           (v1:socket-option-value (option-named socket "TCP_INFO")))))
        (is-false (v1:socket-option-linger-active linger))
        (dolist (name '("SO_RCVTIMEO" "SO_SNDTIMEO"))
          (is (string= "none" (v1:socket-option-value (option-named socket name)))))
        (is (plusp (google.protobuf:int64-value-value
                    (v1:socket-data-local-flow-control-window (v1:socket-data socket)))))
        (is (plusp (google.protobuf:int64-value-value
                    (v1:socket-data-remote-flow-control-window (v1:socket-data socket)))))
        (is (null (v1:socket-security socket)))
        (is (zerop (length (v1:socket-data-option
                            (v1:socket-data (only-socket channelz channel :summary t))))))))))

(test sockets-over-tls-tell-of-it
  (with-channelz (channelz)
    (flet ((file (name) (support:certificate-file name)))
      (with-probe (channel :server server
                           :options (list :credentials (grpc:tls-credentials
                                                        :certificate (file "server.pem")
                                                        :key (file "server.key")))
                           :channel-options (list :credentials (grpc:tls-credentials
                                                                :roots (file "ca.pem"))))
          (:ask #'double)
        (ask channel (note 1))
        (let ((here (v1:security-tls (v1:socket-security (only-socket channelz channel))))
              (there (v1:security-tls
                      (v1:socket-security
                       (the-socket channelz (first (sockets channelz (server-number server))))))))
          (is (eql 0 (search "TLS_" (v1:security.tls-standard-name here))))
          (is (string= (v1:security.tls-standard-name here) (v1:security.tls-standard-name there)))
          (is (plusp (length (v1:security.tls-remote-certificate here))))
          (is (equalp (v1:security.tls-remote-certificate here)
                      (v1:security.tls-local-certificate there)))
          (is (zerop (length (v1:security.tls-local-certificate here)))))))))

(test sockets-without-streams
  "A connection that has sent nothing, and whose protocol is thus unknown, is reported, too."
  (with-channelz (channelz)
    (with-probe (channel :server server) (:ask #'double)
      (let ((silent (make-instance 'sb-bsd-sockets:inet-socket :type :stream :protocol :tcp))
            (number (server-number server)))
        (unwind-protect
             (progn
               (sb-bsd-sockets:socket-connect
                silent #(127 0 0 1)
                (nth-value 1 (clgrpc.os:parse-address (grpc:server-address server))))
               (eventually (= 1 (length (sockets channelz number))))
               (let ((data (v1:socket-data (the-socket channelz
                                                       (first (sockets channelz number))))))
                 (is (= 0 (v1:socket-data-streams-started data)))
                 (is (null (v1:socket-data-local-flow-control-window data)))))
          (sb-bsd-sockets:socket-close silent))))))

(test unix-sockets
  (with-channelz (channelz)
    (uiop:with-temporary-file (:pathname path)
      (delete-file path)
      (let ((address (format nil "unix:~A" (namestring path))))
        (with-probe (channel :server server :options (list :listen address)) (:ask #'double)
          (ask channel (note 1))
          (let ((socket (only-socket channelz channel)))
            (is (string= (namestring path)
                         (v1:address.uds-address-filename
                          (v1:address-uds-address (v1:socket-remote socket)))))
            (is (option-named socket "SO_LINGER"))
            (is (null (option-named socket "TCP_INFO")))))))))

(test unix-sockets-with-names-like-ports
  (loop for name in '("unix:/run/a:80" "unix-abstract:a:80" "unix:a:99999")
        do (is (null (channelz::internet-address name)))
           (is (channelz::address-message name))))

(test keepalives-are-counted
  (with-channelz (channelz)
    (with-probe (channel :channel-options '(:keepalive-seconds 0.05
                                            :keepalive-without-calls t))
        (:ask #'double)
      (ask channel (note 1))
      (eventually (plusp (v1:socket-data-keep-alives-sent
                          (v1:socket-data (only-socket channelz channel))))))))

;;; What is closed is forgotten

(test what-is-closed-is-forgotten
  (with-channelz (channelz)
    (let ((channel-number 0) (server-number 0) (socket-number 0) (subchannel-number 0))
      (with-probe (channel :server server) (:ask #'double)
        (ask channel (note 1))
        (setf channel-number (channel-number channel)
              server-number (server-number server)
              socket-number (v1:socket-ref-socket-id
                             (v1:socket-ref (only-socket channelz channel)))
              subchannel-number (v1:subchannel-ref-subchannel-id
                                 (v1:subchannel-ref (only-subchannel channelz channel)))))
      (is (typep (caught (the-channel channelz channel-number)) 'grpc:not-found))
      (is (typep (caught (the-server channelz server-number)) 'grpc:not-found))
      (is (typep (caught (the-socket channelz socket-number)) 'grpc:not-found))
      (is (typep (caught (the-subchannel channelz subchannel-number)) 'grpc:not-found))
      (is (notany (lambda (core) (= channel-number
                                    (channel-trace-number (client:core-channel-trace core))))
                  (registered client:**cores**)))
      (is (notany (lambda (server) (= server-number
                                      (channel-trace-number (server:server-channel-trace server))))
                  (registered server:**servers**))))))

(test connections-that-end-are-forgotten
  (with-channelz (channelz)
    (with-probe (channel :server server) (:ask #'double)
      (dotimes (i 20)
        (grpc:with-channel (other (grpc:server-address server)) (ask other (note 1))))
      (eventually (null (sockets channelz (server-number server))))
      (is (equal '(20 20 0) (server-calls channelz server)) "their calls still count"))))

;;; Loops that do not answer

(test loops-that-do-not-answer-are-not-waited-for
  "If another thread holds a loop, the call gives up; the answer names the loop."
  (let ((loop (loop:make-event-loop :name "held up")) (held (make-signal)) (go-on (make-signal)))
    (loop:launch-event-loop loop)
    (unwind-protect
         (progn
           (loop:post loop (lambda () (signal-it held) (await-signal go-on)))
           (await-signal held)
           (let ((error (caught (channelz::ask loop (constantly 1)))))
             (is (typep error 'grpc:unavailable))
             (is (search "held up" (grpc:rpc-error-message error)))))
      (signal-it go-on)
      (is (eql 1 (channelz::ask loop (constantly 1))))
      (loop:stop-event-loop loop)
      (loop:join-event-loop loop))
    (is (null (channelz::ask loop (constantly 1))) "the loop has stopped")))

(test a-handler-of-the-same-loop-can-be-asked-of
  "The server that serves channelz reports on itself, from its own loop."
  (with-started (server (grpc:start-server (make-instance 'grpc:channelz-service)
                                           :execution :inline)
                 :drain 0)
    (grpc:with-channel (channelz (grpc:server-address server))
      (is (equal '(1 0 0) (server-calls channelz server)))
      (is (equal '(2 1 0) (server-calls channelz server)))
      (is (= 1 (length (sockets channelz (server-number server))))))))
