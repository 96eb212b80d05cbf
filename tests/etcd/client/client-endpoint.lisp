;;;; Several endpoints, names and addresses mixed; members that are gone.

(in-package #:clgrpc.tests.etcd)

(test endpoints
  (flet ((target (&rest endpoints) (clgrpc.etcd::endpoints-target endpoints)))
    (is (string= "etcd-endpoints:a:1" (target "a:1")))
    (is (string= "etcd-endpoints:1.2.3.4:1,b:2,[::1]:3" (target "1.2.3.4:1" "b:2" "[::1]:3")))
    (signals misuse (target))
    (signals misuse (target ""))
    (signals misuse (target "a:1" 2))
    (signals misuse (etcd:make-etcd '("a:1" "b:x")))
    (signals misuse (etcd:make-etcd '("a:1" "unknown:///b")))
    (is (search "a port is a part of each endpoint"
                (handler-case (apply #'etcd:make-etcd "localhost" (copy-list '(2379)))
                  (misuse (error) (princ-to-string error)))))))

(test names-and-addresses-are-mixed
  "Endpoints that cannot be looked up or reached take nothing away, and those that name the same
server are one."
  (with-store (store)
    (etcd:with-etcd (etcd (list (format nil "nowhere.invalid:~D" (store-port store))
                                (format nil "localhost:~D" (store-port store))
                                (format nil "127.0.0.1:~D" (free-port))
                                (store-address store)))
      (is-true (etcd:put etcd "a" "1" :timeout +patience+))
      (let ((addresses (mapcar (lambda (plist) (getf plist :address))
                               (clgrpc.calling:channel-addresses (etcd:etcd-channel etcd)))))
        (is (= 1 (count (store-address store) addresses :test #'equal)) "~S" addresses)))))

(test no-endpoint-can-be-looked-up
  (etcd:with-etcd (etcd '("nowhere.invalid:1" "elsewhere.invalid:2"))
    (with-signalled (error etcd:unavailable (etcd:put etcd "a" "1" :timeout 0.5))
      (is-false (etcd:etcd-error-perhaps-done-p error)))))

(test a-channel-in-place-of-endpoints
  (with-store (store)
    (let ((channel (clgrpc.client:make-channel (store-address store))))
      (etcd:with-etcd (etcd nil :channel channel)
        (is-true (etcd:put etcd "a" "1"))
        (signals misuse (etcd:member-status etcd :endpoint (store-address store))))
      (is (eq :shutdown (clgrpc.calling:channel-state channel)))))
  (signals misuse (etcd:make-etcd "a:1" :channel :any)))

(defun call-with-secure-store (function &rest arguments)
  "Call FUNCTION with the port of an etcd that speaks TLS and has further ARGUMENTS."
  (let* ((store (new-store))
         (url (format nil "https://127.0.0.1:~D,https://127.0.0.2:~:*~D" (store-port store))))
    (setf (store-arguments store)
          (list* "--listen-client-urls" url "--advertise-client-urls" url
                 "--cert-file" (support:certificate-file "server.pem")
                 "--key-file" (support:certificate-file "server.key") arguments))
    (begin-store store)
    (unwind-protect (funcall function (store-port store))
      (end-store store)
      (uiop:delete-directory-tree (pathname (store-folder store)) :validate t))))

(test certificates-have-the-names-of-their-endpoints
  "With TLS each member's certificate must have the name of its own endpoint, not of the first one."
  (need-etcd)
  (call-with-secure-store
   (lambda (port &aux (timeout +patience+))
     (flet ((ask (&rest endpoints)
              (etcd:with-etcd (etcd endpoints
                               :credentials (loop:tls-credentials
                                             :roots (support:certificate-file "ca.pem")))
                (etcd:put etcd "a" "1" :timeout timeout))))
       (is-true (ask (format nil "localhost:~D" port)))
       (is-true (ask "nowhere.invalid:1" (format nil "localhost:~D" port)))
       (is-true (ask (format nil "127.0.0.2:~D" port) (format nil "localhost:~D" port)))
       ;; the certificate is not for this address
       (setf timeout 0.5)
       (signals etcd:unavailable (ask (format nil "127.0.0.2:~D" port)))
       (signals etcd:unavailable
         (ask (format nil "localhost:~D" (free-port)) (format nil "127.0.0.2:~D" port)))))))

(test certificates-say-who-somebody-is
  "With --client-cert-auth the common name of a client's certificate is its user."
  (need-etcd)
  (call-with-secure-store
   (lambda (port)
     (flet ((connect (&rest options)
              (apply #'etcd:make-etcd (format nil "localhost:~D" port)
                     :timeout +patience+
                     :credentials (loop:tls-credentials
                                   :roots (support:certificate-file "ca.pem")
                                   :certificate (support:certificate-file "client.pem")
                                   :key (support:certificate-file "client.key"))
                     options)))
       (let ((etcd (connect)) (root (connect :user "root" :password "secret")))
         (unwind-protect
              (progn
                (etcd:add-user etcd "root" "secret")
                (etcd:add-role etcd "root")
                (etcd:grant-role etcd "root" "root")
                (etcd:add-user etcd "client" nil)
                (etcd:add-role etcd "writer")
                (etcd:grant-permission etcd "writer" :read-write :prefix "a/")
                (etcd:grant-role etcd "client" "writer")
                (etcd:enable-authentication etcd)
                (is-true (etcd:put etcd "a/x" "1"))
                (signals etcd:access-denied (etcd:put etcd "b" "1"))
                (is-true (etcd:put root "b" "1")))
           (etcd:close-etcd etcd)
           (etcd:close-etcd root)))))
   "--client-cert-auth" "--trusted-ca-file" (support:certificate-file "ca.pem")))
