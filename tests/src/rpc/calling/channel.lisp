;;;; What is true of channels of every kind that says no more of itself.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.calling)

(defclass test-channel (method:channel) ())

(defmethod calling:channel-target ((channel test-channel)) "test:1")

(test channels-are-not-secure-unless-they-say-so
  (let ((channel (make-instance 'test-channel)))
    (is (not (calling:channel-secure-p channel)))))

(test what-is-no-channel-is-not-closed
  (signals misuse (calling:close-channel "localhost:1"))
  (signals misuse (calling:close-channel nil)))
