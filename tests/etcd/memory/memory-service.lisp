;;;; The engine as a client sees it: the checks that tests/etcd/client has done with etcd itself,
;;;; done with the engine within the image, and over a connection.

(in-package #:clgrpc.tests.memory)

(test what-etcd-is-tested-with
  (shared:run-store-tests (lambda (function) (with-engine (engine) (funcall function)))))

(test clients-of-an-engine
  (with-engine (engine)
    (let ((members (etcd:list-members *etcd*)))
      (is (equal '("memory") (mapcar (lambda (member) (getf member :name)) members)))
      (is (equal '(1) (mapcar (lambda (member) (getf member :id)) members))))
    (let ((other (memory:connect engine :timeout 3)))
      (etcd:put other "a" "1")
      (is (= 2 (memory:engine-revision engine)))
      (etcd:close-etcd other))
    (is (string= "1" (etcd:entry-text (etcd:fetch *etcd* "a"))))
    ;; what is newest counts, not what was
    (etcd:put *etcd* "a" "12")
    (etcd:put *etcd* "b" "1")
    (etcd:remove-entry *etcd* "b")
    (let ((status (etcd:member-status *etcd*)))
      (is (= (+ 128 3) (getf status :octets-in-use)))
      (is (< (getf status :octets-in-use) (getf status :octets) (getf status :quota))))
    (signals misuse (etcd:make-etcd "127.0.0.1:1" :channel (etcd:etcd-channel *etcd*)))
    (refused-with (:invalid-argument "etcdserver: request is too large")
      (kv:put (etcd:etcd-channel *etcd*)
              (pb:make-put-request :key (octets-of 1)
                                   :value (base:make-octets memory::+longest-request+))))))

(test leases-are-kept-in-memory
  "Keeping a lease alive, losing it and listing leases."
  (with-engine (engine)
    (let* ((lost '())
           (kept (etcd:grant-lease *etcd* 2))
           (lease (etcd:grant-lease *etcd* 2 :on-loss (lambda (condition)
                                                        (push (type-of condition) lost)))))
      (flet ((numbers ()
               (map 'list #'pb:lease-status-id
                    (pb:lease-leases-response-leases
                     (leases:lease-leases (etcd:etcd-channel *etcd*)
                                          (pb:make-lease-leases-request))))))
        (is (null (set-exclusive-or (list (etcd:lease-id kept) (etcd:lease-id lease))
                                    (numbers))))
        (leases:lease-revoke (etcd:etcd-channel *etcd*)
                             (pb:make-lease-revoke-request :id (etcd:lease-id lease)))
        (eventually (equal '(etcd:lease-not-found) lost))
        (sleep 2.5)
        (is-true (etcd:lease-alive-p kept))
        (is (equal (list (etcd:lease-id kept)) (numbers)))))))

(test engines-are-served-over-connections
  "A server takes an engine as a service: etcdctl sees what is in it."
  (with-engine (engine)
    (let ((server (server:start-server engine :listen "127.0.0.1:0")))
      (unwind-protect
           (etcd:with-etcd (other (server:server-address server))
             (let* ((heard '())
                    (watch (etcd:watch other (fn (_changes revision) (push revision heard))
                                       :prefix "")))
               (etcd:put *etcd* "a/b" "text")
               (eventually (equal '(2) heard))
               (etcd:cancel-watch watch))
             (support:need-program "etcdctl")
             (is (string= (format nil "a/b~%text")
                          (uiop:run-program
                           (list "env" "ETCDCTL_API=3" "etcdctl" "--endpoints"
                                 (server:server-address server) "get" "a/b")
                           :output '(:string :stripped t)))))
        (server:stop-server server :drain 1)))))

(test keep-alives-end-with-their-client
  "A stream of them is answered until its client closes it."
  (with-engine (engine)
    (let ((id (etcd:lease-id (etcd:grant-lease *etcd* 60 :keep-alive nil))))
      (rpc:with-call (call (leases:lease-keep-alive (etcd:etcd-channel *etcd*) :open :timeout 20))
        (loop for (number seconds) in `((,id 60) (,(1+ id) 0))
              do (rpc:try-send call (pb:make-lease-keep-alive-request :id number))
                 (let ((answer (rpc:receive call)))
                   (is (= number (pb:lease-keep-alive-response-id answer)))
                   (is (= seconds (pb:lease-keep-alive-response-ttl answer)))))
        (rpc:close-send call)
        (is (null (rpc:receive call)))
        (is (eq :ok (rpc:call-status call)))))))
