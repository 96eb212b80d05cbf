;;;; Who may be whom.

(in-package #:clgrpc.tests.cluster)
(in-suite :clgrpc.cluster)

(test names-of-certificates
  (is (equal '("a.example" "b")
             (cluster::identity-names '((:dns "a.example") (:ip "1.2.3.4")
                                        (:uri "spiffe://example/nodes/b") (:uri "https://x/c"))
                                      "CN=d")))
  (is (equal '("d") (cluster::identity-names '((:ip "1.2.3.4")) "O=x,CN=d")))
  (is (equal '() (cluster::identity-names '() "O=x")))
  ;; what only looks like a name
  (is (equal '() (cluster::identity-names '() "O=x\\,XCN=d")))
  (is (equal '() (cluster::identity-names '() "O=x\\,CN=d,CN=e")))
  (is (equal '() (cluster::identity-names '() "O=\"x,CN=d\",CN=e"))))

(test peers-are-whom-their-certificates-say
  "With mutual TLS a peer joins, renews and leaves as one of its names, and as nobody else."
  (with-store (store)
    (flet ((file (name) (namestring (support:certificate-file name))))
      (let* ((service (make-cluster-service *etcd* :identity-required t))
             (server (grpc:start-server service
                                        :credentials (grpc:tls-credentials
                                                      :certificate (file "server.pem")
                                                      :key (file "server.key")
                                                      :roots (file "ca.pem")
                                                      :client-certificates :request)))
             (trust (grpc:tls-credentials :roots (file "ca.pem")))
             (mutual (grpc:tls-credentials :roots (file "ca.pem")
                                           :certificate (file "client.pem")
                                           :key (file "client.key"))))
        (unwind-protect
             (progn
               (grpc:with-channel (channel (grpc:server-address server) :credentials mutual)
                 (let ((generation (pb:member-generation (join channel "client"))))
                   (signals grpc:permission-denied (join channel "somebody"))
                   (signals grpc:permission-denied (join channel "Client"))
                   (signals grpc:permission-denied (leave channel "somebody" generation))
                   (signals grpc:permission-denied
                     (methods:renew channel (pb:make-renew-request :name "somebody")
                                    :timeout +patience+))
                   (is-true (leave channel "client" generation))))
               (grpc:with-channel (channel (grpc:server-address server) :credentials trust)
                 (signals grpc:permission-denied (join channel "client"))))
          (grpc:stop-server server :drain 1)
          (close-cluster-service service))))))
