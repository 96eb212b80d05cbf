;;;; Nodes: they join, know each other, leave, are lost, come back, and are superseded.

(in-package #:clgrpc.tests.cluster)

(defun await-names (node &rest names)
  "Wait until NODE knows the members NAMES; return true if it does."
  (await-members node (lambda (members) (equal names (names members))) :timeout +patience+))

(defun await-state (node state)
  (wait-until (lambda () (eq state (node-state node)))))

(defun health-of (node)
  (grpc:health-status (node-health node) "clgrpc.cluster.v1.Cluster"))

(test nodes-know-each-other
  "A node is known to the others from when it has started until it is stopped, which they are told."
  (with-store (store)
    (let ((changes '()))
      (with-node (a "a" :store *etcd* :labels '(("zone" . "1"))
                        :on-change (lambda (more) (push (told-changes more) changes)))
        (is (eq :member (node-state a)))
        (is (eq :serving (health-of a)))
        (is-true (await-names a "a"))
        (let ((member (find-member a "a")))
          (is (= (node-generation a) (member-generation member)))
          (is (string= (grpc:server-address (node-server a)) (member-address member)))
          (is (equal '(("zone" . "1")) (member-labels member))))
        (let ((generation nil))
          (with-node (b "b" :store (format nil "etcd:~A" (store-address store))
                            :address "node-b.example:50051")
            (setf generation (node-generation b))
            (is-true (await-names b "a" "b"))
            (is-true (await-names a "a" "b"))
            (is (string= "node-b.example:50051" (member-address (find-member a "b")))))
          (is-true (await-names a "a"))
          (eventually (= 4 (length changes)))
          (is (equal `(((:joined "a" ,(node-generation a)))
                       ((:joined "b" ,generation))
                       ((:updated "b" ,generation))
                       ((:left "b" ,generation)))
                     (reverse changes)))))))
  ;; nobody is there
  (signals etcd:unavailable
    (etcd:with-etcd (etcd "127.0.0.1:1" :timeout 0.3)
      (start-node "a" :store etcd)))
  (signals grpc:misuse (start-node "a/b" :store "etcd:127.0.0.1:1"))
  ;; others could not reach it there
  (signals grpc:misuse (start-node "a" :store "memory" :listen "0.0.0.0:0"))
  (with-node (a "a" :store "memory" :listen "0.0.0.0:0" :address "127.0.0.1:1")
    (is (string= "127.0.0.1:1" (node-address a))))
  (signals grpc:misuse (start-node "a" :store "127.0.0.1:1")))

(test nodes-are-found-by-the-cluster-s-name
  "A channel to etcd:///CLUSTER reaches the nodes; one that is leaving is said to drain, and one
that has left is gone from there."
  (with-memory ()
    (flet ((endpoints ()
             (loop for endpoint in (discovery:list-endpoints "mesh" :etcd *etcd*)
                   collect (list (discovery:endpoint-address endpoint)
                                 (discovery:endpoint-weight endpoint)
                                 (discovery:endpoint-zone endpoint)
                                 (discovery:endpoint-state endpoint)
                                 (mapcar #'car (discovery:endpoint-metadata endpoint))))))
      (with-node (a "a" :store *etcd* :cluster "mesh"
                        :labels '(("zone" . "west") ("weight" . "7") ("rack" . "12")))
        (is (equal `((,(node-address a) 7 "west" :serving ("member"))) (endpoints)))
        (with-changed (((discovery:default-etcd) *etcd*))
          (grpc:with-channel (channel "etcd:///mesh")
            (is (= 1 (length (pb:members-response-members
                              (methods:members channel (pb:make-members-request)
                                               :timeout +patience+ :wait-for-ready t)))))))
        (cluster::announce-draining a)
        (is (equal '(:draining) (mapcar #'fourth (endpoints)))))
      (is (null (endpoints))))))

(test labels-that-a-balancer-cannot-use
  "A weight or a zone that is none leaves the member an endpoint without it."
  (with-memory ()
    (with-node (a "a" :store *etcd* :labels `(("weight" . "0")
                                              ("zone" . ,(make-string 600 :initial-element #\z))))
      (let ((endpoint (first (discovery:list-endpoints "default" :etcd *etcd*))))
        (is (string= (node-address a) (discovery:endpoint-address endpoint)))
        (is (null (discovery:endpoint-weight endpoint)))
        (is (null (discovery:endpoint-zone endpoint)))))))

(test the-later-of-a-name-wins
  "A node that starts with a name that is taken takes it over, and the former one ends its
membership without a fight; with :refuse it does not start."
  (with-store (store)
    (let ((losses '()))
      (with-node (first "a" :store *etcd* :on-loss (lambda (condition) (push condition losses)))
        (signals name-taken (start-node "a" :store *etcd* :if-taken :refuse))
        (is (eq :member (node-state first)))
        (etcd:put *etcd* "of-the-first" "" :lease (node-lease first))
        (with-node (second "a" :store *etcd*)
          (is-true (await-state first :superseded))
          (eventually losses)
          (is (equal '(superseded) (mapcar #'type-of losses)))
          (is (eq :not-serving (health-of first)))
          (is (null (node-lease first)))
          ;; nor does what else it has put with its lease stay
          (eventually (null (etcd:fetch *etcd* "of-the-first")))
          (is (< (node-generation first) (node-generation second)))
          ;; what the first does now is nothing to the second
          (is-true (stop-node first))
          (is (eq :member (node-state second)))
          (is (equal (list (node-generation second))
                     (mapcar #'member-generation (fetch-members *etcd* "default")))))))
    (is (equal '() (fetch-members *etcd* "default")))))

(defun text-of (metrics)
  (map 'string #'code-char (grpc:metrics-text metrics)))

(defun metric (text name &rest labels)
  "The value, as text, of the line of TEXT that is of the metric NAME and has all of LABELS."
  (with-input-from-string (stream text)
    (loop for line = (read-line stream nil)
          while line
          when (and (uiop:string-prefix-p (format nil "~A{" name) line)
                    (every (lambda (label) (search label line)) labels))
            return (subseq line (1+ (position #\Space line :from-end t))))))

(test lost-nodes-come-back
  "A node whose lease has ended is no member, says so, and joins again as a new generation."
  (with-store (store)
    (let* ((losses '()) (joins 0)
           (metrics (grpc:make-metrics)))
      (with-node (a "a" :store *etcd* :lease-seconds 2 :metrics metrics
                        :on-loss (lambda (condition) (push condition losses))
                        :on-join (lambda (node) (declare (ignore node)) (incf joins)))
        (let ((generation (node-generation a)))
          (with-node (b "b" :store *etcd*)
            (etcd:revoke-lease (etcd:lease-by-number *etcd* (etcd:lease-id (node-lease a))))
            (eventually (= 2 joins))
            (is (eq :member (node-state a)))
            (is (< generation (node-generation a)))
            (is (equal '(membership-lost) (mapcar #'type-of losses)))
            (is-true (await-names b "a" "b"))
            (is (= (node-generation a) (member-generation (find-member b "a"))))))
        ;; which is recorded last
        (eventually (equal "1" (metric (text-of metrics) "clgrpc_cluster_members")))
        (let ((text (text-of metrics)))
          (is (equal "1" (metric text "clgrpc_cluster_lease_losses_total")))
          (is (equal "1" (metric text "clgrpc_cluster_joined")))
          (is (equal "1" (metric text "clgrpc_cluster_members")))
          (is (equal (princ-to-string (node-generation a))
                     (metric text "clgrpc_cluster_generation")))
          (is (equal "3" (metric text "clgrpc_cluster_changes_total" "change=\"joined\"")))
          (is (equal "1" (metric text "clgrpc_cluster_changes_total" "change=\"lost\"")))
          (is (equal "1" (metric text "clgrpc_cluster_changes_total" "change=\"left\""))))))))

(test joining-again-survives-errors
  "A node that was lost tries again whatever goes wrong."
  (let ((tries 0))
    (with-node (node "a" :store "memory" :lease-seconds 2)
      (with-replaced (('cluster:join-cluster
                       (lambda (function &rest arguments)
                         (if (<= (incf tries) 2)
                             (error "This is a bug.")
                             (apply function arguments)))))
        (let ((store (cluster:node-store node)))
          (etcd:revoke-lease (etcd:lease-by-number store (etcd:lease-id (node-lease node))))
          (eventually (and (= 3 tries) (eq :member (node-state node)))))))))

(test nodes-see-that-their-entries-are-gone
  "A node whose entry somebody removes while its lease goes on is no member, and joins again; what
was put with the lease goes."
  (with-memory ()
    (let ((losses '()))
      (with-node (a "a" :store *etcd* :on-loss (lambda (condition) (push condition losses)))
        (let ((generation (node-generation a)))
          (etcd:put *etcd* "of-the-first" "" :lease (node-lease a))
          (is-true (await-names a "a"))
          (etcd:remove-entry *etcd* (cluster::member-key "default" "a"))
          (eventually (< generation (node-generation a)))
          (is-true (await-state a :member))
          (is (equal '(membership-lost) (mapcar #'type-of losses)))
          (eventually (null (etcd:fetch *etcd* "of-the-first")))
          (is-true (await-names a "a"))
          (is (= (node-generation a) (member-generation (find-member a "a")))))))))

(test nodes-look-for-their-entries
  "A node that its watch does not tell that its entry is gone, and whose lease is renewed, as by a
leader of etcd that hung, finds that out by itself, and joins again."
  (with-memory ()
    (with-node (a "a" :store *etcd* :lease-seconds 2)
      (let ((generation (node-generation a)))
        (is-true (await-names a "a"))
        (with-replaced (('cluster::note-changes (constantly nil)))
          (etcd:remove-entry *etcd* (cluster::member-key "default" "a"))
          (eventually (< generation (node-generation a)))
          (is-true (await-state a :member)))))))

(test nodes-that-are-not-to-join-again-stay-lost
  "A node with :rejoin nil whose entry was removed is lost until it is stopped."
  (with-memory ()
    (let ((joins 0))
      (with-node (a "a" :store *etcd* :lease-seconds 2 :rejoin nil
                        :on-join (lambda (node) (declare (ignore node)) (incf joins)))
        (etcd:remove-entry *etcd* (cluster::member-key "default" "a"))
        (is-true (await-state a :lost))
        ;; a lease, and the pause before another try
        (sleep 3)
        (is (eq :lost (node-state a)))
        (is (= 1 joins))
        (is (equal '() (fetch-members *etcd* "default")))))))

(test nodes-stop-whatever-they-are-doing
  "Nodes that are stopped while they join again leave no entry, no lease and no thread that renews
one."
  (with-memory ()
    (let ((nodes (loop for i below 16
                       collect (start-node (format nil "n-~D" i) :store *etcd*))))
      (dolist (node nodes)
        (etcd:revoke-lease (etcd:lease-by-number *etcd* (etcd:lease-id (node-lease node)))))
      ;; some have joined by then, some do so just now
      (wait-until (lambda () (find :member nodes :key #'node-state)))
      (mapc #'sb-thread:join-thread
            (loop for node in nodes
                  collect (sb-thread:make-thread #'stop-node :arguments (list node))))
      (is (every (lambda (node) (eq :stopped (node-state node))) nodes))
      (is (every #'null (mapcar #'node-lease nodes)))
      (is (equal '() (fetch-members *etcd* "default")))
      (is (equal '() (etcd:list-leases *etcd*))))))

(test leaving-nodes-renew-nothing
  "A node that is stopped while the store is away is gone once its lease has ended, though the
client that it was given lives on."
  (let ((port (free-port)))
    (etcd:with-etcd (*etcd* (format nil "127.0.0.1:~D" port) :timeout 0.3
                     :backoff-initial-seconds 0.05 :backoff-maximum-seconds 0.2)
      (let* ((engine (memory:make-engine)) (reader (memory:connect engine))
             (listen (format nil "127.0.0.1:~D" port))
             (server (grpc:start-server engine :listen listen))
             (node (start-node "a" :store *etcd* :lease-seconds 2)))
        (unwind-protect
             (progn
               (grpc:stop-server server :drain 0)
               (is-true (stop-node node))
               (setf server (grpc:start-server engine :listen listen))
               (eventually (null (fetch-members reader "default"))))
          (stop-node node)
          (grpc:stop-server server :drain 0)
          (etcd:close-etcd reader)
          (memory:close-engine engine))))))

(test members-go-with-their-leases
  "A member that nobody renews is gone within its lease and a second."
  (with-store (store)
    (with-node (a "a" :store *etcd*)
      (let ((start (get-internal-real-time)))
        (join-cluster *etcd* "default" (member-of "b" :lease-seconds 2) :keep-alive nil)
        (is-true (await-names a "a" "b"))
        (is-true (await-names a "a"))
        (let ((seconds (/ (- (get-internal-real-time) start) internal-time-units-per-second)))
          (is (<= 1.5 seconds (* (support:patient-seconds 1) 3.2)) "~,2F s" seconds))))))

(test nodes-outlive-the-store
  "While the store is away a node serves and knows what it knew; when it is back within the lease
the node is a member as before, and hears of what follows."
  (with-store (store)
    (with-node (a "a" :store *etcd* :lease-seconds 20)
      (let ((generation (node-generation a)))
        (is-true (await-names a "a"))
        (support:kill-program (store-program store))
        (is (equal '("a") (names (node-members a))))
        (grpc:with-channel (channel (grpc:server-address (node-server a)))
          (is (= 1 (length (pb:members-response-members
                            (methods:members channel (pb:make-members-request :stale t)
                                             :timeout +patience+))))))
        (begin-store store)
        (with-node (b "b" :store *etcd*)
          (is-true (await-names a "a" "b")))
        (is (eq :member (node-state a)))
        (is (= generation (node-generation a)))))))

(test nodes-stop-whose-client-is-closed
  "STOP-NODE stops the server also if the node's client of etcd was closed before, whose calls say
that it is not available."
  (with-memory ()
    (let ((a (start-node "a" :store *etcd*)))
      (etcd:close-etcd *etcd*)
      (signals etcd:unavailable (fetch-members *etcd* "default"))
      (is-true (stop-node a))
      (is (eq :stopped (node-state a)))
      (is-false (grpc:server-running-p (node-server a))))))
