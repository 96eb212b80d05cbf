;;;; Where the time of a call went.

(in-package #:clgrpc.tests.wire)

(test what-is-told-of-a-call
  "How long it has taken in all, its stages but the shortest, what it has sent and not sent."
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
