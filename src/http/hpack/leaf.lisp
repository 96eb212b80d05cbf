;;;; Comparing and hashing runs of octets eight at a time: this is the unchecked code of this
;;;; folder, together with two accessors in table.lisp. Words are read in the machine's byte order
;;;; and at any alignment, so hashes and words mean nothing outside this process. A run of eight
;;;; octets or more ends with a word that overlaps the previous one; a shorter run is processed
;;;; octet by octet. Callers have checked that START <= END <= (length octets), and that B has at
;;;; least (length A) octets from START on.

(in-package #:clgrpc.hpack)

(deftype hash () '(unsigned-byte 61))

(define-leaf (%word :inline t) ((octets octets) (at index)) (unsigned-byte 64)
  (sb-sys:with-pinned-objects (octets)
    (sb-sys:sap-ref-64 (sb-sys:vector-sap octets) at)))

(define-leaf (%mix :inline t) ((hash (unsigned-byte 64)) (word (unsigned-byte 64)))
    (unsigned-byte 64)
  (let ((product (ldb (byte 64 0) (* (logxor hash word) #x9E3779B97F4A7C15))))
    (logxor product (ash product -29))))

(define-leaf (%hash-octets :inline t) ((octets octets) (start index) (end index) (seed hash)) hash
  "Return a hash of the octets START to END, continued from SEED."
  (let ((hash (+ seed (- end start))) (at start))
    (declare (type (unsigned-byte 64) hash) (type index at))
    (cond ((<= (+ start 8) end)
           (loop while (< (+ at 8) end)
                 do (setf hash (%mix hash (%word octets at)))
                    (incf at 8))
           (setf hash (%mix hash (%word octets (- end 8)))))
          (t
           (loop while (< at end)
                 do (setf hash (%mix hash (aref octets at)))
                    (incf at))))
    (ldb (byte 61 0) hash)))

(define-leaf (%octets-match :inline t) ((a octets) (b octets) (start index)) boolean
  "True if the octets of B that begin at START begin with all octets of A."
  (let ((i 0) (length (length a)))
    (declare (type index i length))
    (cond ((<= 8 length)
           (loop while (< (+ i 8) length)
                 do (unless (= (%word a i) (%word b (+ start i))) (return-from %octets-match nil))
                    (incf i 8))
           (= (%word a (- length 8)) (%word b (- (+ start length) 8))))
          (t
           (loop while (< i length)
                 do (unless (= (aref a i) (aref b (+ start i))) (return-from %octets-match nil))
                    (incf i))
           t))))

(define-hot (same-octets-p :inline t) ((a octets) (b octets)) boolean
  (and (= (length a) (length b))
       (%octets-match a b 0)))
