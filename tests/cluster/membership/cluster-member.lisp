;;;; Members: what they may say of themselves, and their messages.

(in-package #:clgrpc.tests.cluster)

(test members-are-checked
  "A member has a proper name and address, and no more of anything than the limits say."
  (flet ((wrong-p (&rest arguments)
           (handler-case (progn (cluster::check-member (apply #'member-of arguments)) nil)
             (grpc:misuse () t))))
    (is-false (wrong-p "node-1.zone_a"))
    (is-false (wrong-p (make-string 253 :initial-element #\a)
                       :labels '(("zone" . "a")) :lease-seconds 2))
    (is-false (wrong-p "a" :instance (make-string 64 :initial-element #\a) :lease-seconds 3600
                           :labels (loop for i below 32
                                         collect (cons (format nil "~2,'0D" i)
                                                       (make-string 30 :initial-element #\a)))))
    (dolist (name (list "" "a/b" "a b" (format nil "a~%") "ä"
                        (make-string 254 :initial-element #\a)))
      (is-true (wrong-p name) "~S" name))
    (is-true (wrong-p "a" :address ""))
    (is-true (wrong-p "a" :address (make-string 257 :initial-element #\a)))
    (is-true (wrong-p "a" :instance (make-string 65 :initial-element #\a)))
    (is-true (wrong-p "a" :lease-seconds 1))
    (is-true (wrong-p "a" :lease-seconds 3601))
    (is-true (wrong-p "a" :labels '(("" . "x"))))
    (is-true (wrong-p "a" :labels (loop for i below 33 collect (cons (format nil "~D" i) ""))))
    (is-true (wrong-p "a" :labels `(("x" . ,(make-string 1024 :initial-element #\a)))))))

(test members-are-messages-and-entries
  "A member is told as a message, and is in the store as a registered server, with everything that
it says."
  (let ((member (member-of "a" :generation 7 :state :draining
                               :labels '(("weight" . "3") ("x" . "1") ("y" . "2"))
                               :lease-seconds 5 :instance "i" :joined 1700000000)))
    (is (equalp member
                (cluster::message-member
                 (grpc:parse-message 'pb:member
                                     (grpc:serialize (cluster::member-message member))))))
    (with-memory ()
      (etcd:put *etcd* "c/a" (cluster::member-text member))
      (is (equalp (list member) (fetch-members *etcd* "c")))
      (let ((endpoint (first (discovery:list-endpoints "c" :etcd *etcd*))))
        (is (equal '("127.0.0.1:1" :draining 3)
                   (list (discovery:endpoint-address endpoint) (discovery:endpoint-state endpoint)
                         (discovery:endpoint-weight endpoint))))))))

(test registered-servers-are-members
  "A server that was registered under the cluster's name is a member, of the generation at which its
entry was made; a node that comes after takes its name over."
  (with-memory ()
    (let ((registration (discovery:register nil "default" :etcd *etcd* :address "127.0.0.1:7")))
      (is-true (discovery:await-registration registration :timeout +patience+))
      (with-node (a "a" :store *etcd*)
        (is-true (await-members a (lambda (members) (= 2 (length members))) :timeout +patience+))
        (let ((member (find-member a "127.0.0.1:7"))
              (entry (etcd:fetch *etcd* (discovery:registration-key registration))))
          (is (string= "127.0.0.1:7" (member-address member)))
          (is (= (etcd:entry-created entry) (member-generation member)))
          (discovery:drain-registration registration)
          (is-true (await-members a (lambda (members)
                                      (equal '(:draining :serving)
                                             (mapcar #'member-state members)))
                                  :timeout +patience+))
          (is (< (member-generation member)
                 (member-generation (join-cluster *etcd* "default" (member-of "127.0.0.1:7")
                                                  :keep-alive nil)))))
        (discovery:withdraw registration)))))

(defun put-stranger (key value)
  "Put VALUE, octets or a string, below the members of \"default\" at KEY, octets or a string."
  (flet ((octets (text) (if (stringp text) (base:string-octets text) text)))
    (etcd:put *etcd* (concatenate 'base:octets
                                  (octets (cluster::members-prefix "default")) (octets key))
              (octets value))))

(defun put-strangers ()
  "Put what is nobody among the members of \"default\"."
  (let ((server "{\"Addr\":\"127.0.0.1:1\"}"))
    (put-stranger (coerce #(255 254) 'base:octets) server)
    (put-stranger "" server)
    (put-stranger "no/name" server)
    (put-stranger "no-text" (coerce #(255) 'base:octets))
    (put-stranger "empty" "")
    (put-stranger "nowhere" "{}")
    (put-stranger "far" (format nil "{\"Addr\":\"~A\"}" (make-string 257 :initial-element #\a)))
    (put-stranger "labelled" "{\"Addr\":\"h:1\",\"Metadata\":{\"member\":{\"labels\":{\"x\":7}}}}")
    (put-stranger "long" "{\"Addr\":\"h:1\",\"Metadata\":{\"member\":{\"leaseSeconds\":1}}}")))

(test strangers-are-no-members
  "Whatever others write among the members, the members are told, and what becomes of them."
  (with-memory ()
    (put-strangers)
    (with-node (a "a" :store *etcd*)
      (put-strangers)
      (with-node (b "b" :store *etcd*)
        (is-true (await-members a (lambda (members) (equal '("a" "b") (names members)))
                                :timeout +patience+))
        (is (equal '("a" "b") (names (fetch-members *etcd* "default"))))
        (grpc:with-channel (channel (grpc:server-address (node-server b)))
          (grpc:with-call (call (watch-members channel))
            (is (equal '(:members "a" "b") (next-told call))))
          ;; from the store itself
          (grpc:with-call (call (watch-members channel 1))
            (is (equal "a" (second (first (next-told call)))))
            (is (equal "b" (second (first (next-told call)))))))))))
