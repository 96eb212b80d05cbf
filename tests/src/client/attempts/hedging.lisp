;;;; See src/rpc/calling/retry.lisp and src/client/attempts/attempt.lisp: a call is tried again
;;;; while it runs, and one attempt has it.

(in-package #:clgrpc.tests.client)
(in-suite :clgrpc.client)

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
        (is-true (wait-until (lambda ()
                               (and (car running)
                                    (client::waiting-calls (client::channel-core channel))))))
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
