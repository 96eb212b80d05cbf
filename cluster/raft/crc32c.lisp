;;;; CRC-32C (Castagnoli; RFC 3720, appendix B.4), eight octets at a time by eight tables: entry N
;;;; of table K is the CRC of octet N followed by K octets of zero.

(in-package #:clgrpc.raft)

(deftype crc () '(unsigned-byte 32))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun crc-tables ()
    "The eight tables one after the other, 256 entries each."
    (let ((tables (make-array 2048 :element-type '(unsigned-byte 32))))
      (dotimes (octet 256)
        (let ((crc octet))
          (dotimes (bit 8)
            (setf crc (logxor (ash crc -1) (if (oddp crc) #x82F63B78 0))))
          (setf (aref tables octet) crc)))
      (loop for i from 256 below 2048
            for before = (aref tables (- i 256))
            do (setf (aref tables i)
                     (logxor (ash before -8) (aref tables (logand before #xFF)))))
      tables)))

(define-load-time-global **tables** (crc-tables))
(declaim (type (simple-array (unsigned-byte 32) (2048)) **tables**))

(define-hot continue-crc32c ((crc crc) (octets octets) (start index) (end index)) crc
  "The CRC-32C of other octets followed by OCTETS from START to END; CRC is the CRC-32C of those
other octets."
  (let ((tables **tables**)
        (state (logxor crc #xFFFFFFFF))
        (at start))
    (declare (type crc state) (type index at) (type (integer 0 #.most-positive-fixnum) end))
    (macrolet ((entry (table octet) `(aref tables (+ ,(* 256 table) ,octet)))
               (octet-of (word position) `(ldb (byte 8 ,(* 8 position)) ,word)))
      (loop while (<= (+ at 8) end)
            do (let ((low (logxor state (u32le octets at)))
                     (high (u32le octets (+ at 4))))
                 (declare (type crc low high))
                 (setf state (logxor (entry 7 (octet-of low 0)) (entry 6 (octet-of low 1))
                                     (entry 5 (octet-of low 2)) (entry 4 (octet-of low 3))
                                     (entry 3 (octet-of high 0)) (entry 2 (octet-of high 1))
                                     (entry 1 (octet-of high 2)) (entry 0 (octet-of high 3)))
                       at (+ at 8))))
      (loop while (< at end)
            do (setf state (logxor (ash state -8)
                                   (entry 0 (logxor (octet-of state 0) (aref octets at))))
                     at (1+ at))))
    (logxor state #xFFFFFFFF)))

;;; Of two parts. A second part of k bits multiplies the CRC of the first by x^k, modulo the
;;; polynomial; a CRC has the bits of a polynomial in reverse, x^0 as the highest.

(define-hot multiply-polynomials ((one crc) (other crc)) crc
  "The product of the polynomials ONE and OTHER modulo the polynomial of CRC-32C."
  (let ((product 0))
    (declare (type crc product))
    (loop for bit of-type (integer -1 31) downfrom 31 to 0
          do (when (logbitp bit one) (setf product (logxor product other)))
             (setf other (logxor (ash other -1) (if (oddp other) #x82F63B78 0))))
    product))

(defun join-crc32c (first second octets)
  "The CRC-32C of two parts, one after the other, whose CRC-32C are FIRST and SECOND; OCTETS is the
length of the second part."
  (loop with factor of-type crc = (ash 1 31)
        with power of-type crc = (ash 1 23) ; x^8, then x^16, x^32 and so on
        for bits = octets then (ash bits -1)
        while (plusp bits)
        do (when (oddp bits) (setf factor (multiply-polynomials factor power)))
           (setf power (multiply-polynomials power power))
        finally (return (logxor (multiply-polynomials factor first) second))))

(defun crc32c (octets &key (start 0) (end (length octets)) (crc 0))
  "Return the CRC-32C of OCTETS, a vector of octets, from START to END. CRC, if given, is the
CRC-32C of the octets before these. From any thread."
  (check-type octets octets)
  (check-type crc crc)
  (unless (<= 0 start end (length octets))
    (misuse "The range from ~D to ~D is not within the ~D octets of the vector." start end
            (length octets)))
  (continue-crc32c crc octets start end))

(defun file-crc32c (path)
  "Return how many octets the file at PATH has, and their CRC-32C. Signal a FILE-ERROR if the file
cannot be read. From any thread."
  (with-open-file (stream path :element-type '(unsigned-byte 8))
    (loop with buffer = (make-octets 65536)
          with crc of-type crc = 0
          for count = (read-sequence buffer stream)
          while (plusp count)
          sum count into total
          do (setf crc (continue-crc32c crc buffer 0 count))
          finally (return (values total crc)))))
