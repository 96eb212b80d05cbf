;;;; The reports about a client's call while it waits.

(in-package #:clgrpc.tests.client)

(test what-a-call-for-a-stream-waits-for
  "If the limits of all connections are reached, the text has them, with the name of the first."
  (with-probe (channel :options '(:max-concurrent-streams 2)) (:chat #'echo)
    (grpc:ensure-connected channel)
    (let ((core (client::channel-core channel))
          (peer (grpc:channel-target channel)))
      (flet ((open-chats (count)
               (dotimes (i count) (speak (chat channel :open) 1))))
        (open-chats 1)
        (is (null (client::full-text core)))
        (open-chats 1)
        (is (string= (format nil "all 2 that ~A allows are open" peer) (client::full-text core)))
        (give-links channel 3)
        (open-chats 3)
        (is (null (client::full-text core)))
        (open-chats 1)
        (is (string= (format nil "all 6 that ~A and 2 more allow are open" peer)
                     (client::full-text core))))))
  (with-core (core puppet :pick-first)
    (is (null (client::full-text core)))))
