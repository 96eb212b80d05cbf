;;;; Children with names: their beginning, retention and end, and the backends of each.

(in-package #:clgrpc.tests.balance)

(test backends-are-of-the-child-that-their-path-says
  "gRFC A56, hierarchical addresses."
  (let ((backends (list (backend 1 :path '("a" "x")) (backend 2 :path '("b")) (backend 3))))
    (flet ((rows (name)
             (mapcar (lambda (backend)
                       (list (client:backend-key backend)
                             (getf (client:backend-attributes backend) :path)))
                     (balance::branch-backends name backends))))
      (is (equal (list (list (address 1) '("x")) (list (address 3) nil)) (rows "a")))
      (is (equal (list (list (address 2) nil) (list (address 3) nil)) (rows "b"))
          "a backend without a path belongs to every child")
      (is (equal (list (list (address 3) nil)) (rows "c"))))))

(test paths-go-down-a-tree
  (with-core (core)
    (update core "[{\"weighted_target_experimental\":{\"targets\":{
                   \"a\":{\"weight\":1,\"childPolicy\":[{\"weighted_target_experimental\":
                     {\"targets\":{\"x\":{\"weight\":1,\"childPolicy\":[{\"round_robin\":{}}]},
                                 \"y\":{\"weight\":1,\"childPolicy\":[{\"round_robin\":{}}]}}}}]},
                   \"b\":{\"weight\":1,\"childPolicy\":[{\"round_robin\":{}}]}}}}]"
            (backend 1 :path '("a" "x")) (backend 2 :path '("a" "y")) (backend 3 :path '("b")))
    (is (= 3 (length (live core))))
    (bring core :ready 2)
    (is (eq (member-to core 2) (pick core)))))

(test children-that-a-config-names-no-more-end-at-once
  "gRFC A115: a hundred configs with another name each leave no more than one has."
  (with-core (core)
    (flet ((tell (&rest names)
             (apply #'update core (apply #'weighted (mapcar (lambda (name) (list name 1)) names))
                    (list (backend 1 :path '("a")) (backend 2 :path '("b"))))))
      (tell "a" "b")
      (bring core :ready 1 2)
      (tell "a")
      (is (= 1 (length (live core))))
      (is (null (member-to core 2)))
      (is (eq (member-to core 1) (pick core)))
      (tell "a" "b")
      (is-true (member-to core 2))))
  (dolist (control '("[{\"weighted_target_experimental\":{\"targets\":{
                        \"~D\":{\"weight\":1,\"childPolicy\":[{\"round_robin\":{}}]}}}}]"
                     "[{\"priority_experimental\":{\"priorities\":[\"~D\"],\"children\":{
                        \"~:*~D\":{\"config\":[{\"round_robin\":{}}]}}}}]"))
    (with-core (core)
      (dotimes (i 100)
        (update core (format nil control i) 1)
        (bring core :ready 1)
        (is (= 1 (length (live core))))
        (is (eq :ready (state core)))))))
