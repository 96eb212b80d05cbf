;;;; CRC-32C, by RFC 3720's examples (appendix B.4).

(in-package #:clgrpc.tests.raft)
(in-suite :clgrpc.raft)

(defun filled (count function)
  (let ((octets (make-octets count)))
    (dotimes (i count octets) (setf (aref octets i) (funcall function i)))))

(test crc32c-of-the-examples
  (is (= #x8A9136AA (raft:crc32c (filled 32 (constantly 0)))))
  (is (= #x62A8AB43 (raft:crc32c (filled 32 (constantly #xFF)))))
  (is (= #x46DD794E (raft:crc32c (filled 32 #'identity))))
  (is (= #x113FDB5C (raft:crc32c (filled 32 (lambda (i) (- 31 i))))))
  (is (= #xE3069283 (raft:crc32c (map 'octets #'char-code "123456789"))))
  (is (zerop (raft:crc32c (make-octets 0)))))

(test crc32c-in-parts
  (let* ((octets (some-octets 100))
         (whole (raft:crc32c octets)))
    (dotimes (cut 101)
      (is (= whole (raft:crc32c octets :start cut :crc (raft:crc32c octets :end cut)))))
    (signals misuse (raft:crc32c octets :end 101))
    (signals misuse (raft:crc32c octets :start 5 :end 4))))
