;;;; Trees of items.

(in-package #:clgrpc.tests.memory)

(defun item (key &optional (version 1))
  (memory::make-item (string-octets key) (octets-of) 1 1 version 0))

(defun balanced-p (tree)
  "True if the sizes in TREE are right and no subtree is too large for its neighbour."
  (or (null tree)
      (let* ((left (memory::node-left tree)) (right (memory::node-right tree))
             (a (memory::tree-size left)) (b (memory::tree-size right)))
        (and (= (memory::tree-size tree) (+ 1 a b))
             (or (<= (+ a b) 1)
                 (and (<= a (* memory::+delta+ b)) (<= b (* memory::+delta+ a))))
             (balanced-p left) (balanced-p right)))))

(test order-of-keys
  (is (equal '("" "a" "aa" "ab" "b" "ä")
             (sort (list "ab" "ä" "b" "" "aa" "a")
                   (lambda (a b) (memory::before-p (string-octets a) (string-octets b))))))
  (is-false (memory::before-p (string-octets "a") (string-octets "a"))))

(test trees-are-like-sorted-lists
  "Whatever is put and removed, a tree has what a sorted list has, is balanced, and the trees before
it are as they were."
  (let ((random (sb-ext:seed-random-state 1)) (tree nil) (list '()) (past '()))
    (dotimes (i 2000)
      (let ((key (format nil "~D" (random 300 random))))
        (if (plusp (random 3 random))
            (setf tree (memory::tree-with tree (item key))
                  list (sort (adjoin key list :test #'string=) #'string<))
            (setf tree (memory::tree-without tree (string-octets key))
                  list (remove key list :test #'string=))))
      (when (zerop (mod i 100)) (push (list tree (copy-list list)) past)))
    (push (list tree list) past)
    (loop for (tree list) in past
          do (is (equal list (keys-of tree)))
             (is-true (balanced-p tree)))
    (dotimes (i 200)
      (let* ((start (format nil "~D" (random 300 random)))
             (end (format nil "~D" (random 300 random)))
             (in (remove-if-not (lambda (key) (and (string<= start key) (string< key end))) list))
             (found '()))
        (memory::map-range (lambda (item) (push (item-text item) found))
                           tree (string-octets start) (string-octets end))
        (unless (and (equal in (reverse found))
                     (= (length in) (memory::count-range tree (string-octets start)
                                                         (string-octets end)))
                     (eq (and (member start list :test #'string=) t)
                         (and (memory::tree-item tree (string-octets start)) t)))
          (fail "~A to ~A: ~A, not ~A" start end (reverse found) in))))
    (is (= (length list) (memory::count-range tree (octets-of) nil)))))

(test ranges-are-taken-out-of-trees
  "What is left of a tree without a range of keys has its other items, and is balanced."
  (let ((random (sb-ext:seed-random-state 2)))
    (loop repeat 300
          do (let ((tree nil) (keys '()))
               (dotimes (i (random 200 random))
                 (let ((key (format nil "~D" (random 300 random))))
                   (setf tree (memory::tree-with tree (item key)))
                   (pushnew key keys :test #'string=)))
               (let* ((start (format nil "~D" (random 300 random)))
                      (end (and (plusp (random 4 random)) (format nil "~D" (random 300 random))))
                      (left (memory::tree-outside tree (string-octets start)
                                                  (and end (string-octets end))))
                      (out (remove-if (lambda (key)
                                        (and (string<= start key)
                                             (or (null end) (string< key end))))
                                      keys)))
                 (unless (and (equal (sort out #'string<) (keys-of left)) (balanced-p left))
                   (fail "~A without ~A to ~A: ~A" (keys-of tree) start end (keys-of left))))))))

(test items-are-replaced
  (let* ((tree (memory::tree-with nil (item "a"))) (new (memory::tree-with tree (item "a" 2))))
    (is (= 1 (memory::tree-size new)))
    (is (= 2 (memory::item-version (memory::tree-item new (string-octets "a")))))
    (is (= 1 (memory::item-version (memory::tree-item tree (string-octets "a")))))
    (is (eql 0 (memory::tree-size (memory::tree-without new (string-octets "a")))))))
