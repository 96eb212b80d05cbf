;;;; The common code of policies with a subchannel for each server: members, states, large fleets.

(in-package #:clgrpc.tests.balance)

(test a-leaf-policy-stays-failed-until-one-is-ready
  (with-core (core)
    (update core "[{\"round_robin\":{}}]" 1 2 1)
    (is (= 2 (length (live core))) "a backend that is given twice is one member")
    (is (eq :connecting (state core)))
    (bring core :transient-failure 1)
    (is (eq :connecting (state core)))
    (bring core :transient-failure 2)
    (is (eq :transient-failure (state core)))
    (is (search "2 is down" (client:failure-text (pick core))))
    (client::end-wait (client:subchannel-connection-set (member-to core 1)))
    (is (eq :connecting (client:subchannel-state (member-to core 1))))
    (is (eq :transient-failure (state core)))
    (bring core :ready 1)
    (is (eq :ready (state core)))
    (bring core :idle 1)
    (is (eq :connecting (client:subchannel-state (member-to core 1))))
    (is (eq :connecting (state core)))
    (update core "[{\"round_robin\":{}}]")
    (is (eq :transient-failure (state core)))
    (is (null (live core)))))

(defparameter *large-leaf-policies*
  '("\"round_robin\":{}"
    "\"weighted_round_robin\":{}"
    "\"least_request_experimental\":{}"
    "\"ring_hash_experimental\":{\"requestHashHeader\":\"x-key\"}"
    "\"outlier_detection_experimental\":{\"failurePercentageEjection\":{},
     \"childPolicy\":[{\"round_robin\":{}}]}"
    "\"random_subsetting_experimental\":{\"subsetSize\":~D,
     \"childPolicy\":[{\"round_robin\":{}}]}"
    "\"pick_first\":{}")
  "The policies that a large fleet may have; ~D stands for nine tenths of its servers.")

(defun milliseconds (function)
  "The milliseconds of processor time that FUNCTION takes, whatever else runs meanwhile."
  (let ((start (thread-time-ns)))
    (funcall function)
    (/ (- (thread-time-ns) start) 1d6)))

