;;;; Lisp names of proto names.

(in-package #:clgrpc.tests.protobuf)

(test names-in-lisp
  (loop for (proto lisp) in '(("HelloReply" "HELLO-REPLY") ("HTTPRoute" "HTTP-ROUTE")
                              ("foo_bar" "FOO-BAR") ("fooBar" "FOO-BAR") ("STATUS_OK" "STATUS-OK")
                              ("V2Ray" "V2-RAY") ("UInt32Value" "U-INT32-VALUE") ("_x" "-X")
                              ("field0name5" "FIELD0NAME5") ("A" "A") ("getURL" "GET-URL"))
        do (is (equal lisp (protobuf::lisp-name proto))))
  (is (equal "GRPC.HEALTH-CHECK.V1" (protobuf::dotted-lisp-name "grpc.health_check.v1"))))

(test colliding-accessors-are-told-apart
  (define "collide.proto" "syntax = 'proto3'; package clgrpc.test.collide;
message Foo { int32 bar_baz = 1; int32 p = 2; } message FooBar { int32 baz = 3; }")
  (flet ((call (name &rest arguments)
           (apply (find-symbol name "CLGRPC.TEST.COLLIDE") arguments)))
    (let ((foo (call "MAKE-FOO" :bar-baz 1 :p 2)) (other (call "MAKE-FOO-BAR" :baz 3)))
      (is-true (call "FOO-P" foo))
      (is (eql 2 (call "FOO-P-FIELD" foo)))
      (is (eql 1 (call "FOO-BAR-BAZ" foo)))
      (is (eql 3 (call "FOO-BAR-BAZ-FIELD" other)))
      (define "collide_more.proto" "syntax = 'proto3'; package clgrpc.test.collide;
message Foo_Bar_Baz { int32 field = 5; }")
      (let ((third (call "MAKE-FOO-BAR-BAZ" :field 4)))
        (is (eql 4 (call "FOO-BAR-BAZ-FIELD-FIELD" third)))
        (is (eql 3 (call "FOO-BAR-BAZ-FIELD" other)) "another file's accessor is left alone")))))

(test types-and-methods-whose-names-are-alike-are-told-apart
  (let ((first "syntax = 'proto3'; package clgrpc.test.alike;
message FooBar { int32 a = 1; } message Foo_Bar { string b = 1; FOO_BAR c = 2; }
enum FOO_BAR { ZERO = 0; ONE = 1; }
service fooBar { rpc Get (FooBar) returns (Foo_Bar); rpc get (Foo_Bar) returns (FooBar); }
service foo_bar { rpc Get (FooBar) returns (Foo_Bar); }"))
    (define "alike.proto" first)
    (flet ((call (name &rest arguments)
             (apply (find-symbol name "CLGRPC.TEST.ALIKE") arguments))
           (check-names ()
             (is (equal '("FOO-BAR" "FOO-BAR-2")
                        (loop for name in '("FooBar" "Foo_Bar")
                              for full = (format nil "clgrpc.test.alike.~A" name)
                              collect (symbol-name (message-type-symbol
                                                    (find-message-type full))))))))
      (check-names)
      (let ((one (call "MAKE-FOO-BAR" :a 1)) (two (call "MAKE-FOO-BAR-2" :b "x" :c 1)))
        (is-true (call "FOO-BAR-P" one))
        (is-false (call "FOO-BAR-P" two))
        (is (eql 1 (call "FOO-BAR-A" one)))
        (is (equal "x" (call "FOO-BAR-2-B" two)))
        (is (eq :one (call "FOO-BAR-2-C" two)))
        (is (message= two (parse-message "clgrpc.test.alike.Foo_Bar" (serialize two)))))
      (is (eql 1 (enum-number (find-symbol "FOO-BAR-3" "CLGRPC.TEST.ALIKE") :one)))
      (is (equal '("CLGRPC.TEST.ALIKE.FOO-BAR-4:GET" "CLGRPC.TEST.ALIKE.FOO-BAR-4:GET-2"
                   "CLGRPC.TEST.ALIKE.FOO-BAR-5:GET")
                 (loop for name in '("fooBar" "foo_bar")
                       for service = (find-descriptor (format nil "clgrpc.test.alike.~A" name))
                       append (mapcar (lambda (method)
                                        (format nil "~S" (method-descriptor-symbol method)))
                                      (service-descriptor-methods service)))))
      (define "alike_more.proto" "syntax = 'proto3'; package clgrpc.test.alike;
message FOOBar { int32 d = 1; }")
      (is (eql 3 (call "FOO-BAR-6-D" (call "MAKE-FOO-BAR-6" :d 3)))
          "another file's type is left alone")
      (define "alike.proto" (format nil "~A message More { }" first))
      (check-names))))

(test types-of-two-files-whose-names-are-alike-are-told-apart
  "They get different symbols, though neither file is loaded."
  (let ((files (loop for name in '("FooBar" "Foo_Bar")
                     collect (protobuf::parse-proto
                              (format nil "syntax = 'proto3'; package clgrpc.test.alike_files;
                                           message ~A { }" name)
                              (format nil "~A.proto" name)))))
    (protobuf::assign-symbols files)
    (is (equal '("FOO-BAR" "FOO-BAR-2")
               (loop for file in files
                     for message = (first (file-descriptor-messages file))
                     collect (symbol-name (protobuf::message-descriptor-symbol message)))))))

(test enum-values-whose-names-are-alike-are-told-apart
  (define "alike_values.proto" "syntax = 'proto2'; package clgrpc.test.alike_values;
enum Unit { option deprecated_legacy_json_field_conflicts = true; m = 0; M = 1; m_1 = 2; }
message Sizes { repeated Unit units = 1; map<int32, Unit> by_number = 2; }")
  (is (equal '(0 1 2) (loop for name in '(:m :m-1 :m-1-2)
                            collect (enum-number "clgrpc.test.alike_values.Unit" name))))
  (let* ((octets (unhex "0801 0800 0802 1204 0805 1001"))
         (sizes (parse-message "clgrpc.test.alike_values.Sizes" octets)))
    (is (equalp #(:m-1 :m :m-1-2) (field-value sizes "units")))
    (is (equalp octets (serialize sizes)))))

(test packages-that-are-there-already-are-no-place-for-a-file
  (let ((used (make-package "CLGRPC-TEST-USED" :use '(#:cl)))
        ;; as CLGRPC itself
        (face (make-package "CLGRPC-TEST-FACE" :use '())))
    (import 'car face)
    (export 'car face)
    (unwind-protect
         (dolist (name '("cl" "common_lisp" "clgrpc_test_used" "keyword" "clgrpc_test_face"))
           (signals misuse
             (define "taken.proto"
               (format nil "syntax = 'proto3'; package ~A; message M { }" name))))
      (delete-package used)
      (delete-package face))))
