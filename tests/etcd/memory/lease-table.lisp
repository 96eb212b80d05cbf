;;;; Leases of a store, whose time is an argument.

(in-package #:clgrpc.tests.memory)

(defun at (seconds)
  (base:seconds-ns seconds))

(test leases-end-in-time
  "A lease ends at its time, or later if it is renewed, all its items at one revision."
  (let* ((store (new-store))
         (short (memory::grant-lease store 7 10 (at 0)))
         (long (memory::grant-lease store 0 20 (at 0))))
    (put store "a" :lease 7)
    (put store "b" :lease 7)
    (put store "c" :lease (memory::lease-number long))
    (is-false (memory::end-leases store (at 9.9)))
    (is (= 10 (memory::renew-lease short (at 5))))
    (is-false (memory::end-leases store (at 14.9)))
    (is-true (memory::end-leases store (at 15)))
    (is (equal '("c") (keys-of (memory::newest store))))
    (is (= 5 (memory::store-revision store)))
    (is (null (memory::find-lease store 7)))
    (is (= (at 20) (memory::first-end-ns store)))
    (is-true (memory::end-leases store (at 1000)))
    (is (equal '() (keys-of (memory::newest store))))
    (is (null (memory::first-end-ns store)))))

(test many-leases-end-bit-by-bit
  "However many are over at once, so many end in one go that others wait little."
  (let ((store (new-store :leases 2500)))
    (dotimes (i 2500) (memory::grant-lease store 0 10 0))
    (loop for left in '(1500 500 0)
          do (is-true (memory::end-leases store (at 11)))
             (is (= left (hash-table-count (memory::store-leases store)))))
    (is-false (memory::end-leases store (at 11)))))

(test large-leases-end-bit-by-bit
  "A lease with many items ends at once for those who ask for it; the items go some at a time."
  (let ((store (new-store)) (count (+ 10 (* 2 memory::+removed-at-once+))))
    (memory::grant-lease store 1 10 0)
    (put-many store count :lease 1)
    (loop for left in (list (+ 10 memory::+removed-at-once+) 10 0)
          do (is-true (memory::end-leases store (at 11)))
             (is (= left (memory::tree-size (memory::newest store))))
             (is (null (memory::find-lease store 1)))
             (is (equal '() (memory::leases-in-order store)))
             (if (plusp left)
                 (refused-with (:failed-precondition "etcdserver: lease already exists")
                   (memory::grant-lease store 1 10 0))
                 (is-true (memory::grant-lease store 1 10 0)))
             (is (<= (memory::store-revision store) 5)))))

(test leases-know-their-items
  "An item ends with the lease it was put with last."
  (let ((store (new-store)))
    (memory::grant-lease store 1 10 0)
    (memory::grant-lease store 2 100 0)
    (put store "a" :lease 1)
    (put store "b" :lease 1)
    (put store "c" :lease 1)
    (put store "a" :lease 2)
    (put store "b")
    (memory::answer-removal store (pb:make-delete-range-request :key (string-octets "c")))
    (is (equal '() (keys-of (memory::lease-items (memory::find-lease store 1)))))
    (is (equal '("a") (keys-of (memory::lease-items (memory::find-lease store 2)))))
    (let ((revision (memory::store-revision store)))
      (memory::end-leases store (at 50))
      (is (= revision (memory::store-revision store)) "a lease without items changes nothing"))
    (is (equal '("a" "b") (keys-of (memory::newest store))))))

(test leases-that-are-refused
  (let ((store (new-store :leases 2)))
    (is (= 2 (memory::lease-seconds (memory::grant-lease store 5 0 0))) "the shortest")
    (refused-with (:failed-precondition "etcdserver: lease already exists")
      (memory::grant-lease store 5 10 0))
    (refused-with (:out-of-range "etcdserver: too large lease TTL")
      (memory::grant-lease store 6 9000000001 0))
    (refused-with (:not-found "etcdserver: requested lease not found")
      (put store "a" :lease 6))
    (memory::grant-lease store 6 10 0)
    (refused-with (:resource-exhausted "etcdserver: too many leases")
      (memory::grant-lease store 7 10 0))))
