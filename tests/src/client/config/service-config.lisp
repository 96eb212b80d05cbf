;;;; The config as a whole, from JSON and from Lisp data.

(in-package #:clgrpc.tests.config)

(test what-is-no-object-is-no-config
  (dolist (source '("" "[]" "3" "null" "{" "{\"a\":1}}" "{'a':1}" "not json"))
    (is (equal "" (wrong source)) "~A" source))
  (is (equal "" (wrong (format nil "{\"a\":\"~A\"}" (make-string 1048576 :initial-element #\x))))
      "too long")
  (loop for (depth path) in '((50 nil) (51 ""))
        for lists = (1- depth)
        do (is (equal path (wrong (format nil "{\"a\":~V,,,'[A~V,,,']A}" lists "" lists "")))
               "~D deep" depth))
  (loop for (length path) in `((,(expt 2 20) nil) (,(1+ (expt 2 20)) ""))
        do (is (equal path (wrong (format nil "{}~VA" (- length 2) ""))) "~D long" length))
  (is (null (wrong "{}")))
  (is (null (wrong "{\"methodConfig\":[],\"odd\":{\"a\":[1,null]},\"methodConfigs\":3}"))))

(test throttling
  (flet ((throttling (fields)
           (config:service-config-throttling
            (config:parse-service-config (format nil "{\"retryThrottling\":~A}" fields)))))
    (loop for (tokens ratio thousandths) in '((10 "0.1" 100) (1000 "2" 2000) (1 "0.001" 1)
                                              (5 "1.9999" 1999) (5 "0.3" 300) (5 "0.0001" 1)
                                              (7 "0.007" 7) (7 "1.1" 1100)
                                              (7 "1e308" 1000000))
          for throttling = (throttling (format nil "{\"maxTokens\":~D,\"tokenRatio\":~A}" tokens
                                               ratio))
          do (is (= (* 1000 tokens) (config:throttling-max-tokens throttling)))
             (is (= thousandths (config:throttling-token-ratio throttling)) "~A" ratio))
    (is (null (throttling "null"))))
  (loop for (fields member) in '(("{\"tokenRatio\":1}" ".maxTokens")
                                 ("{\"maxTokens\":0,\"tokenRatio\":1}" ".maxTokens")
                                 ("{\"maxTokens\":1001,\"tokenRatio\":1}" ".maxTokens")
                                 ("{\"maxTokens\":-1,\"tokenRatio\":1}" ".maxTokens")
                                 ("{\"maxTokens\":1.5,\"tokenRatio\":1}" ".maxTokens")
                                 ("{\"maxTokens\":\"10\",\"tokenRatio\":1}" ".maxTokens")
                                 ("{\"maxTokens\":10,\"tokenRatio\":\"1\"}" ".tokenRatio")
                                 ("{\"maxTokens\":10}" ".tokenRatio")
                                 ("{\"maxTokens\":10,\"tokenRatio\":0}" ".tokenRatio")
                                 ("{\"maxTokens\":10,\"tokenRatio\":-0.1}" ".tokenRatio")
                                 ("{}" ".maxTokens") ("[]" ""))
        do (is (equal (format nil "retryThrottling~A" member)
                      (wrong (format nil "{\"retryThrottling\":~A}" fields)))
               "~A" fields)))

(test health-and-connections
  (flet ((health (json) (config:service-config-health-service (config:parse-service-config json)))
         (connections (json)
           (config:service-config-max-connections (config:parse-service-config json))))
    (is (string= "a.S" (health "{\"healthCheckConfig\":{\"serviceName\":\"a.S\"}}")))
    (is (string= "" (health "{\"healthCheckConfig\":{\"serviceName\":\"\"}}")))
    (is (null (health "{\"healthCheckConfig\":{}}")))
    (is (null (health "{}")))
    (is (eql 3 (connections "{\"connectionScaling\":{\"maxConnectionsPerSubchannel\":3}}")))
    (is (null (connections "{\"connectionScaling\":{}}"))))
  (is (equal "healthCheckConfig.serviceName" (wrong "{\"healthCheckConfig\":{\"serviceName\":1}}")))
  (dolist (count '("0" "-1" "1.5" "\"x\""))
    (is (equal "connectionScaling.maxConnectionsPerSubchannel"
               (wrong (format nil "{\"connectionScaling\":{\"maxConnectionsPerSubchannel\":~A}}"
                              count))))))

(test a-config-may-be-lisp-data
  (with-policies
    (let* ((config (config:parse-service-config
                    '(:method-config ((:name ((:service "a.S" :method "M") (:service "b.T"))
                                       :timeout 3/2 :wait-for-ready nil
                                       :retry-policy (:max-attempts 3 :initial-backoff 0.25
                                                      :max-backoff "1s" :backoff-multiplier 1.5
                                                      :retryable-status-codes
                                                      (:unavailable "ABORTED")))
                                      (:name (()) :wait-for-ready t))
                      :retry-throttling (:max-tokens 10 :token-ratio 1/10)
                      :health-check-config (:service-name "a.S")
                      :connection-scaling (:max-connections-per-subchannel 2)
                      :load-balancing-config ((:odd nil) (:mine (:share 3)) (:plain nil)))))
           (method (config:find-method-config config "/a.S/M"))
           (retry (config:method-config-policy method)))
      (is (= 1500000000 (config:method-config-timeout-ns method)))
      (is (null (config:method-config-wait-for-ready method)))
      (is (eq t (config:method-config-wait-for-ready (config:find-method-config config "/c/d"))))
      (is (= 250000000 (config:retry-policy-initial-ns retry)))
      (is (= 3/2 (config:retry-policy-multiplier retry)))
      (is (= (logior (ash 1 14) (ash 1 10)) (config:attempt-policy-codes retry)))
      (is (= 100 (config:throttling-token-ratio (config:service-config-throttling config))))
      (is (eql 2 (config:service-config-max-connections config)))
      (is (string= "a.S" (config:service-config-health-service config)))
      (is (eq :mine (config:policy-keyword
                     (config:policy-config-row (config:service-config-balancing config)))))
      (is (eql 3 (config:policy-config-value (config:service-config-balancing config)))))
    ;; what PARSE-JSON has made of a text
    (is (eql 3 (config:service-config-max-connections
                (config:parse-service-config
                 '(("connectionScaling" . (("maxConnectionsPerSubchannel" . 3))))))))
    (is (null (wrong '())))
    (loop for (source path) in '(((:method-config ((:name (()) :timeout -1)))
                                  "methodConfig[0].timeout")
                                 ((:method-config ((:name (()) :timeout :soon)))
                                  "methodConfig[0].timeout")
                                 ((:method-config ((:name (()) :wait-for-ready 1)))
                                  "methodConfig[0].waitForReady")
                                 ((:method-config ((:name (())) . :x)) "methodConfig")
                                 ((:method-config (:name (()))) "methodConfig[0]")
                                 ((:retry-throttling (:max-tokens 10)) "retryThrottling.tokenRatio")
                                 ((:load-balancing-config ((:mine nil)))
                                  "loadBalancingConfig[0].mine.share")
                                 ((:method-config) "")
                                 ((1 2) ""))
          do (is (equal path (wrong source)) "~S" source))
    (signals misuse (config:parse-service-config 3))
    (is (search "UIOP:READ-FILE-STRING reads a file"
                (handler-case (config:parse-service-config #p"fleet.json")
                  (misuse (error) (princ-to-string error)))))))

(test unknown-names-are-wrong-in-a-plist
  "In JSON, which others write for other versions, unknown names are ignored."
  (flet ((complaint (source)
           (multiple-value-bind (path text) (wrong source)
             (and path (list path text)))))
    (is (search "has no field :method-configs (is it :method-config?); its fields are :"
                (second (complaint '(:method-configs ())))))
    (is (equal "methodConfig[0]"
               (first (complaint '(:method-config ((:name (()) :time-out 5)))))))
    (is (search "is it :timeout?"
                (second (complaint '(:method-config ((:name (()) :time-out 5)))))))
    ;; the error for a missing field names the one that is misspelt
    (loop for (policy . text)
            in '(((:retry-policy (:max-attemps 3))
                  . "must be given; is :max-attemps a misspelling of it?")
                 ((:retry-policy (:max-attempts 3 :initial-backoff 1 :max-backoff 2
                                  :backoff-multiplier 2 :retriable-status-codes (:unavailable)))
                  . "is :retriable-status-codes a misspelling of it?")
                 ((:hedging-policy (:max-attemps 2))
                  . "is :max-attemps a misspelling of it?")
                 ((:hedging-policy (:max-attempts 2 :hedging-delays 1))
                  . "is it :hedging-delay?"))
          do (is (search text (second (complaint
                                       `(:method-config ((:name (()) ,@policy))))))))
    (is (null (complaint '(:method-config ((:name (()) :timeout 5))))))
    (with-policies
      (is (null (complaint '(:load-balancing-config ((:plain nil))
                             :load-balancing-policy "odd")))))
    (is (null (complaint
               "{\"methodConfigs\":[],\"methodConfig\":[{\"name\":[{}],\"odd\":1}]}")))))

(test the-log-has-what-a-config-says-in-vain
  "In JSON: fields that are probably misspelt, in either form; and a config for no method."
  (flet ((events (source)
           (with-logged (logged :service-config-field-ignored :method-config-without-name)
             (config:parse-service-config source)
             (sort (loop for (nil event . plist) in (logged)
                         collect (list event (getf plist :path) (getf plist :likely-name)))
                   #'string< :key #'second))))
    (is (equal '((:service-config-field-ignored "methodConfig[0].timeOut" "timeout")
                 (:service-config-field-ignored "methodConfigs" "methodConfig"))
               (events "{\"methodConfigs\":[],
                         \"methodConfig\":[{\"name\":[{}],\"odd\":1,\"timeOut\":\"1s\"}]}")))
    (is (equal '((:method-config-without-name "methodConfig[0]" nil))
               (events "{\"method_config\":[{\"timeout\":\"1s\",\"wait_for_ready\":true}]}")))
    (is (null (events "{\"methodConfig\":[{\"name\":[{}],\"waitForReady\":true}]}")))))

(test errors-say-where-and-what
  (let ((text (handler-case (config:parse-service-config (retry-with '|maxAttempts| "1"))
                (config:service-config-error (error) (princ-to-string error)))))
    (is (string= "Invalid service config: methodConfig[0].retryPolicy.maxAttempts "
                 (subseq text 0 64)))
    (is (string= "must be an integer from 2 to 4294967295, not 1." (subseq text 64))))
  (is (search "line 1" (nth-value 1 (wrong "{]")))))
