;;;; Interceptors of clients and call credentials; tests/whole/transports/meaning.lisp has what is
;;;; alike for all transports.

(in-package #:clgrpc.tests.client)

(defun more (number)
  "A function of a note that returns a note whose number is greater by NUMBER."
  (lambda (note) (note (+ number (number-of note)))))

(test client-interceptors-of-all-kinds
  "An interceptor retries a call; streams and futures pass through interceptors."
  (let ((failures 2) (ends (list 0)) (ended (make-signal)))
    (with-probe (channel
                 :channel-options
                 (list :interceptors
                       (list (lambda (method request options next)
                               (if (eq :unary (method:rpc-method-kind method))
                                   (loop
                                     (handler-case (return (funcall next request options))
                                       (grpc:unavailable ())))
                                   (let ((call (funcall next request options)))
                                     (when (typep call 'grpc:call)
                                       (grpc:filter-messages call :incoming (more 1))
                                       (grpc:on-end call (lambda ()
                                                           (incf (car ends))
                                                           (signal-it ended))))
                                     call))))))
        (:ask (handling (note)
                (if (<= 0 (decf failures)) (grpc:fail :unavailable "not yet") note))
         :watch #'count-up
         :chat #'echo
         :collect #'add-up)
      (is (= 7 (number-of (ask channel (note 7)))))
      (is (equal '(1 2 3) (numbers (watch channel (note 3)))))
      (is (equal '(6 8) (numbers (chat channel (list (note 5) (note 7))))))
      (is (await-signal ended :count 2))
      (is (= 12 (number-of (collect channel (list (note 5) (note 7))))))
      (is (= 8 (number-of (grpc:await (grpc:call-async #'lab.bench:ask channel (note 8)))))))))

(test wrong-interceptors-are-misuse
  (signals grpc:misuse (grpc:make-channel "127.0.0.1:80" :interceptors '(1)))
  (signals grpc:misuse (grpc:start-server (make-probe) :interceptors #'double))
  (dolist (where '("lab.Absent" "lab" lab.absent:ask car))
    (handler-case (progn (grpc:start-server (make-probe) :interceptors (list (list where 'list)))
                         (fail "No error"))
      (grpc:misuse (error) (is (search (prin1-to-string where) (princ-to-string error)))))))

;;; Interceptors of attempts; tests/whole/transports/interceptor.lisp has what is alike for all
;;; transports

(test transparent-retries-are-seen
  "They have the number of the attempt that they repeat, and metadata of their own."
  (let ((counter (list 0)) (seen '()) (lock (sb-thread:make-mutex)))
    (with-raw-server (address) (refusing 1 counter)
      (grpc:with-channel (channel address
                          :attempt-interceptors
                          (list (lambda (attempt)
                                  (grpc:on-attempt-end
                                   attempt
                                   (lambda ()
                                     (sb-thread:with-mutex (lock)
                                       (push (list (grpc:attempt-number attempt)
                                                   (grpc:attempt-kind attempt)
                                                   (grpc:attempt-status attempt))
                                             seen)))))))
        (is (= 7 (number-of (ask channel (note 1)))))
        (is (= 2 (car counter)))
        (eventually (= 2 (length seen)))
        (is (equal '((0 :first :unavailable) (0 :transparent :ok)) (reverse seen)))))))

(test interceptors-of-attempts-may-use-the-call
  "A message of an interceptor follows the headers; a call that one ends leaves no stream."
  (flet ((call-with-interceptor (interceptor function)
           (with-probe (channel :channel-options (list :attempt-interceptors (list interceptor)))
               (:chat #'echo :ask #'double)
             (funcall function channel)
             (eventually (zerop (client:subchannel-calls (the-subchannel channel)))))))
    (call-with-interceptor (lambda (attempt) (grpc:send (grpc:attempt-call attempt) (note 5)))
                           (lambda (channel)
                             (let ((call (chat channel :open)))
                               (is (= 5 (number-of (grpc:receive call))))
                               (grpc:close-send call)
                               (is (null (grpc:receive call))))))
    (call-with-interceptor (lambda (attempt) (grpc:cancel (grpc:attempt-call attempt)))
                           (lambda (channel)
                             (is (typep (caught (ask channel (note 1))) 'grpc:cancelled))))))

(test wrong-interceptors-of-attempts-are-misuse
  (signals grpc:misuse (grpc:make-channel "localhost:1" :attempt-interceptors 3)))

;;; Credentials

(defun token-of (call)
  (cdr (assoc "authorization" (grpc:call-metadata call) :test #'string=)))

(defun tell-token (note call)
  (note (number-of note) :text (or (token-of call) "none")))

(test credentials-are-sent
  (let ((count 0))
    (flet ((token () (format nil "t~D" (incf count))))
      (with-probe (channel :channel-options (list :call-credentials (grpc:bearer-token #'token)
                                                  :plaintext-credentials t))
          (:ask #'tell-token)
        (is (string= "Bearer t1" (lab:note-text (ask channel (note 1)))))
        (is (string= "Bearer t2" (lab:note-text (ask channel (note 1))))))))
  (with-probe (channel :channel-options '(:plaintext-credentials t)) (:ask #'tell-token)
    (is (string= "none" (lab:note-text (ask channel (note 1)))))
    (is (string= "Bearer x" (lab:note-text (ask channel (note 1) :call-credentials
                                                (grpc:bearer-token "x")))))
    (is (string= "/lab.Bench/Ask"
                 (lab:note-text (ask channel (note 1) :call-credentials
                                     (lambda (path) (list (cons "authorization" path)))))))))

(test credentials-that-fail-end-the-call
  "The call ends with the credentials' status, unless only applications may give it (gRFC A54)."
  (with-probe (channel :channel-options '(:plaintext-credentials t)) (:ask #'tell-token)
    (flet ((failing (function)
             (let ((error (caught (ask channel (note 1) :call-credentials function))))
               (is-false (grpc:rpc-error-sent-p error))
               (is (search "no token" (grpc:rpc-error-message error)))
               (grpc:rpc-error-status error))))
      (is (eq :unavailable (failing (fn (_path) (grpc:fail :unavailable "no token")))))
      (is (eq :internal (failing (fn (_path) (grpc:fail :not-found "no token")))))
      (is (eq :unauthenticated (failing (fn (_path) (error "no token"))))))))

(test credentials-are-refused-on-plaintext
  (dolist (options (list (list :call-credentials (grpc:bearer-token "x")) '()))
    (with-probe (channel :channel-options options) (:ask #'tell-token)
      (let ((error (caught (ask channel (note 1) :call-credentials (grpc:bearer-token "x")))))
        (is (typep error 'grpc:unauthenticated))
        (is-false (grpc:rpc-error-sent-p error))
        (is (search "TLS" (grpc:rpc-error-message error)))))))
