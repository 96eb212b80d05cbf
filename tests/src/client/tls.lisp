;;;; Calls over TLS between our own ends: all four kinds, the peer's identity, failures and their
;;;; texts, and certificates that are renewed while connections last.

(in-package #:clgrpc.tests.client)

(defun certificates (name)
  (list (support:certificate-file (format nil "~A.pem" name))
        (support:certificate-file (format nil "~A.key" name))))

(defun credentials (name &rest arguments)
  "Credentials with the certificate NAME, or without one if that is nil, and ARGUMENTS."
  (destructuring-bind (&optional certificate key) (and name (certificates name))
    (apply #'grpc:tls-credentials (append arguments (list :certificate certificate :key key)))))

(defun trusting (name &rest arguments)
  "Credentials as by CREDENTIALS, with the root of the tests."
  (apply #'credentials name (append arguments
                                    (list :roots (support:certificate-file "ca.pem")))))

(defmacro with-tls-probe ((channel &key (server-credentials '(credentials "server"))
                                     (client-credentials '(trusting nil)) server options
                                     channel-options events)
                          (&rest handlers)
                          &body body)
  `(with-probe (,channel ,@(when server `(:server ,server))
                         :options (list* :credentials ,server-credentials ,options)
                         :channel-options (list* :credentials ,client-credentials
                                                 ,channel-options)
                         :events ,events)
       ,handlers
     ,@body))

(defun refusal (server-credentials client-credentials)
  "The text of the :unavailable with which a call fails."
  (with-tls-probe (channel :server-credentials server-credentials
                           :client-credentials client-credentials)
      (:ask #'double)
    (let ((error (caught (ask channel (note 1)))))
      (is (typep error 'grpc:unavailable))
      (is (not (grpc:rpc-error-sent-p error)))
      (grpc:rpc-error-message error))))

(test tls-calls-of-four-kinds
  (with-tls-probe (channel)
      (:ask #'double :watch #'count-up :collect #'add-up :chat #'echo)
    (is (= 42 (number-of (ask channel (note 21)))))
    (is (equal '(0 1 2 3 4) (numbers (watch channel (note 5)))))
    (is (= 6 (number-of (collect channel (list (note 1) (note 2) (note 3))))))
    (is (equal '(7 8) (numbers (chat channel (list (note 7) (note 8))))))))

(test tls-long-messages
  (with-tls-probe (channel) (:ask (handling (note)
                                    note))
    (dolist (size '(16384 1000000 4000000))
      (is (= size (length (lab:note-body (ask channel (note 1 :body size)))))))))

(test tls-handshakes-hold-up-no-stop
  "A peer that has not ended its handshake has begun no call; a drain waits a second for it."
  (let ((server (start-probe (list :ask #'double) :credentials (credentials "server")
                                                  :preface-timeout-seconds 600)))
    (with-plain-socket (socket (grpc:server-address server))
      (wait-until (lambda () (= 1 (getf (grpc:server-statistics server) :connections))))
      ;; the longest wait for the answer to the drain's PING is ten seconds
      (is (eq t (grpc:stop-server server :drain 9))))))

(test tls-idle-connections-need-little-room
  "A hundred connections remain although their sessions keep more than the account may hold."
  (with-tls-probe (channel :server server :options '(:max-total-held-octets 1000000))
      (:ask #'double)
    (let ((channels (loop repeat 100
                          collect (grpc:make-channel (grpc:server-address server)
                                                     :credentials (trusting nil)))))
      (unwind-protect
           (progn
             (dolist (channel channels) (ask channel (note 1)))
             (is (= 100 (getf (grpc:server-statistics server) :connections))))
        (mapc #'grpc:close-channel channels)))))

(test tls-many-calls
  (with-tls-probe (channel :options '(:loops 2)) (:ask #'double)
    (with-threads (thread 8)
      (dotimes (i 200)
        (assert (= (* 2 i) (number-of (ask channel (note i)))))))))

(test tls-who-the-other-is
  (let ((seen nil))
    (with-tls-probe (channel :server-credentials (trusting "server")
                             :client-credentials (trusting "client"
                                                           :server-name "a.test.example"))
        (:ask (lambda (note call)
                (setf seen (grpc:call-security call))
                note))
      (let ((security (grpc:call-security (nth-value 1 (ask channel (note 1))))))
        (is (equal "TLSv1.3" (grpc:security-protocol security)))
        (is (equal "a.test.example" (grpc:security-server-name security)))
        (is (equal "O=clgrpc tests,CN=server"
                   (grpc:certificate-subject (grpc:security-peer-certificate security))))))
    ;; asked after the connection has gone
    (is (equal "a.test.example" (grpc:security-server-name seen)))
    (let ((certificate (grpc:security-peer-certificate seen)))
      (is (equal "O=clgrpc tests,CN=client" (grpc:certificate-subject certificate)))
      (is (equal '(:uri "spiffe://test.example/client")
                 (first (grpc:certificate-names certificate)))))))

(test plaintext-has-no-security
  (with-probe (channel) (:ask (lambda (note call)
                                (assert (null (grpc:call-security call)))
                                note))
    (is (null (grpc:call-security (nth-value 1 (ask channel (note 1))))))))

(test tls-clients-asked-for-certificates
  (flet ((subject (client &rest arguments)
           (with-tls-probe (channel :server-credentials (apply #'trusting "server" arguments)
                                    :client-credentials client)
               (:ask (lambda (note call)
                       (let ((certificate (grpc:security-peer-certificate
                                           (grpc:call-security call))))
                         (note (number-of note)
                               :text (if certificate
                                         (grpc:certificate-subject certificate)
                                         "nobody")))))
             (lab:note-text (ask channel (note 1))))))
    (is (equal "O=clgrpc tests,CN=client" (subject (trusting "client"))))
    (is (equal "O=clgrpc tests,CN=client"
               (subject (trusting "client") :client-certificates :request)))
    (is (equal "nobody" (subject (trusting nil) :client-certificates :request)))
    (is (equal "nobody" (subject (trusting "client") :client-certificates :none)))))

(test tls-refusals
  (flet ((says (text refusal)
           (is (search text refusal) "~S is not in ~S" text refusal)))
    (says "certificate has expired" (refusal (credentials "expired") (trusting nil)))
    (says "hostname mismatch (the certificate is for localhost, *.test.example, 127.0.0.1, ::1, not"
          (refusal (credentials "server") (trusting nil :server-name "x.example")))
    (says "IP address mismatch (the certificate is for elsewhere.example, not for 127.0.0.1)"
          (refusal (credentials "elsewhere") (trusting nil)))
    (says "certificate verify failed: self" (refusal (credentials "stranger") (trusting nil)))
    ;; the system does not know the root of the tests
    (says "certificate verify failed" (refusal (credentials "server") (credentials nil)))
    (says "certificate required" (refusal (trusting "server") (trusting nil)))
    (says "unknown ca" (refusal (trusting "server") (trusting "stranger")))
    (says "certificate expired" (refusal (trusting "server") (trusting "expired")))))

(test tls-without-verification
  (with-tls-probe (channel :server-credentials (credentials "stranger")
                           :client-credentials (credentials nil :verify nil))
      (:ask #'double)
    (is (= 2 (number-of (ask channel (note 1)))))))

(test tls-and-plaintext
  (with-probe (channel :options (list :credentials (credentials "server"))) (:ask #'double)
    (let ((error (caught (ask channel (note 1)))))
      (is (typep error 'grpc:unavailable))
      (is (search "perhaps it requires TLS" (grpc:rpc-error-message error)))))
  (with-probe (channel :channel-options (list :credentials (trusting nil))) (:ask #'double)
    (let ((error (caught (ask channel (note 1)))))
      (is (typep error 'grpc:unavailable))
      (is (search "does the peer speak without TLS?" (grpc:rpc-error-message error))))))

(test tls-credentials-refused-at-once
  (signals grpc:misuse (grpc:make-channel "127.0.0.1:1" :credentials t))
  (signals grpc:tls-error (grpc:make-channel "127.0.0.1:1" :credentials
                                             (grpc:tls-credentials :roots "no such file")))
  (signals grpc:misuse (start-probe '() :credentials (grpc:tls-credentials)))
  (signals grpc:tls-error
    (start-probe '() :credentials (grpc:tls-credentials
                                   :certificate (first (certificates "server"))
                                   :key (second (certificates "client"))))))

(test tls-slow-handshake
  ;; a silent client, and a silent server
  (with-started (server (start-probe '() :credentials (credentials "server")
                                         :preface-timeout-seconds 0.2) :drain 0)
    (let ((socket (make-instance 'sb-bsd-sockets:inet-socket :type :stream :protocol :tcp)))
      (multiple-value-bind (host port) (os:parse-address (grpc:server-address server))
        (sb-bsd-sockets:socket-connect socket (sb-bsd-sockets:make-inet-address host) port))
      (is (= 0 (nth-value 1 (sb-bsd-sockets:socket-receive
                             socket nil 100 :element-type '(unsigned-byte 8)))))
      (sb-bsd-sockets:socket-close socket)
      (eventually (zerop (getf (grpc:server-statistics server) :connections)))))
  (support:with-silent-listener (address)
    (grpc:with-channel (channel address :credentials (trusting nil) :preface-timeout-seconds 0.2)
      (let ((error (caught (ask channel (note 1)))))
        (is (search "the TLS handshake was not over within" (grpc:rpc-error-message error))
            "~A" error)))))

(test tls-renewed-under-way
  (uiop:with-temporary-file (:pathname certificate)
    (uiop:with-temporary-file (:pathname key)
      (flet ((install (name) (support:install-certificate name certificate key))
             (subject (call)
               (grpc:certificate-subject
                (grpc:security-peer-certificate (grpc:call-security call)))))
        (install "server")
        (with-tls-probe (channel :server server
                                 :server-credentials (grpc:tls-credentials
                                                      :certificate certificate :key key
                                                      :check-seconds 0))
            (:ask #'double :chat #'echo)
          (let ((call (chat channel :open)))
            (grpc:send call (note 1))
            (is (= 1 (number-of (grpc:receive call))))
            (is (search "CN=server" (subject call)))
            (install "renewed")
            (grpc:with-channel (other (grpc:server-address server) :credentials (trusting nil))
              (is (search "CN=renewed" (subject (nth-value 1 (ask other (note 1)))))))
            (grpc:send call (note 2))
            (is (= 2 (number-of (grpc:receive call))) "the old connection continues")
            (grpc:close-send call)
            (is (null (grpc:receive call)))))))))

(test tls-resumption-of-channels
  (let ((client (trusting nil)))
    (with-tls-probe (first-channel :server server :client-credentials client) (:ask #'double)
      (flet ((resumed-p (channel)
               (grpc:security-resumed-p
                (grpc:call-security (nth-value 1 (ask channel (note 1)))))))
        (is (not (resumed-p first-channel)))
        (grpc:with-channel (second-channel (grpc:server-address server) :credentials client)
          (is-true (resumed-p second-channel)))))))

(test tls-call-credentials
  ;; credentials are sent only where nobody else can read them
  (flet ((token-seen (client-credentials)
           (let ((seen nil))
             (with-tls-probe (channel :client-credentials client-credentials
                                      :channel-options (list :call-credentials
                                                             (grpc:bearer-token "secret")))
                 (:ask (lambda (note call)
                         (setf seen (cdr (assoc "authorization" (grpc:call-metadata call)
                                                :test #'string=)))
                         note))
               (caught (ask channel (note 1))))
             seen)))
    (is (equal "Bearer secret" (token-seen (trusting nil))))
    (is (null (token-seen (credentials nil :verify nil))))))

(test tls-certificates-by-name
  "A server shows each client the certificate for the requested name, and renews each."
  (uiop:with-temporary-file (:pathname certificate)
    (uiop:with-temporary-file (:pathname key)
      (flet ((install (name) (support:install-certificate name certificate key)))
        (install "elsewhere")
        (let ((other (grpc:tls-credentials :certificate certificate :key key :check-seconds 0)))
          (with-tls-probe (channel :server server
                                   :server-credentials (credentials "server" :others (list other)))
              (:ask #'double)
            (flet ((shown (name &key (verify t))
                     (grpc:with-channel (channel (grpc:server-address server)
                                         :credentials (trusting nil :server-name name
                                                                    :verify verify))
                       (grpc:certificate-subject
                        (grpc:security-peer-certificate
                         (grpc:call-security (nth-value 1 (ask channel (note 1)))))))))
              (is (equal "O=clgrpc tests,CN=server" (shown "a.test.example")))
              (is (equal "CN=elsewhere.example" (shown "elsewhere.example")))
              (is (equal "CN=elsewhere.example" (shown "ELSEWHERE.example")))
              (is (equal "O=clgrpc tests,CN=server" (shown "x.elsewhere.example" :verify nil)))
              (is (equal "O=clgrpc tests,CN=server" (shown nil)))
              ;; the new certificate has the other names, with priority over the server's own
              (install "renewed")
              (is (equal "O=clgrpc tests,CN=renewed" (shown "a.test.example")))
              (is (equal "O=clgrpc tests,CN=server" (shown "elsewhere.example" :verify nil)))
              (install "elsewhere")
              (grpc:reload-credentials other)
              (is (equal "CN=elsewhere.example" (shown "elsewhere.example"))))))))))

(test tls-wrong-others
  (signals grpc:misuse (credentials "server" :others (list (trusting nil))))
  (signals grpc:misuse (credentials "server" :others '(1)))
  (signals grpc:misuse (credentials "server" :others (list (trusting "elsewhere")))))

(test tls-leaves-nothing
  (let ((sessions (os:tls-session-count)) (client (trusting "client")))
    (with-tls-probe (channel :server server :server-credentials (trusting "server")
                             :client-credentials client)
        (:ask #'double)
      (flet ((cycle (count)
               (loop repeat count
                     do (grpc:with-channel (channel (grpc:server-address server)
                                            :credentials client)
                          (ask channel (note 1))))
               ;; one connection goes on; those of CYCLE may linger
               (eventually (<= (os:tls-session-count) (+ 2 sessions)))))
        (ask channel (note 1))
        (cycle 20)
        (let ((octets (support:foreign-octets)) (descriptors (os:open-descriptor-count)))
          (cycle (cycles))
          (is (< (- (support:foreign-octets) octets) 500000))
          (eventually (<= (os:open-descriptor-count) descriptors)))))
    (is (= sessions (os:tls-session-count)))))

;;; Which name a server's certificate must have

(test tls-names-may-end-with-a-dot
  "No search list completes such a name; certificates have none."
  (dolist (name '("localhost." "A.test.example."))
    (with-tls-probe (channel :client-credentials (trusting nil :server-name name)) (:ask #'double)
      (is (= 2 (number-of (ask channel (note 1))))))))

(test tls-several-addresses-have-a-name-each
  "Nobody listens at the first; the second has a certificate for itself, not for the first."
  (with-tls-probe (kept :server server) (:ask #'double)
    (let ((address (grpc:server-address server)))
      (grpc:with-channel (channel (format nil "ipv4:127.0.0.2:~A,~A"
                                          (subseq address (1+ (position #\: address))) address)
                                  :credentials (trusting nil))
        (is (= 2 (number-of (ask channel (note 1)))))
        (is (equal "127.0.0.1" (grpc:security-server-name
                                (grpc:call-security (nth-value 1 (ask channel (note 1)))))))))))

(grpc:define-resolver named-place "named-place" ())

(defvar *named-places* '() "What NAMED-PLACE pushes.")

(defmethod grpc:start-resolver ((resolver named-place))
  (grpc:push-addresses resolver *named-places*))

(test tls-names-that-a-resolver-says
  "Each address has its own name, by any policy, and the error shows it."
  (with-tls-probe (kept :server server :server-credentials (credentials "elsewhere"))
      (:ask #'double)
    (let ((address (grpc:server-address server)))
      (dolist (balance '(:pick-first :round-robin))
        (flet ((outcome (&rest places)
                 (setf *named-places* places)
                 (grpc:with-channel (channel "named-place:x" :credentials (trusting nil)
                                                             :balance balance)
                   (handler-case (progn (ask channel (note 1) :wait-for-ready nil)
                                        (getf (find :ready (grpc:channel-addresses channel)
                                                    :key (lambda (facts) (getf facts :state)))
                                              :attributes))
                     (grpc:unavailable () :unavailable)))))
          (is (equal '(:server-name "elsewhere.example" :zone "a")
                     (outcome (list "127.0.0.2:9" :server-name "a.test.example")
                              (list address :server-name "elsewhere.example" :zone "a"))))
          (is (eq :unavailable (outcome (list address :server-name "a.test.example")))))))))

;;; Names that requests say

(test tls-proves-the-channels-authority
  "With TLS, the server's certificate must have the host of the channel's :authority."
  (with-tls-probe (channel :channel-options '(:authority "a.test.example:443")) (:ask #'double)
    (let ((call (nth-value 1 (ask channel (note 1)))))
      (is (equal "a.test.example" (grpc:security-server-name (grpc:call-security call))))))
  (with-tls-probe (channel :channel-options '(:authority "x.example")) (:ask #'double)
    (let ((error (caught (ask channel (note 1)))))
      (is (typep error 'grpc:unavailable))
      (is (search "not for x.example" (grpc:rpc-error-message error)))))
  ;; the name in the credentials is verified
  (with-tls-probe (channel :client-credentials (trusting nil :server-name "localhost")
                           :channel-options '(:authority "x.example"))
      (:ask #'double)
    (is (= 2 (number-of (ask channel (note 1)))))))

(test tls-proves-a-calls-authority
  "With TLS a call with an :authority that is not in the server's certificate fails with
:unavailable before it is sent, unless nothing is verified."
  (with-tls-probe (channel) (:ask #'double)
    (dotimes (i 2)
      (dolist (authority '("a.test.example" "b.test.example:50051" "[::1]:80" "LOCALHOST"))
        (is (= 2 (number-of (ask channel (note 1) :authority authority)))))
      (dolist (authority '("x.example" "test.example" "a.b.test.example" "[::2]:80" "10.0.0.1"))
        (let ((error (caught (ask channel (note 1) :authority authority))))
          (is (typep error 'grpc:unavailable))
          (is (not (grpc:rpc-error-sent-p error)))
          (is (search (format nil "is not for ~A" authority) (grpc:rpc-error-message error)))))))
  (with-tls-probe (channel :client-credentials (grpc:tls-credentials :verify nil)) (:ask #'double)
    (is (= 2 (number-of (ask channel (note 1) :authority "x.example"))))))

(test authorities-that-a-link-remembers
  "A link remembers a bounded number of names that its server has proved."
  (with-tls-probe (channel) (:ask #'double)
    (dotimes (i 20)
      (ask channel (note 1) :authority (format nil "host-~D.test.example" i)))
    (let ((link (first (client::connection-set-links
                        (connection-set-of (the-subchannel channel))))))
      (is (= 16 (length (client::client-link-authorities link)))))))

;;; What else may refuse a peer

(test tls-peer-check
  "A function of ours gets each certificate that has passed, at both ends; its error is a refusal,
and logged. It is not called for a client without a certificate."
  (let ((seen '()))
    (flet ((check (answer)
             (lambda (certificate)
               (sb-ext:atomic-push (grpc:certificate-subject certificate) (car seen))
               answer)))
      (setf seen (list '()))
      (with-tls-probe (channel :server-credentials (trusting "server" :peer-check (check t))
                               :client-credentials (trusting "client" :peer-check (check t)))
          (:ask #'double)
        (is (= 4 (number-of (ask channel (note 2))))))
      (is (null (set-exclusive-or '("O=clgrpc tests,CN=client" "O=clgrpc tests,CN=server")
                                  (car seen) :test #'string=)))
      (is (search "has not passed :peer-check"
                  (refusal (credentials "server") (trusting nil :peer-check (check nil)))))
      (with-tls-probe (channel :client-credentials (trusting nil :peer-check #'error)
                               :events (:peer-check-failed))
          (:ask #'double)
        (is (search "has not passed :peer-check" (grpc:rpc-error-message
                                                  (caught (ask channel (note 1))))))
        (is (typep (getf (first (events-of :peer-check-failed)) :condition) 'error)))
      (let ((text (refusal (trusting "server" :peer-check (check nil)) (trusting "client"))))
        (is (stringp text)))
      (setf seen (list '()))
      (with-tls-probe (channel :server-credentials (credentials "server" :peer-check (check nil)))
          (:ask #'double)
        (is (= 4 (number-of (ask channel (note 2))))))
      (is (null (car seen))))))

(test tls-peer-check-of-resumed-sessions
  "The function is called in each handshake, even if it resumes a session."
  (let ((allowed t) (asked (list 0)))
    (flet ((check (certificate)
             (declare (ignore certificate))
             (sb-ext:atomic-incf (car asked))
             allowed))
      (let ((ours (trusting nil :peer-check #'check)))
        (with-probe (first :server server
                           :options (list :credentials (credentials "server"))
                           :channel-options (list :credentials ours))
            (:ask #'double)
          (is (= 4 (number-of (ask first (note 2)))))
          (grpc:with-channel (second (grpc:server-address server) :credentials ours)
            (is (= 4 (number-of (ask second (note 2))))))
          (is (= 2 (car asked)))
          (setf allowed nil)
          (grpc:with-channel (third (grpc:server-address server) :credentials ours)
            (is (typep (caught (ask third (note 2))) 'grpc:unavailable)))
          (is (<= 3 (car asked))))))))

(defun revocation-list (name)
  (support:certificate-file (format nil "~A.crl" name)))

(test tls-revoked-certificates
  "At both ends a certificate on a list is refused, whatever an expired list contains; one that no
list is about is not. A renewed list counts for new connections."
  (flet ((works-p (server-credentials client-credentials)
           (with-tls-probe (channel :server-credentials server-credentials
                                    :client-credentials client-credentials)
               (:ask #'double)
             (let ((outcome (caught (ask channel (note 2)))))
               (if (typep outcome 'error)
                   (progn (is (typep outcome 'grpc:unavailable)) nil)
                   t)))))
    (is-true (works-p (credentials "server") (trusting nil :revoked (revocation-list "revoked"))))
    (is-true (works-p (credentials "renewed")
                      (trusting nil :revoked (revocation-list "none-revoked"))))
    (is (search "certificate revoked"
                (refusal (credentials "renewed")
                         (trusting nil :revoked (revocation-list "revoked")))))
    (is (search "CRL has expired"
                (refusal (credentials "server") (trusting nil :revoked (revocation-list "old")))))
    ;; an intermediate has no list, its own certificate is not in the root's
    (is-true (works-p (credentials "chain") (trusting nil :revoked (revocation-list "revoked"))))
    ;; clients
    (is-true (works-p (trusting "server" :revoked (revocation-list "revoked"))
                      (trusting "client")))
    (is (not (works-p (trusting "server" :revoked (revocation-list "revoked"))
                      (trusting "worker-1"))))
    ;; where the name that is asked for has a list, and the server itself has none
    (let ((server (trusting "server"
                            :others (list (trusting "elsewhere"
                                                    :revoked (revocation-list "revoked"))))))
      (flet ((works-elsewhere-p (name)
               (works-p server (trusting name :server-name "elsewhere.example"))))
        (is-true (works-elsewhere-p "client"))
        (is-true (works-elsewhere-p "chain"))
        (is (not (works-elsewhere-p "worker-1"))))))
  (uiop:with-temporary-file (:pathname path)
    (uiop:copy-file (revocation-list "none-revoked") path)
    (let ((ours (trusting nil :revoked path :check-seconds 0)))
      (with-probe (channel :server server
                           :options (list :credentials (credentials "renewed"))
                           :channel-options (list :credentials ours))
          (:ask #'double)
        (is (= 4 (number-of (ask channel (note 2)))))
        (uiop:copy-file (revocation-list "revoked") path)
        (grpc:reload-credentials ours)
        (grpc:with-channel (second (grpc:server-address server) :credentials ours)
          (is (search "certificate revoked"
                      (grpc:rpc-error-message (caught (ask second (note 2)))))))
        (is (= 4 (number-of (ask channel (note 2)))) "an open connection continues"))))
  (dolist (wrong (list "/no/such/list" (support:certificate-file "ca.pem")))
    (signals grpc:tls-error (grpc:make-channel "127.0.0.1:1" :credentials
                                               (trusting nil :revoked wrong)))))

(test tls-key-log
  "A file that only its owner can read gets the secrets of a connection; without it none are kept."
  (uiop:with-temporary-file (:pathname path)
    (delete-file path)
    (with-tls-probe (channel :client-credentials (trusting nil :key-log path)) (:ask #'double)
      (is (= 4 (number-of (ask channel (note 2))))))
    (let ((lines (uiop:read-file-lines path)))
      (is (<= 4 (length lines)))
      (dolist (label '("CLIENT_HANDSHAKE_TRAFFIC_SECRET " "SERVER_HANDSHAKE_TRAFFIC_SECRET "
                       "CLIENT_TRAFFIC_SECRET_0 " "SERVER_TRAFFIC_SECRET_0 "))
        (is (= 1 (count-if (lambda (line) (uiop:string-prefix-p label line)) lines)) "~A" label))
      (is (every (lambda (line) (= 3 (length (uiop:split-string line)))) lines)))
    (is (= #o600 (logand #o777 (sb-posix:stat-mode (sb-posix:stat path))))))
  (signals grpc:tls-error (grpc:make-channel "127.0.0.1:1" :credentials
                                             (trusting nil :key-log "/no/such/folder/log"))))

;;; SPIFFE

(defun pem-base64 (name)
  "The base64 of the certificate NAME, one line."
  (format nil "~{~A~}" (remove-if (lambda (line) (or (string= "" line) (char= #\- (char line 0))))
                                  (uiop:read-file-lines (support:certificate-file name)))))

(defun bundle-json (&rest rows)
  "JSON of bundles: ROWS are lists of a trust domain and names of its certificates."
  (format nil "{\"trust_domains\": {~{~A~^, ~}}}"
          (loop for (domain . names) in rows
                collect (format nil "\"~A\": {\"sequence\": 1, \"keys\": [~{~A~^, ~}]}" domain
                                (loop for name in names
                                      collect (format nil "{\"kty\": \"EC\", \"use\": ~
                                                           \"x509-svid\", \"x5c\": [\"~A\"]}"
                                                      (pem-base64 name)))))))

(defun client-identity-works-p (bundle name)
  "True if a server with BUNDLE accepts a client with the certificate NAME."
  (with-tls-probe (channel :server-credentials (credentials "server" :spiffe-bundle bundle)
                           :client-credentials (trusting name))
      (:ask #'double)
    (let ((outcome (caught (ask channel (note 2)))))
      (cond ((typep outcome 'error) (is (typep outcome 'grpc:unavailable)) nil)
            (t t)))))

(test tls-spiffe-bundles
  "A root proves the identities of its trust domain, and no others, though OpenSSL trusts it."
  (let ((ours (bundle-json '("test.example" "ca.pem") '("other.example" "stranger.pem")))
        (crossed (bundle-json '("other.example" "ca.pem") '("test.example" "stranger.pem"))))
    (is-true (client-identity-works-p ours "client"))
    (is-true (client-identity-works-p ours "node-a"))
    (is (not (client-identity-works-p ours "foreign")))
    (is (not (client-identity-works-p ours nil)) "the client has shown no certificate")
    (is (not (client-identity-works-p ours "elsewhere")) "the certificate has no identity")
    (is (not (client-identity-works-p ours "stranger")))
    (is (not (client-identity-works-p crossed "client")))
    (is-true (client-identity-works-p crossed "foreign"))))

(test tls-spiffe-servers
  "A client with bundles checks an identity, not a host name: a function of its own chooses."
  (flet ((outcome (name identity &optional (domain "test.example"))
           (with-tls-probe (channel :server-credentials (credentials name)
                                    :client-credentials
                                    (credentials nil
                                                 :spiffe-bundle (bundle-json (list domain "ca.pem"))
                                                 :peer-check
                                                 (lambda (certificate)
                                                   (equal identity (grpc:certificate-identity
                                                                    certificate)))))
               (:ask #'double)
             (let ((outcome (caught (ask channel (note 2)))))
               (if (typep outcome 'error) (grpc:rpc-error-message outcome) t)))))
    (is (eq t (outcome "node-a" "spiffe://test.example/node/a")))
    (is (search ":peer-check" (outcome "node-a" "spiffe://test.example/node/b")))
    (is (search "another trust domain" (outcome "server" nil)))
    (is (search "another trust domain"
                (outcome "node-a" "spiffe://test.example/node/a" "other.example"))))
  (signals misuse (grpc:make-channel "127.0.0.1:1" :credentials
                                     (credentials nil :spiffe-bundle
                                                  (bundle-json '("test.example" "ca.pem")))))
  (signals misuse (trusting nil :spiffe-bundle "bundle.json")))

(test tls-spiffe-bundles-renewed
  "The file is read again; a broken one leaves the old bundles, with a line in the log."
  (uiop:with-temporary-file (:pathname path)
    (flet ((write-bundles (text)
             (with-open-file (stream path :direction :output :if-exists :supersede)
               (write-string text stream))))
      (write-bundles (bundle-json '("test.example" "ca.pem")))
      (let ((credentials (credentials "server" :spiffe-bundle path)))
        (with-probe (channel :server server
                             :options (list :credentials credentials)
                             :channel-options (list :credentials (trusting "client")))
            (:ask #'double)
          (flet ((works-p ()
                   (grpc:with-channel (other (grpc:server-address server)
                                             :credentials (trusting "client"))
                     (not (typep (caught (ask other (note 2))) 'error)))))
            (is-true (works-p))
            (write-bundles "{\"trust_domains\": {")
            (signals grpc:tls-error (grpc:reload-credentials credentials))
            (is-true (works-p))
            (write-bundles (bundle-json '("test.example" "stranger.pem")))
            (grpc:reload-credentials credentials)
            (is (not (works-p)))))))))

(test tls-spiffe-bundles-refused
  "A file with any error is not used at all, and TLS-ERROR names the error."
  (flet ((complaint (text)
           (handler-case (grpc:start-server (make-probe)
                                            :credentials (credentials "server" :spiffe-bundle text))
             (grpc:tls-error (error) (princ-to-string error))
             (:no-error (server) (grpc:stop-server server) nil)))
         (keys (text) (format nil "{\"trust_domains\": {\"a.example\": {\"keys\": ~A}}}" text)))
    (loop for (text part)
            in `(("{" "Invalid JSON") ("{}" "no trust_domains")
                 ("{\"trust_domains\": 5}" "no trust")
                 ("{\"trust_domains\": {\"A.b\": {\"keys\": []}}}" "not the name of a trust domain")
                 ("{\"trust_domains\": {\"\": {\"keys\": []}}}" "not the name of a trust domain")
                 ("{\"trust_domains\": {\"a\": {\"keys\": []}, \"a\": {\"keys\": []}}}" "twice")
                 ("{\"trust_domains\": {\"a\": 5}}" "no keys")
                 (,(keys "5") "no keys") (,(keys "[5]") "x509-svid")
                 (,(keys "[{\"use\": \"jwt-svid\"}]") "x509-svid")
                 (,(keys "[{\"use\": \"x509-svid\"}]") "not one certificate")
                 (,(keys "[{\"use\": \"x509-svid\", \"x5c\": [\"a\", \"b\"]}]")
                  "not one certificate")
                 (,(keys "[{\"use\": \"x509-svid\", \"x5c\": [5]}]") "not one certificate")
                 (,(keys "[{\"use\": \"x509-svid\", \"x5c\": [\"!\"]}]") "base64")
                 (,(keys "[{\"use\": \"x509-svid\", \"x5c\": [\"AAAA\"]}]") "certificate")
                 (,(format nil "~A{" (make-string 100 :initial-element #\[)) "json-depth"))
          do (let ((complaint (complaint text)))
               (is (and complaint (search part complaint)) "~A: ~A" text complaint)))))

(test spiffe-identities
  (flet ((domain (uri) (clgrpc.loop::identity-domain uri)))
    (is (equal "a.example" (domain "spiffe://a.example/b/c")))
    (is (equal "a" (domain "spiffe://a")))
    (dolist (uri '("" "spiffe://" "spiffe:///a" "https://a.example/" "spiffe://A/b" "spiffe://a?b"
                   "spiffe://a/b#c" "spiffe://u@a/b" "spiffe://a:1/b" "spiffe://a/%61"
                   "SPIFFE://a"))
      (is (null (domain uri)) "~A" uri))))
