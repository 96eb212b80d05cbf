;;;; Several endpoints, names and addresses mixed; members that are gone.

(in-package #:clgrpc.tests.etcd)
(in-suite :clgrpc.etcd)

(test endpoints
  (flet ((target (&rest endpoints) (clgrpc.etcd::endpoints-target endpoints)))
    (is (string= "a:1" (target "a:1")))
    (is (string= "etcd-endpoints:1.2.3.4:1,b:2,[::1]:3" (target "1.2.3.4:1" "b:2" "[::1]:3")))
    (signals misuse (target))
    (signals misuse (target ""))
    (signals misuse (target "a:1" 2))
    (signals misuse (etcd:make-etcd '("a:1" "b:x")))
    (signals misuse (etcd:make-etcd '("a:1" "unknown:///b")))))

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
    (handler-case (progn (etcd:put etcd "a" "1" :timeout 0.5) (fail "nobody is there"))
      (etcd:unavailable (error)
        (is-false (etcd:etcd-error-perhaps-done-p error))))))

(test a-channel-in-place-of-endpoints
  (with-store (store)
    (let ((channel (clgrpc.client:make-channel (store-address store))))
      (etcd:with-etcd (etcd nil :channel channel)
        (is-true (etcd:put etcd "a" "1"))
        (signals misuse (etcd:member-status etcd :endpoint (store-address store))))
      (is (eq :shutdown (clgrpc.calling:channel-state channel)))))
  (signals misuse (etcd:make-etcd "a:1" :channel :any)))
