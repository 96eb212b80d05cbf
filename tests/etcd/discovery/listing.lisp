;;;; What is asked of the store, and put there.

(in-package #:clgrpc.tests.discovery)

(test which-etcd
  "Without an etcd, given or by default, the error says how to name one."
  (flet ((complaint (function)
           (handler-case (progn (funcall function) nil)
             (grpc:misuse (error) (princ-to-string error)))))
    (dolist (complaint (list (complaint (lambda ()
                                          (discovery:list-endpoints "greeter" :etcd nil)))
                             (complaint (lambda ()
                                          (discovery:put-service-config "greeter" nil
                                                                        :etcd nil)))))
      (is (search "set DEFAULT-ETCD" complaint)))))

(test listings
  (with-store (store)
    (is (null (discovery:list-endpoints "greeter" :etcd *etcd*)))
    (etcd:put *etcd* "greeter/2" (said "h:2"))
    (etcd:put *etcd* "greeter/1" (said "h:1" "{\"state\":\"draining\"}"))
    (etcd:put *etcd* "greeter2/1" (said "h:3"))
    (is (equal '(("h:1" :draining) ("h:2" :serving)) (listed "greeter")))
    (discovery:put-service-config "greeter" "{\"loadBalancingConfig\":[{\"round_robin\":{}}]}"
                                  :etcd *etcd*)
    (is (equal '(("h:1" :draining) ("h:2" :serving)) (listed "greeter")))
    (is-true (etcd:fetch *etcd* (discovery:service-config-key "greeter")))
    (discovery:put-service-config "greeter" nil :etcd *etcd*)
    (is (null (etcd:fetch *etcd* (discovery:service-config-key "greeter"))))
    (signals grpc:service-config-error
      (discovery:put-service-config "greeter" "{\"methodConfig\":5}" :etcd *etcd*))))
