;;;; Internal calls alone; health and load reports, which use them, have tests of their own.

(in-package #:clgrpc.tests.client)

(test reports-that-come-faster-than-they-are-used-are-skipped
  "A server reports a thousand times at once: the loop gets the newest report, and no other waits."
  (with-core (core puppet :pick-first)
    (let* ((told '())
           (subchannel (client::open-subchannel (client::core-balancer core)
                                                (client::parse-backend '("127.0.0.1:1"))))
           (call (client::make-internal-call subchannel
                                             (method:stub-method 'grpc.health.v1.health:watch)
                                             (lambda (message) (push message told)) #'identity)))
      (run-loop-of core)
      (let ((report (rpc::callbacks-on-message (rpc::call-callbacks call))))
        (dotimes (i 1000) (funcall report i))
        (is (null told))
        (run-loop-of core)
        (is (equal '(999) told))
        (dolist (message '(:a :b)) (funcall report message))
        (run-loop-of core)
        (funcall report :c)
        (run-loop-of core)
        (is (equal '(:c :b 999) told))))))
