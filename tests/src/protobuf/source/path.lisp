;;;; See src/protobuf/source/path.lisp.

(in-package #:clgrpc.tests.protobuf)

(defparameter *names-of-no-file*
  (list "../evil.proto" "/etc/hostname" "a/../../evil.proto" "./evil.proto" "a/./b.proto"
        "a//b.proto" "" "." ".." "a/" "/" "a/.." "..\\evil.proto" "a\\b.proto" "C:/evil.proto" "c:evil.proto"
        (format nil "evil.proto~C" (code-char 0)) (format nil "e~%vil.proto")
        (format nil "~C[31mevil.proto" (code-char 27)))
  "Names that must not be imported, by protoc's rules and on other systems.")

(defun escaped (name)
  "NAME in the form of a string in .proto source."
  (format nil "~{\\~3,'0O~}" (map 'list #'char-code name)))

(test imports-stay-below-their-roots
  (with-tree (directory `(("evil.proto" . "secret text")
                          ("root/a/empty.proto" . ,(importing "clgrpc.test.below" nil))))
    (dolist (name *names-of-no-file*)
      (with-signalled (condition proto-syntax-error
                       (protobuf::load-protos "climber.proto"
                                              (format nil "syntax = 'proto3'; import '~A';"
                                                      (escaped name))
                                              (list (merge-pathnames "root/" directory))))
        (let ((text (princ-to-string condition)))
          (is (search "not the name of a file" text) "~A" text)
          (is (not (search "secret" text)))
          (is (notany (lambda (char) (< (char-code char) 32)) text)))))
    (signals proto-syntax-error         ; a directory is no file
      (protobuf::load-protos "climber.proto" "syntax = 'proto3'; import 'a';"
                             (list (merge-pathnames "root/" directory))))))

(test a-path-with-parts-that-no-name-has-is-named-after-its-file
  (with-tree (directory `(("deep/odd_path.proto" . ,(importing "clgrpc.test.odd.path" nil))))
    (dolist (path '("deep//odd_path.proto" "./deep/odd_path.proto" "deep/../deep/odd_path.proto"))
      (is (equal "odd_path.proto" (defined-from path directory))))))
