;;;; Floats and octets as descriptor.proto writes them.

(in-package #:clgrpc.tests.protobuf)
(in-suite :clgrpc.protobuf)

(test floats-as-c-prints-them
  (loop for (value text)
          in '((0d0 "0") (-0d0 "-0") (1d0 "1") (-1.5d0 "-1.5") (0.1d0 "0.1") (0.1f0 "0.1")
               (1d15 "1e+15") (123456789012345d0 "123456789012345") (1d-4 "0.0001") (1d-5 "1e-05")
               (1f6 "1e+06") (123456f0 "123456") (16777216f0 "16777216")
               (0.30000000000000004d0 "0.30000000000000004") (1d100 "1e+100")
               (2.5d-300 "2.5e-300"))
        do (is (equal text (protobuf::default-float-text value)))))

(test floats-read-back
  (with-seed ()
    (dotimes (i 500)
      (let* ((value (sb-kernel:make-double-float (random (ash 1 31)) (random (ash 1 32))))
             (text (and (not (protobuf::infinite-or-nan-p value))
                        (protobuf::default-float-text value))))
        (when text
          (is (= value (protobuf::decimal-double text)) "~S ~A" value text))))))

(test octets-as-c-escapes-them
  (let ((octets (coerce (loop for i below 256 collect i) 'octets)))
    (is (equalp octets (protobuf::c-unescaped (protobuf::c-escaped octets)))))
  (is (equal "a\\000\\n\\\"\\377" (protobuf::c-escaped (unhex "61000a22ff")))))
