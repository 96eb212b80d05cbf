;;;; least_request: which server is picked, configs.

(in-package #:clgrpc.tests.balance)

(test least-request-prefers-who-has-fewer-calls
  (with-core (core)
    (update core "[{\"least_request_experimental\":{\"choiceCount\":10}}]" 1 2)
    (make-room core (live core))
    (bring core :ready 1 2)
    (let ((even (tally core 1000)))
      (is (< 300 (picks core 1 even) 1001) "chance decides between servers with equally many calls")
      (is (< 300 (picks core 2 even))))
    (setf (client::subchannel-open-calls (member-to core 1)) 5)
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
