;;;; CRC-32C, by RFC 3720's examples (appendix B.4).

(in-package #:clgrpc.tests.raft)

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

(test check-sums-of-two-parts-are-joined
  (let ((octets (some-octets 5000)))
    (dolist (middle '(0 1 2 63 64 4095 4096 4999 5000))
      (is (= (raft:crc32c octets)
             (clgrpc.raft::join-crc32c (raft:crc32c octets :end middle)
                                       (raft:crc32c octets :start middle)
                                       (- 5000 middle)))))))

(test check-sums-of-files
  (uiop:with-temporary-file (:stream stream :pathname path :element-type '(unsigned-byte 8))
    (dolist (more (list 0 100 100000))
      (write-sequence (some-octets more) stream)
      (finish-output stream)
      (multiple-value-bind (octets crc) (raft:file-crc32c path)
        (let ((content (make-octets octets)))
          (with-open-file (in path :element-type '(unsigned-byte 8)) (read-sequence content in))
          (is (= crc (raft:crc32c content)))
          (is (cl:member octets '(0 100 100100) :test #'=))))))
  (signals file-error (raft:file-crc32c "/nowhere/at/all")))
