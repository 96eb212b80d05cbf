;;;; Functions around calls, on channels that carry nothing.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.calling)

(defclass intercepted-test-channel (calling:interception secure-channel) ())

(defmethod method:invoke ((channel test-channel) method request &rest options)
  "Return what the transport of CHANNEL gets."
  (list method request options))

(test interceptors-are-functions
  (is (equal '(car) (rpc:check-interceptors '(car))))
  (signals misuse (rpc:check-interceptors #'car))
  (signals misuse (rpc:check-interceptors '("car")))
  (signals misuse (rpc:check-interceptors '(nil))))

(test the-first-interceptor-is-the-outermost
  (flet ((adding (mark)
           (fn (_call request next) (list mark (funcall next (cons mark request))))))
    (is (equal '(1 (2 (2 1)))
               (serving::call-intercepted (list (adding 1) (adding 2)) nil '() #'identity)))
    (is (equal '(3) (serving::call-intercepted '() nil '(3) #'identity)))))

(test interceptors-of-a-channel
  "Interceptors get the options of the call and may add some; the transport gets all these, and the
channel's credentials."
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
                 (credentials:credentials-metadata (make-instance 'secure-channel) credentials
                                               *test-method*))))))
