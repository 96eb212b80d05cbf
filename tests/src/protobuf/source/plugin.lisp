;;;; The plug-in's protocol: requests as protoc makes them, and the answers.

(in-package #:clgrpc.tests.protobuf)

(defun request-octets (files wanted &optional (parameter ""))
  (serialize (google.protobuf.compiler:make-code-generator-request
              :file-to-generate wanted :parameter parameter
              :proto-file (loop for file in files
                                collect (parse-message "google.protobuf.FileDescriptorProto"
                                                       (file-descriptor-octets file))))))

(defun answer (octets)
  (parse-message "google.protobuf.compiler.CodeGeneratorResponse" (answer-request octets)))

(defun answered-files (response)
  (loop for file across (google.protobuf.compiler:code-generator-response-file response)
        collect (cons (google.protobuf.compiler:code-generator-response.file-name file)
                      (google.protobuf.compiler:code-generator-response.file-content file))))

(defun plugin-files ()
  "Two files, of which the second imports the first and a built-in one."
  (with-tree (directory `(("low.proto" . ,(importing "clgrpc.test.plugin.low" nil))
                          ("high.proto" . "syntax = 'proto3'; package clgrpc.test.plugin.high;
import 'low.proto'; import 'google/protobuf/empty.proto';
message M { optional clgrpc.test.plugin.low.M low = 1; google.protobuf.Empty e = 2; }")))
    (protobuf::assign-symbols (protobuf::read-protos "high.proto" '() nil directory '()))))

(test requests-are-answered
  (let* ((files (plugin-files))
         (all (list* (find-file-descriptor "google/protobuf/empty.proto") files))
         (response (answer (request-octets all '("high.proto")))))
    (is (equal (protobuf::generated-files files (last files)) (answered-files response)))
    (is (= 3 (google.protobuf.compiler:code-generator-response-supported-features response)))
    (is (= 998 (google.protobuf.compiler:code-generator-response-minimum-edition response)))
    (is (= 1001 (google.protobuf.compiler:code-generator-response-maximum-edition response)))
    (is (not (google.protobuf.compiler:has-code-generator-response-error response)))
    (is (equal '("low.lisp" "high.lisp")
               (mapcar #'car (answered-files
                              (answer (request-octets all '("high.proto") "imports"))))))))

(test wrong-requests-are-answered-too
  (flet ((answered-error (octets)
           (google.protobuf.compiler:code-generator-response-error (answer octets))))
    (is (search "no parameter \"colour=red\""
                (answered-error (request-octets '() '() "colour=red"))))
    (is (search "low.proto" (answered-error (request-octets (last (plugin-files))
                                                            '("high.proto"))))))
  (signals protobuf-error (answer-request (octets-of 255 255))))

(test names-that-lead-elsewhere-are-not-answered
  (dolist (name *names-of-no-file*)
    (let ((response
            (answer (serialize
                     (google.protobuf.compiler:make-code-generator-request
                      :file-to-generate (list name)
                      :proto-file (list (google.protobuf:make-file-descriptor-proto
                                         :name name :package "clgrpc.test.elsewhere")))))))
      (is (null (answered-files response)))
      (is (search "not the name of a file"
                  (google.protobuf.compiler:code-generator-response-error response))))))

(test a-package-is-made-of-identifiers
  "A package's name in a comment of a generated file cannot end that comment."
  (dolist (package (list (format nil "a~%(evil)") "a..b" ".a" "a." "a b"))
    (signals proto-syntax-error
      (protobuf::link-set
       (list (serialize (google.protobuf:make-file-descriptor-proto
                         :name "package.proto" :package package)))))))
