;;;; Items, and trees of them, ordered by their keys. A tree is never changed: an operation that
;;;; puts or removes an item returns another tree, which shares most of its nodes with the first. So
;;;; the store can keep the tree of each revision, and a thread that reads a tree needs no lock.
;;;;
;;;; The trees are balanced by weight (S. Adams, "Efficient sets: a balancing act", 1993): of two
;;;; neighbouring subtrees neither has more than +DELTA+ times as many items as the other. The empty
;;;; tree is nil.
;;;;
;;;; A tree may have ranges of keys in place of items. Then each node records how far the ranges of
;;;; its tree reach, so those that contain a key are found without visiting the others (MAP-AROUND).

(in-package #:clgrpc.memory)

(defstruct (element (:copier nil))
  "An object of a tree at a key."
  (key nil :type octets :read-only t))  ; the key by which the element is sorted

(defstruct (item (:include element)
                 (:constructor make-item (key value created changed version lease))
                 (:copier nil))
  "The store's entry at a key."
  (value nil :type octets :read-only t) ; the value
  (created 0 :type (signed-byte 64) :read-only t) ; the revision that made the item
  (changed 0 :type (signed-byte 64) :read-only t) ; the revision that put its value
  (version 0 :type (signed-byte 64) :read-only t) ; how often the item was put since it was made
  (lease 0 :type (signed-byte 64) :read-only t)) ; the number of the lease the item ends with, or 0

(defstruct (range (:include element) (:copier nil))
  "A range of keys. A range's own key is its position in a tree of ranges, sorted by their starts."
  (start nil :type octets :read-only t) ; the range's first key
  (end nil :type (or null octets) :read-only t)) ; the key at which the range ends, nil for no end

(defstruct (node (:constructor %make-node (item left right size end)) (:copier nil))
  "A tree that is not empty."
  (item nil :type element :read-only t) ; the item between those of LEFT and of RIGHT
  (left nil :type (or null node) :read-only t) ; the tree of items before ITEM
  (right nil :type (or null node) :read-only t) ; the tree of items after ITEM
  (size 1 :type index :read-only t)     ; how many items there are
  ;; in a tree of ranges, the last of the ranges' ends, nil for no end
  (end nil :type (or null octets) :read-only t))

(declaim (sb-ext:freeze-type item node))

(define-printer (node node)
  "~D item~:P" (node-size node))

(defconstant +delta+ 3
  "A factor: a subtree has at most this many times as many items as its neighbour.")
(defconstant +ratio+ 2
  "A factor: a rotation is double if the inner part of the subtree has at least this many times the
items of the outer part, else single.")

(define-hot (tree-size :inline t) ((tree (or null node))) index
  (if tree (node-size tree) 0))

(define-hot before-p ((a octets) (b octets)) boolean
  "True if A, a key, comes before B."
  (let ((short (min (length a) (length b))))
    (dotimes (i short (< (length a) (length b)))
      (let ((x (aref a i)) (y (aref b i)))
        (unless (= x y) (return (< x y)))))))

(defun last-end (a b)
  "The later of A and B, ends of ranges: nil comes after all others."
  (cond ((or (null a) (null b)) nil)
        ((before-p a b) b)
        (t a)))

(defun node-reach (range left right)
  "How far RANGE and the trees of ranges LEFT and RIGHT reach: an end."
  (let ((end (range-end range)))
    (when left (setf end (last-end end (node-end left))))
    (when right (setf end (last-end end (node-end right))))
    end))

(define-hot (make-node :inline t) ((item element) (left (or null node)) (right (or null node))) node
  (%make-node item left right (+ 1 (tree-size left) (tree-size right))
              (and (range-p item) (node-reach item left right))))

(defun turn-left (item left right)
  "The tree of ITEM, LEFT and RIGHT, where RIGHT is too large."
  (let ((inner (node-left right)))
    (if (< (tree-size inner) (* +ratio+ (tree-size (node-right right))))
        (make-node (node-item right) (make-node item left inner) (node-right right))
        (make-node (node-item inner)
                   (make-node item left (node-left inner))
                   (make-node (node-item right) (node-right inner) (node-right right))))))

(defun turn-right (item left right)
  "The tree of ITEM, LEFT and RIGHT, where LEFT is too large."
  (let ((inner (node-right left)))
    (if (< (tree-size inner) (* +ratio+ (tree-size (node-left left))))
        (make-node (node-item left) (node-left left) (make-node item inner right))
        (make-node (node-item inner)
                   (make-node (node-item left) (node-left left) (node-left inner))
                   (make-node item (node-right inner) right)))))

(defun balanced (item left right)
  "A balanced tree of ITEM, the items of LEFT before it, and those of RIGHT after it. One of these
trees may have one item more than balance allows."
  (let ((a (tree-size left)) (b (tree-size right)))
    (cond ((<= (+ a b) 1) (make-node item left right))
          ((> b (* +delta+ a)) (turn-left item left right))
          ((> a (* +delta+ b)) (turn-right item left right))
          (t (make-node item left right)))))

(defun tree-item (tree key)
  "The item of KEY in TREE; nil if TREE has none."
  (declare (type octets key))
  (loop while tree
        do (let* ((item (node-item tree)) (here (element-key item)))
             (cond ((before-p key here) (setf tree (node-left tree)))
                   ((before-p here key) (setf tree (node-right tree)))
                   (t (return item))))))

(defun tree-with (tree item)
  "TREE with ITEM, which replaces the item with the same key, if there is one."
  (if (null tree)
      (make-node item nil nil)
      (let* ((there (node-item tree)) (left (node-left tree)) (right (node-right tree)))
        (cond ((before-p (element-key item) (element-key there))
               (balanced there (tree-with left item) right))
              ((before-p (element-key there) (element-key item))
               (balanced there left (tree-with right item)))
              (t (make-node item left right))))))

(defun without-first (tree)
  "The first item of TREE, and TREE without it."
  (if (node-left tree)
      (multiple-value-bind (first left) (without-first (node-left tree))
        (values first (balanced (node-item tree) left (node-right tree))))
      (values (node-item tree) (node-right tree))))

(defun tree-without (tree key)
  "TREE without the item of KEY, if it has one."
  (if (null tree)
      nil
      (let* ((there (node-item tree)) (left (node-left tree)) (right (node-right tree)))
        (cond ((before-p key (element-key there)) (balanced there (tree-without left key) right))
              ((before-p (element-key there) key) (balanced there left (tree-without right key)))
              ((null right) left)
              (t (multiple-value-bind (next right) (without-first right)
                   (balanced next left right)))))))

;;; Parts of trees. Each takes as many steps as the tree is high.

(defun joined (item left right)
  "The tree of the trees LEFT and RIGHT, of any sizes, and of ITEM, which is between them."
  (cond ((null left) (tree-with right item))
        ((null right) (tree-with left item))
        ((> (tree-size right) (* +delta+ (tree-size left)))
         (balanced (node-item right) (joined item left (node-left right)) (node-right right)))
        ((> (tree-size left) (* +delta+ (tree-size right)))
         (balanced (node-item left) (node-left left) (joined item (node-right left) right)))
        (t (make-node item left right))))

(defun tree-before (tree key)
  (when tree
    (let ((item (node-item tree)))
      (if (before-p (element-key item) key)
          (joined item (node-left tree) (tree-before (node-right tree) key))
          (tree-before (node-left tree) key)))))

(defun tree-from (tree key)
  (when tree
    (let ((item (node-item tree)))
      (if (before-p (element-key item) key)
          (tree-from (node-right tree) key)
          (joined item (tree-from (node-left tree) key) (node-right tree))))))

(defun tree-outside (tree start end)
  "TREE without the items whose keys are at or after START and, unless END is nil, before END."
  (let ((left (tree-before tree start))
        (right (and end (tree-from tree end))))
    (cond ((and end (not (before-p start end))) tree)
          ((null right) left)
          (t (multiple-value-bind (first rest) (without-first right)
               (joined first left rest))))))

(defun map-range (function tree start end)
  "Call FUNCTION, in order, with the items of TREE whose keys are at or after START and, unless END
is nil, before END."
  (declare (type function function))
  (when tree
    (let* ((item (node-item tree))
           (key (element-key item))
           (from (not (before-p key start)))
           (to (or (null end) (before-p key end))))
      (when from (map-range function (node-left tree) start end))
      (when (and from to) (funcall function item))
      (when to (map-range function (node-right tree) start end)))))

(defun rank (tree key)
  "How many items of TREE come before KEY."
  (loop with count = 0
        while tree
        do (if (before-p (element-key (node-item tree)) key)
               (setf count (+ count 1 (tree-size (node-left tree)))
                     tree (node-right tree))
               (setf tree (node-left tree)))
        finally (return count)))

(defun count-range (tree start end)
  "The number of times that MAP-RANGE with the same arguments would call its function."
  (max 0 (- (if end (rank tree end) (tree-size tree)) (rank tree start))))

(defun map-around (function ranges key)
  "Call FUNCTION with each of RANGES, a tree of ranges, that contains KEY."
  (declare (type function function))
  (when (and ranges (or (null (node-end ranges)) (before-p key (node-end ranges))))
    (let ((range (node-item ranges)))
      (map-around function (node-left ranges) key)
      (unless (before-p key (range-start range))
        (when (or (null (range-end range)) (before-p key (range-end range)))
          (funcall function range))
        (map-around function (node-right ranges) key)))))
