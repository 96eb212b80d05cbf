;;;; Functions around calls, and call credentials, on channels that carry nothing.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.calling)

(defclass secure-channel (test-channel) ())

(defmethod calling:channel-secure-p ((channel secure-channel)) t)

(defclass intercepted-test-channel (calling:interception secure-channel) ())

(defmethod method:invoke ((channel test-channel) method request &rest options)
  "What the transport of CHANNEL gets."
  (list method request options))

(defparameter *test-method*
  (method:make-rpc-method :name "M" :service-name "s.S" :path "/s.S/M" :kind :unary
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
               (serving::call-intercepted (list (adding 1) (adding 2)) nil '() #'identity)))
    (is (equal '(3) (serving::call-intercepted '() nil '(3) #'identity)))))

(test interceptors-of-a-channel
  "They see the options of the stub, and give others; credentials are among them for the transport."
  (let ((channel (make-instance 'intercepted-test-channel
                                :interceptors (list (lambda (method request options next)
                                                      (is (eq *test-method* method))
                                                      (funcall next (1+ request)
                                                               (list* :timeout 3 options))))
                                :call-credentials (lambda (path) `(("called" . ,path))))))
    (destructuring-bind (method request (name credentials . options))
        (method:invoke channel *test-method* 1 :metadata '(("a" . "b")))
      (is (equal `(,*test-method* 2 :call-credentials (:timeout 3 :metadata (("a" . "b"))))
                 (list method request name options)))
      (is (equal '(("called" . "/s.S/M"))
                 (calling:credentials-metadata (make-instance 'secure-channel) credentials
                                               *test-method*))))))

(test credentials-are-for-secure-channels
  (let ((token (constantly '(("authorization" . "Bearer new")))))
    (is (equal '(("authorization" . "Bearer new"))
               (calling:credentials-metadata (make-instance 'secure-channel) token *test-method*)))
    (handler-case (progn (calling:credentials-metadata (make-instance 'test-channel) token
                                                   *test-method*)
                         (fail "No error"))
      (status:unauthenticated (error)
        (is (search "test:1" (status:rpc-error-message error)))
        (is (not (status:rpc-error-sent-p error)))))
    (signals misuse (calling:credentials-metadata (make-instance 'secure-channel) "token"
                                              *test-method*))))
