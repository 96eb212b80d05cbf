;;;; Functions around calls, and call credentials, on channels that carry nothing.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.rpc)

(defclass secure-channel (test-channel) ())

(defmethod rpc:channel-secure-p ((channel secure-channel)) t)

(defclass intercepted-test-channel (rpc:interception secure-channel) ())

(defmethod rpc:invoke ((channel test-channel) method request &rest options)
  "What the transport of CHANNEL gets."
  (list method request options))

(defparameter *test-method*
  (rpc::make-rpc-method :name "M" :service-name "s.S" :path "/s.S/M" :kind :unary
                        :request-type (protobuf:intern-message-type "google.rpc.Status")
                        :response-type (protobuf:intern-message-type "google.rpc.Status")))

(test interceptors-are-functions
  (is (equal '(car) (rpc:check-interceptors '(car))))
  (signals misuse (rpc:check-interceptors #'car))
  (signals misuse (rpc:check-interceptors '("car")))
  (signals misuse (rpc:check-interceptors '(nil))))

(test the-first-interceptor-is-the-outermost
  (flet ((adding (mark)
           (lambda (call request next)
             (declare (ignore call))
             (list mark (funcall next (cons mark request))))))
    (is (equal '(1 (2 (2 1)))
               (rpc::call-intercepted (list (adding 1) (adding 2)) nil '() #'identity)))
    (is (equal '(3) (rpc::call-intercepted '() nil '(3) #'identity)))))

(test interceptors-of-a-channel
  "They see the options of the stub, and give others; credentials are metadata besides."
  (let ((channel (make-instance 'intercepted-test-channel
                                :interceptors (list (lambda (method request options next)
                                                      (is (eq *test-method* method))
                                                      (funcall next (1+ request)
                                                               (list* :timeout 3 options))))
                                :call-credentials (rpc:bearer-token "secret"))))
    (is (equal `(,*test-method* 2 (:metadata (("a" . "b") ("authorization" . "Bearer secret"))
                                   :timeout 3 :metadata (("a" . "b"))))
               (rpc:invoke channel *test-method* 1 :metadata '(("a" . "b")))))))

(test credentials-are-for-secure-channels
  (let ((token (rpc:bearer-token (lambda () "new"))))
    (is (equal '(("authorization" . "Bearer new"))
               (rpc:credentials-metadata (make-instance 'secure-channel) token *test-method*)))
    (handler-case (progn (rpc:credentials-metadata (make-instance 'test-channel) token
                                                   *test-method*)
                         (fail "No error"))
      (rpc:unauthenticated (error)
        (is (search "test:1" (rpc:rpc-error-message error)))
        (is (not (rpc:rpc-error-sent-p error)))))
    (signals misuse (rpc:credentials-metadata (make-instance 'secure-channel) "token"
                                              *test-method*))))
