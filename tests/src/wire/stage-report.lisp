;;;; The times of a call's stages.

(in-package #:clgrpc.tests.wire)

(test what-is-told-of-a-call
  "The total time, the stages except the shortest, and the messages sent and not sent."
  (with-link (link)
    (let ((call (calls 1)))
      (memory:passes 3)
      (on-loop (lambda () (rpc:send call (letter 100000))))
      (memory:passes 4)
      (let ((stages (rpc:call-stages call)))
        (is (= 7 (getf stages :total)))
        (is (= 1 (getf stages :receive)))
        (is (null (getf stages :queue)))
        (is (= 6 (getf stages :send)))
        (is (plusp (getf stages :unsent-octets)))
        (is (= 1 (getf stages :messages-sent)))))))
