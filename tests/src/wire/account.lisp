;;;; Where the time of a call went.

(in-package #:clgrpc.tests.wire)
(in-suite :clgrpc.wire)

(test stages-of-a-call
  "Times add up, by the clock of the loop."
  (with-link (link)
    (let ((call (calls 1)))
      (is (eq :receive (rpc:call-stage call)))
      (memory:passes 1)
      (on-loop (lambda () (wire:mark-call call wire:+due+)))
      (is (eq :queue (rpc:call-stage call)))
      (memory:passes 2)
      (setf (post-call-began-ns call) (rpc:operate now call))
      (is (eq :answer (rpc:call-stage call)))
      (on-loop (lambda () (rpc:send call (letter 100000))))
      (is (eq :send (rpc:call-stage call)))
      (memory:passes 4)
      (let ((stages (rpc:call-stages call)))
        (is (= 7 (getf stages :total)))
        (is (< 0.99 (getf stages :receive) 1.01))
        (is (< 1.99 (getf stages :queue) 2.01))
        (is (< 3.99 (getf stages :send) 4.01))
        (is (plusp (getf stages :unsent-octets)))
        (is (= 1 (getf stages :messages-sent)))
        (is (eq :send (getf stages :stage)))))))
