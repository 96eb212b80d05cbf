;;;; Following a cluster from outside, while nodes go.

(in-package #:clgrpc.tests.cluster)
(in-suite :clgrpc.cluster)

(defun follow-in-thread (channel note &rest arguments)
  "Follow the cluster that CHANNEL leads to in a thread, and call NOTE with what is told, in order:
a list of names, or the changes as TOLD-CHANGES has them. The thread returns the error that ends
it."
  (sb-thread:make-thread
   (lambda ()
     (handler-case
         (apply #'follow-cluster
                (lambda (kind items revision)
                  (funcall note (if (eq :members kind) (names items) (told-changes items))
                           revision))
                channel arguments)
       (grpc:rpc-error (error) error)))))

(defun port-of (server)
  (let ((address (grpc:server-address server)))
    (subseq address (1+ (position #\: address :from-end t)))))

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
                 (is-true (wait-until (lambda () heard)))
                 (loop for server in servers
                       for number from 0
                       do (dotimes (i 3) (come-and-go (format nil "m-~D-~D" number i)))
                          (unless (= 2 number) (grpc:stop-server server :drain 0)))
                 (is-true (wait-until (lambda () (= (length expected)
                                                    (reduce #'+ heard :key #'length)))))
                 (is (equal (reverse expected) (apply #'append (reverse heard))))
                 (is (apply #'> revisions))
                 ;; nobody is left
                 (grpc:stop-server (third servers) :drain 0)
                 (is (typep (sb-thread:join-thread thread :default nil) 'grpc:unavailable)))))
        (dolist (server servers) (grpc:stop-server server :drain 0))
        (mapc #'close-cluster-service services)))))
