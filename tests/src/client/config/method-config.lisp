;;;; The method configs of a config: the entry for a method, and the policies of gRFC A6.

(in-package #:clgrpc.tests.config)

(test the-most-specific-entry-is-a-methods
  (let ((config (config:parse-service-config
                 "{\"methodConfig\":[{\"name\":[{}],\"timeout\":\"1s\"},
                   {\"name\":[{\"service\":\"a.S\",\"method\":\"\"},{\"service\":\"b.T\"}],
                    \"timeout\":\"2s\"},
                   {\"name\":[{\"service\":\"a.S\",\"method\":\"M\"}],\"waitForReady\":true}]}")))
    (flet ((timeout (path)
             (config:method-config-timeout-ns (config:find-method-config config path))))
      (is (= 1000000000 (timeout "/c.U/M")))
      (is (= 2000000000 (timeout "/a.S/N") (timeout "/b.T/M")))
      ;; an entry does not inherit from a less specific one
      (is (null (timeout "/a.S/M")))
      (is (eq t (config:method-config-wait-for-ready
                 (config:find-method-config config "/a.S/M"))))))
  (is (null (method-of "{\"methodConfig\":[{\"name\":[{\"service\":\"a\"}]}]}" "/b/M")))
  (is (null (method-of "{}")))
  (is (null (method-of "{\"methodConfig\":[{\"timeout\":\"1s\"},
                                         {\"name\":[],\"timeout\":\"1s\"}]}"))
      "entries without names apply to no method"))

(test names
  (loop for (names path) in '(("[{\"method\":\"M\"}]" "methodConfig[0].name[0].service")
                              ("[{\"service\":\"\",\"method\":\"M\"}]"
                               "methodConfig[0].name[0].service")
                              ("[{},{\"service\":null,\"method\":\"\"}]" "methodConfig[0].name[1]")
                              ("[{\"service\":\"s\"},{\"service\":\"s\",\"method\":null}]"
                               "methodConfig[0].name[1]")
                              ("[{\"service\":\"s\",\"method\":\"m\"},
                                 {\"service\":\"s\",\"method\":\"m\"}]"
                               "methodConfig[0].name[1]")
                              ("[{\"service\":3}]" "methodConfig[0].name[0].service")
                              ("{}" "methodConfig[0].name")
                              ("[\"s\"]" "methodConfig[0].name[0]"))
        do (is (equal path (wrong (format nil "{\"methodConfig\":[{\"name\":~A}]}" names)))
               "~A" names))
  (is (equal "methodConfig[1].name[0]"
             (wrong "{\"methodConfig\":[{\"name\":[{}]},{\"name\":[{}]}]}"))))

(test a-methods-fields
  (let ((config (method-of (of-method "\"timeout\":\"0.25s\",\"waitForReady\":false,
                                        \"maxRequestMessageBytes\":0,
                                        \"maxResponseMessageBytes\":\"4294967295\",\"odd\":[{}]"))))
    (is (= 250000000 (config:method-config-timeout-ns config)))
    (is (null (config:method-config-wait-for-ready config)))
    (is (eql 0 (config:method-config-max-request-octets config)))
    (is (eql 4294967295 (config:method-config-max-response-octets config))))
  (let ((config (method-of (of-method "\"timeout\":null,\"retryPolicy\":null"))))
    (is (null (config:method-config-timeout-ns config)))
    (is (eq :unset (config:method-config-wait-for-ready config)))
    (is (null (config:method-config-max-request-octets config)))
    (is (null (config:method-config-policy config))))
  (loop for (fields member) in '(("\"timeout\":\"never\"" "timeout") ("\"timeout\":5" "timeout")
                                 ("\"timeout\":\"-1s\"" "timeout")
                                 ("\"waitForReady\":\"yes\"" "waitForReady")
                                 ("\"maxRequestMessageBytes\":-1" "maxRequestMessageBytes")
                                 ("\"maxResponseMessageBytes\":1.5" "maxResponseMessageBytes")
                                 ("\"maxResponseMessageBytes\":4294967296"
                                  "maxResponseMessageBytes")
                                 ("\"retryPolicy\":[]" "retryPolicy"))
        do (is (equal (format nil "methodConfig[0].~A" member) (wrong (of-method fields)))
               "~A" fields))
  (is (equal "methodConfig[0]" (wrong "{\"methodConfig\":[3]}")))
  (is (equal "methodConfig[0].timeout" (wrong "{\"methodConfig\":[{\"timeout\":\"x\"}]}"))
      "an entry without names is also checked"))

(defun policy-fields (all changes)
  "The JSON object of the alist ALL, from names to JSON, with CHANGES; :none omits a field."
  (format nil "{~{~A~^,~}}"
          (loop for (name . value) in all
                for change = (getf changes name value)
                unless (eq :none change) collect (format nil "\"~A\":~A" name change))))

(defparameter *retry-fields*
  '((|maxAttempts| . "4") (|initialBackoff| . "\"0.1s\"") (|maxBackoff| . "\"1s\"")
    (|backoffMultiplier| . "2") (|retryableStatusCodes| . "[\"UNAVAILABLE\",\"ABORTED\"]")))

(defun retry-with (&rest changes)
  (of-method (format nil "\"retryPolicy\":~A" (policy-fields *retry-fields* changes))))

(test retry-policies
  (let ((retry (config:method-config-policy (method-of (retry-with)))))
    (is (= 4 (config:attempt-policy-max-attempts retry)))
    (is (= 100000000 (config:retry-policy-initial-ns retry)))
    (is (= 1000000000 (config:retry-policy-maximum-ns retry)))
    (is (= 2 (config:retry-policy-multiplier retry)))
    (is (= (logior (ash 1 14) (ash 1 10)) (config:attempt-policy-codes retry))))
  (flet ((retry (&rest changes)
           (config:method-config-policy (method-of (apply #'retry-with changes)))))
    (is (= 1000 (config:attempt-policy-max-attempts (retry '|maxAttempts| "1000"))))
    (is (= 1/2 (config:retry-policy-multiplier (retry '|backoffMultiplier| "0.5"))))
    (dolist (text (list "1000001" "1e308" (format nil "1~400,,,'0A" "")))
      (is (= 1000000 (config:retry-policy-multiplier (retry '|backoffMultiplier| text)))))
    (is (= 1/1000000 (config:retry-policy-multiplier (retry '|backoffMultiplier| "5e-324"))))
    (is (= (ash 1 13) (config:attempt-policy-codes (retry '|retryableStatusCodes| "[13,13]"))))
    (is (= (ash 1 14)
           (config:attempt-policy-codes (retry '|retryableStatusCodes| "[\"unavailable\"]")))))
  (loop for (field value) in '((|maxAttempts| :none) (|maxAttempts| "1") (|maxAttempts| "0")
                               (|maxAttempts| "2.5") (|maxAttempts| "-3")
                               (|maxAttempts| "\"3\"") (|backoffMultiplier| "\"2\"")
                               (|initialBackoff| :none) (|initialBackoff| "\"0s\"")
                               (|initialBackoff| "\"-1s\"") (|initialBackoff| "\"100ms\"")
                               (|initialBackoff| "0.1")
                               (|maxBackoff| :none) (|maxBackoff| "\"0s\"") (|maxBackoff| "null")
                               (|backoffMultiplier| :none) (|backoffMultiplier| "0")
                               (|backoffMultiplier| "-1") (|backoffMultiplier| "\"NaN\"")
                               (|retryableStatusCodes| :none) (|retryableStatusCodes| "[]"))
        do (is (equal (format nil "methodConfig[0].retryPolicy.~A" field)
                      (wrong (retry-with field value)))
               "~A ~A" field value))
  (dolist (code '("\"NO_SUCH\"" "\"OK\"" "0" "17" "null" "1.5"))
    (is (equal "methodConfig[0].retryPolicy.retryableStatusCodes[1]"
               (wrong (retry-with '|retryableStatusCodes| (format nil "[\"ABORTED\",~A]" code))))
        "~A" code)))

(test hedging-policies
  (flet ((hedging (fields)
           (config:method-config-policy
            (method-of (of-method (format nil "\"hedgingPolicy\":~A" fields))))))
    (let ((hedging (hedging "{\"maxAttempts\":3,\"hedgingDelay\":\"0.5s\",
                              \"nonFatalStatusCodes\":[\"INTERNAL\"]}")))
      (is (= 3 (config:attempt-policy-max-attempts hedging)))
      (is (= 500000000 (config:hedging-policy-delay-ns hedging)))
      (is (= (ash 1 13) (config:attempt-policy-codes hedging))))
    (let ((hedging (hedging "{\"maxAttempts\":2}")))
      (is (= 0 (config:hedging-policy-delay-ns hedging)))
      (is (= 0 (config:attempt-policy-codes hedging)))))
  (loop for (fields member) in '(("{}" "maxAttempts") ("{\"maxAttempts\":1}" "maxAttempts")
                                 ("{\"maxAttempts\":\"3\"}" "maxAttempts")
                                 ("{\"maxAttempts\":2,\"hedgingDelay\":\"-1s\"}" "hedgingDelay")
                                 ("{\"maxAttempts\":2,\"hedgingDelay\":1}" "hedgingDelay")
                                 ("{\"maxAttempts\":2,\"nonFatalStatusCodes\":[\"X\"]}"
                                  "nonFatalStatusCodes[0]"))
        do (is (equal (format nil "methodConfig[0].hedgingPolicy.~A" member)
                      (wrong (of-method (format nil "\"hedgingPolicy\":~A" fields))))
               "~A" fields)))

(test a-method-has-one-policy
  (is (equal "methodConfig[0].hedgingPolicy"
             (wrong (of-method (format nil "\"retryPolicy\":~A,\"hedgingPolicy\":{\"maxAttempts\":2}"
                                       (policy-fields *retry-fields* '())))))))
