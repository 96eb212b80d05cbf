;;;; Varints and skipping at the level of octets.

(in-package #:clgrpc.tests.protobuf)

(defun skipped (hex)
  "Where the field that is HEX, tag first, ends."
  (let ((octets (unhex hex)))
    (protobuf::skip-field octets 1 (length octets) (aref octets 0))))

(test skipping-each-wire-type
  (is (= 3 (skipped "08ac02")))
  (is (= 11 (skipped "08ffffffffffffffffff01")))
  (is (= 9 (skipped "090000000000000000")))
  (is (= 5 (skipped "0a03010203")))
  (is (= 5 (skipped "0d00000000")))
  (is (= 6 (skipped "0b100a13140c")))
  (dolist (bad '("08" "08ffffffffffffffffffff01" "0900" "0a0301" "0d0000" "0b1005" "0c" "0e" "0f"
                 "00" "0b14" "0affffffff0f"))
    (signals protobuf-error (skipped bad))))

(test zigzag-both-ways
  (loop for (value code) in '((0 0) (-1 1) (1 2) (2147483647 4294967294) (-2147483648 4294967295))
        do (is (= code (protobuf::zigzag-32 value)))
           (is (= value (protobuf::unzigzag-32 code)))
           (is (= code (protobuf::zigzag value)))
           (is (= value (protobuf::unzigzag code))))
  (is (= (1- (expt 2 64)) (protobuf::zigzag (- (expt 2 63)))))
  (is (= (- (expt 2 63)) (protobuf::unzigzag (1- (expt 2 64))))))

(test varints-of-every-length-at-every-distance-from-the-end
  (dotimes (bits 65)
    (dolist (value (list (max 0 (1- (expt 2 bits))) (min (expt 2 bits) (1- (expt 2 64)))))
      (let* ((body (serialize (all :f6 value)))
             (tail (serialize (all :f6 value :f13 t :f14 "twelve chars"))))
        (is (eql value (clgrpc.test:all-f6 (parse-message 'clgrpc.test:all body))))
        (is (eql value (clgrpc.test:all-f6 (parse-message 'clgrpc.test:all tail))))
        (unless (zerop value)
          (is (= (1+ (protobuf::varint-size value)) (length body))))))))

(test longer-varints-than-needed
  (is (eql 1 (clgrpc.test:all-f3 (parse-message 'clgrpc.test:all (unhex "18818000")))))
  (is (eql 1 (clgrpc.test:all-f3
              (parse-message 'clgrpc.test:all (unhex "988080800081808080808080808000")))))
  (is (eql -1 (clgrpc.test:all-f3 (parse-message 'clgrpc.test:all (unhex "18ffffffff0f")))))
  (is (eq t (clgrpc.test:all-f13 (parse-message 'clgrpc.test:all (unhex "6880808080808001")))))
  (signals protobuf-error (parse-message 'clgrpc.test:all (unhex "18ffffffffffffffffffff01")))
  (signals protobuf-error
    (parse-message 'clgrpc.test:all (unhex "18ffffffffffffffffffff0118ffffffffff0f"))))
