;;;; Timers of balancers.

(in-package #:clgrpc.tests.balance)

(test timers-ring-once-unless-they-are-stopped
  (with-core (core)
    (update core "[{\"round_robin\":{}}]" 1)
    (let ((balancer (policy-of core))
          (rung '()))
      (flet ((start (seconds)
               (balance::start-policy-timer
                balancer (seconds-ns seconds)
                (lambda (balancer) (push (cons seconds balancer) rung)))))
        (let ((first (start 1))
              (second (start 2)))
          (start 3)
          (elapse core 1.5)
          (is (equal (list (cons 1 balancer)) rung))
          (balance::stop-policy-timer balancer first) ; it has rung
          (balance::stop-policy-timer balancer second)
          (balance::stop-policy-timer balancer second)
          (balance::stop-policy-timer balancer nil)
          (elapse core 2)
          (is (equal '(3 1) (mapcar #'car rung)))
          (elapse core 10)
          (is (= 2 (length rung))))))))

(test no-period-is-too-long-for-a-timer
  (with-core (core)
    (update core "[{\"outlier_detection_experimental\":{\"interval\":\"315576000000s\",
                   \"failurePercentageEjection\":{},
                   \"childPolicy\":[{\"weighted_round_robin\":
                     {\"weightUpdatePeriod\":\"315576000000s\"}}]}}]" 1)
    (bring core :ready 1)
    (is (eq :ready (state core)))))
