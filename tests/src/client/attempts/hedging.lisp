;;;; See src/rpc/calling/retry.lisp and src/client/attempts/attempt.lisp: a call is tried again
;;;; while it runs, and one attempt has it.

(in-package #:clgrpc.tests.client)
(in-suite :clgrpc.client)

(defun hedging-config (&key (attempts 3) (delay "0.02s") (more ""))
  "The JSON of a service config that has a hedging policy for all methods."
  (format nil "{\"methodConfig\":[{\"name\":[{}],\"hedgingPolicy\":{\"maxAttempts\":~D,~
               \"hedgingDelay\":~S,\"nonFatalStatusCodes\":[\"UNAVAILABLE\"]}}]~A}"
          attempts delay more))

(defun answering-only (number)
  "A script that answers the exchange NUMBER and lets others wait."
  (lambda (exchange count)
    (when (= number count) (ok-response exchange (note-octets 7)))))

(defun count-resets (exchanges)
  "How many of EXCHANGES were reset by CANCEL."
  (count http2:+cancel+ exchanges :key #'exchange-reset :test #'eql))

(test the-first-of-hedges-that-answers-has-the-call
  (under-config (value exchanges (hedging-config :attempts 2) (answering-only 1))
      (number-of (ask channel (note 1)))
    (is (eql 7 value))
    (is (equal '(nil "1") (previous-attempts exchanges)))
    (is-true (wait-until (lambda () (= 1 (count-resets exchanges))))))
  (under-config (value exchanges (hedging-config :attempts 4 :delay "0s") (answering-only 3))
      (number-of (grpc:await (grpc:call-async #'lab.bench:ask channel (note 1 :body 70000))))
    (is (eql 7 value))
    (is (equal '(nil "1" "2" "3") (previous-attempts exchanges)))
    (is-true (wait-until (lambda () (= 3 (count-resets exchanges))))))
  (under-config (value exchanges (hedging-config :delay "5s") (answering-only 0))
      (number-of (ask channel (note 1)))
    (is (eql 7 value))
    (is (= 1 (length exchanges)))))

(test streams-are-hedged
  "What was sent and what comes later goes to all attempts."
  (under-config (value exchanges (hedging-config :attempts 2) (answering-only 1))
      (let ((call (chat channel :open)))
        (grpc:send call (note 1))
        (assert (wait-until (lambda () (client::other-attempts call))))
        (grpc:send call (note 2))
        (grpc:close-send call)
        (prog1 (number-of (grpc:receive call))
          (assert (null (grpc:receive call)))))
    (is (eql 7 value))
    (is (= 2 (length exchanges)))
    (is (equalp (exchange-data-octets (first exchanges))
                (exchange-data-octets (second exchanges))))))

(test hedges-that-fail
  (flet ((outcome (config script)
           (multiple-value-bind (value exchanges)
               (call-under-config config script (lambda (channel)
                                                  (number-of (ask channel (note 1) :timeout 10))))
             (list (if (typep value 'grpc:rpc-error) (grpc:rpc-error-status value) value)
                   (length exchanges)))))
    ;; one that is not fatal has the next begin at once
    (is (equal '(7 2) (outcome (hedging-config :delay "8s") (failing-first 1 14))))
    ;; all fail
    (is (equal '(:unavailable 3) (outcome (hedging-config) (failing-first 9 14))))
    ;; one that is fatal ends the call and the others
    (is (equal '(:invalid-argument 2)
               (outcome (hedging-config :attempts 2)
                    (lambda (exchange number) (when (= 1 number) (fail-exchange exchange 3))))))
    ;; pushback
    (is (equal '(:unavailable 1)
               (outcome (hedging-config :delay "8s") (failing-first 9 14 :pushback "-1"))))
    (is (equal '(7 2) (outcome (hedging-config :delay "8s") (failing-first 1 14 :pushback "50"))))
    ;; the others go on after it
    (is (equal '(7 2) (outcome (hedging-config :attempts 2)
                           (let ((first nil))
                             (lambda (exchange number)
                               (cond ((= 0 number) (setf first exchange))
                                     (t (fail-exchange exchange 14 :pushback "-1")
                                        (ok-response first (note-octets 7)))))))))))

(test a-hedge-that-waits-for-a-stream-outlives-the-attempt-before-it
  "The server allows one stream at a time, so the second waits until the first has failed."
  (let ((count (list 0)) (running (list nil)))
    (with-probe (channel :options '(:max-concurrent-streams 1)
                         :channel-options (list :service-config (hedging-config :attempts 2)))
        (:ask (lambda (note call)
                (cond ((zerop (sb-ext:atomic-incf (car count)))
                       (setf (car running) call)
                       call)
                      (t note))))
      (let ((call (grpc:call-async #'lab.bench:ask channel (note 3))))
        (is-true (wait-until (lambda ()
                               (and (car running)
                                    (client::waiting-calls (client::channel-core channel))))))
        (grpc:finish (car running) :status :unavailable)
        (is (eql 3 (number-of (grpc:await call))))
        (is (= 2 (car count)))))))

(test hedges-are-throttled
  "At half of the tokens there are no more. Each failure has the next begin at once; the delay, which
would have it begin before the failure is heard, does not pass."
  (let ((config (hedging-config :attempts 5 :delay "8s"
                                :more ",\"retryThrottling\":{\"maxTokens\":4,\"tokenRatio\":0.1}"))
        (count 0))
    (under-config (value exchanges config
                   (lambda (exchange number)
                     (declare (ignore number))
                     (incf count)
                     (fail-exchange exchange 14)))
        (flet ((attempts ()
                 (setf count 0)
                 (caught (ask channel (note 1)))
                 count))
          (list (attempts) (attempts)))
      (is (equal '(2 1) value)))))

(test a-hedged-call-can-be-cancelled
  (let ((third (make-signal)))
    (under-config (error exchanges (hedging-config :attempts 3 :delay "0.01s")
                   (lambda (exchange number)
                     (declare (ignore exchange))
                     (when (= 2 number) (signal-it third))))
        (let ((call (grpc:call-async #'lab.bench:ask channel (note 1))))
          (assert (await-signal third))
          (grpc:cancel call)
          (grpc:await call))
      (is (typep error 'grpc:cancelled))
      (is (= 3 (length exchanges)))
      (is-true (wait-until (lambda () (= 3 (count-resets exchanges))))))))

(test a-hedged-stream-that-sends-too-much-goes-on-with-its-first
  (under-config (value exchanges (hedging-config :attempts 2 :delay "0.02s")
                 (lambda (exchange number)
                   (when (= 0 number) (ok-response exchange (note-octets 7))))
                 :options '(:replay-octets 500))
      (let ((call (chat channel :open)))
        (grpc:send call (note 1))
        (assert (wait-until (lambda () (client::other-attempts call))))
        (grpc:send call (note 2 :body 1000))
        (assert (wait-until (lambda () (null (client::other-attempts call)))))
        (grpc:close-send call)
        (prog1 (number-of (grpc:receive call))
          (assert (null (grpc:receive call)))))
    (is (eql 7 value))
    (is (= 1 (length exchanges)))))
