;;;; See src/rpc/attempt/retry.lisp and src/client/attempts/attempt.lisp: a call is tried again
;;;; while it runs, and one attempt gets it.

(in-package #:clgrpc.tests.client)

(defun hedging-config (&key (attempts 3) (delay "0.02s") (more ""))
  "The JSON of a service config that has a hedging policy for all methods."
  (format nil "{\"methodConfig\":[{\"name\":[{}],\"hedgingPolicy\":{\"maxAttempts\":~D,~
               \"hedgingDelay\":~S,\"nonFatalStatusCodes\":[\"UNAVAILABLE\"]}}]~A}"
          attempts delay more))

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
        (eventually (and (car running) (client::waiting-calls (client::channel-core channel))))
        (grpc:finish (car running) :status :unavailable)
        (is (eql 3 (number-of (grpc:await call))))
        (is (= 2 (car count)))))))

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

(test a-call-that-goes-on-with-its-hedge-sends-the-rest
  "The first attempt reads nothing, so its stream has no more room. This attempt fails when the
hedge has read all messages sent so far; then the call sends the rest."
  (let ((count (list 0)) (over (make-signal)))
    (with-probe (channel :options '(:stream-window-octets 65535)
                         :channel-options (list :service-config (hedging-config :attempts 2)))
        (:chat (lambda (stream call)
                 (unless (assoc "grpc-previous-rpc-attempts" (grpc:call-metadata call)
                                :test #'string=)
                   (await-signal over)
                   (grpc:fail :unavailable "x"))
                 (grpc:do-messages (note stream) (sb-ext:atomic-incf (car count)))
                 (grpc:send call (note (car count)))))
      (let ((call (chat channel (loop for i below 20 collect (note i :body 10000)))))
        (eventually (let ((outbound (client::call-client-outbound call)))
                      (and outbound
                           (client::client-outbound-writable-wanted outbound)
                           (< 0 (car count) 20)
                           (= (car count) (client::client-outbound-spoken outbound)))))
        (signal-it over)
        (is (equal '(20) (numbers call)))))))
