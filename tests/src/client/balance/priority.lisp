;;;; priority: the child that serves, configs.

(in-package #:clgrpc.tests.balance)

(defun prioritized (&rest names)
  (format nil "[{\"priority_experimental\":{\"children\":{~{~A~^,~}},
                \"priorities\":[~{\"~A\"~^,~}]}}]"
          (loop for name in names
                collect (format nil "\"~A\":{\"config\":[{\"round_robin\":{}}]}" name))
          names))

(test priorities-fail-over-and-back
  (with-core (core)
    (update core (prioritized "high" "low")
            (backend 1 :path '("high")) (backend 2 :path '("low")))
    (is (= 1 (length (live core))) "the lower child is not needed")
    (bring core :ready 1)
    (is (eq (member-to core 1) (pick core)))
    (bring core :idle 1)
    (bring core :transient-failure 1)
    (is (= 2 (length (live core))))
    (is (eq :connecting (state core)))
    (bring core :ready 2)
    (is (eq (member-to core 2) (pick core)))
    (bring core :ready 1)
    (is (eq (member-to core 1) (pick core)))
    (is (= 2 (length (live core))))
    (elapse core 901)
    (is (= 1 (length (live core))) "the lower child was not needed for long")
    ;; the higher child takes too long
    (bring core :idle 1)
    (is (= 1 (length (live core))))
    (elapse core 11)
    (is (= 2 (length (live core))))
    ;; a child that becomes ready in time, and is lost later, gets its full time again
    (bring core :ready 1)
    (elapse core 901)
    (is (= 1 (length (live core))))
    (bring core :idle 1)
    (elapse core 6)
    (bring core :ready 1)
    (bring core :idle 1)
    (elapse core 6)
    (is (= 1 (length (live core))))
    (elapse core 5)
    (is (= 2 (length (live core))))
    (bring core :transient-failure 1 2)
    (is (eq :transient-failure (state core)))
    (bring core :ready 1)
    (is (eq :ready (state core)))))

(test a-priority-that-is-needed-again-stays
  "The 15 minutes after which the child would have ended no longer count once it serves again."
  (with-core (core)
    (update core (prioritized "high" "low")
            (backend 1 :path '("high")) (backend 2 :path '("low")))
    (bring core :transient-failure 1)
    (bring core :ready 2)
    (bring core :ready 1)
    (elapse core 600)
    (bring core :transient-failure 1)
    (is (eq (member-to core 2) (pick core)))
    (elapse core 901)
    (is (eq (member-to core 2) (pick core)))))

(test a-priority-that-ended-has-no-time-left
  "A later child of the same name does not end when the old child's time is over."
  (with-core (core)
    (flet ((prefer (&rest names)
             (update core (apply #'prioritized names)
                     (backend 1 :path '("high")) (backend 2 :path '("low")))))
      (prefer "high" "low")
      (bring core :transient-failure 1)
      (bring core :ready 2)
      (bring core :ready 1)
      (elapse core 600)                 ; 300 more, and the lower one ends
      (prefer "high")
      (is (= 1 (length (live core))))
      (prefer "high" "low")
      (bring core :transient-failure 1)
      (bring core :ready 2)
      (elapse core 301)
      (is (eq (member-to core 2) (pick core)))
      (prefer "high")
      (is (= 1 (length (live core))) "the child ends as others do"))))

(test priority-configs
  (is (search "priorities[1]" (config-error-path
                               "[{\"priority_experimental\":{\"children\":
                                  {\"a\":{\"config\":[{\"round_robin\":{}}]}},
                                  \"priorities\":[\"a\",\"b\"]}}]")))
  (is (search "priorities[0]" (config-error-path
                               "[{\"priority_experimental\":{\"children\":
                                  {\"a\":{\"config\":[{\"round_robin\":{}}]}},
                                  \"priorities\":[\"a\",\"a\"]}}]")))
  (is (search "children.a.config" (config-error-path
                                   "[{\"priority_experimental\":{\"children\":{\"a\":{}},
                                      \"priorities\":[\"a\"]}}]")))
  (is (search "ignoreReresolutionRequests"
              (config-error-path
               "[{\"priority_experimental\":{\"children\":
                  {\"a\":{\"config\":[{\"round_robin\":{}}],
                         \"ignoreReresolutionRequests\":1}},\"priorities\":[\"a\"]}}]"))))

(test nothing-is-resolved-anew-for-some-children
  "gRFC A37, ignoreReresolutionRequests."
  (tests:with-core (core puppet :pick-first)
    (client::wake core)
    (let ((before (tests:puppet-asked puppet)))
      (flet ((asked-p ()
               (let ((now (tests:puppet-asked puppet)))
                 (/= now (shiftf before now)))))
        (update core "[{\"priority_experimental\":{\"children\":{
                       \"high\":{\"config\":[{\"round_robin\":{}}],
                                \"ignoreReresolutionRequests\":true},
                       \"low\":{\"config\":[{\"round_robin\":{}}]}},
                       \"priorities\":[\"high\",\"low\"]}}]"
                (backend 1 :path '("high")) (backend 2 :path '("low")))
        (bring core :transient-failure 1)
        (is (not (asked-p)))
        (bring core :transient-failure 2)
        (is (asked-p))
        (update core (prioritized "high" "low")
                (backend 1 :path '("high")) (backend 2 :path '("low")))
        (client::end-wait (client:subchannel-connection-set (member-to core 1)))
        (bring core :transient-failure 1)
        (is (asked-p) "the config no longer asks to ignore this")))))

(test a-child-without-servers-fails-at-once
  (with-core (core)
    (dolist (policy '("pick_first" "round_robin" "ring_hash_experimental"))
      (update core (format nil "[{\"priority_experimental\":{\"children\":{
                                \"high\":{\"config\":[{~S:{}}]},
                                \"low\":{\"config\":[{\"round_robin\":{}}]}},
                                \"priorities\":[\"high\",\"low\"]}}]" policy)
              (backend 1 :path '("low")))
      (is-true (member-to core 1)))))

(test a-new-child-above-does-not-end-the-one-that-serves
  "gRFC A56: children below one that has its time are not deactivated; once it is ready they are."
  (with-core (core)
    (flet ((low () (balance::find-branch (policy-of core)
                                         "low")))
      (update core (prioritized "low") (backend 2 :path '("low")))
      (bring core :ready 2)
      (update core (prioritized "high" "low")
              (backend 1 :path '("high")) (backend 2 :path '("low")))
      (is (eq :connecting (state core)) "the new child has time to connect")
      (is (null (balance::branch-timer (low))))
      (bring core :transient-failure 1)
      (is (eq (member-to core 2) (pick core)))
      (bring core :ready 1)
      (is (eq (member-to core 1) (pick core)))
      (is-true (balance::branch-timer (low))))))

(test priorities-that-are-none
  (with-core (core)
    (update core "[{\"priority_experimental\":{\"children\":{},\"priorities\":[]}}]" 1)
    (is (eq :transient-failure (state core)))
    (is (search "list of priorities is empty" (client:failure-text (pick core))))))
