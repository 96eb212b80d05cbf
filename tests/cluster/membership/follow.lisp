;;;; Following a cluster from outside, while nodes go.

(in-package #:clgrpc.tests.cluster)

(defun follow-in-thread (channel note &rest arguments)
  "Follow the cluster that CHANNEL leads to in a thread, and call NOTE with what is told, in order:
a list of names, or the changes as TOLD-CHANGES has them. The thread returns the error that ends
it."
  (in-thread (handler-case
                 (apply #'follow-cluster
                        (lambda (kind items revision)
                          (funcall note (if (eq :members kind) (names items) (told-changes items))
                                   revision))
                        channel arguments)
               ;; MISUSE: the channel was closed while it paused
               ((or grpc:rpc-error grpc:misuse) (error) error))))

(defun port-of (server)
  (let ((address (grpc:server-address server)))
    (subseq address (1+ (position #\: address :from-end t)))))

(test changes-arrive-as-they-were-sent
  (dolist (kind '(:joined :updated :left :lost))
    (let ((change (cluster::message-change
                   (cluster::change-message (cluster::make-change kind (member-of "a"))))))
      (is (eq kind (change-kind change)))
      (is (string= "a" (member-name (change-member change)))))))

(test followers-are-patient-with-quiet-clusters
  "However long nothing has happened before a node goes, the next is asked."
  (with-memory ()
    (let* ((services (loop repeat 3 collect (make-cluster-service *etcd*)))
           (servers (mapcar #'grpc:start-server services))
           (patience (support:patient-seconds 3/4))
           (heard '()))
      (unwind-protect
           (grpc:with-channel (channel (format nil "ipv4:~{127.0.0.1:~A~^,~}"
                                               (mapcar #'port-of servers)))
             (let ((thread (follow-in-thread channel
                                             (fn (items _revision) (push items heard))
                                             :patience-seconds patience)))
               (eventually heard)
               (loop for server in (butlast servers)
                     do (sleep (* 1.2 patience))
                        (grpc:stop-server server :drain 0))
               (join-cluster *etcd* "default" (member-of "a") :keep-alive nil)
               (eventually (rest heard))
               (grpc:stop-server (third servers) :drain 0)
               (is (typep (sb-thread:join-thread thread :default nil) 'grpc:unavailable))))
        (dolist (server servers) (grpc:stop-server server :drain 0))
        (mapc #'close-cluster-service services)))))

(test followers-begin-anew-when-the-store-goes-back
  "When the store has lost its data those who follow are told all members again, and what follows,
and a node that was a member is one of a later generation."
  (let ((port (free-port)) (heard '()))
    (etcd:with-etcd (*etcd* (format nil "127.0.0.1:~D" port)
                     :backoff-initial-seconds 0.05 :backoff-maximum-seconds 0.2)
      (let ((node nil) (generation 0))
        (unwind-protect
             (flet ((follow (channel)
                      (follow-in-thread channel (lambda (items revision)
                                                  (push (list revision items) heard))
                                        :patience-seconds 2)))
               (with-engine-at (port)
                 (dotimes (i 50) (etcd:put *etcd* "x" "y"))
                 (setf node (start-node "a" :store *etcd* :lease-seconds 2)
                       generation (node-generation node))
                 (is-true (await-names node "a")))
               (grpc:with-channel (channel (grpc:server-address (node-server node)))
                 (let ((thread (follow channel)))
                   (eventually heard)
                   (with-engine-at (port)
                     ;; only now is there a lower revision
                     (eventually (< generation (node-generation node)))
                     (is (eq :member (node-state node)))
                     (is-true (await-names node "a"))
                     (eventually (< (first (first heard)) (first (first (last heard)))))
                     (join-cluster *etcd* "default" (member-of "b") :keep-alive nil)
                     (eventually (let ((item (first (second (first heard)))))
                                   (and (consp item)
                                        (equal '(:joined "b") (subseq item 0 2)))))
                     ;; who asks this node for what was never there is told
                     (grpc:with-call (call (watch-members channel generation))
                       (signals grpc:out-of-range (grpc:receive call)))
                     (stop-node node))
                   (sb-thread:join-thread thread :default nil))))
          (when node (stop-node node :drain 0)))))))

(test followers-outlive-nodes
  "Who follows a cluster hears each change once, in order, while the nodes that he asks go."
  (with-store (store)
    (let* ((services (loop repeat 3 collect (make-cluster-service *etcd*)))
           (servers (mapcar #'grpc:start-server services))
           (heard '()) (revisions '())
           (expected '()))
      (unwind-protect
           (grpc:with-channel (channel (format nil "ipv4:~{127.0.0.1:~A~^,~}"
                                               (mapcar #'port-of servers)))
             (let ((thread (follow-in-thread
                            channel
                            (lambda (items revision)
                              (push items heard)
                              (push revision revisions))
                            :patience-seconds 3)))
               (flet ((come-and-go (name)
                        (let ((member (join-cluster *etcd* "default" (member-of name)
                                                    :keep-alive nil)))
                          (leave-cluster *etcd* "default" name (member-generation member))
                          (dolist (kind '(:joined :updated :left))
                            (push (list kind name (member-generation member)) expected)))))
                 (eventually heard)
                 (loop for server in servers
                       for number from 0
                       do (dotimes (i 3) (come-and-go (format nil "m-~D-~D" number i)))
                          (unless (= 2 number) (grpc:stop-server server :drain 0)))
                 (eventually (= (length expected) (reduce #'+ heard :key #'length)))
                 (is (equal (reverse expected) (apply #'append (reverse heard))))
                 (is (apply #'> revisions))
                 ;; nobody is left
                 (grpc:stop-server (third servers) :drain 0)
                 (is (typep (sb-thread:join-thread thread :default nil) 'grpc:unavailable)))))
        (dolist (server servers) (grpc:stop-server server :drain 0))
        (mapc #'close-cluster-service services)))))

(test followers-end-by-what-their-function-signals
  "What its own calls have signalled is not taken for the stream's, and nothing is told again."
  (with-memory ()
    (with-service (channel)
      (dolist (type '(grpc:unavailable grpc:out-of-range grpc:cancelled))
        (let ((calls 0))
          (handler-case (progn (follow-cluster (fn (_kind _items _revision)
                                                 (when (< 1 (incf calls)) (error "told again"))
                                                 (error type :message "by the user"))
                                               channel)
                               (fail "has returned"))
            (error (error) (is (search "by the user" (princ-to-string error)))))
          (is (= 1 calls)))))))

(defclass hanging-cluster (pb:cluster) ()
  (:documentation "A service that never answers."))

(defmethod methods:watch ((service hanging-cluster) request &key call)
  (declare (ignore request))
  call)

(defclass full-cluster (pb:cluster) ()
  (:documentation "A service that has no room for followers."))

(defmethod methods:watch ((service full-cluster) request &key call)
  (declare (ignore request call))
  (grpc:fail :resource-exhausted "full"))

(test followers-give-up-nodes-that-hang
  "And nodes that refuse, with their last error."
  (loop for (class error) in '((hanging-cluster grpc:unavailable)
                               (full-cluster grpc:resource-exhausted))
        do (let ((server (grpc:start-server (make-instance class))))
             (unwind-protect
                  (grpc:with-channel (channel (grpc:server-address server))
                    (let ((thread (follow-in-thread channel (constantly nil)
                                                    :patience-seconds 2)))
                      (is (typep (sb-thread:join-thread thread :default nil :timeout +patience+)
                                 error))))
               (grpc:stop-server server :drain 0)))))
