;;;; What is true of channels of every kind that says no more of itself.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.rpc)

(defclass test-channel (rpc:channel) ())

(defmethod rpc:channel-target ((channel test-channel)) "test:1")

(test channels-are-not-secure-unless-they-say-so
  (let ((channel (make-instance 'test-channel)))
    (is (not (rpc:channel-secure-p channel)))
    (is (not (rpc:channel-plaintext-credentials channel)))))
