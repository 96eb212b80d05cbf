;;;; outlier_detection: the ejected servers, the time of an ejection, configs.

(in-package #:clgrpc.tests.balance)

(defun outliers (fields &optional (child "round_robin"))
  (format nil "[{\"outlier_detection_experimental\":{\"interval\":\"1s\",
          \"baseEjectionTime\":\"3s\",~A\"childPolicy\":[{\"~A\":{}}]}}]" fields child))

(defparameter *failure-percentage*
  "\"maxEjectionPercent\":50,\"failurePercentageEjection\":{\"threshold\":50,\"minimumHosts\":3,
   \"requestVolume\":5},")

(defun ejected (core)
  (count-if #'client:subchannel-vetoes (live core)))

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
      (is (= 0 (ejected core)) "four calls are too few")
      (a-second :cancelled 100)
      (is (= 0 (ejected core)) "cancelled calls are not the server's fault")
      (a-second :unavailable)
      (is (eq :transient-failure (client:subchannel-state (member-to core 3))))
      (is (= 0 (picks core 3 (tally core 100))))
      (is (eq :ready (state core)))
      (a-second :ok 0)
      (a-second :ok 0)
      (is (= 1 (ejected core)))
      (a-second :ok 0)
      (a-second :ok 0)
      (is (= 0 (ejected core)) "the time of the ejection is over")
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

(test a-percentage-is-to-be-exceeded
  "A server at the threshold stays; a server at the request volume is judged."
  (loop for (good bad ejected) in '((5 5 0) (4 6 1) (499 501 1) (0 4 0) (0 5 1))
        do (with-core (core)
             (update core (outliers *failure-percentage*) 1 2 3)
             (bring core :ready 1 2 3)
             (end-calls (member-to core 1) :ok 10)
             (end-calls (member-to core 2) :ok 10)
             (end-calls (member-to core 3) :ok good)
             (end-calls (member-to core 3) :unavailable bad)
             (elapse core 1)
             (is (= ejected (ejected core)) "~D of ~D" bad (+ good bad)))))

(test ejection-has-limits
  (with-core (core)
    (update core (outliers "\"maxEjectionPercent\":10,\"failurePercentageEjection\":
                            {\"threshold\":10,\"requestVolume\":1},") 1 2 3 4 5)
    (bring core :ready 1 2 3 4 5)
    (dolist (subchannel (live core)) (end-calls subchannel :internal 10))
    (elapse core 1)
    (is (= 1 (ejected core)) "one server may always be ejected")
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
    (is-true (client:subchannel-vetoes (member-to core 6)))))

(test an-ejection-may-be-the-end
  "When all servers are ejected a waiting policy takes over; the old one examines no more."
  (with-core (core)
    (update core (outliers "\"maxEjectionPercent\":100,\"failurePercentageEjection\":
                            {\"minimumHosts\":1,\"requestVolume\":1},") 1)
    (bring core :ready 1)
    (let ((old (policy-of core)))
      (is-true (balance::detection-timer old))
      (let ((member (member-to core 1)))
        (update core "[{\"round_robin\":{}}]" 1)
        (is (eq old (policy-of core)))
        (end-calls member :unavailable 5))
      (elapse core 3/2)
      (is (not (eq old (policy-of core))))
      (is (null (balance::detection-timer old))))))

(test configs-of-outlier-detection
  (dolist (interval '("0s" "0.000000001s" "0.1s"))
    (is (= (seconds-ns 1/10)
           (balance::detection-interval-ns
            (config:policy-config-value
             (parse (format nil "[{\"outlier_detection_experimental\":{\"interval\":~S,
                                  \"childPolicy\":[{\"round_robin\":{}}]}}]"
                            interval)))))
        "an examination costs something"))
  (flet ((path (fields) (config-error-path (outliers fields))))
    (is (null (path "")))
    (is (search "maxEjectionPercent" (path "\"maxEjectionPercent\":101,")))
    (is (search "successRateEjection.enforcementPercentage"
                (path "\"successRateEjection\":{\"enforcementPercentage\":101},")))
    (is (search "maxEjectionTime" (path "\"maxEjectionTime\":\"-1s\",")))
    (is (search "childPolicy" (config-error-path
                               "[{\"outlier_detection_experimental\":{}}]")))))

(test defaults-of-outlier-detection
  "gRFC A50: each algorithm has its own."
  (let ((config (config:policy-config-value
                 (parse "[{\"outlier_detection_experimental\":{
                           \"successRateEjection\":{},\"failurePercentageEjection\":{},
                           \"childPolicy\":[{\"round_robin\":{}}]}}]"))))
    (is (equal (list (seconds-ns 10) (seconds-ns 30) (seconds-ns 300) 10)
               (list (balance::detection-interval-ns config) (balance::detection-base-ns config)
                     (balance::detection-most-ns config)
                     (balance::detection-most-percent config))))
    (loop for (algorithm . expected) in (list (list (balance::detection-success-rate config)
                                                    1900 100 5 100)
                                              (list (balance::detection-failure-percentage config)
                                                    85 100 5 50))
          do (is (equal expected
                        (list (balance::algorithm-factor algorithm)
                              (balance::algorithm-enforcement algorithm)
                              (balance::algorithm-hosts algorithm)
                              (balance::algorithm-volume algorithm)))))))

(test only-servers-with-enough-calls-count-as-hosts
  "gRFC A50, failure percentage, 1: of three servers two have had enough calls."
  (with-core (core)
    (update core (outliers *failure-percentage*) 1 2 3)
    (bring core :ready 1 2 3)
    (end-calls (member-to core 1) :ok 10)
    (end-calls (member-to core 2) :ok 4)
    (end-calls (member-to core 3) :unavailable 10)
    (elapse core 1)
    (is (= 0 (ejected core)))
    (end-calls (member-to core 1) :ok 10)
    (end-calls (member-to core 2) :ok 5)
    (end-calls (member-to core 3) :unavailable 10)
    (elapse core 1)
    (is (= 1 (ejected core)))))

(test servers-that-cancel-fail
  "A call that its server ends with CANCELLED has failed; a call that its client cancels has not."
  (with-core (core)
    (update core (outliers *failure-percentage*) 1 2 3)
    (bring core :ready 1 2 3)
    (flet ((a-second (ended-by)
             (let ((call (call-with-key core)))
               (clgrpc.rpc:end-call call :cancelled :ended-by ended-by)
               (end-calls (member-to core 1) :ok 10)
               (end-calls (member-to core 2) :ok 10)
               (end-calls (member-to core 3) :cancelled 10 call)
               (elapse core 1)
               (ejected core))))
      (is (= 0 (a-second :local)))
      (is (= 1 (a-second :peer))))))

(test ejection-is-of-all-addresses-of-a-server
  "gRFC A61: calls over any address count for the server, in whatever order its addresses are told."
  (with-core (core)
    (flet ((tell (&rest pair)
             (update core (outliers *failure-percentage*) 1 2
                     (client::parse-backend (list (mapcar #'address pair))))))
      (tell 3 4)
      (let ((third (find-if (lambda (subchannel)
                              (= 2 (length (client:subchannel-addresses subchannel))))
                            (live core))))
        (dolist (subchannel (live core)) (come-to :ready subchannel))
        (flet ((a-second ()
                 (end-calls (member-to core 1) :ok 10)
                 (end-calls (member-to core 2) :ok 10)
                 (end-calls third :unavailable 10)
                 (elapse core 1)))
          (a-second)
          (is (= 1 (ejected core)))
          (tell 4 3)
          (is (= 3 (length (live core))))
          (is (= 1 (ejected core)) "it is the same server"))))))

(test an-ejection-spares-closed-subchannels
  "A subchannel that a former child policy has closed does not count for its server any more."
  (with-core (core)
    (update core (outliers *failure-percentage*) 1 2 3)
    (bring core :ready 1 2 3)
    (let ((closed (member-to core 3)))
      (update core (outliers *failure-percentage* "least_request_experimental") 1 2 3)
      (bring core :ready 1 2 3)
      (is (eq :shutdown (client:subchannel-state closed)))
      (end-calls (member-to core 1) :ok 10)
      (end-calls (member-to core 2) :ok 10)
      (end-calls (member-to core 3) :unavailable 10)
      (elapse core 1)
      (is (= 1 (ejected core)))
      (is (null (client:subchannel-vetoes closed))))))

(test a-new-config-keeps-the-clock
  "gRFC A50: the next look is when the interval, perhaps a new one, since the last look is over."
  (with-core (core)
    (update core (outliers *failure-percentage*) 1 2 3)
    (bring core :ready 1 2 3)
    (end-calls (member-to core 1) :ok 10)
    (end-calls (member-to core 2) :ok 10)
    (end-calls (member-to core 3) :unavailable 10)
    (elapse core 0.75)
    (update core (outliers *failure-percentage*) 1 2 3)
    (is (= 0 (ejected core)))
    (elapse core 0.25)
    (is (= 1 (ejected core)))))
