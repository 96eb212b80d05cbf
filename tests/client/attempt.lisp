;;;; See src/client/attempt.lisp and src/wire/replay.lisp: two attempts of a call at once, whichever
;;;; answers, and what has been sent, sent again.

(in-package #:clgrpc.tests.client)
(in-suite :clgrpc.client)

(defun try-beside (call)
  "Have CALL tried on its link once more. Return the attempt, or nil."
  (let ((done (make-signal)) (attempt nil))
    (wire:wire-post call (lambda ()
                           (unless (grpc:call-status call)
                             (let ((link (wire:wire-call-link call)))
                               (setf attempt (client::add-attempt
                                              call link
                                              (http2:open-stream (wire:link-http2 link))))))
                           (signal-it done)))
    (await-signal done)
    attempt))

(defun at-rest-p (call)
  "True if no stream and no octet of CALL is left on its link."
  (let ((link (wire:wire-call-link call)))
    (wait-until (lambda ()
                  (and (zerop (wire:link-calls link))
                       (zerop (http2:connection-stream-count (wire:link-http2 link)))
                       (zerop (wire:ledger-held
                               (wire:endpoint-replays (wire:wire-call-endpoint call)))))))))

(defun answering (exchanges answer &optional (count 2))
  "A script that keeps the exchanges in the car of EXCHANGES, newest first, and calls ANSWER with
them, oldest first, once there are COUNT."
  (lambda (peer exchange)
    (declare (ignore peer))
    (push exchange (car exchanges))
    (when (= count (length (car exchanges)))
      (apply answer (reverse (car exchanges))))))

(defun with-two-attempts (answer &key (options '()))
  "Ask a server, try that once more beside, and have ANSWER, a function of both exchanges, answer.
Return what AWAIT returns, or the error it signals, the call, and the exchanges."
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
      (with-two-attempts (lambda (first second)
                           (declare (ignore first))
                           (ok-response second (note-octets 7))))
    (is (eql 7 value))
    (is (eq :ok (grpc:call-status call)))
    (is (eql http2:+cancel+ (exchange-reset (first exchanges))))
    (is (null (exchange-reset (second exchanges))))
    (is (equalp (exchange-data-octets (first exchanges))
                (exchange-data-octets (second exchanges)))))
  (multiple-value-bind (value call exchanges)
      (with-two-attempts (lambda (first second)
                           (declare (ignore second))
                           (ok-response first (note-octets 8))))
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
          (is-true (wait-until (lambda () (car exchanges))))
          (is-true (try-beside call))
          (grpc:cancel call)
          (is-true (at-rest-p call))
          (is (null (try-beside call))))))))

(test a-stream-that-is-kept-is-tried-whole
  "What was sent before the second attempt began and what is sent after it come on both."
  (let ((exchanges (list '())))
    (with-raw-server (address)
        (answering exchanges (lambda (first second)
                               (declare (ignore first))
                               (ok-response second (note-octets 9))))
      (grpc:with-channel (channel address :resend-octets 100000)
        (let ((call (chat channel :open)))
          (grpc:send call (note 1))
          (grpc:send call (note 2 :body 30000))
          (is-true (wait-until (lambda () (wire:call-replay call))))
          (is-true (wait-until (lambda () (wire:wire-call-stream call))))
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
  (flet ((attempts (octets)
           (let ((exchanges (list '())) (count 0))
             (with-raw-server (address)
                 (lambda (peer exchange)
                   (declare (ignore peer))
                   (push exchange (car exchanges))
                   (if (= 1 (incf count))
                       (http2:reset-stream (exchange-stream exchange) http2:+refused-stream+)
                       (ok-response exchange (note-octets 7))))
               (grpc:with-channel (channel address :resend-octets octets)
                 (let* ((value nil)
                        (error (caught (setf value
                                             (numbers (chat channel
                                                            (list (note 1) (note 2))))))))
                   (values (or error value) (car exchanges))))))))
    (multiple-value-bind (value exchanges) (attempts 100000)
      (is (equal '(7) value) "~A" value)
      (is (= 2 (length exchanges)))
      (is (equalp (exchange-data-octets (first exchanges))
                  (exchange-data-octets (second exchanges)))))
    ;; there is no room for the second message
    (multiple-value-bind (error exchanges) (attempts 10)
      (is (typep error 'grpc:unavailable))
      (is (= 1 (length exchanges))))))
