;;;; What a call on the client says of itself while it waits.

(in-package #:clgrpc.tests.client)

(test what-a-call-for-a-stream-waits-for
  "The limits of all connections, if they are reached, and the first of them by name."
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
