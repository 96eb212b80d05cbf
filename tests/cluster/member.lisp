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
