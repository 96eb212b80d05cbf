;;;; Call credentials on channels without a transport: they are for secure ones.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.credentials)

(defclass test-channel (method:channel) ())

(defmethod method:channel-target ((channel test-channel)) "test:1")

(defclass secure-channel (test-channel) ())

(defmethod credentials:channel-secure-p ((channel secure-channel)) t)

(defparameter *test-method*
  (method:make-rpc-method :name "M" :service-name "s.S" :path "/s.S/M" :kind :unary
                       :request-type (protobuf:intern-message-type "google.rpc.Status")
                       :response-type (protobuf:intern-message-type "google.rpc.Status")))

(test channels-are-not-secure-unless-they-say-so
  (let ((channel (make-instance 'test-channel)))
    (is (not (credentials:channel-secure-p channel)))))

(test credentials-are-for-secure-channels
  (let ((token (constantly '(("authorization" . "Bearer new")))))
    (is (equal '(("authorization" . "Bearer new"))
               (credentials:credentials-metadata (make-instance 'secure-channel) token
                                                 *test-method*)))
    (with-signalled (error status:unauthenticated
                     (credentials:credentials-metadata (make-instance 'test-channel) token
                                               *test-method*))
      (is (search "test:1" (status:rpc-error-message error)))
      (is (not (status:rpc-error-sent-p error))))
    ;; this holds even on channels to which no token is sent
    (dolist (class '(secure-channel test-channel))
      (signals misuse (credentials:credentials-metadata (make-instance class) "token"
                                                        *test-method*)))))

(defclass silent-credentials (credentials:call-credentials) ())

(defmethod credentials:get-request-metadata ((credentials silent-credentials) request)
  (declare (ignore request))
  (loop:make-future))

(test functions-use-up-the-time-of-a-deadline
  "A future is awaited for the time that the functions among the credentials have left."
  (let* ((left 1000)
         (credentials (credentials:compose-credentials
                       (fn (&rest _arguments)
                         (setf left 0)
                         '())
                       (make-instance 'silent-credentials))))
    (handler-case (progn (credentials:credentials-metadata
                          (make-instance 'secure-channel) credentials *test-method*
                          :remaining (lambda () left))
                         (fail "No error"))
      (status:deadline-exceeded (error)
        (is (not (status:rpc-error-sent-p error)))))))

(test credentials-that-give-no-answer-end-the-call
  "A function that unwinds its thread, and one for which the closed channel has no thread."
  (flet ((unwind (path) (declare (ignore path)) (throw 'unwound nil))
         (ending (run function)
           (let ((told '()))
             (catch 'unwound
               (credentials:ask-credentials function (make-instance 'secure-channel)
                                            *test-method* "a" run
                                            (lambda (metadata error)
                                              (push (list metadata error) told))))
             (destructuring-bind ((metadata error)) told
               (is (null metadata))
               (is (not (status:rpc-error-sent-p error)))
               (is (eq :local (status:rpc-error-ended-by error)))
               (list (status:rpc-error-status error) (status:rpc-error-message error))))))
    (is (equal '(:unavailable "the call credentials have not returned")
               (ending (lambda (function) (funcall function) t) #'unwind)))
    (is (equal '(:unavailable "the channel is closed") (ending (constantly nil) #'unwind)))))
