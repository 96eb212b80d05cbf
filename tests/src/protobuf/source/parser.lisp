;;;; Sources to unlinked descriptors, and where errors are reported.

(in-package #:clgrpc.tests.protobuf)

(defun problems (text)
  "The (line column text) of every error that compiling TEXT gives."
  (handler-case (progn (protobuf::load-protos "bad.proto" text '()) '())
    (proto-syntax-error (condition)
      (loop for problem in (cons condition (proto-syntax-error-others condition))
            collect (list (proto-syntax-error-line problem) (proto-syntax-error-column problem)
                          (proto-syntax-error-text problem))))))

(defun problem-places (text)
  (mapcar (lambda (problem) (list (first problem) (second problem))) (problems text)))

(test a-whole-file
  (let* ((file (protobuf::parse-proto "syntax = 'proto3'; package a.b;
import public \"x.proto\"; option java_package = \"j\" \"k\";
// About M.
message M { reserved 5, 7 to 9; reserved \"old\"; map<string, M> kids = 2 [deprecated = true];
  oneof one { int32 x = 3; string y = 4; } enum E { Z = 0; } message N { optional N n = 1; } }
service S { rpc F(stream M) returns (stream .a.b.M) {
  option idempotency_level = NO_SIDE_EFFECTS; } }
" "f.proto"))
         (message (first (file-descriptor-messages file))))
    (is (equal "a.b" (file-descriptor-package file)))
    (is (equalp (string-octets "jk") (find-option file "java_package")))
    (is (equal "About M." (descriptor-comment message)))
    (is (equal '("kids" "x" "y") (mapcar #'descriptor-name (message-descriptor-fields message))))
    (is (equal '("KidsEntry" "N") (mapcar #'descriptor-name (message-descriptor-messages message))))
    (is (equal "a.b.M.N" (descriptor-full-name (second (message-descriptor-messages message)))))
    (is (equal "one" (field-descriptor-oneof (second (message-descriptor-fields message)))))
    (is (equal '((5 . 5) (7 . 9)) (protobuf::message-descriptor-reserved-ranges message)))
    (let ((method (first (service-descriptor-methods (first (file-descriptor-services file))))))
      (is-true (method-descriptor-client-streaming-p method))
      (is-true (method-descriptor-server-streaming-p method))
      (is (equal "/a.b.S/F" (method-descriptor-path method)))
      (is (equal '(:identifier "NO_SIDE_EFFECTS") (find-option method "idempotency_level"))))))

(test keywords-may-be-names
  (is (null (problems (proto "message message { int32 optional = 1;
  .clgrpc.test.scratch.message package = 2;
  enum enum { option_a = 0; } .clgrpc.test.scratch.message.enum import = 3; string rpc = 4;
  bool map = 5; }")))))

(test aggregate-options-are-kept
  (let* ((file (protobuf::parse-proto "syntax='proto3'; message M {
  option (a.b).c = { x: 1 y { z: [1, 'q'] } [e.f]: -2 }; }"
                                      "f.proto"))
         (option (first (descriptor-options (first (file-descriptor-messages file))))))
    (is (equal '(("a.b") "c") (option-name option)))
    (is (equalp `(:aggregate ("x" . 1) ("y" :aggregate ("z" :list 1 ,(string-octets "q")))
                             (("e.f") . -2))
                (option-value option)))))

(test errors-say-what-was-expected
  (let ((problem (first (problems (proto "message M { int32 a 1; }")))))
    (is (equal '(3 21) (subseq problem 0 2)))
    (is (search "expected \"=\" and a field number, found \"1\"" (third problem)))))

(test several-errors-at-once
  (is (equal '((3 13) (4 12) (6 13))
             (problem-places "syntax = 'proto3';
message A {
  int32 x = y;
  string z 4;
}
message B { 7; }
message C { int32 ok = 1; }"))))

(test depth-of-sources-is-limited
  (let ((deep (proto (format nil "~{~A~}" (loop repeat 200 collect "message M { ")))))
    (is (plusp (length (problems deep))))))

(test paths-of-options-have-a-limit
  "Options whose type contains itself may be named by paths of any length."
  (flet ((too-deep-p (parts)
           (find-if (lambda (problem) (search "too deep" (third problem)))
                    (problems (proto (format nil "message M { option (o)~{~A~} = 1; }"
                                             (loop repeat (1- parts) collect ".o")))))))
    (is-false (too-deep-p 100))
    (is-true (too-deep-p 101))
    (is-true (too-deep-p 100000))))

(test the-parser-survives-any-text
  (with-seed ()
    (let ((words #("message" "M" "{" "}" ";" "=" "1" "int32" "x" "oneof" "enum" "map" "<" ">" ","
                   "[" "]" "option" "(" ")" "." "\"s\"" "reserved" "to" "max" "service" "rpc"
                   "returns" "stream" "extend" "extensions" "group" "repeated"
                   "optional" "import" "package"
                   "-" "1.5" "//c
" "syntax" "proto3")))
      (dotimes (i 3000)
        (let ((text (format nil "~{~A ~}" (loop repeat (random 40)
                                                collect (aref words (random (length words)))))))
          (handler-case (protobuf::load-protos "f.proto" text '())
            (proto-syntax-error () nil))))
      (pass))))

(test groups-nest-no-deeper-than-messages
  (let ((deep (format nil "syntax = 'proto2'; message M { ~{~A~}"
                      (loop repeat 100000 collect "optional group G = 1 { "))))
    (is (plusp (length (problems deep))))))

(test comments-may-be-in-any-encoding
  (uiop:with-temporary-file (:pathname path :type "proto" :element-type 'octet)
    (with-open-file (out path :direction :output :if-exists :supersede :element-type 'octet)
      (write-sequence (concatenate 'octets (string-octets "syntax = 'proto3'; // caf") #(233 10)
                                   (string-octets "message M { }"))
                      out))
    (is (search "message M" (protobuf::read-source path)))))
