;;;; random_subsetting: subsets, configs.

(in-package #:clgrpc.tests.balance)

(test subsets
  "They have the wanted size; one server more or less changes one member; seeds differ."
  (let ((backends (loop for i below 50 collect (backend i))))
    (flet ((keys (backends seed)
             (mapcar #'client:backend-key (balance::subset backends 10 seed))))
      (is (= 10 (length (keys backends 1))))
      (is (= 4 (length (keys (append (subseq backends 0 4) (subseq backends 0 2)) 1))))
      (is-true (set-exclusive-or (keys backends 1) (keys backends 2) :test #'string=))
      (dolist (gone backends)
        (is (<= (length (set-difference (keys backends 1) (keys (remove gone backends) 1)
                                        :test #'string=))
                1)))
      (let ((counts (make-hash-table :test #'equal)))
        (loop for seed from 1 to 2000
              do (dolist (key (keys backends (* seed 7919))) (incf (gethash key counts 0))))
        (is (every (lambda (count) (< 300 count 500))
                   (alexandria:hash-table-values counts))
            "400 clients each, about")))))

(test subsets-have-connections-only-to-members
  (with-core (core)
    (update core "[{\"random_subsetting_experimental\":{\"subsetSize\":2,
                   \"childPolicy\":[{\"round_robin\":{}}]}}]" 1 2 3 4 5)
    (is (= 2 (length (live core)))))
  (is (search "subsetSize" (config-error-path
                            "[{\"random_subsetting_experimental\":
                               {\"childPolicy\":[{\"round_robin\":{}}]}}]"))))

(test subsets-are-by-first-addresses
  "gRFC A68: of a server with several addresses the first is hashed."
  (flet ((keys (second)
           (mapcar (lambda (backend) (client:first-address (client:backend-addresses backend)))
                   (balance::subset (loop for i below 20
                                          collect (client::parse-backend
                                                   (list (list (address i)
                                                               (address (+ second i))))))
                                    5 42))))
    (is (equal (keys 100) (keys 200)))))
