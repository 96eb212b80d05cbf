;;;; Policies with one child: the backends they pass down, and the states they pass up.

(in-package #:clgrpc.tests.balance)

(defparameter *wrapped*
  "[{\"random_subsetting_experimental\":{\"subsetSize\":5,\"childPolicy\":[{~A}]}}]")

(defun wrapped (child)
  (format nil *wrapped* child))

(test wrappers-publish-what-their-child-does
  (with-core (core)
    (update core (wrapped "\"pick_first\":{}") 1 2)
    (is (= 1 (length (live core))))
    (let ((only (first (live core))))
      (is (eq :connecting (client:subchannel-state only)) "the child has got the addresses")
      (come-to :ready only)
      (is (eq :ready (state core)))
      (is (eq only (pick core)))
      (come-to :idle only)
      (is (eq :idle (state core)))
      (client:exit-idle (switch-of core))
      (is (eq :connecting (client:subchannel-state only))))))

(test wrappers-change-their-child-without-a-failure
  (with-core (core)
    (update core (wrapped "\"round_robin\":{}") 1)
    (bring core :ready 1)
    (let ((old (member-to core 1)))
      (update core (wrapped "\"least_request_experimental\":{}") 1)
      (is (eq old (pick core)) "the old child serves")
      (let ((new (find old (live core) :test-not #'eq)))
        (come-to :ready new)
        (is (not (eq old (pick core))))
        (is (equal (list new) (live core)))))))

(test wrappers-describe-their-child
  (with-core (core)
    (update core (wrapped "\"round_robin\":{}") 1)
    (let ((facts (client:balancer-facts (policy-of core))))
      (is (= 1 (length (getf facts :children)))))))

(test weights-are-required-and-have-a-sum
  "Each target of weighted_target has a weight, and their sum is at most 2^32 - 1."
  (flet ((path (&rest weights)
           (config-error-path
            (format nil "[{\"weighted_target_experimental\":{\"targets\":{~{~A~^,~}}}}]"
                    (loop for weight in weights
                          for name across "abc"
                          collect (format nil "\"~A\":{~@[\"weight\":~A,~]\"childPolicy\":~
                                               [{\"round_robin\":{}}]}"
                                          name weight))))))
    (let ((targets "loadBalancingConfig[0].weighted_target_experimental.targets"))
      (loop for (weights expected) in `(((1) nil) ((4294967294 1) nil) ((4294967294 1 1) "")
                                        ((nil) ".a.weight") ((1 0) ".b.weight"))
            do (is (equal (and expected (concatenate 'string targets expected))
                          (apply #'path weights))
                   "~S" weights)))))

(test child-policies-are-required-and-known
  (flet ((path (json) (config-error-path json)))
    (is (string= "loadBalancingConfig[0].random_subsetting_experimental.childPolicy"
                 (path "[{\"random_subsetting_experimental\":{\"subsetSize\":2}}]")))
    (is (string= "loadBalancingConfig[0].random_subsetting_experimental.childPolicy"
                 (path (wrapped "\"nobody_knows\":{}"))))))
