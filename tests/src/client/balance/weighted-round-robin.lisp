;;;; weighted_round_robin: weights from reports, the times when they count, configs.

(in-package #:clgrpc.tests.balance)

(defun report (&rest fields)
  (apply #'orca:make-orca-load-report fields))

(defun time-of (core)
  (client::core-now core))

(defun note-loads (core &rest loads)
  "Let the servers 1, 2, … report LOADS, a utilization for each, at 100 calls per second."
  (loop for load in loads
        for number from 1
        for subchannel = (member-to core number)
        do (balance::note-report (client:subchannel-note subchannel)
                                 (report :cpu-utilization load :rps-fractional 100d0)
                                 (balance::weighting
                                  (client:subchannel-balancer subchannel))
                                 (time-of core))))

(defun even-p (core)
  (let ((tally (tally core 1000)))
    (= 500 (picks core 1 tally) (picks core 2 tally))))

(test weights-come-and-go
  "Weights count from the blackout's end until they expire; after a new connection, again so."
  (with-core (core)
    (update core "[{\"weighted_round_robin\":{\"blackoutPeriod\":\"5s\",
                   \"weightExpirationPeriod\":\"60s\",\"weightUpdatePeriod\":\"1s\"}}]" 1 2)
    (make-room core (live core))
    (bring core :ready 1 2)
    (is (even-p core))
    (note-loads core 0.1d0 0.3d0)
    (elapse core 3)
    (is (even-p core) "the blackout period is not over")
    (elapse core 3)
    (let ((tally (tally core 100000)))
      (is (within-p 3/4 100000 (picks core 1 tally)))
      (is (within-p 1/4 100000 (picks core 2 tally))))
    (note-loads core 0.3d0 0.3d0)
    (is (not (even-p core)) "weights change only when they are computed again")
    (elapse core 1.25)
    (is (even-p core))
    (note-loads core 0.1d0 0.3d0)
    (elapse core 2)
    (is (not (even-p core)))
    (elapse core 61)
    (is (even-p core) "the weights have expired")
    (note-loads core 0.1d0 0.3d0)
    (elapse core 2)
    (is (even-p core) "another blackout")
    (elapse core 5)
    (is (not (even-p core)))
    (bring core :idle 1)
    (bring core :ready 1)
    (elapse core 2)
    (is (even-p core) "one server has no known weight")))

(test reports-in-trailers-count-unless-they-come-on-streams
  (loop for (out-of-band counts) in '(("false" t) ("true" nil))
        do (with-core (core)
             (update core (format nil "[{\"weighted_round_robin\":{\"enableOobLoadReport\":~A}}]"
                                  out-of-band)
                     1)
             (let ((one (member-to core 1))
                   (trailers (report-trailers
                              (encode-base64
                               (clgrpc.protobuf:serialize
                                (report :cpu-utilization 0.5d0 :rps-fractional 100d0))))))
               (bring core :ready 1)
               (dolist (trailers (list nil trailers))
                 (funcall (client::subchannel-listener one) :a one :ok trailers))
               (is (eq counts
                       (not (null (balance::note-last-ns (client:subchannel-note one))))))))))

(test stale-weights-are-counted
  "The count is of ready servers whose last report is as old as a weight may be; servers that have
never sent a report are not among them."
  (with-core (core)
    (update core "[{\"weighted_round_robin\":{\"weightExpirationPeriod\":\"60s\"}}]" 1 2 3)
    (make-room core (live core))
    (bring core :ready 1 2 3)
    (flet ((stale () (balance::stale-count (policy-of core) (time-of core))))
      (note-loads core 0.1d0)
      (elapse core 1)
      (note-loads core 0.1d0 0.3d0)
      (elapse core 59.75)
      (is (= 0 (stale)))
      (elapse core 0.25)
      (is (= 2 (stale)))
      (note-loads core 0.1d0)
      (is (= 1 (stale))))))

(test weights-that-a-resolver-says
  "They count while fewer than two servers have reported a load, even if they change."
  (with-core (core)
    (let ((config "[{\"weighted_round_robin\":{\"blackoutPeriod\":\"0s\"}}]"))
      (update core config (backend 1 :weight 3) (backend 2 :weight 1))
      (make-room core (live core))
      (bring core :ready 1 2)
      (is (= 750 (picks core 1 (tally core 1000))))
      (update core config (backend 1 :weight 1) (backend 2 :weight 4))
      (elapse core 1.25)
      (is (= 800 (picks core 2 (tally core 1000))))
      (note-loads core 0.1d0 0.1d0)
      (elapse core 1.25)
      (is (even-p core) "measured weights have priority over the resolver's")
      (elapse core 200)
      (is (= 800 (picks core 2 (tally core 1000))) "the loads have expired")
      (update core config (backend 1 :weight 0) (backend 2 :weight "4"))
      (elapse core 1.25)
      (is (even-p core) "these values are not weights"))))

(test weights-of-reports
  (flet ((weight (penalty &rest fields)
           (balance::report-weight (apply #'report fields) (float penalty 1d0))))
    (is (= 1000 (weight 1 :cpu-utilization 0.5d0 :rps-fractional 500d0)))
    (is (= 2000 (weight 1 :cpu-utilization 0.5d0 :application-utilization 0.25d0
                          :rps-fractional 500d0)))
    (is (= 250 (weight 1 :cpu-utilization 0.5d0 :rps-fractional 500d0 :eps 750d0)))
    (is (= 1000 (weight 0 :cpu-utilization 0.5d0 :rps-fractional 500d0 :eps 750d0)))
    (is (null (weight 1 :cpu-utilization 0.5d0)))
    (is (null (weight 1 :rps-fractional 5d0)))
    (is (null (weight 1 :cpu-utilization sb-ext:double-float-positive-infinity
                        :rps-fractional 5d0)))))

(test weights-without-a-blackout
  "gRFC A58: without a blackout period a weight counts at once, and still after a reconnection."
  (with-core (core)
    (update core "[{\"weighted_round_robin\":{\"blackoutPeriod\":\"0s\",
                   \"weightUpdatePeriod\":\"0.1s\"}}]" 1 2)
    (make-room core (live core))
    (bring core :ready 1 2)
    (note-loads core 0.1d0 0.3d0)
    (elapse core 0.25)
    (is (= 750 (picks core 1 (tally core 1000))))
    (bring core :idle 1)
    (bring core :ready 1)
    (elapse core 0.25)
    (is (= 750 (picks core 1 (tally core 1000))))))

(test updates-put-a-config-in-force
  "gRFC A58: the other parameters take effect with the next picker."
  (with-core (core)
    (flet ((tell (penalty)
             (update core (format nil "[{\"weighted_round_robin\":{\"blackoutPeriod\":\"0s\",
                                       \"weightUpdatePeriod\":\"20s\",
                                       \"errorUtilizationPenalty\":~F}}]" penalty) 1 2)))
      (tell 1.0)
      (make-room core (live core))
      (bring core :ready 1 2)
      (note-loads core 0.1d0 0.3d0)
      (is (even-p core) "the weights are next computed in twenty seconds")
      (tell 0.0)
      (is (not (even-p core)) "an update computes them earlier"))))

(test one-servers-report-stops-nothing
  "Whatever a server reports, the weights of the others change as usual, and servers come and go."
  (dolist (wild (append *bad-doubles* *wild-doubles*))
    (with-core (core)
      (flet ((tell (&rest numbers)
               (apply #'update core "[{\"weighted_round_robin\":{\"blackoutPeriod\":\"0s\",
                                      \"errorUtilizationPenalty\":1e300}}]"
                      numbers)
               (make-room core (live core)))
             (hear (number utilization calls)
               (funcall (client::subchannel-listener (member-to core number)) :a
                        (member-to core number) :ok
                        (report-trailers
                         (encode-base64
                          (clgrpc.protobuf:serialize
                           (report :cpu-utilization utilization :rps-fractional calls
                                   :eps wild)))))))
        (tell 1 2 3)
        (bring core :ready 1 2 3)
        (hear 1 wild 9d99)
        (hear 2 6d-209 wild)
        (hear 3 0.5d0 100d0)
        (elapse core 3)
        (is-true (balance::weighted-timer (policy-of core))
                 "the weights will be computed again")
        (remove-room (member-to core 3))
        (tell 1 2 4)
        (bring core :ready 4)
        (is (eq :ready (state core)))
        (is (client:subchannel-p (pick core)) "~S" wild)))))

(test weights-that-a-resolver-says-have-a-range
  (with-core (core)
    (update core "[{\"weighted_round_robin\":{}}]" (backend 1 :weight (expt 10 400))
            (backend 2 :weight #xFFFFFFFF) (backend 3 :weight 1d300) (backend 4 :weight -1))
    (make-room core (live core))
    (bring core :ready 1 2 3 4)
    (let ((tally (tally core 1000)))
      (loop for number from 1 to 4 do (is (= 250 (picks core number tally)))))))

(test weighting-configs
  (flet ((weighting (json)
           (config:policy-config-value
            (parse (format nil "[{\"weighted_round_robin_experimental\":~A}]" json)))))
    (let ((all (weighting "{}")))
      (is (null (balance::weighting-out-of-band all)))
      (is (= (seconds-ns 10) (balance::weighting-interval-ns all)))
      (is (= (seconds-ns 10) (balance::weighting-blackout-ns all)))
      (is (= (seconds-ns 180) (balance::weighting-expiration-ns all)))
      (is (= (seconds-ns 1) (balance::weighting-update-ns all)))
      (is (= 1 (balance::weighting-penalty all))))
    (is (= (seconds-ns 1/10)
           (balance::weighting-update-ns (weighting "{\"weightUpdatePeriod\":\"0.01s\"}"))
           (balance::weighting-update-ns (weighting "{\"weightUpdatePeriod\":\"0s\"}"))
           (balance::weighting-interval-ns (weighting "{\"oobReportingPeriod\":\"0s\"}"))))
    (is (= 1d9 (balance::weighting-penalty
                (weighting "{\"errorUtilizationPenalty\":1e300}"))))
    (is (= most-positive-fixnum
           (balance::weighting-update-ns
            (weighting "{\"weightUpdatePeriod\":\"315576000000s\"}")))))
  (is (search "errorUtilizationPenalty"
              (config-error-path
               "[{\"weighted_round_robin\":{\"errorUtilizationPenalty\":-1}}]"))))
