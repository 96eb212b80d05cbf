;;;; Transactions of a store; what etcd says to the like is in likeness.lisp.

(in-package #:clgrpc.tests.memory)

(defun put-op (key &optional (value "x") &rest more)
  (pb:make-request-op :request-put (apply #'pb:make-put-request :key (string-octets key)
                                          :value (string-octets value) more)))

(defun remove-op (key &optional (end ""))
  (pb:make-request-op
   :request-delete-range (pb:make-delete-range-request :key (string-octets key)
                                                       :range-end (string-octets end))))

(defun get-op (key)
  (pb:make-request-op :request-range (pb:make-range-request :key (string-octets key))))

(defun txn-op (&rest arguments)
  (pb:make-request-op :request-txn (apply #'pb:make-txn-request arguments)))

(defun transact (store &rest arguments)
  (memory::answer-transaction store (apply #'pb:make-txn-request arguments)))

(test transactions-see-themselves
  "Each operation sees what those before it did; all of them make one revision."
  (let* ((store (new-store))
         (response (transact store :success (list (get-op "a") (put-op "a") (get-op "a")
                                                  (txn-op :success (list (put-op "b")))
                                                  (get-op "b")))))
    (is (= 2 (pb:response-header-revision (pb:txn-response-header response))))
    (is (equal '(0 nil 1 nil 1)
               (map 'list (lambda (operation)
                            (let ((range (pb:response-op-response-range operation)))
                              (and range (pb:range-response-count range))))
                    (pb:txn-response-responses response))))
    (is (= 2 (memory::store-revision store)))
    (is (= 2 (length (memory::record-changes (memory::record-at store 2)))))
    (transact store :success (list (get-op "a")))
    (is (= 2 (memory::store-revision store)) "reading makes no revision")))

(test transactions-are-done-whole-or-not
  "What is refused has done nothing."
  (let ((store (new-store)))
    (loop for (status text . operations)
          in `((:not-found "etcdserver: requested lease not found"
                ,(put-op "a") ,(put-op "b" "x" :lease 5))
               (:invalid-argument "etcdserver: key not found"
                ,(put-op "a") ,(put-op "b" "" :ignore-value t))
               (:invalid-argument "etcdserver: key not found"
                ,(put-op "a") ,(pb:make-request-op))
               (:invalid-argument "etcdserver: value is provided"
                ,(put-op "b" "x" :ignore-value t))
               (:invalid-argument "etcdserver: lease is provided"
                ,(put-op "b" "x" :ignore-lease t :lease 1))
               (:invalid-argument "etcdserver: key is not provided" ,(put-op "a") ,(put-op ""))
               (:invalid-argument "etcdserver: duplicate key given in txn request"
                ,(put-op "a") ,(put-op "a"))
               (:invalid-argument "etcdserver: duplicate key given in txn request"
                ,(put-op "ab") ,(remove-op "a" "b"))
               (:invalid-argument "etcdserver: duplicate key given in txn request"
                ,(put-op "a") ,(txn-op :failure (list (put-op "a"))))
               (:invalid-argument "etcdserver: duplicate key given in txn request"
                ,(put-op "ab") ,(txn-op :success (list (remove-op "a" "b"))))
               (:invalid-argument "etcdserver: duplicate key given in txn request"
                ,(put-op "ab") ,(txn-op :failure (list (remove-op "a" "b"))))
               (:invalid-argument "etcdserver: too many operations in txn request"
                ,@(loop for i below 129 collect (put-op (format nil "~D" i))))
               (:invalid-argument "etcdserver: too many operations in txn request"
                ,(txn-op :success (loop for i below 128 collect (put-op (format nil "~D" i)))))
               (:out-of-range "etcdserver: mvcc: required revision is a future revision"
                ,(put-op "a")
                ,(pb:make-request-op
                  :request-range (pb:make-range-request :key (octets-of 1) :revision 9))))
          do (refused-with (status text) (transact store :success operations))
             (is (= 1 (memory::store-revision store))))
    ;; etcd 3.4 does not see that the removal is of the key, and ends itself
    (put store "a")
    (refused-with (:invalid-argument "etcdserver: key not found")
      (transact store :success (list (pb:make-request-op
                                      :request-delete-range
                                      (pb:make-delete-range-request :key (octets-of 97)
                                                                    :range-end (octets-of 0)))
                                     (put-op "a" "" :ignore-value t))))
    (is (equal '("a") (keys-of (memory::newest store))))
    (memory::answer-removal store (pb:make-delete-range-request :key (string-octets "a")))
    ;; what is excluded by a comparison is not done twice
    (let ((either (txn-op :success (list (put-op "a")) :failure (list (put-op "a")))))
      (transact store :success (list either))
      (transact store :success (list (txn-op :success (list either)))))
    (is (= 5 (memory::store-revision store)))))

(defun all-op ()
  (pb:make-request-op :request-range (pb:make-range-request :key (octets-of 0)
                                                            :range-end (octets-of 0))))

(test transactions-cost-little
  "However a transaction is nested, what it does and reads has a limit: one of 1.5 MB could have
200,000 operations, each of which reads all there is."
  (let ((store (new-store :octets 100000000)) (i 0))
    (flet ((nested (width leaf)
             (loop repeat width
                   collect (txn-op :success (loop repeat width collect (funcall leaf))))))
      (transact store :success (nested 44 (lambda () (put-op (format nil "~D" (incf i))))))
      (is (= 1936 (memory::tree-size (memory::newest store))))
      (refused-with (:invalid-argument "etcdserver: too many operations in txn request")
        (transact store :success (nested 46 (lambda () (put-op (format nil "~D" (incf i)))))))
      (is (= 20 (length (pb:txn-response-responses
                         (transact store :success (loop repeat 20 collect (all-op)))))))
      (flet ((refused (&rest arguments)
               (refused-with (:resource-exhausted
                              "etcdserver: more than 500000 keys are read at once")
                 (apply #'transact store arguments))))
        (refused :success (nested 20 #'all-op))
        (refused :failure (nested 20 #'all-op))
        (flet ((comparisons ()
                 (loop repeat 60 collect (pb:make-compare :key (octets-of 0)
                                                          :range-end (octets-of 0)))))
          (refused :compare (comparisons)
                   :success (loop repeat 10 collect (txn-op :compare (comparisons)))))))))

(test removing-many-costs-little
  "A range of keys is removed at one revision while all others wait: that takes no more than some
objects a key, however many the store has, and a longer range is refused."
  (let ((store (new-store :octets 100000000))
        (all (pb:make-delete-range-request :key (octets-of 0) :range-end (octets-of 0))))
    (memory::grant-lease store 1 10 0)
    (put-many store memory::+most-removed+ :lease 1)
    (put store "nobody's")
    (flet ((refused-p (function)
             (refused-with (:resource-exhausted
                            "etcdserver: more than 25000 keys are removed at once")
               (funcall function))))
      (refused-p (lambda () (memory::answer-removal store all)))
      (refused-p (lambda () (transact store :success (list (put-op "n") (remove-op "m" "z")))))
      (refused-p (lambda () (transact store :failure (list (remove-op "m" "n")
                                                           (remove-op "n" "z"))))))
    (is (= 3 (memory::store-revision store)))
    (let* ((revision (memory::store-revision store))
           (before (sb-ext:get-bytes-consed))
           (answer (memory::answer-removal
                    store (pb:make-delete-range-request :key (string-octets "many")
                                                        :range-end (string-octets "n"))))
           (octets (- (sb-ext:get-bytes-consed) before)))
      (is (< octets (* 250 memory::+most-removed+)) "~D octets" octets)
      (is (= (1+ revision) (memory::store-revision store)))
      (is (= memory::+most-removed+ (pb:delete-range-response-deleted (funcall answer))))
      (is (equal '("nobody's") (keys-of (memory::newest store))))
      (is (null (memory::lease-items (memory::find-lease store 1)))))))

(test numbers-without-a-name-are-refused
  "A peer may send any number as a sort order or target, or as a comparison's target or result."
  (let ((store (new-store)) (key (string-octets "a")))
    (put store "a")
    (flet ((read-by (&rest arguments)
             (apply #'pb:make-range-request :key key :range-end (octets-of 0) arguments))
           (transaction (&rest arguments)
             (memory::answer-transaction store (apply #'pb:make-txn-request arguments))))
      (dolist (request (list (read-by :sort-target 17) (read-by :sort-order 17)))
        (refused-with (:invalid-argument "etcdserver: invalid sort option")
          (memory::answer-range store request))
        (refused-with (:invalid-argument "etcdserver: invalid sort option")
          (transaction :success (list (pb:make-request-op :request-range request)))))
      (dolist (comparison (list (pb:make-compare :key key :target 17)
                                (pb:make-compare :key key :target :version :version 1 :result 17)))
        (refused-with (:invalid-argument "etcdserver: invalid comparison")
          (transaction :compare (list comparison)))))))
