;;;; Which etcd a target names.

(in-package #:clgrpc.tests.discovery)

(test places-of-targets
  (is (null (clgrpc.discovery::target-authority "etcd:///greeter")))
  (is (null (clgrpc.discovery::target-authority "etcd:greeter")))
  (is (string= "127.0.0.1:2379"
               (clgrpc.discovery::target-authority "etcd://127.0.0.1:2379/greeter")))
  (is (equal '("10.0.0.1:2379" "10.0.0.2:2379")
             (clgrpc.discovery::authority-endpoints "10.0.0.1:2379,10.0.0.2:2379")))
  (is (equal '("store:2379") (clgrpc.discovery::authority-endpoints "store:2379")))
  (signals misuse (clgrpc.discovery::authority-endpoints "store:x"))
  (flet ((parsed (text) (multiple-value-list (discovery:parse-etcd-target text))))
    (is (equal '(nil "prod/greeter") (parsed "etcd:///prod/greeter")))
    (is (equal '(("store:2379") "greeter") (parsed "ETCD://store:2379/greeter")))
    (dolist (text '("dns:///greeter" "greeter" "etcd://store:2379" nil))
      (signals misuse (parsed text)))))

(test wrong-targets
  "A target that can mean nothing is refused when the channel is made; one that needs a default etcd
says so when it is used."
  (dolist (target '("etcd:" "etcd:///" "etcd:///greeter/" "etcd://store:x/greeter"
                    "etcd://store:1"))
    (signals misuse (grpc:make-channel target)))
  (is (null (discovery:default-etcd)))
  (grpc:with-channel (channel "etcd:///greeter")
    (with-signalled (error grpc:unavailable (grpc:ensure-connected channel :timeout +patience+))
      (is (search "DEFAULT-ETCD" (grpc:rpc-error-message error)))))
  (signals misuse (discovery:register nil "greeter" :address "127.0.0.1:1")))
