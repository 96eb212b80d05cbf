;;;; Lisp names of proto names.

(in-package #:clgrpc.tests.protobuf)
(in-suite :clgrpc.protobuf)

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
