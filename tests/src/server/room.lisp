;;;; Calls that wait for room for their answers.

(in-package #:clgrpc.tests.server)
(in-suite :clgrpc.server)

(test calls-wait-for-room
  "Where answers would be longer than the heap has room for, one call begins all the same; the next
waits, and ends when it has waited long enough, or with its caller."
  (with-hub (hub :options '(:room-wait-seconds 2)) (:ask #'keep-open)
    (comes hub)
    (let ((route (route-named (server::hub-server hub) 'lab.bench:ask)))
      (serving:note-long-answer route (ash (sb-ext:dynamic-space-size) -1))
      (asks 1 "Ask" 1)
      (memory:passes 0.01)
      (is-true (server::hub-probe hub))
      (asks 3 "Ask" 1)
      (asks 5 "Ask" 1)
      (memory:passes 1)
      (answered)
      (memory:hears '(:rst-stream 5 :cancel))
      (is (= 2 (server::hub-open hub)))
      (memory:passes 1.1)
      (answered '(3 :resource-exhausted))
      (is (= 1 (server::hub-open hub)))
      ;; the probe has ended: the next call is one
      (memory:hears '(:rst-stream 1 :cancel))
      (memory:passes 0.01)
      (asks 7 "Ask" 1)
      (memory:passes 0.01)
      (is-true (plusp (server::server-call-began-ns (server::hub-probe hub))))
      (is (= 1 (server::hub-open hub)))
      (memory:hangs-up)
      (is (zerop (server::hub-open hub))))))
