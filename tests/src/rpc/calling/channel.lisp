;;;; Channels of any kind: CLOSE-CHANNEL refuses other objects.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.calling)

(test what-is-no-channel-is-not-closed
  (signals misuse (calling:close-channel "localhost:1"))
  (signals misuse (calling:close-channel nil)))
