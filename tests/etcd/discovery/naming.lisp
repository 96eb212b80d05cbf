;;;; Beside etcd's own package for Go: each finds what the other has registered.

(in-package #:clgrpc.tests.discovery)

(defun naming-lines (program &rest arguments)
  "What PROGRAM prints, a list of lines."
  (uiop:run-program (cons program arguments) :output :lines :error-output :output))

(test go-sees-what-we-register
  "Its lists have our servers, and its channels follow them when they come and go; the service
config is no server to it."
  (with-store (store)
    (let ((naming (support:need-peer "naming")))
      (with-servers (servers 2)
        (destructuring-bind (first second) servers
          (discovery:put-service-config "greeter" "{}" :etcd *etcd*)
          (is-true (discovery:await-registration
                    (discovery:register first "greeter" :etcd *etcd* :weight 3 :zone "a"
                                                        :notice-seconds 1/2)
                    :timeout +patience+))
          (is (equal (list (format nil "[\"greeter/~A\",\"~:*~A\",{\"state\":\"serving\",~
                                        \"weight\":3,\"zone\":\"a\"}]"
                                   (grpc:server-address first)))
                     (naming-lines naming "list" (store-address store) "greeter")))
          (support:with-program (program naming "call" (store-address store) "greeter" "60")
            (is (equal "0" (support:program-line program)))
            (is-true (discovery:await-registration
                      (discovery:register second "greeter" :etcd *etcd*) :timeout +patience+))
            (is (equal "0 1" (support:program-line program)))
            (grpc:stop-server first)
            (is (equal "1" (support:program-line program)))
            (support:signal-program program sb-unix:sigterm)
            (is (equal "failed 0" (support:program-line program)))))))))

(test we-see-what-go-registers
  (with-store (store)
    (let ((naming (support:need-peer "naming")))
      (with-servers (servers 2)
        (flet ((add (server metadata)
                 (is (equal '("added")
                            (naming-lines naming "add" (store-address store) "greeter"
                                          (grpc:server-address server) metadata)))))
          (add (first servers) "null")
          (grpc:with-channel (channel (target store) :balance :round-robin)
            (is (= 0 (who channel)))
            (add (second servers) "\"blue\"")
            (is-true (answers-p channel '(0 1)))
            (add (first servers) "{\"state\": \"draining\"}")
            (is-true (answers-p channel '(1)))))))))

(test etcdctl-makes-an-address-appear
  (with-store (store)
    (with-servers (servers 2)
      (flet ((etcdctl (&rest arguments)
               (uiop:run-program (list* "env" "ETCDCTL_API=3" "etcdctl" "--endpoints"
                                        (store-address store) arguments)
                                 :output :string)))
        (etcdctl "put" "greeter/by-hand" (said (grpc:server-address (first servers))))
        (grpc:with-channel (channel (target store) :balance :round-robin)
          (is (= 0 (who channel)))
          (etcdctl "put" "greeter/too" (said (grpc:server-address (second servers))))
          (is-true (answers-p channel '(0 1)))
          (etcdctl "del" "greeter/by-hand")
          (is-true (answers-p channel '(1))))
        (discovery:register (first servers) "greeter" :etcd *etcd* :id "first")
        (eventually (search "greeter/first" (etcdctl "get" "--prefix" "gree")))))))
