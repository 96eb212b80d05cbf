;;;; The search for .proto files, and their names.

(in-package #:clgrpc.tests.protobuf)

(defun call-with-tree (files function)
  "Write FILES, an alist from paths to texts, into a fresh directory and call FUNCTION with it."
  (let ((directory (uiop:ensure-directory-pathname
                    (format nil "~Aclgrpc-~36R/" (namestring (uiop:temporary-directory))
                            (random (expt 36 8) (make-random-state t))))))
    (unwind-protect
         (progn
           (loop for (path . text) in files
                 do (let ((file (merge-pathnames path directory)))
                      (ensure-directories-exist file)
                      (with-open-file (stream file :direction :output :external-format :utf-8)
                        (write-string text stream))))
           (funcall function (truename directory)))
      (uiop:delete-directory-tree directory :validate t :if-does-not-exist :ignore))))

(defmacro with-tree ((directory files) &body body)
  "Run BODY with DIRECTORY bound to a fresh directory that holds FILES."
  `(call-with-tree ,files (lambda (,directory) ,@body)))

(defun defined-from (path directory &rest options)
  "The name that DEFINE-PROTO of PATH returns at a REPL in DIRECTORY."
  (let ((*default-pathname-defaults* directory)
        (*load-truename* nil)
        (*compile-file-truename* nil))
    (eval `(define-proto ,path ,@options))))

(defun importing (package import)
  (format nil "syntax = 'proto3'; package ~A;~@[ import '~A';~] message M { }" package import))

(test a-file-s-own-directory-is-looked-in
  (with-tree (directory `(("deep/own_a.proto" . ,(importing "clgrpc.test.own.a" "own_b.proto"))
                          ("deep/own_b.proto" . ,(importing "clgrpc.test.own.b" nil))))
    (is (equal "deep/own_a.proto" (defined-from "deep/own_a.proto" directory)))
    (is-true (find-file-descriptor "own_b.proto"))))

(test a-package-implies-a-root
  (with-tree (directory
              `(("p/clgrpc/test/root/a.proto"
                 . ,(importing "clgrpc.test.root" "clgrpc/test/other/b.proto"))
                ("p/clgrpc/test/other/b.proto" . ,(importing "clgrpc.test.other.b" nil))))
    (is (equal "clgrpc/test/root/a.proto"
               (defined-from "p/clgrpc/test/root/a.proto" directory)))
    (is-true (find-file-descriptor "clgrpc/test/other/b.proto"))))

(test roots-are-registered
  (with-tree (directory `(("x/reg_a.proto" . ,(importing "clgrpc.test.reg.a" "y/reg_b.proto"))
                          ("z/y/reg_b.proto" . ,(importing "clgrpc.test.reg.b" nil))))
    (signals proto-syntax-error (defined-from "x/reg_a.proto" directory))
    (let ((*import-roots* (list (merge-pathnames "z/" directory))))
      (is (equal "x/reg_a.proto" (defined-from "x/reg_a.proto" directory))))
    (is (equal "reg_a.proto" (defined-from "x/reg_a.proto" directory :import-paths '("x" "z"))))))

(test built-in-files-come-first
  (with-tree (directory `(("google/protobuf/empty.proto" . "syntax = 'none';")
                          ("first.proto" . ,(importing "clgrpc.test.first"
                                                       "google/protobuf/empty.proto"))))
    (is (equal "first.proto" (defined-from "first.proto" directory)))))

(test imports-of-what-the-image-has-are-known
  "A file sets an option whose type is in a file that it imports only through a file that is already
defined."
  (with-tree (directory
              `(("rule.proto" . "syntax = 'proto3'; package clgrpc.test.rule;
                                 message Rule { string path = 1; }")
                ("annotation.proto"
                 . "syntax = 'proto3'; package clgrpc.test.annotation;
                    import 'rule.proto'; import 'google/protobuf/descriptor.proto';
                    extend google.protobuf.MessageOptions { clgrpc.test.rule.Rule rule = 51234; }")
                ("user.proto"
                 . "syntax = 'proto3'; package clgrpc.test.annotated; import 'annotation.proto';
                    message M { option (clgrpc.test.annotation.rule) = { path: 'x' }; }")))
    (is (equal "annotation.proto" (defined-from "annotation.proto" directory)))
    (is (equal "user.proto" (defined-from "user.proto" directory)))))

(test errors-say-where-was-looked
  (with-tree (directory `(("in/lost.proto" . ,(importing "clgrpc.test.lost" "not/there.proto"))))
    (with-signalled (condition proto-syntax-error
                     (defined-from "in/lost.proto" directory :import-paths '("more/")))
      (let ((text (princ-to-string condition)))
        (is (search "lost.proto:1:" text))
        (is (search "\"not/there.proto\"" text))
        (is (search "; :import-paths names other directories" text))
        (dolist (place '("" "in/" "more/"))
          (is (search (namestring (merge-pathnames place directory)) text) "~A" text))))
    (with-signalled (condition misuse (defined-from "in/none.proto" directory))
      (is (search (namestring directory) (princ-to-string condition))))))

(test files-without-end-are-refused
  (is (search "/dev/zero cannot be read: it is longer than 67108864 octets"
              (handler-case (protobuf::read-source #p"/dev/zero")
                (misuse (error) (princ-to-string error))))))

(test the-system-around-is-looked-in
  (let ((directory (asdf:system-relative-pathname "clgrpc" "tests/src/protobuf/")))
    (is (equal (asdf:system-source-directory "clgrpc")
               (asdf:system-source-directory (protobuf::system-around directory))))
    (is (null (protobuf::system-around #p"/")))))
