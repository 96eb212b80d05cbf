;;;; The policies of src/balance, one after the other.

(in-package #:clgrpc.tests.balance)
(in-suite :clgrpc.balance)

;;; Fleets

(test a-fleet-stays-failed-until-one-is-ready
  (with-core (core)
    (update core "[{\"round_robin\":{}}]" 1 2 1)
    (is (= 2 (length (live core))) "one that is told twice is one")
    (is (eq :connecting (state core)))
    (bring core :transient-failure 1)
    (is (eq :connecting (state core)))
    (bring core :transient-failure 2)
    (is (eq :transient-failure (state core)))
    (is (search "2 is down" (client:failure-text (pick core))))
    (client::end-wait (member-to core 1))
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

(test another-policy-takes-over-when-it-is-ready
  (with-core (core)
    (update core "[{\"round_robin\":{}}]" 1 2)
    (bring core :ready 1 2)
    (let ((old (live core)))
      (update core "[{\"least_request_experimental\":{}}]" 1 2)
      (is (= 4 (length (live core))))
      (is (member (pick core) old))
      (let ((new (find-if-not (lambda (subchannel) (member subchannel old)) (live core))))
        (client::change-state new :ready)
        (is (eq new (pick core)))
        (is (= 2 (length (live core))))))))

(test large-fleets-are-quick
  "With 10,000 servers an update takes under 50 ms and a pick under 1 µs."
  (with-core (core)
    (let* ((backends (loop for i below 10000 collect (backend i)))
           (config (parse "[{\"round_robin\":{}}]"))
           (switch (client::core-balancer core)))
      (flet ((milliseconds (function)
               (loop repeat 5
                     minimize (let ((start (monotonic-ns)))
                                (funcall function)
                                (/ (- (monotonic-ns) start) 1d6)))))
        (client:update-backends switch backends config)
        (make-room core (live core))
        (dolist (subchannel (live core))
          (setf (client::subchannel-link-state subchannel) :ready
                (client::subchannel-state subchannel) :ready))
        (let ((update-ms (milliseconds
                          (lambda () (client:update-backends switch backends config)))))
          (is (< update-ms 50) "an update takes ~,1F ms" update-ms))
        (let ((ns (* 1000 (milliseconds (lambda () (loop repeat 1000 do (pick core)))))))
          (is (< ns 1000) "a pick takes ~,0F ns" ns))
        (let* ((gone (member-to core 0))
               (change-ms (progn (remove-room gone)
                                 (milliseconds
                                  (lambda ()
                                    (client:update-backends switch (rest backends) config)
                                    (client:update-backends switch backends config))))))
          (is (< change-ms 100) "two updates that change one server take ~,1F ms" change-ms))))))

(test many-new-servers-do-not-hold-up-the-loop
  "An update with 10,000 new servers begins to connect to some of them."
  (with-core (core)
    (let ((backends (loop for i below 10000 collect (backend i)))
          (start (monotonic-ns)))
      (client:update-backends (client::core-balancer core) backends
                              (parse "[{\"round_robin\":{}}]"))
      (let ((ms (/ (- (monotonic-ns) start) 1d6)))
        (is (< ms 100) "it took ~,1F ms" ms))
      (is (= 10000 (length (live core))))
      (is (<= (count :connecting (live core) :key #'client:subchannel-state) 64)))))

;;; least_request

(test least-request-prefers-who-has-fewer-calls
  (with-core (core)
    (update core "[{\"least_request_experimental\":{\"choiceCount\":10}}]" 1 2)
    (make-room core (live core))
    (bring core :ready 1 2)
    (let ((even (tally core 1000)))
      (is (< 300 (picks core 1 even) 1001) "of equal ones, the first that chance gives")
      (is (< 300 (picks core 2 even))))
    (setf (clgrpc.wire:link-calls (first (client::subchannel-links (member-to core 1)))) 5)
    (let ((tally (tally core 1000)))
      ;; of ten choices one in 1024 is of the busy one only
      (is (< 980 (picks core 2 tally))))))

(test least-request-configs
  (flet ((choices (json)
           (config:policy-config-value
            (parse (format nil "[{\"least_request_experimental\":~A}]" json)))))
    (is (= 2 (choices "{}")))
    (is (= 10 (choices "{\"choiceCount\":200}")))
    (is (= 7 (choices "{\"choice_count\":\"7\"}"))))
  (is (string= "loadBalancingConfig[0].least_request_experimental.choiceCount"
               (config-error-path
                "[{\"least_request_experimental\":{\"choiceCount\":1}}]"))))

;;; weighted_round_robin

(test strides-pick-as-weights-say
  (dolist (weights '((1 1) (1 2 3) (9 1) (100 250 399 777) (5 5 5 6)))
    (let* ((stride (balance::make-stride (balance::scaled-weights (coerce weights 'vector)) 12345))
           (counts (make-list (length weights) :initial-element 0))
           (total (reduce #'+ weights)))
      (loop repeat 100000 do (incf (elt counts (balance::next-entry stride))))
      (loop for weight in weights
            for count in counts
            do (is (within-p (/ weight total) 100000 count) "~D of ~S: ~D" weight weights count)))))

(test weights-that-are-none
  (is (null (balance::scaled-weights #(0 0 0))))
  (is (null (balance::scaled-weights #(0 5 0))) "one is none to compare with")
  (is (equalp #(21845 65535 43690) (balance::scaled-weights #(1 3 0))) "who has none has the mean")
  (is (equalp (balance::scaled-weights (vector 1000000 1 1 1))
              (balance::scaled-weights (vector 1000000000 1000 1000 1000)))
      "only what they are to each other counts")
  (is (every #'plusp (balance::scaled-weights (vector 1000000 1 1 1)))))

(defun report (&rest fields)
  (apply #'orca:make-orca-load-report fields))

(defun note-loads (core &rest loads)
  "Have the servers 1, 2 … report LOADS, each a utilization at 100 calls per second."
  (loop for load in loads
        for number from 1
        for subchannel = (member-to core number)
        do (balance::note-report (client:subchannel-note subchannel)
                                 (report :cpu-utilization load :rps-fractional 100d0)
                                 (balance::weighting
                                  (client::subchannel-balancer subchannel))
                                 (client::core-now core))))

(defun even-p (core)
  (let ((tally (tally core 1000)))
    (= 500 (picks core 1 tally) (picks core 2 tally))))

(test weights-come-and-go
  "Weights count from the end of the blackout until they expire; those of a new connection anew."
  (with-core (core)
    (update core "[{\"weighted_round_robin\":{\"blackoutPeriod\":\"5s\",
                   \"weightExpirationPeriod\":\"60s\",\"weightUpdatePeriod\":\"1s\"}}]" 1 2)
    (make-room core (live core))
    (bring core :ready 1 2)
    (is (even-p core))
    (note-loads core 0.1d0 0.3d0)
    (elapse core 3)
    (is (even-p core) "it is the blackout")
    (elapse core 3)
    (let ((tally (tally core 100000)))
      (is (within-p 3/4 100000 (picks core 1 tally)))
      (is (within-p 1/4 100000 (picks core 2 tally))))
    (note-loads core 0.3d0 0.3d0)
    (is (not (even-p core)) "until weights are looked at again")
    (elapse core 1.25)
    (is (even-p core))
    (note-loads core 0.1d0 0.3d0)
    (elapse core 2)
    (is (not (even-p core)))
    (elapse core 61)
    (is (even-p core) "they have expired")
    (note-loads core 0.1d0 0.3d0)
    (elapse core 2)
    (is (even-p core) "another blackout")
    (elapse core 5)
    (is (not (even-p core)))
    (bring core :idle 1)
    (bring core :ready 1)
    (elapse core 2)
    (is (even-p core) "of one a weight is not known")))

(test weights-of-reports
  (flet ((weight (penalty &rest fields)
           (balance::report-weight (apply #'report fields) penalty)))
    (is (= 1000 (weight 1 :cpu-utilization 0.5d0 :rps-fractional 500d0)))
    (is (= 2000 (weight 1 :cpu-utilization 0.5d0 :application-utilization 0.25d0
                          :rps-fractional 500d0)))
    (is (= 250 (weight 1 :cpu-utilization 0.5d0 :rps-fractional 500d0 :eps 750d0)))
    (is (= 1000 (weight 0 :cpu-utilization 0.5d0 :rps-fractional 500d0 :eps 750d0)))
    (is (null (weight 1 :cpu-utilization 0.5d0)))
    (is (null (weight 1 :rps-fractional 5d0)))
    (is (null (weight 1 :cpu-utilization sb-ext:double-float-positive-infinity
                        :rps-fractional 5d0)))))

;;; ring_hash

(test xxh64-vectors
  (flet ((hash (text &optional (seed 0)) (balance:xxh64 (string-octets text) seed)))
    (is (= #xEF46DB3751D8E999 (hash "")))
    (is (= #xD24EC4F1A98C6E5B (hash "a")))
    (is (= #x44BC2CF5AD770999 (hash "abc")))
    (is (= #xFBCEA83C8A378BF1 (hash "Nobody inspects the spammish repetition")))
    (is (/= (hash "a") (hash "a" 1)))))

(defvar *core*)
(defvar *balancer*)

(defun ring-of (numbers &key (least 1024) (most 4096))
  (balance::build-ring (loop for number in numbers
                             collect (client::make-subchannel
                                      :core *core* :balancer *balancer*
                                      :key (address number)))
                       (balance::make-ring-config :least least :most most)))

(defun owner (ring key)
  (client:subchannel-key
   (svref (balance::ring-servers ring)
          (balance::ring-index ring (balance:xxh64 (string-octets (format nil "key ~D" key)))))))

(test few-keys-move
  "When one of 1,000 servers leaves only its own keys move, which are as many as its share."
  (with-core (*core*)
    (let* ((*balancer* (client::core-balancer *core*))
           (keys 200000)
           (numbers (loop for i below 1000 collect i))
           (whole (ring-of numbers :least 4096))
           (before (make-array keys)))
      (dotimes (key keys) (setf (svref before key) (owner whole key)))
      (dolist (gone '(0 123 500 777 999))
        (let ((ring (ring-of (remove gone numbers) :least 4096))
              (moved 0)
              (its (count (address gone) before :test #'string=)))
          (dotimes (key keys)
            (unless (string= (svref before key) (owner ring key)) (incf moved)))
          (is (plusp its))
          (is (<= moved (* 1.5 its)) "~D moved, ~D were its own" moved its))))))

(test sizes-of-rings
  (with-core (*core*)
    (let ((*balancer* (client::core-balancer *core*)))
      (flet ((size (numbers &rest arguments)
               (length (balance::ring-servers (apply #'ring-of numbers arguments)))))
        (is (= 1026 (size '(1 2 3))))
        (is (= 1024 (size '(1))))
        (is (= 9 (size '(1 2 3) :least 10 :most 10)))
        (is (= 3 (size '(1 2 3) :least 1)))))))

(defun call-with-key (core &rest values)
  (let ((call (client::make-client-call :endpoint core
                                       :operations client::**single-operations**)))
    (setf (clgrpc.rpc:intent-metadata (clgrpc.rpc:ensure-intent call))
          (loop for value in values collect (cons "x-key" value)))
    call))

(test rings-connect-for-calls
  (with-core (core)
    (update core "[{\"ring_hash_experimental\":{\"requestHashHeader\":\"X-Key\"}}]" 1 2 3)
    (is (eq :idle (state core)))
    (is (every (lambda (subchannel) (eq :idle (client:subchannel-state subchannel))) (live core)))
    (let ((call (call-with-key core "alpha" "beta")))
      (is (null (pick core call)))
      (settle core)
      (is (= 1 (count :connecting (live core) :key #'client:subchannel-state)))
      (is (eq :connecting (state core)))
      (let ((first (find :connecting (live core) :key #'client:subchannel-state)))
        (client::change-state first :ready)
        (loop repeat 100 do (is (eq first (pick core call))))
        ;; without a key any server that is ready will do, and one more connects
        (is (eq first (pick core (call-with-key core))))
        (settle core)
        (is (<= (count :connecting (live core) :key #'client:subchannel-state) 1))
        ;; calls pass over one that has failed
        (client::change-state first :idle)
        (client::change-state first :connecting)
        (client::wait-for-better-times first "it rains")
        (loop repeat 3
              until (pick core call)
              do (settle core)
                 (dolist (other (remove first (live core)))
                   (when (eq :connecting (client:subchannel-state other))
                     (client::change-state other :ready))))
        (is (client:subchannel-p (pick core call)))
        (is (not (eq first (pick core call))))
        (client::change-state first :ready)
        (is (eq first (pick core call)) "and come back")))))

(test states-of-rings
  "gRFC A61: two that have failed are a failure, one is not; then others are tried without calls."
  (with-core (core)
    (update core "[{\"ring_hash_experimental\":{}}]" 1 2 3)
    (flet ((break-down (number)
             (client:connect (member-to core number))
             (bring core :transient-failure number)))
      (break-down 1)
      (is (eq :connecting (state core)))
      (is (= 1 (count :connecting (live core) :key #'client:subchannel-state))
          "another is tried")
      (let ((tried (find :connecting (live core) :key #'client:subchannel-state)))
        (client::wait-for-better-times tried "it snows")
        (settle core)
        (is (eq :transient-failure (state core)))
        (let ((last (find :connecting (live core) :key #'client:subchannel-state)))
          (is-true last)
          (client::change-state last :ready)
          (is (eq :ready (state core)))
          (is (eq last (pick core))))))))

(test configs-of-rings
  (dolist (row '(("{\"minRingSize\":0}" "minRingSize")
                 ("{\"maxRingSize\":8388609}" "maxRingSize")
                 ("{\"minRingSize\":20,\"maxRingSize\":10}" "minRingSize")
                 ("{\"requestHashHeader\":\"key-bin\"}" "requestHashHeader")
                 ("{\"requestHashHeader\":\"a b\"}" "requestHashHeader")))
    (is (string= (format nil "loadBalancingConfig[0].ring_hash_experimental.~A" (second row))
                 (config-error-path
                  (format nil "[{\"ring_hash_experimental\":~A}]" (first row)))))))

;;; outlier_detection

(defun outliers (fields)
  (format nil "[{\"outlier_detection_experimental\":{\"interval\":\"1s\",
          \"baseEjectionTime\":\"3s\",~A\"childPolicy\":[{\"round_robin\":{}}]}}]" fields))

(defparameter *failure-percentage*
  "\"maxEjectionPercent\":50,\"failurePercentageEjection\":{\"threshold\":50,\"minimumHosts\":3,
   \"requestVolume\":5},")

(defun ejected (core)
  (count-if #'client::subchannel-vetoes (live core)))

(test who-fails-too-often-is-ejected
  (with-core (core)
    (update core (outliers *failure-percentage*) 1 2 3)
    (make-room core (live core))
    (bring core :ready 1 2 3)
    (flet ((a-second (third-status &optional (count 10))
             (end-calls (member-to core 1) :ok 10)
             (end-calls (member-to core 2) :ok 10)
             (end-calls (member-to core 3) third-status count)
             (elapse core 1)))
      (a-second :unavailable 4)
      (is (= 0 (ejected core)) "these were too few")
      (a-second :cancelled 100)
      (is (= 0 (ejected core)) "it was the client")
      (a-second :unavailable)
      (is (eq :transient-failure (client:subchannel-state (member-to core 3))))
      (is (= 0 (picks core 3 (tally core 100))))
      (is (eq :ready (state core)))
      (a-second :ok 0)
      (a-second :ok 0)
      (is (= 1 (ejected core)))
      (a-second :ok 0)
      (a-second :ok 0)
      (is (= 0 (ejected core)) "its time is over")
      (is (= 100 (picks core 3 (tally core 300))))
      ;; the second time is longer
      (a-second :unavailable)
      (loop repeat 5 do (a-second :ok 0))
      (is (= 1 (ejected core)))
      (loop repeat 2 do (a-second :ok 0))
      (is (= 0 (ejected core)))
      ;; nobody is ejected without an algorithm
      (a-second :unavailable)
      (is (= 1 (ejected core)))
      (update core (outliers "") 1 2 3)
      (is (= 0 (ejected core))))))

(test ejection-has-limits
  (with-core (core)
    (update core (outliers "\"maxEjectionPercent\":10,\"failurePercentageEjection\":
                            {\"threshold\":10,\"requestVolume\":1},") 1 2 3 4 5)
    (bring core :ready 1 2 3 4 5)
    (dolist (subchannel (live core)) (end-calls subchannel :internal 10))
    (elapse core 1)
    (is (= 1 (ejected core)) "one at least")
    (update core (outliers "\"failurePercentageEjection\":{\"enforcementPercentage\":0,
                            \"requestVolume\":1},") 11 12 13 14 15)
    (bring core :ready 11 12 13 14 15)
    (dolist (subchannel (live core)) (end-calls subchannel :internal 10))
    (elapse core 1)
    (is (= 0 (ejected core)))))

(test who-succeeds-much-less-often-is-ejected
  (with-core (core)
    (update core (outliers "\"successRateEjection\":{\"requestVolume\":10},") 1 2 3 4 5 6)
    (bring core :ready 1 2 3 4 5 6)
    (loop for number from 1 to 6
          do (end-calls (member-to core number) :ok (if (= number 6) 50 98))
             (end-calls (member-to core number) :internal (if (= number 6) 50 2)))
    (elapse core 1)
    (is (= 1 (ejected core)))
    (is-true (client::subchannel-vetoes (member-to core 6)))))

(test an-ejection-may-be-the-end
  "When all are ejected another policy takes over that is about to; the old one looks no more."
  (with-core (core)
    (update core (outliers "\"maxEjectionPercent\":100,\"failurePercentageEjection\":
                            {\"minimumHosts\":1,\"requestVolume\":1},") 1)
    (bring core :ready 1)
    (let ((old (client::switch-child (client::core-balancer core))))
      (is-true (balance::detection-timer old))
      (let ((member (member-to core 1)))
        (update core "[{\"round_robin\":{}}]" 1)
        (is (eq old (client::switch-child (client::core-balancer core))))
        (end-calls member :unavailable 5))
      (elapse core 3/2)
      (is (not (eq old (client::switch-child (client::core-balancer core)))))
      (is (null (balance::detection-timer old))))))

(test configs-of-outlier-detection
  (flet ((path (fields) (config-error-path (outliers fields))))
    (is (null (path "")))
    (is (search "maxEjectionPercent" (path "\"maxEjectionPercent\":101,")))
    (is (search "successRateEjection.enforcementPercentage"
                (path "\"successRateEjection\":{\"enforcementPercentage\":101},")))
    (is (search "maxEjectionTime" (path "\"maxEjectionTime\":\"-1s\",")))
    (is (search "childPolicy" (config-error-path
                               "[{\"outlier_detection_experimental\":{}}]")))))

;;; random_subsetting

(test subsets
  "Of the size that is wanted; one server that comes or goes changes one member; seeds differ."
  (let ((backends (loop for i below 50 collect (backend i))))
    (flet ((keys (backends seed)
             (mapcar #'client:backend-key (balance::subset backends 10 seed))))
      (is (= 10 (length (keys backends 1))))
      (is (= 4 (length (keys (append (subseq backends 0 4) (subseq backends 0 2)) 1))))
      (is-true (set-exclusive-or (keys backends 1) (keys backends 2) :test #'string=))
      (dolist (gone backends)
        (is (<= (length (set-difference (keys backends 1) (keys (remove gone backends) 1)
                                        :test #'string=))
                1)))
      (let ((counts (make-hash-table :test #'equal)))
        (loop for seed from 1 to 2000
              do (dolist (key (keys backends (* seed 7919))) (incf (gethash key counts 0))))
        (is (every (lambda (count) (< 300 count 500))
                   (alexandria:hash-table-values counts))
            "400 clients each, about")))))

(test subsets-have-connections-only-to-members
  (with-core (core)
    (update core "[{\"random_subsetting_experimental\":{\"subsetSize\":2,
                   \"childPolicy\":[{\"round_robin\":{}}]}}]" 1 2 3 4 5)
    (is (= 2 (length (live core)))))
  (is (search "subsetSize" (config-error-path
                            "[{\"random_subsetting_experimental\":
                               {\"childPolicy\":[{\"round_robin\":{}}]}}]"))))

;;; weighted_target and priority

(defun weighted (&rest rows)
  (format nil "[{\"weighted_target_experimental\":{\"targets\":{~{~A~^,~}}}}]"
          (loop for (child weight) in rows
                collect (format nil "\"~A\":{\"weight\":~D,\"childPolicy\":
                                     [{\"round_robin\":{}}]}" child weight))))

(defun prioritized (&rest names)
  (format nil "[{\"priority_experimental\":{\"children\":{~{~A~^,~}},
                \"priorities\":[~{\"~A\"~^,~}]}}]"
          (loop for name in names
                collect (format nil "\"~A\":{\"config\":[{\"round_robin\":{}}]}" name))
          names))

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
        (tell '("b" 1))
        (is (= 0 (picks core 1 (tally core 100))))
        (is (= 3 (length (live core))) "it is kept for a while")
        (tell '("a" 1) '("b" 1))
        (let ((tally (tally core 100000)))
          (is (within-p 1/2 100000 (picks core 1 tally))))
        (tell '("b" 1))
        (remove-room (member-to core 1))
        (elapse core 901)
        (is (= 2 (length (live core))))))))

(test priorities-fail-over-and-back
  (with-core (core)
    (update core (prioritized "high" "low")
            (backend 1 :path '("high")) (backend 2 :path '("low")))
    (is (= 1 (length (live core))) "the lower is not needed")
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
    (is (= 1 (length (live core))) "the lower one was not needed for long")
    ;; one that takes too long
    (bring core :idle 1)
    (is (= 1 (length (live core))))
    (elapse core 11)
    (is (= 2 (length (live core))))
    (bring core :transient-failure 1 2)
    (is (eq :transient-failure (state core)))
    (bring core :ready 1)
    (is (eq :ready (state core)))))

(test configs-of-trees
  (is (search "priorities[1]" (config-error-path
                               "[{\"priority_experimental\":{\"children\":
                                  {\"a\":{\"config\":[{\"round_robin\":{}}]}},
                                  \"priorities\":[\"a\",\"b\"]}}]")))
  (is (search "targets.a.weight" (config-error-path (weighted '("a" 0)))))
  (is (search "childPolicy" (config-error-path "[{\"weighted_target_experimental\":
                                                  {\"targets\":{\"a\":{\"weight\":1}}}}]"))))

;;; Health

(test health-vetoes
  (with-core (core)
    (update core "[{\"round_robin\":{}}]" 1)
    (let ((one (member-to core 1)))
      (flet ((judge (event &optional datum)
               (balance::judge-health one "svc" event datum)
               (client:subchannel-state one))
             (says (status) (health:make-health-check-response :status status)))
        (balance::judge-health one "svc" :begun nil)
        (bring core :ready 1)
        (is (eq :connecting (client:subchannel-state one)))
        (is (eq :ready (judge :message (says :serving))))
        (is (eq :transient-failure (judge :message (says :not-serving))))
        (is (search "NOT_SERVING" (client:failure-text (pick core))))
        (is (eq :ready (judge :message (says :serving))))
        (is (eq :transient-failure (judge :message (says :service-unknown))))
        (is (eq :connecting (judge :begun)))
        (is (eq :transient-failure (judge :lost :unavailable)))
        (is (eq :ready (judge :unimplemented)))))))

(test servers-that-do-not-serve-have-no-calls
  "Over sockets: calls leave a server that says it does not serve, and come back."
  (let* ((healths (list (make-instance 'grpc:health-service)
                        (make-instance 'grpc:health-service)))
         (servers (loop for health in healths
                        for name in '("0" "1")
                        collect (let ((name name))
                                  (grpc:start-server
                                   (list (make-probe :ask (lambda (note call)
                                                            (declare (ignore call))
                                                            (note (number-of note) :text name)))
                                         health)
                                   :listen "127.0.0.1:0")))))
    (unwind-protect
         (grpc:with-channel (channel (format nil "ipv4:~{~A~^,~}"
                                             (mapcar #'grpc:server-address servers))
                                     :service-config
                                     "{\"loadBalancingConfig\":[{\"round_robin\":{}}],
                                       \"healthCheckConfig\":{\"serviceName\":\"\"}}")
           (flet ((who (count)
                    (remove-duplicates
                     (loop repeat count
                           collect (lab:note-text (ask channel (note 1) :timeout 10
                                                                              :wait-for-ready t)))
                     :test #'string=)))
             (is (wait-until (lambda () (= 2 (length (who 10))))))
             (grpc:set-health-status (first healths) "" :not-serving)
             (is (wait-until (lambda () (equal '("1") (who 10)))))
             (grpc:set-health-status (first healths) "" :serving)
             (is (wait-until (lambda () (= 2 (length (who 10))))))))
      (dolist (server servers) (is-true (grpc:stop-server server :drain 5))))))

;;; A user's own policy, as doc/fleets.md has it

(grpc:define-balancer calmest "calmest" ((servers :initform '() :accessor servers)))

(defmethod grpc:update-backends ((balancer calmest) backends config)
  (declare (ignore config))
  (mapc #'grpc:close-subchannel (servers balancer))
  (setf (servers balancer)
        (mapcar (lambda (backend) (grpc:open-subchannel balancer backend)) backends))
  (mapc #'grpc:connect (servers balancer)))

(defmethod grpc:subchannel-changed ((balancer calmest) subchannel)
  (when (eq :idle (grpc:subchannel-state subchannel)) (grpc:connect subchannel))
  (flet ((all (state)
           (remove state (servers balancer) :key #'grpc:subchannel-state :test-not #'eq)))
    (let ((ready (all :ready)))
      (cond (ready
             (flet ((pick (call)
                      (declare (ignore call))
                      (first (sort (copy-list ready) #'< :key #'grpc:subchannel-calls))))
               (grpc:publish balancer :ready (grpc:make-picker #'pick "the calmest"))))
            ((all :connecting) (grpc:publish balancer :connecting nil))
            (t (grpc:publish balancer :transient-failure
                             (grpc:make-failure "no server can be reached")))))))

(test a-policy-of-ones-own
  (with-probe (channel :server server) (:ask (lambda (note call)
                                               (declare (ignore call))
                                               (note (number-of note))))
    (let ((target (grpc:server-address server)))
      (dolist (options '((:balance :calmest)
                         (:service-config "{\"loadBalancingConfig\":[{\"calmest\":{}}]}")))
        (grpc:with-channel (own target (first options) (second options))
          (is (= 7 (number-of (ask own (note 7) :timeout 10))))
          (is (search "CALMEST" (princ-to-string
                                 (client::switch-child
                                  (client::core-balancer (client::channel-core own)))))))))))

(grpc:define-balancer hasty "hasty" ())

(defmethod grpc:update-backends ((balancer hasty) backends config)
  (declare (ignore backends config))
  (error "in a hurry"))

(defmethod grpc:subchannel-changed ((balancer hasty) subchannel)
  (declare (ignore subchannel)))

(test errors-of-a-policy-are-the-calls
  (with-log (:balancer-failed)
    (with-core (core)
      (update core "[{\"hasty\":{}}]" 1)
      (is (eq :transient-failure (state core)))
      (is (search "in a hurry" (client:failure-text (pick core)))))))
