;;;; Service configs (gRPC's service_config.proto), read from JSON or from Lisp data and checked as
;;;; a whole. Pure: no I/O, clock or threads.

(defpackage #:clgrpc.config
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:status #:clgrpc.status))
  (:import-from #:sb-ext #:defglobal)
  (:export
   ;; config-condition.lisp
   #:service-config-error #:service-config-error-path #:service-config-error-text #:config-error
   ;; config-field.lisp
   #:member-path #:element-path #:check-object #:object-members #:key-name #:field
   #:list-field #:object-field #:string-field
   #:boolean-field #:integer-field #:number-field #:duration-field
   ;; balancing-policy.lisp
   #:policy #:policy-keyword #:policy-names #:policy-class #:register-policy #:find-policy
   #:known-policies
   #:policy-config #:make-policy-config #:policy-config-name #:policy-config-row
   #:policy-config-value #:parse-balancing #:default-policy-config #:no-fields #:whole-object
   ;; retry-policy.lisp
   #:attempt-policy #:attempt-policy-max-attempts #:attempt-policy-codes #:continues-after-p
   #:make-retry-policy #:retry-policy-initial-ns #:retry-policy-maximum-ns
   #:retry-policy-multiplier #:retry-delay-ns
   #:make-hedging-policy #:hedging-policy-p #:hedging-policy-delay-ns
   ;; method-config.lisp
   #:method-config #:method-config-timeout-ns #:method-config-wait-for-ready
   #:method-config-max-request-octets #:method-config-max-response-octets
   #:method-config-policy
   #:make-method-config
   ;; service-config.lisp
   #:service-config #:service-config-methods #:service-config-balancing
   #:service-config-throttling #:service-config-health-service #:service-config-max-connections
   #:service-config-source
   #:make-service-config
   #:throttling #:make-throttling #:throttling-max-tokens #:throttling-token-ratio
   #:parse-service-config #:find-method-config))
