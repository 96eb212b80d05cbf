;;;; The list of policies, of which the first known one is used.

(in-package #:clgrpc.tests.config)

(defun chosen (source)
  "The keyword and the own config of the policy that SOURCE, a config, chooses."
  (let ((chosen (config:service-config-balancing (config:parse-service-config source))))
    (and chosen
         (list (config:policy-keyword (config:policy-config-row chosen))
               (config:policy-config-value chosen)))))

(test the-first-policy-known-is-taken
  (with-policies
    (is (equal '(:plain nil) (chosen "{\"loadBalancingConfig\":[{\"plain\":{}}]}")))
    (is (equal '(:plain nil)
               (chosen "{\"loadBalancingConfig\":[{\"odd\":{\"a\":[1]}},{\"plain\":{\"noSuch\":1}},
                        {\"mine_alone\":{\"share\":1}}]}")))
    (is (equal '(:plain nil) (chosen "{\"load_balancing_config\":[{\"plain_experimental\":{}}]}")))
    (is (equal '(:plain nil)
               (chosen "{\"loadBalancingConfig\":[{\"odd\":null},{\"plain\":null}]}")))
    (is (equal '(:mine 7) (chosen "{\"loadBalancingConfig\":[{\"mine_alone\":{\"share\":7}}]}")))
    (is (null (chosen "{}")))
    (is (null (chosen "{\"loadBalancingConfig\":null}")))))

(test no-policy-known-is-an-error
  (with-policies
    (loop for (list path) in '(("[{\"odd\":{}}]" "loadBalancingConfig")
                               ("[]" "loadBalancingConfig")
                               ("{}" "loadBalancingConfig")
                               ("\"plain\"" "loadBalancingConfig")
                               ("[{}]" "loadBalancingConfig[0]")
                               ("[{\"odd\":{},\"plain\":{}}]" "loadBalancingConfig[0]")
                               ("[{\"plain\":3}]" "loadBalancingConfig[0].plain")
                               ("[{\"odd\":[]},{\"plain\":{}}]" "loadBalancingConfig[0].odd")
                               ("[null]" "loadBalancingConfig[0]")
                               ("[\"plain\"]" "loadBalancingConfig[0]")
                               ("[{\"odd\":{}},{\"mine_alone\":{\"share\":101}}]"
                                "loadBalancingConfig[1].mine_alone.share")
                               ("[{\"mine_alone\":{}},{\"plain\":{}}]"
                                "loadBalancingConfig[0].mine_alone.share"))
          do (is (equal path (wrong (format nil "{\"loadBalancingConfig\":~A}" list))) "~A" list))
    (let ((text (nth-value 1 (wrong "{\"loadBalancingConfig\":[{\"odd\":{}}]}"))))
      (is (search "plain" text))
      (is (search "odd" text)))))

(test the-deprecated-field-is-used-if-the-other-is-unset
  (with-policies
    (config:register-policy :round-robin '("round_robin") 'plain)
    (is (equal '(:round-robin nil) (chosen "{\"loadBalancingPolicy\":\"ROUND_ROBIN\"}")))
    (is (equal '(:round-robin nil) (chosen "{\"loadBalancingPolicy\":\"round_robin\"}")))
    (is (equal '(:round-robin nil) (chosen "{\"loadBalancingPolicy\":1}")))
    (is (null (chosen "{\"loadBalancingPolicy\":\"UNSPECIFIED\"}")))
    (is (equal '(:plain nil) (chosen "{\"loadBalancingPolicy\":\"UnknownPolicy\",
                                       \"loadBalancingConfig\":[{\"plain\":{}}]}")))
    (is (equal "loadBalancingPolicy" (wrong "{\"loadBalancingPolicy\":\"UnknownPolicy\"}")))
    (is (equal "loadBalancingPolicy" (wrong "{\"loadBalancingPolicy\":{}}")))))

(test the-registry-replaces-and-tells
  (with-policies
    (config:register-policy :mine '("mine_now") 'mine)
    (is (null (config:find-policy "mine_alone")))
    (is (eq (config:find-policy :mine) (config:find-policy "mine_now")))
    (is (string= "plain" (config:policy-config-name (config:default-policy-config :plain))))
    (signals misuse (config:default-policy-config :odd))))
