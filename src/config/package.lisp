;;;; What a service config says (gRPC's service_config.proto), read from JSON or from Lisp data and
;;;; checked whole. Pure: no I/O, clock or threads.

(defpackage #:clgrpc.config
  (:use #:cl #:clgrpc.base)
  (:import-from #:sb-ext #:defglobal)
  (:export
   ;; condition.lisp
   #:service-config-error #:service-config-error-path #:service-config-error-text #:config-error
   ;; field.lisp
   #:member-path #:element-path #:check-object #:field #:list-field #:object-field #:string-field
   #:boolean-field #:integer-field #:number-field #:duration-field
   ;; policy.lisp
   #:policy #:policy-keyword #:policy-names #:policy-class #:register-policy #:find-policy
   #:policy-config #:make-policy-config #:policy-config-name #:policy-config-row
   #:policy-config-value #:parse-balancing #:default-policy-config #:no-fields))
