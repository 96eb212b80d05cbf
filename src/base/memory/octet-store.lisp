;;;; The store of the image: long octet vectors that are kept to be used again. SBCL zeroes a fresh
;;;; vector; for a message of megabytes this costs two to three times as much as writing the
;;;; message, and fills the nursery. Code that takes a vector from the store owns it. The last owner
;;;; may put it back, once, with no reference left, or leave it to the collector.
;;;;
;;;; A shelf holds the vectors of one length. From each power of two to the next there are four
;;;; lengths, so that a message wastes at most a quarter of its vector, even if it is a little
;;;; longer than a power of two. A shelf is a list, and each push makes a fresh cell, so that
;;;; compare-and-swap cannot mistake one cell for another. Any thread may take and put back.

(in-package #:clgrpc.base)

(defconstant +shortest-stored+ 4096
  "The length in octets of the shortest vectors that are stored. Shorter vectors are not stored,
because allocating them is as fast.")
(defconstant +shelves+ 57
  "The number of shelves. The last shelf has vectors of 64 MiB.")
(defconstant +store-octets+ (* 64 1024 1024)
  "The maximum size in octets of all stored vectors: enough for a message of 16 MB in each
direction, and the vectors that held these messages while they grew.")

(declaim (type (simple-vector 57) **shelves**)
         (type cons **stored**))
(defglobal **shelves** (make-array +shelves+ :initial-element '()))
(defglobal **stored** (list 0))         ; octets on all shelves; atomic

(define-hot (shelf-length :inline t) ((shelf (integer 0 56))) index
  "Return the length in octets of the vectors of SHELF. The lengths are 4, 5, 6, 7, 8, 10 KiB and so
on."
  (multiple-value-bind (doublings quarters) (floor shelf 4)
    (ash (+ 4 quarters) (+ 10 doublings))))

(define-hot shelf-of ((length index)) (or null (integer 0 56))
  "Return the shelf of the shortest vectors with LENGTH octets or more, or NIL if the vectors of all
shelves are shorter."
  (cond ((<= length +shortest-stored+) 0)
        ((< (shelf-length (1- +shelves+)) length) nil)
        (t (let* ((last (1- length))
                  (unit (- (integer-length last) 3))) ; 2^UNIT: a quarter of LAST's power of two
             (declare (type (integer 0 57) unit))
             (the (integer 0 56) (+ (* 4 (- unit 10)) (- (ash last (- unit)) 3)))))))

(define-hot take-from-shelf ((shelf (integer 0 56))) (or null octets)
  (loop
    (let ((old (svref **shelves** shelf)))
      (declare (type list old))
      (cond ((null old) (return nil))
            ((sb-sys:without-interrupts ; shelf and count change together
               (when (eq old (compare-and-swap (svref **shelves** shelf) old (rest old)))
                 (atomic-decf (car **stored**) (shelf-length shelf))
                 t))
             (return (first old)))))))

(define-hot borrow-octets ((length index)) octets
  "Return a vector of at least LENGTH octets, which the caller then owns; its contents are
undefined. From any thread."
  (let ((shelf (and (<= +shortest-stored+ length) (shelf-of length))))
    (if shelf
        (or (take-from-shelf shelf)
            (make-raw-vector (shelf-length shelf) octet))
        (make-raw-vector length octet))))

(define-hot give-octets-back ((octets octets)) null
  "Give up OCTETS, a vector that BORROW-OCTETS returned. The caller must not keep a reference to it.
From any thread."
  (let* ((length (length octets))
         (shelf (and (<= +shortest-stored+ length) (shelf-of length))))
    (when (and shelf (= length (shelf-length shelf)))
      (when (< +store-octets+ (+ length (the fixnum (car **stored**))))
        (clear-store))                  ; the kept vectors may have lengths no longer needed
      (let ((cell (cons octets nil)))
        (sb-sys:without-interrupts
          (atomic-incf (car **stored**) length)
          (loop for old = (svref **shelves** shelf)
                do (setf (cdr cell) old)
                until (eq old (compare-and-swap (svref **shelves** shelf) old cell))))))
    nil))

(defun clear-store ()
  "Drop all vectors in the store; the collector frees them. From any thread."
  (dotimes (shelf +shelves+)
    (loop while (take-from-shelf shelf))))

(pushnew 'clear-store **reclaimers**)   ; kept vectors may be anywhere in the heap

(defun stored-octets ()
  "The number of octets in the store. From any thread."
  (car **stored**))
