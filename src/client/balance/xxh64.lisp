;;;; XXH64, the 64-bit variant of xxHash, with a seed, 0 by default: the hash by which ring_hash
;;;; places servers and calls (gRFC A42). The algorithm is that of the specification of xxHash: four
;;;; lanes of 8 octets each, then the rest in steps of 8, 4 and 1, then an avalanche.

(in-package #:clgrpc.balance)

(deftype word () '(unsigned-byte 64))

(defconstant +prime-1+ #x9E3779B185EBCA87)
(defconstant +prime-2+ #xC2B2AE3D27D4EB4F)
(defconstant +prime-3+ #x165667B19E3779F9)
(defconstant +prime-4+ #x85EBCA77C2B2AE63)
(defconstant +prime-5+ #x27D4EB2F165667C5)

;;; Macros, since a function that returns a word makes a bignum of it where it is not inlined.

(defmacro word-product (a b)
  `(ldb (byte 64 0) (* (the word ,a) (the word ,b))))

(defmacro word-sum (a b)
  `(ldb (byte 64 0) (+ (the word ,a) (the word ,b))))

(defmacro rotated (a count)
  (let ((word (gensym "WORD")))
    `(let ((,word ,a))
       (declare (type word ,word))
       (logior (ldb (byte 64 0) (ash ,word ,count)) (ash ,word (- ,count 64))))))

(defmacro mixed-lane (lane input)
  `(word-product (rotated (word-sum ,lane (word-product ,input +prime-2+)) 31) +prime-1+))

(defmacro merged-lane (hash lane)
  `(word-sum (word-product (logxor ,hash (mixed-lane 0 ,lane)) +prime-1+) +prime-4+))

(define-hot xxh64 ((octets octets) &optional (seed word 0)) word
  "The XXH64 of OCTETS with SEED."
  (let* ((length (length octets))
         (at 0)
         (hash (word-sum seed +prime-5+)))
    (declare (type index at) (type word hash))
    (when (>= length 32)
      (let ((a (word-sum seed (word-sum +prime-1+ +prime-2+)))
            (b (word-sum seed +prime-2+))
            (c seed)
            (d (ldb (byte 64 0) (- seed +prime-1+))))
        (declare (type word a b c d))
        (loop while (<= at (- length 32))
              do (setf a (mixed-lane a (u64le octets at))
                       b (mixed-lane b (u64le octets (+ at 8)))
                       c (mixed-lane c (u64le octets (+ at 16)))
                       d (mixed-lane d (u64le octets (+ at 24)))
                       at (+ at 32)))
        (setf hash (word-sum (word-sum (rotated a 1) (rotated b 7))
                             (word-sum (rotated c 12) (rotated d 18)))
              hash (merged-lane hash a)
              hash (merged-lane hash b)
              hash (merged-lane hash c)
              hash (merged-lane hash d))))
    (setf hash (word-sum hash length))
    (loop while (<= at (- length 8))
          do (setf hash (word-sum (word-product (rotated (logxor hash
                                                                 (mixed-lane 0 (u64le octets at)))
                                                         27)
                                                +prime-1+)
                                  +prime-4+)
                   at (+ at 8)))
    (when (<= at (- length 4))
      (setf hash (word-sum (word-product (rotated (logxor hash (word-product (u32le octets at)
                                                                             +prime-1+))
                                                  23)
                                         +prime-2+)
                           +prime-3+)
            at (+ at 4)))
    (loop while (< at length)
          do (setf hash (word-product (rotated (logxor hash (word-product (aref octets at)
                                                                          +prime-5+))
                                               11)
                                      +prime-1+)
                   at (1+ at)))
    (setf hash (word-product (logxor hash (ash hash -33)) +prime-2+)
          hash (word-product (logxor hash (ash hash -29)) +prime-3+))
    (logxor hash (ash hash -32))))
