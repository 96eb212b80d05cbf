;;;; See src/client/attempts/attempt.lisp and src/client/attempts/request.lisp: two attempts of a
;;;; call at once, of which either may be answered, and messages that are sent again.

(in-package #:clgrpc.tests.client)

(defun try-beside (call)
  "Begin another attempt of CALL on its link. Return the attempt, or nil."
  (let ((done (make-signal)) (attempt nil))
    (wire::wire-post call (lambda ()
                           (unless (grpc:call-status call)
                             (multiple-value-bind (stream link)
                                 (client::free-stream (client::attempt-subchannel
                                                       (client::stream-attempt
                                                        (wire::wire-call-stream call))))
                               (client::ensure-retries call)
                               (client::begin-attempt call link stream nil)
                               (setf attempt (first (client::other-attempts call)))))
                           (signal-it done)))
    (await-signal done)
    attempt))

(defun at-rest-p (call)
  "True if CALL has no stream and no octets left on its link."
  (let ((link (wire::wire-call-link call)))
    (wait-until (lambda ()
                  (and (zerop (wire::link-calls link))
                       (zerop (http2:connection-stream-count (wire::link-http2 link)))
                       (zerop (clgrpc.base::octet-budget-held
                               (client::core-replays (wire::wire-call-endpoint call)))))))))

(defun answering (exchanges answer &optional (count 2))
  "A script that keeps the exchanges in the car of EXCHANGES, newest first. Once there are COUNT
exchanges, the script calls ANSWER with them, oldest first."
  (fn (_peer exchange)
    (push exchange (car exchanges))
    (when (= count (length (car exchanges)))
      (apply answer (reverse (car exchanges))))))

(defun with-two-attempts (answer &key (options '()))
  "Make a call, begin a second attempt of it, and let ANSWER, a function of both exchanges, answer.
Return the value of AWAIT or the error that it signals, the call, and the exchanges."
  (let ((exchanges (list '())))
    (with-raw-server (address) (answering exchanges answer)
      (let ((channel (apply #'grpc:make-channel address options)))
        (unwind-protect
             (let* ((call (grpc:call-async #'lab.bench:ask channel (note 1 :text "same")))
                    (value nil))
               (assert (wait-until (lambda () (car exchanges))))
               (assert (try-beside call))
               (let ((error (caught (setf value (number-of (grpc:await call :timeout 20))))))
                 (assert (at-rest-p call))
                 (values (or value error) call (reverse (car exchanges)))))
          (grpc:close-channel channel))))))

(defun reset-exchange (exchange)
  (http2:reset-stream (exchange-stream exchange) http2:+internal-error+))

(test the-attempt-that-answers-first-has-the-call
  (multiple-value-bind (value call exchanges)
      (with-two-attempts (fn (_first second) (ok-response second (note-octets 7))))
    (is (eql 7 value))
    (is (eq :ok (grpc:call-status call)))
    (is (eql http2:+cancel+ (exchange-reset (first exchanges))))
    (is (null (exchange-reset (second exchanges))))
    (is (equalp (exchange-data-octets (first exchanges))
                (exchange-data-octets (second exchanges)))))
  (multiple-value-bind (value call exchanges)
      (with-two-attempts (fn (first _second) (ok-response first (note-octets 8))))
    (declare (ignore call))
    (is (eql 8 value))
    (is (null (exchange-reset (first exchanges))))
    (is (eql http2:+cancel+ (exchange-reset (second exchanges))))))

(test an-attempt-that-fails-leaves-the-call-to-the-others
  (is (eql 7 (with-two-attempts (lambda (first second)
                                  (reset-exchange first)
                                  (ok-response second (note-octets 7))))))
  (is (eql 7 (with-two-attempts (lambda (first second)
                                  (reset-exchange second)
                                  (ok-response first (note-octets 7))))))
  (is (typep (with-two-attempts (lambda (first second)
                                  (reset-exchange second)
                                  (reset-exchange first)))
             'grpc:internal))
  (is (typep (with-two-attempts (lambda (first second)
                                  (reset-exchange first)
                                  (reset-exchange second)))
             'grpc:internal)))

(test a-call-that-ends-ends-its-attempts
  (let ((exchanges (list '())))
    (with-raw-server (address) (answering exchanges #'list)
      (grpc:with-channel (channel address)
        (let ((call (grpc:call-async #'lab.bench:ask channel (note 1))))
          (eventually (car exchanges))
          (is-true (try-beside call))
          (grpc:cancel call)
          (is-true (at-rest-p call))
          (is (null (try-beside call))))))))

(test a-stream-that-is-kept-is-tried-whole
  "Messages sent before and after the second attempt's begin arrive on both attempts."
  (let ((exchanges (list '())))
    (with-raw-server (address)
        (answering exchanges (fn (_first second) (ok-response second (note-octets 9))))
      (grpc:with-channel (channel address :resend-octets 100000)
        (let ((call (chat channel :open)))
          (grpc:send call (note 1))
          (grpc:send call (note 2 :body 30000))
          (eventually (client::call-replay call))
          (eventually (wire::wire-call-stream call))
          (is-true (try-beside call))
          (grpc:send call (note 3))
          (grpc:close-send call)
          (is (eql 9 (number-of (grpc:receive call))))
          (is (null (grpc:receive call)))
          (is-true (at-rest-p call))
          (is (equalp (exchange-data-octets (first (car exchanges)))
                      (exchange-data-octets (second (car exchanges)))))
          (is (< 30000 (length (exchange-data-octets (first (car exchanges)))))))))))

(test streams-that-are-kept-are-made-again
  (flet ((attempts (count &rest options)
           (let ((exchanges (list '())) (tries 0))
             (with-raw-server (address)
                 (fn (_peer exchange)
                   (push exchange (car exchanges))
                   (if (= 1 (incf tries))
                       (http2:reset-stream (exchange-stream exchange) http2:+refused-stream+)
                       (ok-response exchange (note-octets 7))))
               (let ((channel (apply #'grpc:make-channel address options)))
                 (unwind-protect
                      (let* ((notes (loop for i from 1 to count collect (note i)))
                             (value nil)
                             (error (caught (setf value (numbers (chat channel notes))))))
                        (values (or error value) (car exchanges)))
                   (grpc:close-channel channel)))))))
    (flet ((is-made-again (count &rest options)
             (multiple-value-bind (value exchanges) (apply #'attempts count options)
               (is (equal '(7) value) "~A" value)
               (is (= 2 (length exchanges)))
               (is (equalp (exchange-data-octets (first exchanges))
                           (exchange-data-octets (second exchanges))))))
           (is-not-made-again (count &rest options)
             (multiple-value-bind (error exchanges) (apply #'attempts count options)
               (is (typep error 'grpc:unavailable))
               (is (= 1 (length exchanges))))))
      (is-made-again 1)
      (is-made-again 4)
      (is-not-made-again 5)
      (is-made-again 5 :resend-messages 5)
      (is-not-made-again 1 :resend-octets 0)
      ;; there is no room for the second message
      (is-not-made-again 2 :resend-octets 10))))

(test what-is-kept-of-a-stream-goes-when-its-answer-begins
  (with-probe (channel) (:chat #'echo)
    (let ((call (chat channel :open))
          (octet-budget (client::core-replays (client::channel-core channel))))
      (is-true (client::call-replay call))
      (speak call 1)
      (is (null (client::call-replay call)))
      (is (zerop (clgrpc.base::octet-budget-held octet-budget)))
      (grpc:cancel call))))
