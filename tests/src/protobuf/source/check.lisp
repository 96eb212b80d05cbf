;;;; Files that protoc 33.2 refuses are refused, at the same line. The texts are in a record.

(in-package #:clgrpc.tests.protobuf)

(defun write-proto (directory name text)
  (with-open-file (out (merge-pathnames (format nil "~A.proto" name) directory)
                       :direction :output :external-format :utf-8)
    (write-string text out)))

(test what-protoc-refuses
  (let ((vectors (refused-vectors)) (texts '()))
    (is (<= 200 (length vectors)))
    (support:with-folder (directory)
      (loop for (name nil text) in vectors do (write-proto directory name text))
      (loop for (name line) in vectors
            for file = (format nil "~A.proto" name)
            for problem = (handler-case (progn (compile-file-named file directory) nil)
                            (proto-syntax-error (condition) condition))
            do (cond ((eql line 0) (is (null problem) "~A: ~A" name problem))
                     ((null problem) (fail "~A was accepted" name))
                     (t
                      (push (support:replaced (princ-to-string problem)
                                              (uiop:native-namestring directory) "HERE/")
                            texts)
                      (is (equal file (proto-syntax-error-file problem)) "~A" problem)
                      (when line
                        (is (= line (proto-syntax-error-line problem)) "~D: ~A" line problem))))))
    (support:check-record 'refused-files (format nil "~{~A~%~}" (reverse texts)))))

(test a-declaration-with-an-empty-type-is-refused
  (signals proto-syntax-error
    (define "declared_empty.proto" "syntax = 'proto2'; package clgrpc.test.declared_empty;
message M { extensions 1 to 5 [declaration = { number: 2 full_name: '.a.b' type: '' }]; }
extend M { optional int32 x = 2; }")))

(test declarations-of-extensions-that-are-refused
  "The declarations of a range must be complete, have different names, and be verified."
  (flet ((refusal (options)
           (handler-case
               (progn (define (format nil "declared_~36R.proto" (random (expt 36 8)))
                        (format nil "syntax = 'proto2'; package clgrpc.test.declared;
message M { extensions 1 to 5 [~{~A~^, ~}]; }" options))
                      "")
             (proto-syntax-error (condition) (princ-to-string condition)))))
    (loop for (text . options)
            in '(("UNVERIFIED" "verification = UNVERIFIED"
                  "declaration = { number: 2 full_name: '.a.b' type: 'int32' }")
                 ("no number 6" "declaration = { number: 6 full_name: '.a.b' type: 'int32' }")
                 ("needs full_name and type" "declaration = { number: 2 full_name: '.a.b' }")
                 ("needs full_name and type" "declaration = { number: 2 type: 'int32' }")
                 ("needs full_name and type" "declaration = { number: 2 }")
                 ("number 2 is declared twice" "declaration = { number: 2 reserved: true }"
                  "declaration = { number: 2 full_name: '.a.b' type: 'int32' }")
                 (".a.b is declared twice"
                  "declaration = { number: 2 full_name: '.a.b' type: 'int32' }"
                  "declaration = { number: 3 full_name: '.a.b' type: 'int32' }")
                 ("leading dot" "declaration = { number: 2 full_name: 'a.b' type: 'int32' }")
                 ("leading dot" "declaration = { number: 2 full_name: '.' type: 'int32' }")
                 ("leading dot" "declaration = { number: 2 full_name: '.a.' type: 'int32' }")
                 ("leading dot" "declaration = { number: 2 full_name: '.a..b' type: 'int32' }")
                 ("leading dot" "declaration = { number: 2 full_name: '.a-b' type: 'int32' }")
                 ("leading dot" "declaration = { number: 2 full_name: '.a.b' type: 'c.d' }")
                 ("" "declaration = { number: 1 full_name: '.a.b' type: '.c.d' }"
                  "declaration = { number: 5 reserved: true }"))
          for problem = (refusal options)
          do (is (if (string= "" text) (string= "" problem) (search text problem))
                 "~A: ~A" options problem))))

(test a-circle-of-imports-is-refused
  (support:with-folder (directory)
    (write-proto directory "a" (format nil "syntax = 'proto3';~%~%import 'b.proto';"))
    (write-proto directory "b" (format nil "syntax = 'proto3';~%import 'a.proto';"))
    (with-signalled (condition proto-syntax-error (compile-file-named "a.proto" directory))
      (is (equal '("a.proto" 3 1)
                 (list (proto-syntax-error-file condition) (proto-syntax-error-line condition)
                       (proto-syntax-error-column condition)))))))

(test several-rules-broken-at-once
  (is (equal '((2 28) (3 37))
             (problem-places "edition = '2023';
message M { repeated int32 a = 1 [packed = true];
  message bad { string s = 1; int32 t = 2 [features.utf8_validation = NONE]; }
}"))
      "both errors"))

(defparameter *wrong-in-many-ways* "syntax = 'proto3'; import 'nowhere.proto';
import 'google/protobuf/descriptor.proto';
message A { Unknown a = 1; int32 b = 1;
  reserved 5; int32 c = 5;
  map<string, Unknown> d = 6; oneof o { Unknown e = 7; } A f = 8; B g = 9;
  map<double, int32> h = 10; int32 foo_bar = 11; int32 fooBar = 12; }
message B { Unknown a = 1 [(mark).size = 3]; }
enum C { C_0 = 1; C_1 = 1; }
enum D { D_0 = 0; D_1 = 0; }
message Mark { Unknown size = 1; int32 good = 2; }
extend google.protobuf.FieldOptions { Mark mark = 50000; }
message E { int32 a = 1 [packed = 1]; int32 b = 2 [packed = true]; int32 c = 19000; }
enum F { option no_such = 1; F_0 = 1; }
message G { optional C c = 1 [deprecated = 1, deprecated = 2]; int32 a = 1; message G { C c = 1; } }
service S { rpc R(Unknown) returns (A); rpc R(A) returns (A) { option no_such = 1; } }
")

(test errors-of-all-stages-are-told-at-once
  "An error of one stage hides no other, and no error is reported that is only the consequence of
another. If an import is not found, its declarations are unknown."
  (let ((lines (mapcar #'first (problem-places *wrong-in-many-ways*)))
        (texts (mapcar #'third (problems *wrong-in-many-ways*))))
    (flet ((told (text) (count-if (lambda (told) (search text told)) texts)))
      (is (equal '(1 3 4 6 6 8 8 9 12 12 12 13 14 14 14 15 15)
                 (sort lines #'<)) "~{~%~A~}" texts)
      (is (= 1 (told "nowhere.proto")))
      (is (= 0 (told "Unknown"))))))

(test errors-behind-undeclared-types-are-told
  (is (equal '((3 13) (3 38) (5 24) (5 40) (6 12) (7 9))
             (sort (problem-places "syntax = 'proto3';

message A { Unknown a = 1; int32 b = 1;
  oneof o { A c = 4; A d = 5; } message N { }
  map<string, Unknown> e = 6; repeated Unknown f = 7;
  N n = 8; map<double, N> h = 9 [deprecated = true];
  int32 a = 20; }")
                   (lambda (a b) (or (< (first a) (first b))
                                     (and (= (first a) (first b)) (< (second a) (second b)))))))))

(test a-text-of-many-errors-has-an-end
  (flet ((text-of (count)
           (handler-case
               (protobuf::load-protos "many.proto"
                                      (format nil "syntax = 'proto3'; message M {~%~
                                                   ~{Unknown f~D = 1;~%~}}"
                                              (loop for i below count collect i))
                                      '())
             (proto-syntax-error (condition)
               (is (= (1- (* 2 count)) (1+ (length (proto-syntax-error-others condition)))))
               (uiop:split-string (princ-to-string condition) :separator '(#\Newline))))))
    (is (= 19 (length (text-of 10))))
    (let ((lines (text-of 100)))
      (is (= 21 (length lines)))
      (is (equal "and 179 more errors in this file" (first (last lines)))))
    (is (search "and 1 more error in" (first (last (text-of 11)))))))
