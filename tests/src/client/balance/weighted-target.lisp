;;;; weighted_target: shares, targets that come and go, configs.

(in-package #:clgrpc.tests.balance)

(defun weighted (&rest rows)
  (format nil "[{\"weighted_target_experimental\":{\"targets\":{~{~A~^,~}}}}]"
          (loop for (child weight) in rows
                collect (format nil "\"~A\":{\"weight\":~D,\"childPolicy\":
                                     [{\"round_robin\":{}}]}" child weight))))

(test targets-have-calls-by-weight
  (with-core (core)
    (let ((backends (list (backend 1 :path '("a")) (backend 2 :path '("b"))
                          (backend 3 :path '("b")))))
      (flet ((tell (&rest rows) (apply #'update core (apply #'weighted rows) backends)))
        (tell '("a" 30) '("b" 70))
        (make-room core (live core))
        (is (eq :connecting (state core)))
        (bring core :ready 2)
        (is (eq :ready (state core)))
        (is (= 100 (picks core 2 (tally core 100))))
        (bring core :ready 1 3)
        (let ((tally (tally core 100000)))
          (is (within-p 3/10 100000 (picks core 1 tally)))
          (is (within-p 7/20 100000 (picks core 2 tally))))
        (remove-room (member-to core 1))
        (tell '("b" 1))
        (is (= 0 (picks core 1 (tally core 100))))
        (is (= 2 (length (live core))) "the child a has ended")
        (tell '("a" 1) '("b" 1))
        (make-room core (list (member-to core 1)))
        (bring core :ready 1)
        (let ((tally (tally core 100000)))
          (is (within-p 1/2 100000 (picks core 1 tally))))))))

(defun over-pick-first (&rest rows)
  (format nil "[{\"weighted_target_experimental\":{\"targets\":{~{~A~^,~}}}}]"
          (loop for (name policy) in rows
                collect (format nil "~S:{\"weight\":1,\"childPolicy\":[{~S:{}}]}" name policy))))

(defun path-to (core path)
  "The subchannel in use of the child PATH, which balances by pick_first."
  (find-if (lambda (subchannel)
             (string= path (client:server-text subchannel)))
           (live core)))

(test targets-that-are-idle-connect
  "Otherwise they would get no calls while others are ready."
  (with-core (core)
    (update core (over-pick-first '("a" "pick_first") '("b" "pick_first"))
            (backend 1 :path '("a")) (backend 2 :path '("b")))
    (let ((one (path-to core (address 1)))
          (two (path-to core (address 2))))
      (is (eq :connecting (client:subchannel-state one)))
      (come-to :ready one)
      (come-to :ready two)
      (come-to :idle two)
      (is (eq :connecting (client:subchannel-state two)))
      (is (eq :ready (state core)))
      (is (eq one (pick core))))))

(test targets-whose-policy-ends-as-they-become-idle-are-left
  "The state that the target publishes makes another policy take over, which must connect instead."
  (with-log ()
    (with-core (core)
      (update core "[{\"weighted_target_experimental\":{\"targets\":{\"a\":{\"weight\":1,
                     \"childPolicy\":[{\"ring_hash_experimental\":
                                        {\"requestHashHeader\":\"x-key\"}}]}}}}]"
              (backend 1 :path '("a")))
      (let ((one (member-to core 1)))
        (client:connect one)
        (come-to :ready one)
        (is (eq :ready (state core)))
        (update core "[{\"round_robin\":{}}]" 2)
        (is (eq :ready (state core)) "the old policy serves while the new one connects")
        (come-to :idle one)
        (settle core)
        (is (eq :connecting (state core)))
        (is (equal (list (member-to core 2)) (live core)))))))

(test targets-that-connect-for-calls
  "An idle ring picks, and connects."
  (with-core (core)
    (update core "[{\"weighted_target_experimental\":{\"targets\":{\"a\":{\"weight\":1,
                   \"childPolicy\":[{\"ring_hash_experimental\":
                                      {\"requestHashHeader\":\"x-key\"}}]}}}}]"
            (backend 1 :path '("a")))
    (settle core)
    (pick core (call-with-key core "alpha"))
    (settle core)
    (is (eq :connecting (client:subchannel-state (member-to core 1))))))

(test weighted-target-configs
  (is (search "targets.a.weight" (config-error-path (weighted '("a" 0)))))
  (is (search "childPolicy" (config-error-path "[{\"weighted_target_experimental\":
                                                  {\"targets\":{\"a\":{\"weight\":1}}}}]")))
  (is (search "targets" (config-error-path "[{\"weighted_target_experimental\":{}}]"))))
