;;;; What the mix has found, each as a test of its own that needs virtual time.

(in-package #:clgrpc.tests.sim)
(in-suite :clgrpc.sim)

(test a-connection-that-is-being-made-is-not-idle
  "The server's SETTINGS take longer than connections may be idle."
  (with-echo (channel :client client)
    (sim:slow client 200)
    (grpc:with-channel (brief "server:50051" :max-connection-idle-seconds 1/20)
      (is (= 1 (ask brief 1))))))

(test connections-that-we-end-say-nothing-of-the-server
  "They became idle before a call could use them; the next is made at once."
  (with-echo (channel)
    (grpc:with-channel (brief "server:50051" :max-connection-idle-seconds 1/50)
      (dotimes (i 5)
        (grpc:ensure-connected brief)
        (is (eq :idle (grpc:wait-for-state-change brief :ready :timeout 1))))
      (is (= 1 (ask brief 1))))))
