;;;; The plug-in protoc-gen-clgrpc (google/protobuf/compiler/plugin.proto), which protoc and buf
;;;; call: a CodeGeneratorRequest in, a CodeGeneratorResponse out, in octets.

(in-package #:clgrpc.protobuf)

(defconstant +plugin-features+ 3
  "The features of the plug-in: FEATURE_PROTO3_OPTIONAL and FEATURE_SUPPORTS_EDITIONS.")

(defun edition-of (name)
  (enum-number "google.protobuf.Edition" name))

(defun make-response (&rest arguments)
  (apply #'google.protobuf.compiler:make-code-generator-response
         :supported-features +plugin-features+
         :minimum-edition (edition-of :edition-proto2)
         :maximum-edition (edition-of :edition-2024)
         arguments))

(defun requested-files (request imports)
  "Return the linked files for which REQUEST requests code, or, with IMPORTS, all files except those
that every image has. The second value is a list of all linked files."
  (multiple-value-bind (all fresh)
      (link-set (map 'list #'serialize
                     (google.protobuf.compiler:code-generator-request-proto-file request)))
    (assign-symbols fresh)
    (let ((wanted (google.protobuf.compiler:code-generator-request-file-to-generate request)))
      (values (if imports
                  (remove-if (lambda (file) (eq t (built-in (descriptor-name file)))) all)
                  (remove-if-not (lambda (file)
                                   (find (descriptor-name file) wanted :test #'string=))
                                 all))
              all))))

(defun respond (request)
  (let ((imports nil))
    (dolist (word (split-list (google.protobuf.compiler:code-generator-request-parameter
                               request)))
      (cond ((string= word "imports") (setf imports t))
            (t (misuse "protoc-gen-clgrpc has no parameter \"~A\"; the only one is: imports"
                       word))))
    (multiple-value-bind (wanted all) (requested-files request imports)
      (make-response
       :file (loop for (path . text) in (generated-files all wanted)
                   collect (google.protobuf.compiler:make-code-generator-response.file
                            :name path :content text))))))

(defun answer-request (octets)
  "Return the serialized CodeGeneratorResponse to OCTETS, a serialized
google.protobuf.compiler.CodeGeneratorRequest: a Lisp source for each file to generate, as
GENERATE-SOURCES makes it. With the parameter \"imports\", sources for the imports of the files are
generated too. Errors in the files or the parameter are in the response. Signal PROTOBUF-ERROR if
OCTETS are not a request."
  (let ((request (parse-message "google.protobuf.compiler.CodeGeneratorRequest" octets)))
    (serialize (handler-case (respond request)
                 (clgrpc-error (condition)
                   (make-response :error (princ-to-string condition)))))))
