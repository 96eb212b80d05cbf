;;;; Descriptors as octets, compared with those of protoc 33.2.

(in-package #:clgrpc.tests.protobuf)

(test octets-are-those-of-protoc
  (let ((vectors (editions-vectors)))
    (is (<= 60 (length (remove-duplicates (mapcar #'first vectors) :test #'string=))))
    (loop for (name form octets) in vectors
          do (is (equalp octets
                         (file-descriptor-octets (compile-edition-file name)
                                                 :source-options (string= form "source")))
                 "~A, ~A" name form))))

(test every-edition-file-has-a-vector
  (let ((known (mapcar #'first (editions-vectors))))
    (dolist (path (directory (merge-pathnames "editions/*.proto" *here*)))
      (is (member (file-namestring path) known :test #'string=) "~A" path))))

(test octets-are-a-message-of-descriptor.proto
  (let* ((file (compile-edition-file "options_used.proto"))
         (message (parse-message (find-message-type "google.protobuf.FileDescriptorProto")
                                 (file-descriptor-octets file))))
    (is (equal "options_used.proto" (field-value message "name")))
    (is (equal "clgrpc.editions.options.used" (field-value message "package")))
    (is (equalp (file-descriptor-octets file) (serialize message)))))
