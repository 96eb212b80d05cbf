;;;; What the log says of functions of users that fail, and of names, stores and configs that are
;;;; wrong.

(in-package #:clgrpc.tests.record)

(defclass troubled-service (grpc:health-service) ())

(defmethod clgrpc.server:note-server-started ((service troubled-service) server)
  (error "The service does not like ~A." (first (grpc:server-addresses server))))

(defun fails (&rest arguments)
  (declare (ignore arguments))
  (error "A function of the user fails."))

(defun trouble-server ()
  "A server whose service and functions for its stop fail."
  (let ((server (grpc:start-server (list (make-probe) (make-instance 'troubled-service))
                                   :listen "server:50051")))
    (grpc:call-before-stop server #'fails)
    (grpc:call-before-stop server (lambda (seconds) (declare (ignore seconds)) #'fails))
    (sim:wait-for 1)
    (grpc:stop-server server :drain 1)))

(defun trouble-names (names address)
  "A name without addresses, and one whose service config is wrong."
  (dns-tests:set-records names "svc.test" dns:+a+ "10.0.0.99")
  (dns-tests:set-records names "_grpc_config.svc.test" dns:+txt+
                         '("grpc_config=[{\"serviceConfig\":7}]"))
  (dolist (name '("none.test" "svc.test"))
    (grpc:with-channel (channel (format nil "dns://~A/~A:50051" address name)
                                :dns-service-config t)
      (ending (grpc:ensure-connected channel :timeout 2)))))

(defun trouble-entries (etcd)
  "A watch, a lease and a mirror whose functions fail, and entries that are no servers."
  (etcd:watch etcd #'fails :prefix "w/" :on-end #'fails)
  (let ((lease (etcd:grant-lease etcd 5 :on-loss #'fails)))
    (etcd:put etcd "w/a" "1")
    (sim:wait-for 1)
    (etcd:revoke-lease (etcd:lease-by-number etcd (etcd:lease-id lease)))
    (sim:wait-for 10))
  (loop for (key value) in '(("svc/a" "garbage") ("svc/b" "{\"Addr\":\"no address\"}")
                             ("svc/c" "{\"Addr\":\"nowhere.test:1\"}"))
        do (etcd:put etcd key value))
  (grpc:with-channel (channel "etcd://store:2379/svc")
    (ending (grpc:ensure-connected channel :timeout 2))))

(defun trouble-nodes (etcd store)
  "A node whose functions fail, beside an entry that is no member; its own entry is removed, and it
loses the host STORE, and is stopped. Few errors come from each place, since it logs only ten in a
second of the machine."
  (let ((node (cluster:start-node "n" :store etcd :cluster "c" :listen "client:50051"
                                      :lease-seconds 3 :on-join #'fails :on-loss #'fails
                                      :on-change (let ((once #'fails))
                                                   (lambda (changes)
                                                     (funcall (shiftf once #'list) changes))))))
    (sim:wait-for 1)
    (etcd:put etcd (clgrpc.cluster::member-key "c" "odd") "garbage")
    (sim:wait-for 1)
    (etcd:remove-entry etcd (clgrpc.cluster::member-key "c" "n"))
    (sim:wait-for 5)
    (sim:partition store (sim:current-host))
    (sim:wait-for 7)
    (cluster:stop-node node :drain 1)
    (sim:heal store (sim:current-host))))

(defun trouble-workflows (store)
  "A watch and a worker whose functions fail; the worker's result comes after a cancellation. The
server ends without the host STORE."
  (let ((server (serve-workflows)))
    (grpc:with-channel (channel "node:50051")
      (let ((worker (workflow:start-worker
                     channel :kinds (list (cons "slow" (fn (_task) (sim:wait-for 2))))
                             :session-seconds 9 :on-refused #'fails :on-task-lost #'fails)))
        (workflow:watch-workflow #'fails channel nil :on-end #'fails)
        (workflow:start-workflow channel "w" '("slow"))
        (sim:wait-for 1)
        (workflow:cancel-workflow channel "w" :reason "enough")
        (sim:wait-for 12)
        (sim:partition store (sim:current-host))
        (sim:wait-for 5)
        (workflow:stop-worker worker :drain 1)))
    (funcall server 1)))

(define-record troubles (server client :write 'write-events :observed nil
                                       :tracers "dns_resolver,subchannel")
    "What goes wrong in functions of users, names, configs and stores is logged."
  (let ((engine (add-store)) (store (first (last (sim::simulation-hosts sim:*simulation*)))))
    (multiple-value-bind (names address) (sim-tests:add-name-server)
      (sim:on-host ((sim:add-host "server")) (trouble-server))
      (sim:on-host ((sim:add-host "client"))
        (trouble-names names address)
        (etcd:with-etcd (etcd "store:2379" :timeout 2)
          (trouble-entries etcd)
          (trouble-nodes etcd store)))
      (sim:on-host ((sim:add-host "node")) (trouble-workflows store)))
    (memory:close-engine engine)))
