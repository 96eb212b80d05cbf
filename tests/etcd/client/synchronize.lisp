;;;; Endpoints that follow the list of members.

(in-package #:clgrpc.tests.etcd)

(test endpoints-of-members
  (let ((members '((:name "one" :clients ("http://10.0.0.1:2379" "https://one:2379/"))
                   (:name "two" :clients ("https://[::1]:2379"))
                   (:name "three" :clients ("https://three:2379") :learner t)
                   ;; it has not started
                   (:name "" :clients ()))))
    (is (equal '("10.0.0.1:2379") (clgrpc.etcd::member-endpoints members nil)))
    (is (equal '("one:2379" "[::1]:2379") (clgrpc.etcd::member-endpoints members t))))
  (with-stand-in (store other)
    (signals misuse (etcd:synchronize-endpoints *etcd*))))

(defun reached (etcd)
  "The addresses that the channel of ETCD knows, sorted."
  (sort (mapcar (lambda (plist) (getf plist :address))
                (clgrpc.calling:channel-addresses (etcd:etcd-channel etcd)))
        #'string<))

(test endpoints-follow-the-members
  "A client that knows one member learns of the one that comes, reaches it when the first is gone,
and forgets who has left."
  (with-store (store "--strict-reconfig-check=false")
    (let ((new (new-store :name "new" :arguments '("--initial-cluster-state" "existing"))))
      (etcd:with-etcd (etcd (list (format nil "nowhere.invalid:~D" (store-port store))
                                  (store-address store))
                       :backoff-maximum-seconds 0.2)
        (is (equal (list (store-address store))
                   (etcd:synchronize-endpoints etcd :every 0.1 :timeout +patience+)))
        (let ((id (getf (etcd:add-member *etcd* (peer-url new)) :id)))
          (setf (store-cluster new) (format nil "lab=~A,new=~A" (peer-url store) (peer-url new)))
          (begin-store new)
          (unwind-protect
               (let ((both (sort (list (store-address store) (store-address new)) #'string<)))
                 (eventually (equal both (reached etcd)))
                 (eventually (handler-case (etcd:remove-member etcd id :timeout 1)
                               (etcd:etcd-error () (sleep 0.1))))
                 (eventually (equal (list (store-address store)) (reached etcd)))
                 (is-true (etcd:put etcd "a" "1" :timeout +patience+)))
            (end-store new)
            (uiop:delete-directory-tree (pathname (store-folder new)) :validate t)))))))

(test members-that-cannot-be-read-are-logged
  "The endpoints stay, and the members are read again."
  (with-stand-in (store other)
    (with-logged (events :etcd-endpoints-kept)
      (with-replaced (('clgrpc.etcd::synchronize-once
                       (lambda (&rest arguments)
                         (declare (ignore arguments))
                         (error (make-condition 'etcd:unavailable)))))
        (clgrpc.etcd::keep-synchronizing *etcd* 1/100)
        (is-true (wait-until (lambda () (rest (events))))))
      (destructuring-bind (level name . plist) (first (events))
        (is (equal '(:info :etcd-endpoints-kept) (list level name)))
        (is (stringp (getf plist :condition)))))))
