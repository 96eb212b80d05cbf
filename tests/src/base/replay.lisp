;;;; The parts of requests that calls may keep.

(in-package #:clgrpc.tests.base)

(test replays-keep-what-fits
  "They keep messages within the call's budgets of octets and messages, and the channel's."
  (let* ((octet-budget (make-octet-budget))
         (replay (make-replay octet-budget 100 3)))
    (is-true (keep-message replay :a 60 1000))
    (is-false (keep-message replay :b 41 1000))
    (is-true (keep-message replay :c 40 1000))
    (is-false (keep-message replay :d 1 1000))
    (is-true (keep-message replay :e 0 1000))
    (is-false (keep-message replay :f 0 1000))
    (is (equal '(:e :c :a) (replay-messages replay)))
    (is (= 100 (clgrpc.base::octet-budget-held octet-budget)))))

(test replays-share-the-budget-of-their-channel
  (let* ((octet-budget (make-octet-budget))
         (one (make-replay octet-budget 100))
         (other (make-replay octet-budget 100)))
    (is-true (keep-message one :a 80 150))
    (is-false (keep-message other :b 80 150))
    (is (= 80 (clgrpc.base::octet-budget-held octet-budget)))
    (release-replay one)
    (is (zerop (clgrpc.base::octet-budget-held octet-budget)))
    (is (null (replay-messages one)))
    ;; once only
    (release-replay one)
    (is (zerop (clgrpc.base::octet-budget-held octet-budget)))
    (is-true (keep-message other :b 80 150))))
