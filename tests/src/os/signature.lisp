;;;; Signatures of ECDSA in DER as r and s.

(in-package #:clgrpc.tests.os)

(test numbers-of-a-signature-have-32-octets
  "Short numbers are padded with zeros, and a zero before a high bit is omitted."
  (flet ((number (first length) (cons first (loop for i from 1 below length collect i)))
         (filled (number) (append (make-list (max 0 (- 32 (length number))) :initial-element 0)
                                  (last number 32))))
    (loop for (r s) in (list (list (number 1 32) (number 127 32)) (list (number 9 31) (number 1 1))
                             (list (number 0 33) (number 5 30)) (list (number 9 1) (number 0 33)))
          do (is (equal (append (filled r) (filled s))
                        (coerce (clgrpc.os::raw-ecdsa-signature
                                 (apply #'octets-of
                                        (append (list 48 (+ 4 (length r) (length s)) 2 (length r))
                                                r (list 2 (length s)) s)))
                                'list))))))
