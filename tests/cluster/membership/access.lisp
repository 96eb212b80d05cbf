;;;; Who may join, renew, leave and read by calls of the service.

(in-package #:clgrpc.tests.cluster)

(defun call-with-tls-service (function allow)
  "Call FUNCTION with a function that calls another one with a channel to a service for which ALLOW
are the permissions, that shows the certificate of a name, or none for nil."
  (flet ((file (name type)
           (namestring (support:certificate-file (format nil "~A.~A" name type)))))
    (let* ((service (make-cluster-service *etcd* :allow allow))
           (server (grpc:start-server service
                                      :credentials (grpc:tls-credentials
                                                    :certificate (file "server" "pem")
                                                    :key (file "server" "key")
                                                    :roots (file "ca" "pem")
                                                    :client-certificates :request))))
      (unwind-protect
           (funcall function
                    (lambda (name use)
                      (let ((credentials
                              (apply #'grpc:tls-credentials :roots (file "ca" "pem")
                                     (and name (list :certificate (file name "pem")
                                                     :key (file name "key"))))))
                        (grpc:with-channel (channel (grpc:server-address server)
                                                    :credentials credentials)
                          (funcall use channel)))))
        (grpc:stop-server server :drain 1)
        (close-cluster-service service)))))

(defmacro with-tls-service ((with-peer &rest allow) &body body)
  "Evaluate BODY, in which (WITH-PEER (CHANNEL NAME) FORM …) evaluates its forms with CHANNEL to a
service with the permissions ALLOW, to which it shows the certificate NAME."
  (let ((call (gensym "CALL")))
    `(with-memory ()
       (call-with-tls-service
        (lambda (,call)
          (macrolet ((,with-peer ((channel name) &body forms)
                       `(funcall ,',call ,name (lambda (,channel) ,@forms))))
            ,@body))
        ',allow))))

(test peers-join-as-the-pattern-says
  "A peer joins, renews and leaves as the member that its identity names, and as nobody else: trust
domain and path count."
  (with-tls-service (with-peer (:join . "spiffe://test.example/node/{name}"))
    (with-peer (channel "node-a")
      (let ((generation (pb:member-generation (join channel "a"))))
        (signals grpc:permission-denied (join channel "b"))
        (signals grpc:permission-denied (join channel "A"))
        (signals grpc:permission-denied (leave channel "b" generation))
        (signals grpc:permission-denied
          (methods:renew channel (pb:make-renew-request :name "b") :timeout +patience+))
        (with-peer (channel "foreign")
          (signals grpc:permission-denied (join channel "a"))
          (signals grpc:permission-denied (leave channel "a" generation)))
        (with-peer (channel nil)
          (signals grpc:permission-denied (join channel "a")))
        (is-true (leave channel "a" generation))))))

(test nobody-joins-or-reads-without-a-role
  "With TLS a role is had only by permission; without TLS nobody joins by a call."
  (with-tls-service (with-peer)
    (with-peer (channel "node-a")
      (signals grpc:permission-denied (join channel "a"))
      (signals grpc:permission-denied
        (methods:members channel (pb:make-members-request) :timeout +patience+))
      (signals grpc:permission-denied (grpc:with-call (call (watch-members channel))
                                        (grpc:receive call)))))
  (with-memory ()
    (let* ((service (make-cluster-service *etcd*)) (server (grpc:start-server service)))
      (unwind-protect
           (grpc:with-channel (channel (grpc:server-address server))
             (signals grpc:permission-denied (join channel "a"))
             (is (equalp #() (pb:members-response-members
                              (methods:members channel (pb:make-members-request)
                                               :timeout +patience+)))))
        (grpc:stop-server server :drain 1)
        (close-cluster-service service)))))

(test peers-join-for-others
  "A pattern without {name} is for whoever may join as any member."
  (with-tls-service (with-peer (:join . "client.test.example") (:read . "*"))
    (with-peer (channel "client")
      (join channel "a")
      (join channel "b"))
    (with-peer (channel "worker-1")
      (signals grpc:permission-denied (join channel "c"))
      (is (= 2 (length (pb:members-response-members
                        (methods:members channel (pb:make-members-request)
                                         :timeout +patience+))))))))
