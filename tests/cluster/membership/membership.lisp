;;;; Memberships in the store.

(in-package #:clgrpc.tests.cluster)

(test members-join-and-leave
  "Who joins is there, with a generation that grows; who leaves as a former generation changes
nothing."
  (with-store (store)
    (multiple-value-bind (first revision lease)
        (join-cluster *etcd* "c" (member-of "a" :labels '(("zone" . "1"))) :keep-alive nil)
      (is (= (etcd:lease-id lease)
             (etcd:entry-lease (etcd:fetch *etcd* "c/a"))))
      (multiple-value-bind (members at) (fetch-members *etcd* "c")
        (is (equalp (list first) members))
        (is (<= revision at)))
      (is (equal '() (fetch-members *etcd* "d")))
      ;; as another process
      (signals name-taken (join-cluster *etcd* "c" (member-of "a") :if-taken :refuse))
      (let ((second (join-cluster *etcd* "c" (member-of "a" :instance "x") :keep-alive nil)))
        (is (< (member-generation first) (member-generation second)))
        (is-false (leave-cluster *etcd* "c" "a" (member-generation first)))
        (signals superseded (renew-membership *etcd* "c" "a" (member-generation first)))
        (signals superseded
          (join-cluster *etcd* "c" (member-of "a") :known (member-generation first)))
        (is (equalp (list second) (fetch-members *etcd* "c")))
        ;; the same process again
        (multiple-value-bind (same at lease)
            (join-cluster *etcd* "c" (member-of "a" :instance "x") :if-taken :refuse)
          (declare (ignore at))
          (is (equalp second same))
          (is (null lease)))
        (is (= 10 (renew-membership *etcd* "c" "a" (member-generation second))))
        (is-true (leave-cluster *etcd* "c" "a" (member-generation second)))
        (is-false (leave-cluster *etcd* "c" "a" (member-generation second)))
        (signals not-a-member (renew-membership *etcd* "c" "a" (member-generation second)))
        (let ((third (join-cluster *etcd* "c" (member-of "a") :keep-alive nil)))
          (is (< (member-generation second) (member-generation third))))))
    (is (equal '("a") (names (fetch-members *etcd* "c"))))))

(test members-without-leases-leave
  "A member whose entry somebody has put without a lease can be renewed by nobody, and leaves."
  (with-memory ()
    (etcd:put *etcd* (cluster::member-key "c" "a")
              (cluster::member-text (member-of "a" :generation 7)))
    (is (equal '("a") (names (fetch-members *etcd* "c"))))
    (signals not-a-member (renew-membership *etcd* "c" "a" 7))
    (is-false (leave-cluster *etcd* "c" "a" 6))
    (is-true (leave-cluster *etcd* "c" "a" 7))
    (is (equal '() (fetch-members *etcd* "c")))))

(test clusters-are-bounded
  (with-store (store)
    (join-cluster *etcd* "c" (member-of "a") :keep-alive nil :max-members 2)
    (join-cluster *etcd* "c" (member-of "b") :keep-alive nil :max-members 2)
    (signals cluster-full (join-cluster *etcd* "c" (member-of "x") :max-members 2))
    ;; it is there already
    (finishes (join-cluster *etcd* "c" (member-of "b") :keep-alive nil :max-members 2))))

(test one-of-many-wins
  "Of many that join at once under one name, and would not take it over, one does."
  (with-store (store)
    (let* ((etcd *etcd*)
           (threads (loop repeat 8
                          collect (in-thread (handler-case
                                                 (member-generation
                                                  (join-cluster etcd "c" (member-of "a")
                                                                :if-taken :refuse :keep-alive nil))
                                               (name-taken () nil)))))
           (won (remove nil (mapcar #'sb-thread:join-thread threads))))
      (is (= 1 (length won)))
      (is (equal won (mapcar #'member-generation (fetch-members *etcd* "c")))))))

(test generations-grow-where-the-store-has-gone-back
  "A process that knows a generation of before goes on from there, and so do those that come after
and know nothing."
  (with-memory ()
    (let ((first (join-cluster *etcd* "c" (member-of "a") :known 100 :keep-alive nil)))
      (is (= 101 (member-generation first)))
      (is-true (leave-cluster *etcd* "c" "a" 101))
      (is (= 102 (member-generation (join-cluster *etcd* "c" (member-of "a") :keep-alive nil)))))))

(test generations-differ-though-another-came-and-went
  "Between what one who joins has read and what it writes, another joins under the name and leaves."
  (with-memory ()
    (let ((asked (member-of "a")) (others '()))
      (multiple-value-bind (entry existing revision) (cluster::fetch-entry *etcd* "c" "a")
        (let ((given (etcd:fetch *etcd* (cluster::generation-key "c" "a")))
              (lease (etcd:grant-lease *etcd* 10 :keep-alive nil)))
          (push (member-generation (join-cluster *etcd* "c" asked :keep-alive nil)) others)
          (leave-cluster *etcd* "c" "a" (first others))
          (is-false (cluster::write-or-look
                     *etcd* "c"
                     (cluster::renewed-member asked :generation (cluster::next-generation
                                                                 revision existing 0))
                     entry lease given)))))))

(test generations-grow
  "Of many that take one name over at once each has a generation of its own, and the last stays."
  (with-store (store)
    (let* ((etcd *etcd*)
           (threads (loop repeat 6
                          collect (in-thread (multiple-value-bind (member revision)
                                                 (join-cluster etcd "c" (member-of "a")
                                                               :keep-alive nil)
                                               (cons revision (member-generation member))))))
           (won (sort (mapcar #'sb-thread:join-thread threads) #'< :key #'car)))
      (is (apply #'< (mapcar #'cdr won)))
      (is (equal (last (mapcar #'cdr won))
                 (mapcar #'member-generation (fetch-members *etcd* "c")))))))

(test an-entry-that-was-perhaps-written-is-looked-for
  "A process that joins and gets no answer of the store is a member if the entry has its lease. The
entry of another process, which joined meanwhile, has not."
  (with-stand-in (store other)
    (flet ((join-unanswered (name function)
             (with-hook (store rpc request next)
               (cond ((eq :txn rpc)
                      (setf (stand-in-hook store) nil)
                      (funcall function #'next)
                      (grpc:fail :unavailable "etcdserver: leader changed"))
                     (t (next))))
             (join-cluster *etcd* "c" (member-of name) :keep-alive nil)))
      (let ((ada (join-unanswered "ada" #'funcall)))
        (is (equalp (list ada) (fetch-members other "c"))))
      (signals etcd:unavailable
        (join-unanswered "bob" (fn (_next)
                                 (join-cluster other "c" (member-of "bob") :keep-alive nil))))
      (is (equal '("ada" "bob") (names (fetch-members other "c")))))))
