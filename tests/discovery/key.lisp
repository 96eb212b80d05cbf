;;;; Names and keys.

(in-package #:clgrpc.tests.discovery)
(in-suite :clgrpc.discovery)

(test names-of-services
  (is (string= "clgrpc/service-config/prod/greeter" (discovery:service-config-key "prod/greeter")))
  (is (string= "greeter/" (clgrpc.discovery::name-prefix "greeter")))
  (dolist (name (list "" "/greeter" "greeter/" "gree ter" "gréeter" nil :greeter
                      (make-string 513 :initial-element #\a)))
    (signals misuse (discovery:service-config-key name))))
