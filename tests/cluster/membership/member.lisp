;;;; Members: what they may say of themselves, and their messages.

(in-package #:clgrpc.tests.cluster)
(in-suite :clgrpc.cluster)

(test members-are-checked
  "A member has a proper name and address, and no more of anything than the limits say."
  (flet ((wrong-p (&rest arguments)
           (handler-case (progn (cluster::check-member (apply #'member-of arguments)) nil)
             (grpc:misuse () t))))
    (is-false (wrong-p "node-1.zone_a"))
    (is-false (wrong-p (make-string 253 :initial-element #\a)
                       :labels '(("zone" . "a")) :lease-seconds 2))
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

(test members-are-messages
  "A member is in the store as a message, with everything that it says."
  (let ((member (member-of "a" :generation 7 :state :leaving :labels '(("x" . "1") ("y" . "2"))
                               :lease-seconds 5 :instance "i" :joined 1700000000)))
    (is (equalp member
                (cluster::message-member
                 (grpc:parse-message 'pb:member
                                     (grpc:serialize (cluster::member-message member))))))
    (is (string= "clgrpc/cluster/c/members/a" (cluster::member-key "c" "a")))))

(defun put-stranger (key value)
  "Put VALUE, octets or a string, below the members of \"default\" at KEY, octets or a string."
  (flet ((octets (text) (if (stringp text) (base:string-octets text) text)))
    (etcd:put *etcd* (concatenate 'base:octets
                                  (octets (cluster::members-prefix "default")) (octets key))
              (octets value))))

(defun put-strangers ()
  "Put what is nobody among the members of \"default\"."
  (flet ((message (&rest arguments)
           (grpc:serialize (apply #'pb:make-member arguments))))
    (put-stranger (coerce #(255 254) 'base:octets) (message :name "a" :address "127.0.0.1:1"
                                                 :lease-seconds 10))
    (put-stranger "" "x")
    (put-stranger "no/name" "x")
    (put-stranger "no-message" (coerce #(255) 'base:octets))
    (put-stranger "empty" "")
    (put-stranger "another" (message :name "a" :address "127.0.0.1:1" :lease-seconds 10))
    (put-stranger "nowhere" (message :name "nowhere" :lease-seconds 10))
    (put-stranger "ever" (message :name "ever" :address "127.0.0.1:1" :lease-seconds 10
                                  :joined (google.protobuf:make-timestamp
                                           :seconds (1- (expt 2 63)))))))

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
