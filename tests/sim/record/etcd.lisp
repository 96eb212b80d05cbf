;;;; The courses of etcd's clients and of a cluster's nodes: what they and the store send each
;;;; other.

(in-package #:clgrpc.tests.record)

(defun add-store ()
  "Add a host \"store\" with an engine of etcd, and return the engine."
  (let ((engine (memory:make-engine)))
    (sim:add-host "store" (lambda () (grpc:start-server engine :listen "store:2379")))
    engine))

(defun noted (value)
  (let ((*print-pretty* nil)) (sim:note "~A" value)))

(defmacro noting (&body forms)
  "Note the values of each of FORMS, or the error that it signals."
  `(progn ,@(loop for form in forms
                  collect `(handler-case (noted (multiple-value-list ,form))
                             (error (error) (sim:note "~A" error))))))

(defun use-store (etcd)
  "Do everything that clients of ETCD do with entries."
  (noting (etcd:put etcd "k/a" "1") (etcd:put etcd "k/a" "2" :previous t) (etcd:put etcd "k/b" "3")
          (etcd:fetch etcd "k/a") (etcd:fetch etcd "k/a" :revision 2) (etcd:fetch etcd "none")
          (etcd:fetch-entries etcd :prefix "k/") (etcd:count-entries etcd :from "k/" :to "k/b")
          (etcd:transact etcd :when '((:version "k/a" > 1) (:absent "none") (:value "k/b" /= "4"))
                              :then '((:put "k/c" "5") (:get-all :prefix "k/"))
                              :else '((:remove-all :prefix "k/")))
          (etcd:transact etcd :when '((:changed (:prefix "k/") < 3))
                              :else '((:get "k/c") (:remove "k/b" :previous t)))
          (etcd:compact etcd 3) (etcd:fetch etcd "k/a" :revision 2)
          (etcd:remove-entries etcd :prefix "k/") (etcd:put etcd "" "x")
          (etcd:put etcd "l" "x" :lease (etcd:lease-by-number etcd 99))
          (etcd:member-status etcd) (etcd:list-members etcd) (etcd:hash-entries etcd)))

(define-record stores (server client :write 'write-dialogue)
    "Entries, transactions, watches, leases that are lost, locks, elections, a store that restarts."
  (let ((engine (add-store)) (store (first (last (sim::simulation-hosts sim:*simulation*)))))
    (sim:on-host ((sim:add-host "client"))
      (etcd:with-etcd (etcd "store:2379" :timeout 2)
        (let ((watch (etcd:watch etcd (lambda (changes revision) (noted (list revision changes)))
                                 :prefix "k/" :previous t))
              (mirror (etcd:mirror etcd (lambda (kind items revision)
                                          (noted (list kind items revision)))
                                   :prefix "k/"))
              (lease (etcd:grant-lease etcd 5 :on-loss (lambda (lease &rest why)
                                                         (noted (list lease why))))))
          (use-store etcd)
          (etcd:put etcd "k/l" "leased" :lease lease)
          (let ((lock (etcd:acquire-lock etcd "l" :lease lease)))
            (noting (etcd:acquire-lock etcd "l" :timeout 0.2) (etcd:release-lock lock)
                    (etcd:campaign etcd "chair" "ada" :lease lease) (etcd:leader etcd "chair")))
          (sim:wait-for 4)
          (sim:restart-host store :down 2)
          (sim:wait-for 8)
          (noting (etcd:fetch etcd "k/l") (etcd:lease-seconds-left lease))
          (sim:partition store (sim:current-host))
          (sim:wait-for 10)
          (sim:heal store (sim:current-host))
          (sim:wait-for 2)
          (noting (etcd:fetch etcd "k/l") (etcd:list-leases etcd))
          (etcd:cancel-mirror mirror)
          (etcd:cancel-watch watch))))
    (memory:close-engine engine)))

(define-record clusters (server client :write 'write-dialogue)
    "Nodes join, are replaced and leave; one is killed; a channel follows them."
  (let ((engine (add-store)) (hosts '()))
    (dolist (name '("n1" "n2"))
      (let ((name name))
        (push (sim:add-host
               name
               (lambda ()
                 (let ((etcd (etcd:make-etcd "store:2379" :timeout 2)) (node nil))
                   (sim:start-task name
                                   (lambda ()
                                     (setf node (cluster:start-node
                                                 name :store etcd :cluster "c" :lease-seconds 3
                                                 :listen (format nil "~A:50051" name)
                                                 :labels `(("zone" . ,name))
                                                 :on-change (lambda (changes) (noted changes))))))
                   (lambda (drain)
                     (when (and node drain) (cluster:stop-node node :drain drain))
                     (etcd:close-etcd etcd)))))
              hosts)))
    (sim:wait-for 1)
    (sim:on-host ((sim:add-host "client"))
      (grpc:with-channel (channel "etcd://store:2379/c" :balance :round-robin :observer client)
        (flet ((members ()
                 (ending (clgrpc.cluster.v1.cluster:members
                          channel (clgrpc.cluster.v1:make-members-request) :timeout 2))))
          (members)
          (sim:restart-host (first hosts) :down 5)
          (sim:wait-for 4)
          (members)
          (sim:wait-for 4)
          (members)
          (sim:stop-host (second hosts) :drain 1)
          (sim:wait-for 1)
          (members))))
    (dolist (host hosts) (sim:stop-host host :drain 1))
    (sim:wait-for 5)
    (memory:close-engine engine)))
