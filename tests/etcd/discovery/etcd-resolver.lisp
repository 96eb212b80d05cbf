;;;; Channels to etcd:///NAME.

(in-package #:clgrpc.tests.discovery)

(defclass answering (helloworld:greeter)
  ((name :initarg :name :reader answering-name)))

(defmethod helloworld.greeter:say-hello ((service answering) request &key)
  (declare (ignore request))
  (helloworld:make-hello-reply :message (answering-name service)))

(defun call-with-servers (count function)
  "Call FUNCTION with a list of COUNT servers that answer with their numbers, from 0."
  (let ((servers '()))
    (unwind-protect
         (progn (dotimes (i count)
                  (push (grpc:start-server (make-instance 'answering :name (princ-to-string i)))
                        servers))
                (setf servers (reverse servers))
                (funcall function servers))
      (dolist (server servers) (grpc:stop-server server :drain 0)))))

(defmacro with-servers ((servers count) &body body)
  `(call-with-servers ,count (lambda (,servers) ,@body)))

(defun who (channel)
  (values (parse-integer (helloworld:hello-reply-message
                          (helloworld.greeter:say-hello channel (helloworld:make-hello-request)
                                                        :timeout +patience+ :wait-for-ready t)))))

(defun answering (channel &optional (calls 12))
  "The numbers of the servers that answer CALLS on CHANNEL, sorted."
  (sort (remove-duplicates (loop repeat calls collect (who channel))) #'<))

(defun answers-p (channel numbers &key (seconds 1))
  "Wait until just the servers of NUMBERS answer on CHANNEL, for SECONDS."
  (wait-until (lambda () (equal numbers (answering channel)))
              :seconds (support:patient-seconds seconds)))

(defun target (store &optional (name "greeter"))
  (format nil "etcd://~A/~A" (store-address store) name))

(defun put-server (server &optional metadata)
  "Register SERVER as another program would."
  (let ((address (grpc:server-address server)))
    (etcd:put *etcd* (format nil "greeter/~A" address) (said address metadata))))

(defun remove-server (server)
  (etcd:remove-entry *etcd* (format nil "greeter/~A" (grpc:server-address server))))

(test changes-reach-channels
  "Servers that come, drain and go are known to a channel within a second."
  (with-store (store)
    (with-servers (servers 3)
      (destructuring-bind (first second third) servers
        (put-server first)
        (grpc:with-channel (channel (target store) :balance :round-robin)
          (is (= 0 (who channel)))
          (put-server second)
          (is-true (answers-p channel '(0 1)))
          (put-server third)
          (is-true (answers-p channel '(0 1 2)))
          (remove-server first)
          (is-true (answers-p channel '(1 2)))
          (put-server second "{\"state\":\"draining\"}")
          (is-true (answers-p channel '(2)))
          (put-server third "{\"state\":\"draining\"}")
          (is-true (answers-p channel '(1 2)) "nothing else is there")
          (put-server first)
          (is-true (answers-p channel '(0))))))))

(test names-are-whole
  "A channel to a name gets no servers of a longer name that begins with it, not even later ones."
  (with-store (store)
    (with-servers (servers 3)
      (destructuring-bind (first stranger later) servers
        (put-server first)
        (etcd:put *etcd* "greeter2/x" (said (grpc:server-address stranger)))
        (grpc:with-channel (channel (target store) :balance :round-robin)
          (is (= 0 (who channel)))
          (put-server later)
          (eventually (member 2 (answering channel)))
          (is (equal '(0 2) (answering channel))))
        (grpc:with-channel (channel (target store "greeter2"))
          (is (= 1 (who channel))))))))

(test names-of-hosts
  "An address may have a name for its host."
  (with-store (store)
    (with-servers (servers 1)
      (let* ((address (grpc:server-address (first servers)))
             (port (subseq address (position #\: address :from-end t))))
        (etcd:put *etcd* "greeter/bad" (said "no-such-host.invalid:1"))
        (etcd:put *etcd* "greeter/wrong" (said "no address"))
        (etcd:put *etcd* "greeter/x" (said (format nil "localhost~A" port)))
        (grpc:with-channel (channel (target store) :balance :round-robin)
          (is (equal '(0) (answering channel))))))))

(test the-default-etcd
  (with-store (store)
    (with-servers (servers 1)
      (put-server (first servers))
      (with-changed (((discovery:default-etcd) *etcd*))
        (dolist (target '("etcd:///greeter" "etcd:greeter"))
          (grpc:with-channel (channel target)
            (is (= 0 (who channel)))
            (is (string= target (grpc:channel-target channel)))))))))

(test channels-share-a-service-watcher
  "Channels to one name of one etcd have one thread that follows it; the last one ends it."
  (with-store (store)
    (with-servers (servers 1)
      (put-server (first servers))
      (let ((before (length clgrpc.discovery::**service-watchers**)))
        (grpc:with-channel (one (target store))
          (is (= 0 (who one)))
          (grpc:with-channel (other (target store))
            (is (= 0 (who other)))
            (is (= (1+ before) (length clgrpc.discovery::**service-watchers**))))
          (is (= (1+ before) (length clgrpc.discovery::**service-watchers**))))
        (eventually (= before (length clgrpc.discovery::**service-watchers**)))))))

(test configs-come-from-a-key
  "A service config comes into force when it is put, and the channel's own when it is removed; a
wrong one changes nothing."
  (with-store (store)
    (with-servers (servers 2)
      (mapc #'put-server servers)
      (grpc:with-channel (channel (target store))
        (is (= 1 (length (answering channel))) "pick_first")
        (discovery:put-service-config "greeter" "{\"loadBalancingConfig\":[{\"round_robin\":{}}]}"
                                      :etcd *etcd*)
        (is-true (answers-p channel '(0 1)))
        (etcd:put *etcd* (discovery:service-config-key "greeter") "{\"methodConfig\":5}")
        (etcd:put *etcd* "greeter/more" (said "127.0.0.1:1"))
        (is-true (answers-p channel '(0 1)))
        (etcd:remove-entry *etcd* (discovery:service-config-key "greeter"))
        (eventually (= 1 (length (answering channel))))))))

(test zones-are-children
  "The zone is the child of priority that a server is of."
  (with-store (store)
    (with-servers (servers 2)
      (put-server (first servers) "{\"zone\":\"a\"}")
      (put-server (second servers) "{\"zone\":\"b\"}")
      (grpc:with-channel (channel (target store) :service-config
                                  "{\"loadBalancingConfig\":[{\"priority_experimental\":{
                                    \"children\":{
                                      \"b\":{\"config\":[{\"round_robin\":{}}]},
                                      \"a\":{\"config\":[{\"round_robin\":{}}]}},
                                    \"priorities\":[\"b\",\"a\"]}}]}")
        (is (equal '(1) (answering channel)))
        (remove-server (second servers))
        (is-true (answers-p channel '(0)))))))

(test weights-are-shares
  "By weighted_round_robin calls go to servers that report no load as their weights say."
  (with-store (store)
    (with-servers (servers 2)
      (put-server (first servers) "{\"weight\":1}")
      (put-server (second servers) "{\"weight\":3}")
      (grpc:with-channel (channel (target store) :balance :weighted-round-robin)
        (flet ((share ()
                 "Of 40 calls, those of the second server."
                 (loop repeat 40 count (= 1 (who channel)))))
          (eventually (= 30 (share)))
          (put-server (second servers) "{\"weight\":1}")
          (eventually (= 20 (share))))))))

(test empty-lists-take-nothing-away
  "A channel whose servers are all gone from the store keeps them; one that never had any says why."
  (with-store (store)
    (etcd:put *etcd* "nowhere/a" (said "no-such-host.invalid:1"))
    (loop for (name reason) in '(("greeter" "no server is registered")
                                 ("nowhere" "no address of its servers can be used"))
          do (grpc:with-channel (channel (target store name))
               (is (search reason (handler-case (princ-to-string
                                                 (helloworld.greeter:say-hello
                                                  channel (helloworld:make-hello-request)
                                                  :timeout +patience+))
                                    (grpc:unavailable (error) (grpc:rpc-error-message error)))))))
    (with-servers (servers 1)
      (grpc:with-channel (channel (target store))
        (put-server (first servers))
        (is (= 0 (who channel)))
        (remove-server (first servers))
        (sleep 0.3)
        (is (= 0 (who channel)))))))

(test etcd-goes-away
  "While etcd is away a channel has the servers of before, and afterwards the changes made
meanwhile."
  (with-store (store)
    (with-servers (servers 2)
      (put-server (first servers))
      (grpc:with-channel (channel (target store) :balance :round-robin)
        (is (= 0 (who channel)))
        (support:kill-program (store-program store))
        (is (= 0 (who channel)))
        (begin-store store)
        (etcd:count-entries *etcd* :prefix "")
        (put-server (second servers))
        (is-true (answers-p channel '(0 1) :seconds +patience+))))))

(test etcd-loses-its-data
  "A channel has its servers meanwhile, and those that register themselves afterwards."
  (with-store (store)
    (with-servers (servers 2)
      (flet ((register (server)
               (is-true (discovery:await-registration
                         (discovery:register server "greeter" :etcd *etcd* :lease-seconds 2)
                         :timeout +patience+))))
        (register (first servers))
        (grpc:with-channel (channel (target store) :balance :round-robin)
          (is (= 0 (who channel)))
          (support:kill-program (store-program store))
          (uiop:delete-directory-tree (pathname (clgrpc.tests.etcd:store-folder store))
                                      :validate t)
          (begin-store store)
          (is (= 0 (who channel)))
          (register (second servers))
          (is-true (answers-p channel '(0 1) :seconds +patience+)))))))

(test etcd-that-is-away-is-the-reason
  "Calls on a channel whose etcd cannot be connected say so at once, and no service watcher stays
behind."
  (grpc:with-channel (channel (format nil "etcd://127.0.0.1:~D/shop" (free-port)))
    (with-signalled (error grpc:unavailable
                     (helloworld.greeter:say-hello channel (helloworld:make-hello-request)
                                                   :timeout 20))
      (is (search "Connection refused" (princ-to-string error)))))
  (eventually (notany (lambda (thread)
                        (equal "clgrpc etcd" (sb-thread:thread-name thread)))
                      (sb-thread:list-all-threads))))

(test etcd-comes-late
  "A channel made while etcd is away finds its servers when it comes."
  (with-store (store)
    (with-servers (servers 1)
      (put-server (first servers))
      (support:kill-program (store-program store))
      (grpc:with-channel (channel (target store))
        (is-true (handler-case
                     (helloworld.greeter:say-hello channel (helloworld:make-hello-request)
                                                   :timeout 0.3 :wait-for-ready t)
                   (grpc:deadline-exceeded () t)))
        (begin-store store)
        (is (= 0 (who channel)))))))
