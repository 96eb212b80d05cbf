;;;; Descriptors: options as written, walking, and the registry of what has been loaded.

(in-package #:clgrpc.tests.protobuf)

(test options-are-found-by-the-name-that-was-written
  (let* ((file (protobuf::parse-proto "syntax = 'proto2'; message M { option deprecated = true;
    option (a.b).c = 5; option no_standard_descriptor_accessor = false; }" "options.proto"))
         (message (first (file-descriptor-messages file))))
    (is (equal '(5 t) (multiple-value-list (find-option message "(a.b).c"))))
    (is (equal '(nil nil) (multiple-value-list (find-option message "a.b.c"))))
    (is-true (protobuf::option-true-p message "deprecated"))
    (is-false (protobuf::option-true-p message "no_standard_descriptor_accessor"))
    (is-false (protobuf::option-true-p message "map_entry"))))

(defun walked (walk file)
  "The full names of the descriptors that the function WALK visits in FILE."
  (let ((names '()))
    (funcall walk (lambda (descriptor &optional owner)
                    (push (if owner
                              (list (descriptor-full-name descriptor) (descriptor-full-name owner))
                              (descriptor-full-name descriptor))
                          names))
             file)
    (nreverse names)))

(test walks-show-everything-at-any-depth
  (let ((file (linked "syntax = 'proto2'; package p; enum E { Z = 0; }
message A { message B { enum F { Y = 0; } optional int32 i = 1; extensions 10 to 20;
  extend A.B { optional int32 x = 11; } } oneof o { int32 j = 2; } }
extend A.B { optional int32 w = 10; } service S { rpc Do (A) returns (A.B); }")))
    (is (equal '("p.A" "p.A.B") (walked #'protobuf::map-messages file)))
    (is (equal '("p.E" "p.A.B.F") (walked #'protobuf::map-enums file)))
    (is (equal '("p.w" "p.A.B.x") (walked #'protobuf::map-extensions file)))
    (is (equal '("p.A" ("p.A.j" "p.A") ("p.A.o" "p.A")
                 "p.A.B" ("p.A.B.i" "p.A.B") "p.A.B.x" "p.A.B.F" ("p.A.B.Y" "p.A.B.F")
                 "p.E" ("p.Z" "p.E") "p.w" "p.S" ("p.S.Do" "p.S"))
               (walked #'protobuf::map-names file)))
    (let ((method (first (service-descriptor-methods (first (file-descriptor-services file))))))
      (is (equal "/p.S/Do" (protobuf:method-descriptor-path method))))))

(defun register (text)
  (protobuf::register-file
   (first (last (protobuf::load-protos "registered.proto"
                                       (format nil "syntax = 'proto2'; package registered; ~A" text)
                                       '())))))

(test a-registered-file-takes-the-place-of-the-one-before
  (unwind-protect
       (let ((one (register "message Old { optional int32 i = 1; extensions 5 to 9; }
message Kept { } extend Old { optional int32 x = 5; }")))
         (is (eq one (find-file-descriptor "registered.proto")))
         (is (eq one (file-of-symbol "registered.Old.i")))
         (is (equal "registered.x" (descriptor-full-name
                                    (find-extension-descriptor "registered.Old" 5))))
         (let ((two (register "message Kept { } enum New { A = 0; }")))
           (dolist (name '("registered.Old" "registered.Old.i" "registered.x"))
             (is (null (find-descriptor name)) "~A" name)
             (is (null (file-of-symbol name)) "~A" name))
           (is (null (find-extension-descriptor "registered.Old" 5)))
           (is (null (extension-descriptors "registered.Old")))
           (is (eq two (file-of-symbol "registered.Kept")))
           (is (eq two (file-of-symbol "registered.A")) "Enum values are in their enum's scope.")))
    (register ""))
  (is (null (find-descriptor "registered.Kept"))))

(test texts-are-hashed-as-fnv-says
  (loop for (text hash) in '(("" "CBF29CE484222325") ("a" "AF63DC4C8601EC8C")
                             ("foobar" "85944171F73967E8"))
        do (is (equal hash (protobuf::text-fingerprint text)))))
