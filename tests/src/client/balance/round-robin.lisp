;;;; round_robin: turns. Its states, and servers, are in tests/src/client/policies.lisp.

(in-package #:clgrpc.tests.balance)

(test turns-are-even
  (with-core (core)
    (update core "[{\"round_robin\":{}}]" 1 2 3)
    (make-room core (live core))
    (bring core :ready 1 2 3)
    (let ((tally (tally core 300)))
      (dolist (number '(1 2 3)) (is (= 100 (picks core number tally)))))
    (bring core :idle 2)
    (bring core :transient-failure 2)
    (let ((tally (tally core 300)))
      (is (= 150 (picks core 1 tally)))
      (is (= 0 (picks core 2 tally))))))

(test turns-begin-by-chance
  "The first server is random, so that many clients do not all begin with the same one."
  (let ((firsts (make-hash-table :test #'equal)))
    (with-core (core)
      (update core "[{\"round_robin\":{}}]" 1 2 3)
      (make-room core (live core))
      (bring core :ready 1 2 3)
      (loop repeat 60
            do (balance::review (policy-of core))
               (incf (gethash (client:subchannel-key (pick core)) firsts 0))))
    (is (= 3 (hash-table-count firsts)))))

(test turns-pass-over-who-has-no-room
  (with-core (core)
    (update core "[{\"round_robin\":{}}]" 1 2 3)
    (make-room core (list (member-to core 1) (member-to core 3)))
    (bring core :ready 1 2 3)
    (let ((tally (tally core 300)))
      (is (= 0 (picks core 2 tally)))
      (is (= 300 (+ (picks core 1 tally) (picks core 3 tally)))))))
