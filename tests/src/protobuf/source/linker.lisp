;;;; Names that linking resolves, and files that it refuses.

(in-package #:clgrpc.tests.protobuf)

(defun linked (text)
  (first (last (protobuf::load-protos "linked.proto" text '()))))

(defun field-of (file &rest path)
  "The field descriptor at PATH, names of messages and, last, of a field."
  (let ((messages (file-descriptor-messages file)) (message nil))
    (loop for (name . more) on path
          while more
          do (setf message (find name messages :key #'descriptor-name :test #'string=)
                   messages (message-descriptor-messages message)))
    (find (first (last path)) (message-descriptor-fields message)
          :key #'descriptor-name :test #'string=)))

(test names-resolve-from-inside-out
  (let ((file (linked "syntax = 'proto3'; package a.b;
message X { message Y { } Y near = 1; .a.b.Y far = 2; b.Y half = 3; a.b.X.Y full = 4; E e = 5; }
message Y { } enum E { Z = 0; }")))
    (flet ((type (name) (field-descriptor-type-name (field-of file "X" name))))
      (is (equal "a.b.X.Y" (type "near")))
      (is (equal "a.b.Y" (type "far")))
      (is (equal "a.b.Y" (type "half")))
      (is (equal "a.b.X.Y" (type "full"))))
    (is (eq :enum (field-descriptor-type (field-of file "X" "e"))))
    (is (eq :message (field-descriptor-type (field-of file "X" "near"))))))

(test presence-and-packing-by-syntax
  (let ((three (linked (proto "message M { int32 a = 1; optional int32 b = 2; repeated int32 c = 3;
  M d = 4; repeated string e = 5; oneof o { int32 f = 6; }
  repeated int32 g = 7 [packed = false]; }")))
        (two (linked "syntax = 'proto2'; message M { optional int32 a = 1; repeated int32 c = 3;
  required int32 r = 4; }"))
        (edition (linked "edition = '2023'; option features.field_presence = IMPLICIT;
option features.repeated_field_encoding = EXPANDED; message M { int32 a = 1;
  int32 b = 2 [features.field_presence = EXPLICIT]; repeated int32 c = 3;
  int32 d = 4 [features.field_presence = LEGACY_REQUIRED];
  M e = 5 [features.message_encoding = DELIMITED]; }")))
    (flet ((check (file expected)
             (loop for (name presence packed) in expected
                   for field = (field-of file "M" name)
                   do (is (eq presence (field-descriptor-presence field)) "~A" name)
                      (is (eq packed (field-descriptor-packed-p field)) "~A" name))))
      (check three '(("a" :implicit nil) ("b" :explicit nil) ("c" :repeated t) ("d" :explicit nil)
                     ("e" :repeated nil) ("f" :explicit nil) ("g" :repeated nil)))
      (check two '(("a" :explicit nil) ("c" :repeated nil) ("r" :required nil)))
      (check edition '(("a" :implicit nil) ("b" :explicit nil) ("c" :repeated nil)
                       ("d" :required nil)))
      (is-true (protobuf::field-descriptor-delimited-p (field-of edition "M" "e"))))))

(test json-names
  (let ((file (linked (proto "message M { int32 foo_bar_1 = 1; int32 fooBaz = 2;
  int32 x = 3 [json_name = \"why\"]; }"))))
    (is (equal '("fooBar1" "fooBaz" "why")
               (mapcar #'field-descriptor-json-name
                       (message-descriptor-fields (first (file-descriptor-messages file))))))))

(test what-is-refused-and-where
  (dolist (row `(("message M { Unknown x = 1; }" 3 13 "not declared")
                 ("message M { int32 a = 1; int32 b = 1; }" 3 36 "already used")
                 ("message M { int32 a = 1; int32 a = 2; }" 3 32 "already declared")
                 ("message M { } message M { }" 3 23 "already declared")
                 ("message M { int32 a = 0; }" 3 23 "positive")
                 ("message M { int32 a = 19005; }" 3 23 "reserved for the implementation")
                 ("message M { reserved 4 to 6; int32 a = 5; }" 3 22 "the field \"a\" is reserved")
                 ("message M { reserved 'a'; int32 a = 5; }" 3 33 "name \"a\" is reserved")
                 ("message M { required int32 a = 5; }" 3 22 "no required")
                 ("message M { int32 a = 5 [default = 3]; }" 3 36 "no default")
                 ("message M { repeated string a = 5 [packed = true]; }" 3 22 "can be packed")
                 ("message M { map<float, int32> a = 5; }" 3 13 "key of a map")
                 ("message M { repeated map<int32, int32> a = 5; }" 3 25 "has no label")
                 ("message M { oneof o { repeated int32 a = 5; } }" 3 23 "no label")
                 ("message M { oneof o { } }" 3 23 "expected the type of a field")
                 ("enum E { A = 1; }" 3 14 "must be 0")
                 ("enum E { }" 3 6 "at least one value")
                 ("enum E { A = 0; B = 0; }" 3 21 "allow_alias")
                 ("enum E { A = 0; } enum F { A = 0; }" 3 28 "already declared")
                 ("service S { rpc F(E) returns (M); } enum E { A = 0; } message M { }" 3 19
                  "\"E\" is not a message type")
                 ("import 'nowhere.proto';" 3 1 "not found")
                 ("extend M { int32 a = 1; } message M { }" 3 22 "no extension range")))
    (destructuring-bind (text line column part) row
      (let ((problem (first (problems (proto text)))))
        (is (equal (list line column) (subseq problem 0 2)) "~A: ~A" text problem)
        (is (search part (third problem)) "~A: ~A" text problem)))))

(test aliases-when-allowed
  (is (null (problems (proto "enum E { option allow_alias = true; A = 0; B = 0; }")))))

(test an-import-shows-its-public-imports-only
  (let ((directory (uiop:ensure-directory-pathname
                    (merge-pathnames (format nil "clgrpc-imports-~36R/"
                                             (random (expt 36 8) (make-random-state t)))
                                     (uiop:temporary-directory)))))
    (unwind-protect
         (flet ((put (name text)
                  (ensure-directories-exist directory)
                  (with-open-file (out (merge-pathnames name directory) :direction :output)
                    (write-string text out)))
                (compile-it (text)
                  (handler-case
                      (progn (protobuf::load-protos "top.proto" text (list directory)) nil)
                    (proto-syntax-error (condition) (proto-syntax-error-text condition)))))
           (put "shown.proto" "syntax = 'proto3'; package clgrpc.test.imports; message Shown { }")
           (put "hidden.proto" "syntax = 'proto3'; package clgrpc.test.imports; message Hidden { }")
           (put "middle.proto" "syntax = 'proto3'; import public 'shown.proto';
import 'hidden.proto'; package clgrpc.test.imports; message Middle { Hidden h = 1; }")
           (put "circle.proto" "syntax = 'proto3'; import 'circle.proto';")
           (let ((head "syntax = 'proto3'; package clgrpc.test.imports; import 'middle.proto'; "))
             (is (null (compile-it
                        (format nil "~A message T { Shown s = 1; Middle m = 2; }" head))))
             (is (search "which is not imported"
                         (compile-it (format nil "~A message T { Hidden s = 1; }" head)))))
           (signals proto-syntax-error (protobuf::load-protos "top.proto" "import 'circle.proto';"
                                                  (list directory))))
      (uiop:delete-directory-tree directory :validate t))))

(test errors-say-what-to-add
  (flet ((text-of (source)
           (handler-case (progn (protobuf::load-protos "hint.proto" source '()) "")
             (proto-syntax-error (condition) (princ-to-string condition)))))
    (is (search "import \"google/protobuf/timestamp.proto\" declares it"
                (text-of "syntax = 'proto3'; message M { google.protobuf.Timestamp t = 1; }")))
    (is (search "without a syntax statement the file is proto2"
                (text-of "message M { int32 i = 1; }")))
    (is (not (search "without a syntax"
                     (text-of "syntax = 'proto2'; message M { int32 i = 1; }"))))))
