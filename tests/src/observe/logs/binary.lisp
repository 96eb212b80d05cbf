;;;; The binary log (gRFC A16): the entries of calls of all kinds at both ends, on each transport.

(in-package #:clgrpc.tests.logs)

(defun short (keyword prefix)
  "KEYWORD, an enum's, without PREFIX."
  (intern (subseq (string keyword) (length prefix)) '#:keyword))

(defun kind (entry)
  (short (binlog:grpc-log-entry-type entry) "EVENT-TYPE-"))

(defun entries-of (entries logger)
  "The ENTRIES that LOGGER, the end named in an entry, has written."
  (remove logger entries :test-not #'eq
                         :key (lambda (entry)
                                (short (binlog:grpc-log-entry-logger entry) "LOGGER-"))))

(defun kinds (entries logger)
  (mapcar #'kind (entries-of entries logger)))

(defun entry-of (entries logger kind)
  (find kind (entries-of entries logger) :key #'kind))

(defun metadata-of (metadata)
  (loop for entry across (binlog:metadata-entry metadata)
        collect (cons (binlog:metadata-entry-key entry)
                      (octets-string (binlog:metadata-entry-value entry)))))

(defun number-in (entry)
  (number-of (grpc:parse-message 'lab:note
                                 (binlog:message-data (binlog:grpc-log-entry-message entry)))))

(defun call-with-binary-log (function &rest options)
  "Call FUNCTION with a binary log, and a function that returns the entries so far, the oldest
first."
  (let* ((entries (list '()))
         (log (apply #'grpc:make-binary-log
                     :function (lambda (entry) (sb-ext:atomic-push entry (car entries)))
                     options)))
    (unwind-protect
         (funcall function log (lambda () (grpc:flush-log) (reverse (car entries))))
      (grpc:close-binary-log log))))

(defmacro with-binary-log ((log entries &rest options) &body body)
  `(call-with-binary-log (lambda (,log ,entries) (declare (ignorable ,entries)) ,@body) ,@options))

(defun over-both (log handlers function)
  "Call FUNCTION with a channel over the network, then with one within the image, to a server of
HANDLERS; both ends have LOG."
  (with-log ()
    (with-started (server (start-probe handlers :observer log) :drain 5)
      (grpc:with-channel (channel (grpc:server-address server) :observer log)
        (funcall function channel :wire))
      (let ((channel (grpc:server-channel server :observer log)))
        (unwind-protect (funcall function channel :inproc)
          (grpc:close-channel channel))))))

(defun settled-entries (entries count)
  "The ENTRIES that the function of WITH-BINARY-LOG returns, once there are COUNT."
  (wait-until (lambda () (<= count (length (funcall entries)))))
  (funcall entries))

(test calls-of-all-kinds-have-their-entries-at-both-ends
  (let ((requests '(:client-header :client-message :client-message :client-half-close)))
    (loop for (call expected)
            in `((,(lambda (channel) (ask channel (note 1)))
                  (:client-header :client-message :client-half-close
                   :server-header :server-message :server-trailer))
                 (,(lambda (channel) (numbers (watch channel (note 2))))
                  (:client-header :client-message :client-half-close
                   :server-header :server-message :server-message :server-trailer))
                 (,(lambda (channel) (collect channel (list (note 1) (note 2))))
                  (,@requests :server-header :server-message :server-trailer))
                 (,(lambda (channel) (numbers (chat channel (list (note 1) (note 2)))))
                  (,@requests :server-header :server-message :server-message :server-trailer)))
          do (let ((count (length expected)))
               (dolist (transport '(:wire :inproc))
                 (with-binary-log (log entries :filter "*")
                   (over-both log (list :ask #'double :watch #'count-up :collect #'add-up
                                        :chat (lambda (stream call)
                                                ;; all requests first
                                                (dolist (number (numbers stream))
                                                  (grpc:send call (note number)))))
                              (lambda (channel which)
                                (when (eq which transport)
                                  (funcall call channel)
                                  (let ((all (settled-entries entries (* 2 count))))
                                    (dolist (logger '(:client :server))
                                      (is (equal expected (kinds all logger))
                                          "~A of ~A: ~A" logger transport (kinds all logger))
                                      (is (equal (loop for i from 1 to count collect i)
                                                 (mapcar
                                                  #'binlog:grpc-log-entry-sequence-id-within-call
                                                  (entries-of all logger))))
                                      (is (= 1 (length
                                                (remove-duplicates
                                                 (mapcar #'binlog:grpc-log-entry-call-id
                                                         (entries-of all logger))))))))))))))))) 

(test two-logs-of-a-call-have-it-both
  "A server and a channel may have several binary logs: each has all entries of a call, truncated by
its own filter."
  (with-binary-log (all entries :filter "*")
    (with-binary-log (headers other-entries :filter "*{h}")
      (with-log ()
        (with-started (server (start-probe (list :ask #'double) :observer (list all headers))
                       :drain 5)
          (grpc:with-channel (channel (grpc:server-address server)
                                      :observer (list headers all))
            (ask channel (note 1))
            (dolist (found (list (settled-entries entries 12)
                                 (settled-entries other-entries 12)))
              (dolist (logger '(:client :server))
                (is (equal '(:client-header :client-message :client-half-close
                             :server-header :server-message :server-trailer)
                           (kinds found logger)))
                (is (equal '(1 2 3 4 5 6)
                           (mapcar #'binlog:grpc-log-entry-sequence-id-within-call
                                   (entries-of found logger))))))))))))

(test entries-have-what-they-should
  (with-binary-log (log entries :filter "*")
    (with-probe (channel :server server :options (list :observer log)
                         :channel-options (list :observer log))
        (:ask (lambda (note call)
                (setf (grpc:call-trailers call) '(("x-end" . "z")))
                (grpc:send-metadata call '(("x-answer" . "b")))
                (double note call)))
      (ask channel (note 4) :timeout 10
           :metadata (list (cons "x-ask" "a") (cons "x-bin" (make-octets 2))
                           (cons "authorization" "Bearer secret")))
      (let ((all (settled-entries entries 12))
            (address (subseq (grpc:server-address server)
                             0 (position #\: (grpc:server-address server)))))
        (dolist (logger '(:client :server))
          (let* ((entry (entry-of all logger :client-header))
                 (header (binlog:grpc-log-entry-client-header entry)))
            (is (string= "/lab.Bench/Ask" (binlog:client-header-method-name header)))
            (is (string= (grpc:server-address server) (binlog:client-header-authority header)))
            (is (<= 8 (grpc:duration-in-seconds (binlog:client-header-timeout header)) 10))
            (is (equal (list* "x-ask" "x-bin" (if (eq :server logger) '("authorization") '()))
                       (mapcar #'car (metadata-of (binlog:client-header-metadata header)))))
            (is (< (abs (- (get-universal-time)
                           (grpc:timestamp-universal-time
                            (binlog:grpc-log-entry-timestamp entry))))
                   60)))
          (is (= 4 (number-in (entry-of all logger :client-message))))
          (is (= 8 (number-in (entry-of all logger :server-message))))
          (is (equal '(("x-answer" . "b"))
                     (metadata-of (binlog:server-header-metadata
                                   (binlog:grpc-log-entry-server-header
                                    (entry-of all logger :server-header))))))
          (let ((trailer (binlog:grpc-log-entry-trailer (entry-of all logger :server-trailer))))
            (is (= 0 (binlog:trailer-status-code trailer)))
            (is (equal '(("x-end" . "z"))
                       (metadata-of (binlog:trailer-metadata trailer)))))
          (is (notany #'binlog:grpc-log-entry-payload-truncated (entries-of all logger))))
        ;; the peer is in the first entry that comes from it, and in no other
        (is (equal '(:client-header)
                   (mapcar #'kind (remove nil (entries-of all :server)
                                          :key #'binlog:grpc-log-entry-peer))))
        (is (equal '(:server-header)
                   (mapcar #'kind (remove nil (entries-of all :client)
                                          :key #'binlog:grpc-log-entry-peer))))
        (let ((peer (binlog:grpc-log-entry-peer (entry-of all :client :server-header))))
          (is (eq :type-ipv4 (binlog:address-type peer)))
          (is (string= address (binlog:address-address peer)))
          (is (string= (grpc:server-address server)
                       (format nil "~A:~D" address (binlog:address-ip-port peer)))))))))

(test failures-and-cancellations-have-their-entries
  (with-binary-log (log entries :filter "*")
    (let ((began (make-signal)))
      (with-probe (channel :options (list :observer log) :channel-options (list :observer log))
          (:ask #'refuse
           :watch (fn (_note call)
                    (grpc:send call (note 0))
                    (signal-it began)
                    (wait-until (lambda () (grpc:cancelled-p call)))
                    nil))
        (is-true (caught (ask channel (note 4))))
        (let ((all (settled-entries entries 8)))
          ;; trailers alone: no headers, and the peer is in the trailers
          (dolist (logger '(:client :server))
            (is (equal '(:client-header :client-message :client-half-close :server-trailer)
                       (kinds all logger))))
          (let* ((entry (entry-of all :client :server-trailer))
                 (trailer (binlog:grpc-log-entry-trailer entry)))
            (is (= 5 (binlog:trailer-status-code trailer)))
            (is (string= "no such note" (binlog:trailer-status-message trailer)))
            (is-true (binlog:grpc-log-entry-peer entry))))
        (let ((call (watch channel (note 1))))
          (is (await-signal began))
          (grpc:receive call)
          (grpc:cancel call)
          (let ((all (subseq (settled-entries entries 20) 8)))
            (dolist (logger '(:client :server))
              (is (equal '(:client-header :client-message :client-half-close
                           :server-header :server-message :cancel)
                         (kinds all logger))))
            (is (= 2 (length (remove-duplicates (mapcar #'binlog:grpc-log-entry-call-id
                                                        all)))))))))))

(test a-stream-without-answers-has-its-peer-in-its-trailers
  "The peer is in the first entry that comes from it, even if that is the last one and has :ok."
  (with-binary-log (log entries :filter "*")
    (with-probe (channel :channel-options (list :observer log))
        (:watch (constantly nil))
      (is (null (grpc:receive (watch channel (note 0)))))
      (let* ((all (settled-entries entries 4))
             (entry (entry-of all :client :server-trailer)))
        (is (equal '(:client-header :client-message :client-half-close :server-trailer)
                   (kinds all :client)))
        (is (zerop (binlog:trailer-status-code (binlog:grpc-log-entry-trailer entry))))
        (is-true (binlog:grpc-log-entry-peer entry))))))

(test a-call-without-a-server-ends-with-a-status-of-our-own
  (with-binary-log (log entries :filter "*")
    (let ((address (let ((server (start-probe '())))
                     (prog1 (grpc:server-address server)
                       (grpc:stop-server server :drain 0)))))
      (grpc:with-channel (channel address :observer log)
        (is-true (caught (ask channel (note 1))))
        (let ((all (settled-entries entries 2)))
          (is (equal '(:client-header :server-trailer) (kinds all :client)))
          (is (= 14 (binlog:trailer-status-code
                     (binlog:grpc-log-entry-trailer (second all)))))
          (is (null (binlog:grpc-log-entry-peer (second all)))))))))

(test a-call-that-is-made-again-is-logged-once
  (with-binary-log (log entries :filter "*")
    (let ((left 2))
      (with-probe (channel :channel-options
                           (list :observer log
                                 :service-config
                                 '(:method-config
                                   ((:name (())
                                     :retry-policy (:max-attempts 4 :initial-backoff 0.01
                                                    :max-backoff 0.02 :backoff-multiplier 2
                                                    :retryable-status-codes (:unavailable)))))))
          (:ask (lambda (note call)
                  (when (plusp left)
                    (decf left)
                    (grpc:fail :unavailable "not now"))
                  (double note call)))
        (ask channel (note 4))
        (is (equal '(:client-header :client-message :client-half-close
                     :server-header :server-message :server-trailer)
                   (kinds (settled-entries entries 6) :client)))))))

(test compressed-messages-are-logged-as-they-were
  (with-binary-log (log entries :filter "*")
    (with-probe (channel :options (list :observer log :compression :gzip)
                         :channel-options (list :observer log :compression :gzip))
        (:ask (handling (note) note))
      (ask channel (note 4 :body 5000))
      (let ((all (settled-entries entries 12)) (size (grpc:serialized-size (note 4 :body 5000))))
        (dolist (logger '(:client :server))
          (dolist (kind '(:client-message :server-message))
            (let ((message (binlog:grpc-log-entry-message (entry-of all logger kind))))
              (is (= size (binlog:message-length message)))
              (is (= size (length (binlog:message-data message)))))))))))

;;; Messages that become much longer

(defun zeros (count)
  "COUNT zeros, compressed by gzip."
  (multiple-value-bind (octets end)
      (os:deflate-octets :gzip 9 (make-octets count) 0 count 0)
    (subseq octets 0 end)))

(test a-message-is-expanded-as-far-as-it-is-logged
  "64 MB of zeros take 65 KB, and cost no more than the octets that are logged."
  (is-true (os:open-zlib))
  (let ((bomb (zeros (expt 2 26))))
    (flet ((expanded (limit octets &rest options)
             (let ((entry (grpc:parse-message
                           'binlog:grpc-log-entry
                           (logs::expand (apply #'logs::make-dense
                                                :head (grpc:serialize
                                                       (binlog:make-grpc-log-entry :call-id 5))
                                                :octets octets :encoding :gzip :limit limit
                                                options)))))
               (is (= 5 (binlog:grpc-log-entry-call-id entry)))
               (let ((message (binlog:grpc-log-entry-message entry)))
                 (list (length (binlog:message-data message)) (binlog:message-length message)
                       (binlog:grpc-log-entry-payload-truncated entry))))))
      (is (equal (list 1000 (expt 2 26) t) (expanded 1000 bomb :told (expt 2 26))))
      (is (equal '(0 1 t) (expanded 0 bomb)))
      (is (equal (list (expt 2 23) (1+ (expt 2 23)) t) (expanded (expt 2 23) bomb)))
      (is (equal '(10 10 nil) (expanded 10 (zeros 10) :told 5)))
      ;; what is cut off here ends early; what came so is no message, and is shown as it is
      (is (equal (list 1000 (expt 2 26) t)
                 (expanded 1000 (subseq bomb 0 40000) :told (expt 2 26) :cut t)))
      (is (equal '(15 15 nil) (expanded 1000 (subseq (zeros 10) 0 15))))
      (is (equal '(100 100 nil) (expanded 1000 (make-octets 100))))
      (let ((before (sb-ext:get-bytes-consed)))
        (dotimes (i 100) (expanded 100 bomb :told 1000))
        (is (> 10000000 (- (sb-ext:get-bytes-consed) before)))))))

(test a-message-over-the-limit-is-logged-as-far-as-that
  (with-binary-log (log entries :filter "*")
    (with-probe (channel :options (list :observer log :max-receive-octets 100000)
                         :channel-options (list :compression :gzip :max-send-octets 30000000))
        (:ask #'double)
      (is (eq :resource-exhausted
              (grpc:rpc-error-status (caught (ask channel (note 4 :body 20000000))))))
      (eventually (entry-of (funcall entries) :server :client-message))
      (let* ((entry (entry-of (funcall entries) :server :client-message))
             (message (binlog:grpc-log-entry-message entry)))
        (is-true (binlog:grpc-log-entry-payload-truncated entry))
        (is (= 100000 (length (binlog:message-data message))))
        (is (= (grpc:serialized-size (note 4 :body 20000000)) (binlog:message-length message)))))))

(test entries-are-cut-as-the-filter-says
  (with-binary-log (log entries :filter "lab.Bench/*,lab.Bench/Ask{h:8;m:3},-lab.Bench/Collect")
    (with-probe (channel :channel-options (list :observer log))
        (:ask #'double :collect #'add-up)
      (collect channel (list (note 1)))
      (ask channel (note 4 :body 100)
           :metadata '(("a" . "1234567") ("b" . "12") ("c" . "x")))
      (let* ((all (settled-entries entries 6))
             (header (entry-of all :client :client-header))
             (message (entry-of all :client :client-message)))
        (is (equal "/lab.Bench/Ask"
                   (binlog:client-header-method-name (binlog:grpc-log-entry-client-header header))))
        (is (equal '(("a" . "1234567"))
                   (metadata-of (binlog:client-header-metadata
                                 (binlog:grpc-log-entry-client-header header)))))
        (is-true (binlog:grpc-log-entry-payload-truncated header))
        (is-true (binlog:grpc-log-entry-payload-truncated message))
        (is (= (grpc:serialized-size (note 4 :body 100))
               (binlog:message-length (binlog:grpc-log-entry-message message))))
        (is (= 3 (length (binlog:message-data (binlog:grpc-log-entry-message message)))))
        (is (= 6 (length all)))))))

(test a-file-has-each-entry-behind-its-length
  (uiop:with-temporary-file (:pathname path)
    (let ((log (grpc:make-binary-log :filter "*" :file path)))
      (with-probe (channel :channel-options (list :observer log)) (:ask #'double)
        (ask channel (note 4))
        (grpc:flush-log))
      (grpc:close-binary-log log)
      (is (zerop (grpc:binary-log-dropped log))))
    (with-open-file (stream path :element-type '(unsigned-byte 8))
      (is (equal '(:client-header :client-message :client-half-close
                   :server-header :server-message :server-trailer)
                 (loop for entry = (grpc:read-binary-log stream)
                       while entry collect (kind entry)))))
    (with-open-file (stream path :element-type '(unsigned-byte 8))
      (let ((length (loop for i from 3 downto 0 sum (ash (read-byte stream) (* 8 i)))))
        (is (< 10 length 200))))
    (with-open-file (out path :element-type '(unsigned-byte 8) :direction :output
                              :if-exists :supersede)
      (write-sequence '(0 0 0 9 1) out))
    (with-open-file (stream path :element-type '(unsigned-byte 8))
      (signals misuse (grpc:read-binary-log stream)))
    (is (search "open the file with :element-type '(unsigned-byte 8)"
                (handler-case (grpc:read-binary-log (namestring path))
                  (misuse (error) (princ-to-string error)))))))

(test what-finds-the-log-full-is-counted
  (let* ((gate (make-signal)) (begun (make-signal))
         (log (grpc:make-binary-log :filter "*" :limit 3
                                    :function (fn (_entry)
                                                (signal-it begun)
                                                (await-signal gate)))))
    (with-probe (channel :channel-options (list :observer log)) (:ask #'double)
      (ask channel (note 1))
      (is (await-signal begun))
      (loop repeat 4 do (ask channel (note 1)))
      (signal-it gate)
      (loop repeat 40 do (signal-it gate))
      ;; 30 entries; 3 may wait while one is written
      (eventually (<= 20 (grpc:binary-log-dropped log) 29))
      (let ((told (find "clgrpc.log.lost" (metrics:collect (grpc:make-metrics))
                        :key #'metrics:family-name :test #'string=)))
        (is (<= 20 (loop for point in (metrics:family-points told)
                         when (equal '(("clgrpc.log" . "binary")) (metrics:point-attributes point))
                           sum (metrics:point-value point)))
            "a metric counts them")))
    (grpc:close-binary-log log)))

(test a-log-that-is-empty-observes-nothing
  (let ((log (grpc:make-binary-log :filter "-a.B/C")))
    (is (null (clgrpc.rpc:observer-for log :role :server :loop nil)))))

(test metadata-of-grpc-is-not-logged
  (multiple-value-bind (metadata truncated)
      (logs::log-metadata '(("grpc-trace-bin" . "12345") ("te" . "trailers") ("user-agent" . "u")
                            ("grpc-timeout" . "1S") ("lb-token" . "t") (":path" . "/") ("k" . "v"))
                          2)
    (is (equal '(("grpc-trace-bin" . "12345") ("k" . "v")) (metadata-of metadata)))
    (is-false truncated))
  (is (equal '("k")
             (mapcar #'car (metadata-of (logs::log-metadata '(("k" . "") ("l" . "")) 1)))))
  (multiple-value-bind (metadata truncated)
      (logs::log-metadata '(("k" . "1") ("grpc-trace-bin" . "2")) 0)
    (is (equal '(("grpc-trace-bin" . "2")) (metadata-of metadata)))
    (is-true truncated)))

(test addresses-are-logged-by-their-kind
  (loop for (text . expected)
          in '(("127.0.0.1:50051" :type-ipv4 "127.0.0.1" 50051)
               ("[::1]:8080" :type-ipv6 "::1" 8080)
               ("[fe80::1%eth0]:8080" :type-ipv6 "fe80::1" 8080)
               ("unix:/run/x.sock" :type-unix "/run/x.sock" 0)
               ("inproc:" :type-unknown "inproc:" 0))
        do (let ((address (logs::log-address text)))
             (is (equal expected (list (binlog:address-type address)
                                       (binlog:address-address address)
                                       (binlog:address-ip-port address)))))))

(test entries-that-cannot-be-written-are-counted-and-told
  (with-log ()
    (let ((log (grpc:make-binary-log :filter "*" :function (fn (_entry)
                                                             (error "The disk is full.")))))
      (with-probe (channel :channel-options (list :observer log)) (:ask #'double)
        (ask channel (note 1))
        (eventually (= 6 (grpc:binary-log-dropped log)))
        (eventually (events-of :binary-log-failed)))
      (grpc:close-binary-log log))))
