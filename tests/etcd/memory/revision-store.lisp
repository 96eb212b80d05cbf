;;;; Revisions, compaction and limits of a store.

(in-package #:clgrpc.tests.memory)

(test revisions-can-be-read
  (let ((store (new-store)))
    (is (= 1 (memory::store-revision store)))
    (is (= 2 (put store "a")))
    (is (= 3 (put store "b")))
    (is (= 4 (put store "a" :value "new")))
    (is (equal '() (keys-of (memory::tree-at store 1))))
    (is (equal '("a") (keys-of (memory::tree-at store 2))))
    (is (equal '("a" "b") (keys-of (memory::tree-at store 0))))
    (let ((item (memory::tree-item (memory::newest store) (string-octets "a"))))
      (is (equal '(2 4 2) (list (memory::item-created item) (memory::item-changed item)
                                (memory::item-version item)))))
    (refused-with (:out-of-range "etcdserver: mvcc: required revision is a future revision")
      (memory::tree-at store 5))))

(defun compact (store revision)
  "Compact STORE up to REVISION; return in how many steps."
  (memory::begin-compaction store revision)
  (loop count t until (memory::forget-some store revision)))

(test compaction-of-a-store
  "What is compacted cannot be read, and its room is free; what is still so stays."
  (let ((store (new-store)))
    (dotimes (i 5) (put store "a" :value (make-string 1000 :initial-element #\x)))
    (put store "b")
    (is (= 7 (memory::store-revision store)))
    (is (< 5000 (memory::store-octets store)))
    (compact store 6)
    (is (= (+ 1000 128 1 1 128 1) (memory::store-octets store)))
    (refused-with (:out-of-range "etcdserver: mvcc: required revision has been compacted")
      (memory::tree-at store 5))
    (is (equal '("a") (keys-of (memory::tree-at store 6))))
    (is (equal '("a" "b") (keys-of (memory::tree-at store 7))))
    (refused-with (:out-of-range "etcdserver: mvcc: required revision has been compacted")
      (compact store 6))
    (refused-with (:out-of-range "etcdserver: mvcc: required revision is a future revision")
      (compact store 8))
    (put store "c")
    (is (equal '("a" "b" "c") (keys-of (memory::tree-at store 8))))))

(test compaction-goes-in-steps
  "What is forgotten at once is bounded: nobody has the lock for longer."
  (let ((store (new-store :revisions 100000 :octets 10000000)) (steps 0))
    (dotimes (i 25000) (put store (format nil "~D" (mod i 10))))
    (let ((octets (memory::store-octets store)))
      (memory::begin-compaction store 25001)
      (is-false (memory::forget-some store 25001))
      (is (= 10001 (memory::store-compacted store)))
      (is (< (memory::store-octets store) octets))
      (refused-with (:out-of-range "etcdserver: mvcc: required revision has been compacted")
        (memory::tree-at store 10000))
      (is (= 10 (length (keys-of (memory::tree-at store 10001)))))
      ;; another compaction meanwhile
      (is (= 1 (compact store 15000)))
      (setf steps (loop count t until (memory::forget-some store 25001)))
      (is (= 2 steps))
      (is (= 1 (length (memory::store-records store))))
      (is-true (memory::forget-some store 20000) "nor does it go back")
      (is (= 25001 (memory::store-compacted store))))))

(test stores-have-limits
  "The oldest revisions are compacted when there are too many, or there is no room; without room
then a put is refused, and a removal is not."
  (let ((store (new-store :revisions 10)))
    (dotimes (i 100)
      (put store "a")
      (unless (<= (length (memory::store-records store)) 13) (fail "too many records")))
    (is (= 101 (memory::store-revision store)))
    (is (equal '("a") (keys-of (memory::tree-at store 92)))))
  (let ((store (new-store :octets 10000)))
    (flet ((long-put (key)
             (put store key :value (make-string 3000 :initial-element #\x))))
      (dotimes (i 20) (long-put "a"))
      (is (<= (memory::store-octets store) 10000))
      (long-put "b")
      (long-put "c")
      (refused-with (:resource-exhausted "etcdserver: mvcc: database space exceeded")
        (long-put "d"))
      (memory::answer-removal store (pb:make-delete-range-request :key (string-octets "a")))
      (long-put "d")
      (is (equal '("b" "c" "d") (keys-of (memory::newest store)))))))
