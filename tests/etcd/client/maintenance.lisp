;;;; Upkeep: status, alarms and the room that ends them, backups.

(in-package #:clgrpc.tests.etcd)

(test the-status-of-a-member
  (with-store (store)
    (let* ((revision (etcd:put *etcd* "a" "1"))
           (status (etcd:member-status *etcd* :endpoint (store-address store))))
      (is (= (getf status :member) (getf status :leader)
             (getf (first (etcd:list-members *etcd*)) :id)))
      (is (= revision (getf status :revision)))
      (is (<= 1 (getf status :octets-in-use) (getf status :octets)))
      (is (digit-char-p (char (getf status :version) 0)))
      (is (<= (getf status :applied) (getf status :index)))
      (is (null (getf status :errors)))
      (multiple-value-bind (hash at) (etcd:hash-entries *etcd*)
        (is (= revision at))
        (is (= hash (etcd:hash-entries *etcd* :revision revision)))
        (etcd:put *etcd* "a" "2")
        (is (= hash (etcd:hash-entries *etcd* :revision revision)))
        (is (/= hash (etcd:hash-entries *etcd*))))
      (is (string= "127.0.0.1:1" (clgrpc.etcd::url-endpoint "http://127.0.0.1:1"))))))

(test no-space
  "When the quota is used up etcd takes nothing more, which is told; room is made, and it does
again."
  (with-store (store "--quota-backend-bytes" "1048576")
    (is (null (etcd:list-alarms *etcd*)))
    (let ((value (make-array 100000 :element-type '(unsigned-byte 8) :initial-element 1)))
      (signals etcd:space-exceeded (loop repeat 1000 do (etcd:put *etcd* "a" value)))
      (let ((alarms (etcd:list-alarms *etcd*)))
        (is (equal '(:nospace) (mapcar (lambda (alarm) (getf alarm :alarm)) alarms)))
        (is (= (getf (first (etcd:list-members *etcd*)) :id) (getf (first alarms) :member)))
        (is-true (search "NOSPACE" (first (getf (etcd:member-status *etcd*) :errors))))
        (is-true (search "alarm:NOSPACE" (etcdctl store "alarm" "list")))
        ;; what is there can be read, and removed
        (is (equalp value (etcd:entry-value (etcd:fetch *etcd* "a"))))
        (etcd:remove-entry *etcd* "a")
        (etcd:compact *etcd* (nth-value 1 (etcd:fetch *etcd* "a")) :physical t)
        (let ((before (getf (etcd:member-status *etcd*) :octets)))
          (etcd:defragment *etcd* :endpoint (store-address store))
          (is (< (getf (etcd:member-status *etcd*) :octets) (/ before 2))))
        (signals etcd:space-exceeded (etcd:put *etcd* "b" value))
        (is (null (etcd:disarm *etcd* :alarm :corrupt)))
        (is (equal alarms (etcd:disarm *etcd*)))
        (is (null (etcd:list-alarms *etcd*)))
        (is-true (etcd:put *etcd* "b" value))))))

(test snapshots
  "A member is made of a snapshot, and has what was stored; one that is not whole is told of."
  (with-store (store)
    (loop for i below 20
          do (etcd:put *etcd* (format nil "k/~D" i)
                       (make-array 50000 :element-type '(unsigned-byte 8) :initial-element i)))
    (let* ((other (new-store))
           (path (format nil "~A.snapshot" (string-right-trim "/" (store-folder other)))))
      (unwind-protect
           (let ((size (etcd:save-snapshot *etcd* path :endpoint (store-address store))))
             (is (= size (with-open-file (in path :element-type '(unsigned-byte 8))
                           (file-length in))))
             (multiple-value-bind (told code)
                 (etcdctl other "snapshot" "restore" path "--name" (store-name other)
                          "--initial-cluster" (format nil "lab=~A" (peer-url other))
                          "--initial-advertise-peer-urls" (peer-url other)
                          "--data-dir" (store-folder other))
               (is (zerop code) "~A" told))
             (call-with-stores
              (lambda ()
                (is (= 20 (etcd:count-entries *etcd* :prefix "k/")))
                (is (= 7 (aref (etcd:entry-value (etcd:fetch *etcd* "k/7")) 49999))))
              (list other))
             (signals etcd:unavailable
               (etcd:save-snapshot *etcd* path :endpoint (format nil "127.0.0.1:~D" (free-port))
                                               :timeout 0.3)))
        (uiop:delete-file-if-exists path)))))
