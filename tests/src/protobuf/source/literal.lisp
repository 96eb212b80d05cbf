;;;; Floats and octets as descriptor.proto writes them.

(in-package #:clgrpc.tests.protobuf)

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
             (text (and (finite-p value)
                        (protobuf::default-float-text value))))
        (when text
          (is (= value (protobuf::decimal-double text)) "~S ~A" value text))))))

;; midpoints of doubles and of singles, denormals and what is at the ends, as Python and protoc have
;; them
(test literals-are-rounded-to-the-nearest
  (loop for (text double) in
        `(("9.7661307577492651e15" 9.766130757749266d15)
          ("8738787378574294190653440000001e-5" 8.738787378574295d25)
          ("9007199254740993.0" 9007199254740992d0)
          ("9007199254740993.00000000000000000000000000000000000000000000000000001"
           9007199254740994d0)
          ("2.4703282292062327e-324" 0d0)
          ("2.4703282292062328e-324" ,least-positive-double-float)
          ("1.7976931348623158e308" 1.7976931348623157d308)
          ("1.797693134862315808e308" ,sb-ext:double-float-positive-infinity)
          (,(format nil "0.~A1e2001" (make-string 2000 :initial-element #\0)) 1d0)
          (,(format nil "9007199254740993.~A1" (make-string 2000 :initial-element #\0))
           9007199254740994d0))
        do (is (eql double (protobuf::decimal-double text)) "~A" text)))

(test defaults-and-options-are-rounded-as-protoc-rounds
  "A float field's default is rounded to a double first, an integer as an option is not."
  (let* ((near (+ (expt 2 60) (expt 2 36) 1))
         (file (first (protobuf::load-protos
                       "rounded.proto"
                       (format nil "syntax = 'proto2'; import 'google/protobuf/descriptor.proto';
extend google.protobuf.MessageOptions {
  optional float plain = 50000; optional Inner inner = 50001;
}
message Inner { optional float x = 1; }
message M { option (plain) = ~D; option (inner) = { x: ~:*~D };
  optional float f = 1 [default = ~:*~D];
  optional double d = 2 [default = 8738787378574294190653440000001e-5]; }" near)
                       '())))
         (message (second (file-descriptor-messages file)))
         (options (descriptor-option-octets message)))
    (is (equal (list (float (expt 2 60) 1f0) 8.738787378574295d25)
               (mapcar #'field-descriptor-default (message-descriptor-fields message))))
    (flet ((octets-of (single)
             (let ((bits (protobuf::single-bits single)))
               (loop for i below 4 collect (ldb (byte 8 (* 8 i)) bits)))))
      (is (search (octets-of (float (+ (expt 2 60) (expt 2 37)) 1f0)) options))
      (is (search (octets-of (float (expt 2 60) 1f0)) options)))))

(test octets-as-c-escapes-them
  (let ((octets (coerce (loop for i below 256 collect i) 'octets)))
    (is (equalp octets (protobuf::c-unescaped (protobuf::c-escaped octets)))))
  (is (equal "a\\000\\n\\\"\\377" (protobuf::c-escaped (unhex "61000a22ff")))))

(test octets-that-are-no-text
  "Each octet that is not UTF-8 becomes one replacement character, and takes few octets of memory."
  (flet ((string-of (hex) (protobuf::lenient-string (unhex hex))))
    (loop for (hex . codes) in '(("61" #x61) ("c3a9" #xE9) ("e282ac" #x20AC) ("f09f9880" #x1F600)
                                 ("61ff62" #x61 #xFFFD #x62) ("c3" #xFFFD) ("a9c3" #xFFFD #xFFFD)
                                 ("c080" #xFFFD #xFFFD) ("e28261" #xFFFD #xFFFD #x61)
                                 ("eda080" #xFFFD #xFFFD #xFFFD) ("e09f80" #xFFFD #xFFFD #xFFFD)
                                 ("f4908080" #xFFFD #xFFFD #xFFFD #xFFFD)
                                 ("f5ffc3a9" #xFFFD #xFFFD #xE9))
          do (is (equal codes (map 'list #'char-code (string-of hex))) hex)))
  (let* ((octets (make-array 100000 :element-type 'octet :initial-element #xFF))
         (before (sb-ext:get-bytes-consed)))
    (is (= 100000 (length (protobuf::lenient-string octets))))
    (is (< (- (sb-ext:get-bytes-consed) before) 2000000))))
