;;;; Service configs: what they say of methods, and which are invalid (A21, A6).

(in-package #:clgrpc.tests.policy)

(define-scenario sc-wait-for-ready
    ("service_config.proto, wait_for_ready: a call that says nothing waits for the backend."
     :mode :refuse)
  (let ((channel (open-channel (address 1) (method-config "'waitForReady':true"))))
    (connect channel)
    (await-state channel 5 :transient-failure)
    (let ((call (start-call channel :timeout 15)))
      (sim:wait-for 1/2)
      (is (null (first call)))
      (change 1 :mode :accept)
      (ok (result-of call)))))

(define-scenario sc-max-response
    ("service_config.proto, max_response_message_bytes: beyond it :resource-exhausted.")
  (let ((channel (open-channel (address 1) (method-config "'maxResponseMessageBytes':1000"))))
    (ended (make-call channel :answer 5000) :resource-exhausted)
    (ok (make-call channel :answer 500))))

(define-scenario sc-method-timeout
    ("service_config.proto, timeout: it is the deadline of a call that has none."
     :rules '((:on :headers :stall t)))
  (let ((result (make-call (open-channel (address 1) (method-config "'timeout':'0.5s'"))
                           :timeout nil)))
    (ended result :deadline-exceeded)
    (between 0.5 (result-seconds result) 0.51)
    (between 0.4 (timeout-seconds (first (attempts))) 0.5)))

(define-scenario sc-longest-name-wins
    ("service_config.proto, name: a method over its service over {}, each with its own limit.")
  (let ((channel (open-channel (address 1)
                               (json "{'methodConfig':[~
                                      {'name':[{}],'maxRequestMessageBytes':10},~
                                      {'name':[{'service':'lab.Bench'}],~
                                       'maxRequestMessageBytes':200},~
                                      {'name':[{'service':'lab.Bench','method':'Ask'}],~
                                       'maxRequestMessageBytes':2000}]}"))))
    (ok (make-call channel :payload 1000))
    (ok (make-call channel :method :watch :payload 100))
    (ended (make-call channel :method :watch :payload 1000) :resource-exhausted)
    (ended (make-call channel :payload 5000) :resource-exhausted)
    (came 2)))

(define-scenario sc-unknown-fields-ignored
    ("A21 Criteria to determine the validity: unknown fields do no harm; the rest applies."
     :backends 2)
  (let* ((channel (open-to-names (json "{'noSuchField':{'a':[1]},~
                                        'loadBalancingConfig':[{'round_robin':{'noSuch':1}}],~
                                        'methodConfig':[{'name':[{'service':'lab.Bench'}],~
                                        'noSuch':true,'maxRequestMessageBytes':100}]}")
                                 1 2))
         (results (make-calls channel 10)))
    (all-ok results 10)
    (is (= 5 (of-backend results 1)))
    (ended (make-call channel :payload 1000) :resource-exhausted)))

(define-scenario sc-first-known-policy
    ("A24, loadBalancingConfig: the first policy that the client knows is used." :backends 2)
  (let ((results (make-calls (open-to-names (json "{'loadBalancingConfig':[~
                                                   {'no_such_policy':{'x':1}},~
                                                   {'round_robin':{}},{'pick_first':{}}]}")
                                            1 2)
                             10)))
    (all-ok results 10)
    (is (= 5 (of-backend results 1)))))

(define-scenario invalid-throttling
    ("A6 Validation of retryThrottling: maxTokens and tokenRatio must be there, and positive.")
  (apply #'rejected
         (mapcar (lambda (throttling) (json "{'retryThrottling':~A}" (json throttling)))
                 '("{'maxTokens':0,'tokenRatio':0.1}" "{'tokenRatio':0.1}"
                   "{'maxTokens':10,'tokenRatio':0}" "{'maxTokens':10}"))))

(defun retry-policy (&rest fields &key (attempts "3") (initial "'0.1s'") (maximum "'1s'")
                                    (multiplier "2") (codes "['UNAVAILABLE']"))
  "A service config with a retryPolicy of these fields, without those that are nil."
  (declare (ignore fields))
  (method-config
   (format nil "'retryPolicy':{~{~A~^,~}}"
           (loop for (name value) in `(("maxAttempts" ,attempts) ("initialBackoff" ,initial)
                                       ("maxBackoff" ,maximum) ("backoffMultiplier" ,multiplier)
                                       ("retryableStatusCodes" ,codes))
                 when value collect (format nil "'~A':~A" name value)))))

(define-scenario invalid-retry-policy
    ("A6 Validation of retryPolicy: each of these is rejected, what they have in common is not.")
  (open-channel (address 1) (retry-policy))
  (rejected (retry-policy :attempts "1") (retry-policy :attempts nil)
            (retry-policy :initial "'0s'") (retry-policy :maximum nil)
            (retry-policy :multiplier "0") (retry-policy :codes "[]")
            (retry-policy :codes "['NO_SUCH']") (retry-policy :initial "'100ms'")))
