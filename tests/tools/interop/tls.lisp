;;;; TLS with grpc-go at the other end, which has Go's own TLS and not OpenSSL.

(in-package #:clgrpc.tests.interop)

(defun tls-arguments (certificate roots-option)
  "The options for a program that shows CERTIFICATE, if it is not nil, and gets the root of the
tests as its ROOTS-OPTION, if that is not nil."
  (append (when certificate
            (list "--tls-cert" (certificate-file (format nil "~A.pem" certificate))
                  "--tls-key" (certificate-file (format nil "~A.key" certificate))))
          (when roots-option (list roots-option (certificate-file "ca.pem")))))

(defun play-tls-scenarios (scenarios &key client client-arguments mutual (code 0))
  "Play SCENARIOS of grpc-go's client, which shows the certificate CLIENT, against our server, which
asks for one if MUTUAL. Check the exit code; return what the client printed."
  (let ((peer (need-peer)))
    (call-with-program
     (lambda (server)
       (let ((address (server-address server))
             (before (os:open-descriptor-count (program-pid server))))
         (multiple-value-bind (actual lines)
             (run-to-end peer (append '("scenario-client") (tls-arguments client "--tls-ca")
                                      client-arguments scenarios (list address)))
           (is (eql code actual) "exit code ~D:~{ ~A~}" actual (complaints lines))
           (check-descriptors server before)
           (is (eql 0 (terminate-program server)))
           (format nil "~{~A~%~}" lines))))
     (testee-program)
     (append (list "serve" "greeter,route-guide,interop" "--listen" "127.0.0.1:0"
                   "--max-receive-octets" (princ-to-string *max-receive-octets*))
             (tls-arguments "server" (and mutual "--client-ca"))))))

(defparameter *tls-scenarios*
  '("stream-both" "message-16m" "calls-100" "connections-100" "client-cancels" "status"))

(test go-client-over-tls
  (play-tls-scenarios *tls-scenarios* :client-arguments
                      (list "-max-receive-octets" (princ-to-string *max-receive-octets*))))

(test go-client-over-tls-1.2
  (play-tls-scenarios '("stream-both" "calls-100" "connections-100")
                      :client-arguments '("-tls-highest" "1.2")))

(test go-client-with-certificate
  (play-tls-scenarios '("status") :client "client" :mutual t))

(test go-client-refused
  (play-tls-scenarios '("status") :mutual t :code 1)
  (play-tls-scenarios '("status") :client "stranger" :mutual t :code 1)
  (play-tls-scenarios '("status") :client-arguments '("-tls-name" "x.example") :code 1))

(defmacro with-go-tls-server ((address &rest arguments) &body body)
  "Do BODY with ADDRESS bound to that of a `peer scenario-server` with ARGUMENTS, a form for each."
  (let ((peer (gensym "PEER")) (server (gensym "SERVER")))
    `(let ((,peer (need-peer)))
       (call-with-program (lambda (,server)
                            (let ((,address (server-address ,server))) ,@body))
                          ,peer (append (list "scenario-server") ,@arguments)))))

(defun trusting (&rest arguments)
  (apply #'grpc:tls-credentials :roots (certificate-file "ca.pem") arguments))

(defun refusal (address credentials)
  "What our client says when a call to ADDRESS with CREDENTIALS fails."
  (handler-case
      (grpc:with-channel (channel address :credentials credentials)
        (greet channel "Ada" :timeout 20))
    (grpc:unavailable (error) (grpc:rpc-error-message error))))

(test our-client-over-tls
  (with-go-tls-server (address (tls-arguments "server" nil))
    (let ((credentials (trusting)))
      (flet ((resumed-p ()
               (grpc:with-channel (channel address :credentials credentials)
                 (check-serves channel)
                 (grpc:security-resumed-p
                  (grpc:call-security
                   (nth-value 1 (helloworld.greeter:say-hello
                                 channel (helloworld:make-hello-request :name "Ada")
                                 :timeout *limit-seconds*)))))))
        (is (equal '(nil t t) (loop repeat 3 collect (resumed-p)))))
      (grpc:with-channel (channel address :credentials credentials
                                          :max-receive-octets *max-receive-octets*)
        (check-sizes 2000 (test-service:streaming-output-call channel (sizes-request 2000)
                                                              :timeout *limit-seconds*))
        (dolist (size '(1 100000 3000000))
          (is (= size (length (testing:payload-body
                               (testing:simple-response-payload
                                (test-service:unary-call
                                 channel (testing:make-simple-request :response-size size
                                                                      :payload (payload size))
                                 :timeout *limit-seconds*)))))))))
    (is (search "hostname mismatch" (refusal address (trusting :server-name "x.example"))))
    (is (search "certificate verify failed" (refusal address (grpc:tls-credentials))))
    (is (search "perhaps it requires TLS" (refusal address nil)))))

(test our-client-over-tls-1.2
  (with-go-tls-server (address (tls-arguments "server" nil) '("-tls-highest" "1.2"))
    (let ((credentials (trusting)))
      (loop for resumed in '(nil t t)
            do (grpc:with-channel (channel address :credentials credentials)
                 (let ((security (grpc:call-security
                                  (nth-value 1 (helloworld.greeter:say-hello
                                                channel (helloworld:make-hello-request :name "Ada")
                                                :timeout *limit-seconds*)))))
                   (is (equal "TLSv1.2" (grpc:security-protocol security)))
                   (is (eq resumed (grpc:security-resumed-p security)))))))))

(test our-client-with-certificate
  (with-go-tls-server (address (tls-arguments "server" "--client-ca"))
    (grpc:with-channel (channel address :credentials
                                (trusting :certificate (certificate-file "client.pem")
                                          :key (certificate-file "client.key")))
      (check-serves channel))
    (is (search "certificate required" (refusal address (trusting))))
    (is (search "unknown ca"
                (refusal address (trusting :certificate (certificate-file "stranger.pem")
                                           :key (certificate-file "stranger.key")))))))

(test our-client-and-servers-of-other-kinds
  (with-go-tls-server (address)
    (is (search "does the peer speak without TLS?" (refusal address (trusting)))))
  (with-go-tls-server (address (tls-arguments "expired" nil))
    (is (search "certificate has expired" (refusal address (trusting))))))