(defun measure-large-leaf-policy (policy old new)
  "Four times in milliseconds by POLICY: of an update from nothing to the backends OLD, of one that
changes nothing, of one from all ready to NEW, and of 1000 picks."
  (with-core (core)
    (let ((config (parse (format nil "[{~@?}]" policy (* 9/10 (length old)))))
          (switch (switch-of core))
          (call (call-with-key core "ada")))
      (flet ((update-ms (backends)
               (milliseconds (lambda () (client:update-backends switch backends config)))))
        (let ((first (update-ms old)))
          (make-room core (live core))
          (dolist (subchannel (live core))
            (setf (client:subchannel-link-state subchannel) :ready
                  (client:subchannel-state subchannel) :ready))
          (list first
                (update-ms old)
                (prog2 (mapc #'remove-room (live core)) (update-ms new)
                  (make-room core (live core))
                  (dolist (subchannel (live core)) (come-to :ready subchannel))
                  (settle core))
                (milliseconds (lambda () (loop repeat 1000 do (pick core call))))))))))

(defun measure-leaf-policy-of (count policy)
  "The values of MEASURE-LARGE-LEAF-POLICY for COUNT servers."
  (measure-large-leaf-policy policy
                             (loop for i below count collect (backend i))
                             (loop for i from count below (* 2 count) collect (backend i))))

(defparameter *leaf-policy-figures*
  '(("the first update" 80) ("an update that changes nothing" 80)
    ("an update that changes all" 80) ("1,000 picks" 20))
  "What MEASURE-LARGE-LEAF-POLICY measures, and how many times as long it may take with 10,000 servers
as with 1,000.")

(defun slow-figures (large small)
  "The *LEAF-POLICY-FIGURES* that are too long, with their milliseconds in LARGE and SMALL."
  (loop for (what times) in *leaf-policy-figures*
        for more in large
        for less in small
        unless (< more (* times (max less 0.1)))
          collect (list what more less)))

(test large-leaf-policies-are-quick
  "By each policy an update with 10,000 servers, all new or all the same, takes some ten times as
long as with 1,000, and a pick not much longer. If all servers were examined for each, updates would
take a hundred times as long, picks ten times; caches allow no narrower bounds."
  (dolist (policy *large-leaf-policies*)
    ;; the best of three, one by one, since other programs take the processor's caches, too
    (loop repeat 3
          for large = (measure-leaf-policy-of 10000 policy)
            then (mapcar #'min large (measure-leaf-policy-of 10000 policy))
          for small = (measure-leaf-policy-of 1000 policy)
            then (mapcar #'min small (measure-leaf-policy-of 1000 policy))
          for slow = (slow-figures large small)
          while slow
          finally (is (null slow)
                      "~A: ~:{~A takes ~,3F ms, with 1,000 servers ~,3F ms~:^, ~}" policy slow))))

(test many-new-servers-do-not-hold-up-the-loop
  "An update with 10,000 new servers begins to connect to some of them."
  (with-core (core)
    (client:update-backends (switch-of core)
                            (loop for i below 10000 collect (backend i))
                            (parse "[{\"round_robin\":{}}]"))
    (is (= 10000 (length (live core))))
    (is (<= (count :connecting (live core) :key #'client:subchannel-state) 64))))

(test the-order-of-a-servers-addresses-does-not-matter
  "gRFC A61: a server is its addresses in any order; the next attempt takes the new order."
  (with-core (core)
    (flet ((tell (&rest numbers)
             (update core "[{\"round_robin\":{}}]"
                     (client::parse-backend (list (mapcar #'address numbers))))
             (first (live core))))
      (let ((server (tell 1 2)))
        (is (eq :connecting (client:subchannel-state server)))
        (come-to :idle server)
        (is (eq server (tell 2 1)))
        (is (= 1 (length (live core))))
        (is (equal (list (address 2) (address 1))
                   (mapcar #'clgrpc.os:address-text (client:subchannel-addresses server))))
        (is (not (eq server (tell 2 3))) "other addresses are another server")
        (is (= 1 (length (live core))))))))

(test a-channel-has-so-many-subchannels
  "However many targets with all addresses a config has, those that have servers are used. When
servers are removed, there is room for others."
  (tests:with-core (core puppet :pick-first :options (:max-subchannels 5))
    (let ((targets (parse (format nil "[{\"weighted_target_experimental\":~
                                         {\"targets\":{~{~A~^,~}}}}]"
                                  (loop for i from 1 to 9
                                        for policy = (if (= i 3) "pick_first" "round_robin")
                                        collect (format nil "\"t~D\":{\"weight\":1,~
                                                             \"childPolicy\":[{\"~A\":{}}]}"
                                                        i policy)))))
          (switch (switch-of core)))
      (flet ((update (config &rest numbers)
               (setf (client::core-crowded core) nil)
               (client:update-backends switch (mapcar #'backend numbers) config)
               (length (client:core-subchannels core))))
        (is (= 5 (update targets 1 2 3)))
        (is (= 5 (client::core-subchannel-count core)))
        (dolist (subchannel (live core)) (come-to :ready subchannel))
        (is (eq :ready (client:core-state core)))
        (let ((round-robin (parse "[{\"round_robin\":{}}]")))
          ;; the targets are used until there is another, which has no room while they are
          (setf (client::resolution-done (client::core-resolution core)) t
                (client::resolution-backends (client::core-resolution core))
                (mapcar #'backend '(1 2))
                (client::core-balancing core) (parse "[{\"round_robin\":{}}]"))
          (update round-robin 1 2)
          (settle core)
          (is (= 2 (length (live core))))
          (is (= 4 (update round-robin 1 2 3 4)))
          (is (= 4 (update round-robin 5 6 7 8)))
          (is (= 5 (update round-robin 5 6 7 8 9 10)))
          (is (zerop (update round-robin)))
          (is (zerop (client::core-subchannel-count core))))))))

(test pickers-pass-over-servers-whose-breakers-refuse
  "They do so even if the others have no stream now, for which calls then wait. If all breakers
refuse, one server is picked, so that its breaker refuses the call."
  (dolist (policy '("round_robin" "weighted_round_robin" "least_request_experimental"))
    (with-core (core)
      (update core (format nil "[{~S:{}}]" policy) 1 2 3)
      (make-room core (list (member-to core 1)))
      (bring core :ready 1 2 3)
      (flet ((open-breaker (number)
               (tests:open-breaker-of (member-to core number))))
        (open-breaker 1)
        (let ((tally (tally core 300)))
          (is (= 0 (picks core 1 tally)))
          (is (< 50 (picks core 2 tally) 250)))
        (make-room core (live core))
        (is (= 0 (picks core 1 (tally core 300))) "calls go to servers with room")
        (open-breaker 2)
        (is (= 100 (picks core 3 (tally core 100))))
        (open-breaker 3)
        (is (client:subchannel-p (pick core)))))))
