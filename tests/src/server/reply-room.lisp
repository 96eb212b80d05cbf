;;;; Calls that wait for room for their answers.

(in-package #:clgrpc.tests.server)

(test calls-wait-for-room
  "Where answers would be longer than the heap has room for, one call begins all the same; the next
waits, and ends when it has waited long enough, or with its caller."
  (with-server-loop (server-loop :options '(:room-wait-seconds 2)) (:ask #'keep-open)
    (comes server-loop)
    (let ((route (route-named (server::server-loop-server server-loop) 'lab.bench:ask)))
      (serving:note-answer route (ash (sb-ext:dynamic-space-size) -1))
      (asks 1 "Ask" 1)
      (memory:passes 0.01)
      (is-true (server::server-loop-probe server-loop))
      (asks 3 "Ask" 1)
      (asks 5 "Ask" 1)
      (memory:passes 1)
      (answered)
      (memory:hears '(:rst-stream 5 :cancel))
      (is (= 2 (server::server-loop-open server-loop)))
      (memory:passes 1.1)
      (answered '(3 :resource-exhausted))
      (is (= 1 (server::server-loop-open server-loop)))
      ;; the probe has ended: the next call is one
      (memory:hears '(:rst-stream 1 :cancel))
      (memory:passes 0.01)
      (asks 7 "Ask" 1)
      (memory:passes 0.01)
      (is-true (plusp (server::server-call-began-ns (server::server-loop-probe server-loop))))
      (is (= 1 (server::server-loop-open server-loop)))
      (memory:hangs-up)
      (is (zerop (server::server-loop-open server-loop))))))
