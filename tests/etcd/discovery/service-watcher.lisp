;;;; Service watchers, when what they watch has been compacted, and whatever others put.

(in-package #:clgrpc.tests.discovery)

(test what-breaks-is-fetched-anew
  "A service watcher whose mirrors begin anew knows everything, and what follows."
  (with-store (store)
    (with-servers (servers 2)
      (put-server (first servers))
      (grpc:with-channel (channel (target store) :balance :round-robin)
        (is (= 0 (who channel)))
        (let* ((service-watcher (first clgrpc.discovery::**service-watchers**))
               (mirror (clgrpc.discovery::service-watcher-servers service-watcher))
               (before (etcd:mirror-watch mirror)))
          (etcd:refresh-mirror mirror)
          (eventually (not (member (etcd:mirror-watch mirror) (list nil before))))
          (is (= 0 (who channel)))
          (put-server (second servers))
          (is-true (answers-p channel '(0 1))))))))

(defmacro with-name ((channel &rest options) &body body)
  "Evaluate BODY with CHANNEL one to etcd:///greeter in *ETCD*."
  `(with-changed (((discovery:default-etcd) *etcd*))
     (grpc:with-channel (,channel "etcd:///greeter" ,@options) ,@body)))

(test a-client-that-is-closed-finds-nothing
  "A channel by a client of etcd that was closed before says so."
  (with-memory (engine)
    (etcd:close-etcd *etcd*)
    (with-name (channel)
      (with-signalled (error grpc:unavailable
                       (helloworld.greeter:say-hello channel (helloworld:make-hello-request)
                                                     :timeout +patience+))
        (is (search "the client of etcd is closed" (grpc:rpc-error-message error)))))))

(test failures-to-read-are-logged
  "Those of etcd as warnings, since they may pass; others as errors."
  (with-memory (engine)
    (with-servers (servers 1)
      (put-server (first servers))
      (with-name (channel)
        (is (= 0 (who channel)))
        (let ((service-watcher (first clgrpc.discovery::**service-watchers**)))
          (loop for (type level) in '((etcd:etcd-error :warning) (simple-condition :error))
                do (with-logged (logged :discovery-failed)
                     (clgrpc.discovery::note-read-failure service-watcher (make-condition type))
                     (is (equal (list (list level "greeter"))
                                (loop for (level nil . plist) in (logged)
                                      collect (list level (getf plist :name))))))))))))

(test a-name-that-nobody-resolves-any-more-leaves-nothing
  "After the end of its last channel the client of etcd holds nothing for it."
  (with-memory (engine)
    (with-servers (servers 1)
      (put-server (first servers))
      (with-name (channel) (is (= 0 (who channel))))
      (is-true (wait-until (lambda ()
                             (equal '(:endings 0 :jobs 0 :watches 0 :leases 0)
                                    (held-by *etcd*))))
               "it holds ~A" (held-by *etcd*)))))

(defun put-garbage (numbers)
  "Put what is no text, by NUMBERS."
  (dolist (number numbers)
    (etcd:put *etcd* (concatenate 'clgrpc.base:octets (clgrpc.base:string-octets "greeter/")
                                  (list 255 number))
              (octets-of 254 number)))
  (etcd:put *etcd* (discovery:service-config-key "greeter") (octets-of 123 34 255 34 125)))

(test garbage-ends-no-service-watcher
  "Keys, values and a service config that are no text, there before a channel and put while it is
used, leave it its servers and the changes of these."
  (with-memory (engine)
    (with-servers (servers 3)
      (put-garbage '(1 2))
      (put-server (first servers))
      (with-name (channel :balance :round-robin)
        (etcd:remove-entry *etcd* (discovery:service-config-key "greeter"))
        (is (= 0 (who channel)))
        (put-server (second servers))
        (is-true (answers-p channel '(0 1)))
        (put-garbage '(2 3))
        (put-server (third servers))
        (is-true (answers-p channel '(0 1 2)))
        (is (= 3 (length (discovery:list-endpoints "greeter" :etcd *etcd*))))))))

(test wrong-addresses-are-logged-once
  "When they are put, not each time that other servers change."
  (with-memory (engine)
    (with-servers (servers 2)
      (with-logged (logged :discovery-ignored)
        (flet ((addresses ()
                 (loop for (nil nil . plist) in (logged) collect (getf plist :address))))
          (put-server (first servers))
          (etcd:put *etcd* "greeter/wrong" "{\"Op\":0,\"Addr\":\"no address\"}")
          (with-name (channel :balance :round-robin)
            (is (= 0 (who channel)))
            (put-server (second servers))
            (is-true (answers-p channel '(0 1)))
            (is (equal '("no address") (addresses)))
            (etcd:put *etcd* "greeter/wrong" "{\"Op\":0,\"Addr\":\"nor this\"}")
            (eventually (equal '("no address" "nor this") (addresses)))))))))

(defclass narrow-engine (memory:engine) ()
  (:documentation "An engine that answers no more than ten entries at a time."))

(defmethod etcdserverpb.kv:range :before ((engine narrow-engine) request &key)
  (when (< 10 (etcdserverpb:range-request-limit request))
    (clgrpc.status:fail :resource-exhausted "that is too much at a time")))

(test fewer-entries-are-fetched-after-failures
  "What cannot be fetched at once, since values are huge, is fetched bit by bit."
  (with-memory (engine :class 'narrow-engine)
    (with-servers (servers 1)
      (dotimes (i 100) (etcd:put *etcd* (format nil "greeter/~D" i) "nonsense"))
      (put-server (first servers))
      (with-name (channel)
        (is (= 0 (who channel)))))))

(test slow-names-hold-up-no-news
  "A name that is looked up for long keeps nobody from hearing of other servers; it is used once it
has addresses."
  (with-memory (engine)
    (with-servers (servers 3)
      (let ((book (make-book)))
        (put-server (first servers))
        (with-name (channel :balance :round-robin)
          (is (= 0 (who channel)))
          (let* ((service-watcher (first clgrpc.discovery::**service-watchers**))
                 (hosts (clgrpc.discovery::service-watcher-hosts service-watcher))
                 (address (grpc:server-address (third servers))))
            (setf (clgrpc.discovery::service-watcher-hosts service-watcher)
                  (clgrpc.discovery::make-hosts (clgrpc.discovery::hosts-notify hosts)
                                                :resolve (resolver-of book)))
            (unwind-protect
                 (progn
                   (etcd:put *etcd* "greeter/slow"
                             (said (format nil "slow~A"
                                           (subseq address (position #\: address)))))
                   (eventually (book-asked book))
                   (put-server (second servers))
                   (is-true (answers-p channel '(0 1))))
              (open-book book))
            (is-true (answers-p channel '(0 1 2)))))))))

(test what-changes-nothing-is-not-told
  "Channels hear only of what is new to them."
  (with-memory (engine)
    (with-servers (servers 2)
      (put-server (first servers))
      (with-name (channel :balance :round-robin)
        (is (= 0 (who channel)))
        (let* ((service-watcher (first clgrpc.discovery::**service-watchers**))
               (told (clgrpc.discovery::service-watcher-told service-watcher)))
          (dotimes (i 20) (etcd:put *etcd* (format nil "greeter/wrong-~D" i) "nonsense"))
          (put-server (first servers))
          (eventually (not (clgrpc.discovery::service-watcher-news service-watcher)))
          (is (eq told (clgrpc.discovery::service-watcher-told service-watcher)))
          (put-server (second servers))
          (is-true (answers-p channel '(0 1))))))))

(test the-lock-of-a-service-watcher-is-taken
  (with-memory (engine)
    (let ((service-watcher (discovery::%make-service-watcher
                            :place *etcd* :etcd *etcd* :name "n"
                            :endpoint-table (discovery::make-endpoint-table "n"))))
      (is (null (support:lockless (discovery::service-watcher-lock service-watcher)
                                  `(discovery::tell ,service-watcher :failure "no")
                                  `(discovery::tell-news ,service-watcher)
                                  `(discovery::detach-resolver nil ,service-watcher))))
      (is (null (support:lockless discovery::**service-watchers-lock**
                                  `(discovery::detach-resolver nil ,service-watcher)))))))
