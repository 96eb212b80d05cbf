;;;; SHA-256 (FIPS 180-4), by which the web lab compares sent and received octets.

(in-package #:clgrpc.testee)

(defun leading-roots (count root)
  "The first 32 bits of the fractions of the ROOTth roots of the first COUNT primes."
  (flet ((fraction-bits (prime)
           (let ((scaled (* prime (ash 1 (* 32 root)))))
             (let ((low 0) (high (ash 1 40)))
               (loop while (< (1+ low) high)
                     do (let ((middle (ash (+ low high) -1)))
                          (if (<= (expt middle root) scaled) (setf low middle) (setf high middle))))
               (ldb (byte 32 0) low)))))
    (coerce (loop for n from 2
                  when (loop for d from 2 to (isqrt n) never (zerop (mod n d)))
                    collect (fraction-bits n) into words
                  until (= count (length words))
                  finally (return words))
            '(simple-array (unsigned-byte 32) (*)))))

(defparameter *round-words* (leading-roots 64 3))

(defun padded-octets (octets)
  (let* ((length (length octets))
         (padded (make-octets (* 64 (ceiling (+ length 9) 64)))))
    (replace padded octets)
    (setf (aref padded length) #x80
          (u64be padded (- (length padded) 8)) (* 8 length))
    padded))

(defun sha256 (octets)
  "The SHA-256 of OCTETS in hexadecimal."
  (let ((padded (padded-octets octets)) (state (leading-roots 8 2)) (rounds *round-words*)
        (words (make-array 64 :element-type '(unsigned-byte 32))))
    (declare (type (simple-array (unsigned-byte 32) (*)) state rounds words)
             (type octets padded))
    (flet ((turn (word count)
             (declare (type (unsigned-byte 32) word) (type (integer 0 31) count))
             (logior (ash word (- count)) (ldb (byte 32 0) (ash word (- 32 count)))))
           (plus (&rest words) (ldb (byte 32 0) (reduce #'+ words))))
      (declare (inline turn plus))
      (loop for start from 0 below (length padded) by 64
            do (loop for i from 0 below 16
                     do (setf (aref words i) (u32be padded (+ start (* 4 i)))))
               (loop for i from 16 below 64
                     for a = (aref words (- i 15)) and b = (aref words (- i 2))
                     do (setf (aref words i)
                              (plus (aref words (- i 16)) (aref words (- i 7))
                                    (logxor (turn a 7) (turn a 18) (ash a -3))
                                    (logxor (turn b 17) (turn b 19) (ash b -10)))))
               (destructuring-bind (a b c d e f g h) (coerce state 'list)
                 (declare (type (unsigned-byte 32) a b c d e f g h))
                 (loop for i from 0 below 64
                       for one = (plus h (logxor (turn e 6) (turn e 11) (turn e 25))
                                       (logxor (logand e f) (logandc1 e g))
                                       (aref rounds i) (aref words i))
                       for two = (plus (logxor (turn a 2) (turn a 13) (turn a 22))
                                       (logxor (logand a b) (logand a c) (logand b c)))
                       do (setf h g g f f e e (plus d one) d c c b b a a (plus one two)))
                 (loop for i from 0
                       for word in (list a b c d e f g h)
                       do (setf (aref state i) (plus (aref state i) word))))))
    (format nil "~(~{~8,'0X~}~)" (coerce state 'list))))
