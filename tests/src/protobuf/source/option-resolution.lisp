;;;; Interpreted options: custom ones are messages, read through generated code.

(in-package #:clgrpc.tests.protobuf)

(defun options-text (octets)
  "The numbers of the fields in OCTETS, in order."
  (mapcar #'first (protobuf::wire-fields octets)))

(test custom-options-are-serialized
  (let* ((file (compile-edition-file "options_used.proto"))
         (message (first (file-descriptor-messages file)))
         (service (first (file-descriptor-services file))))
    (is (equal '(1 11 50000 50001 50001 50002)
               (options-text (descriptor-option-octets file)))
        "packed numbers are one field")
    (is (equal '(1 11 50000) (subseq (options-text (descriptor-source-option-octets file)) 0 3)))
    (is (equal '(50000 50001 50002) (options-text (descriptor-option-octets message))))
    (is (equal '(33 50000) (options-text (descriptor-option-octets service))))
    (is (null (descriptor-option-octets (first (file-descriptor-services
                                                (compile-edition-file "services.proto")))))
        "no options")))

(test options-for-the-source-are-left-out
  (let* ((file (compile-edition-file "retention.proto"))
         (used (find "Used" (file-descriptor-messages file) :key #'descriptor-name
                                                             :test #'string=)))
    (is (equal '(50100) (options-text (descriptor-option-octets used))))
    (is (equal '(50101 50100) (options-text (descriptor-source-option-octets used))))
    (is (null (descriptor-option-octets (first (message-descriptor-fields used)))))))

(test options-are-messages-of-generated-types
  (let* ((file (compile-edition-file "file_options.proto"))
         (options (parse-message (find-message-type "google.protobuf.FileOptions")
                                 (descriptor-option-octets file))))
    (is (equal "org.example" (field-value options "java_package")))
    (is (eq t (field-value options "deprecated")))))

(test features-come-from-meaning
  (let* ((file (compile-edition-file "aggregate.proto"))
         (fields (message-descriptor-fields (first (file-descriptor-messages file)))))
    (is (equal '(:explicit :repeated :required :explicit)
               (mapcar #'field-descriptor-presence fields)))
    (is (equal '(nil t nil nil) (mapcar #'field-descriptor-packed-p fields)))
    (is-true (protobuf::enum-descriptor-closed-p
              (first (file-descriptor-enums (compile-edition-file "cpp.proto")))))
    (is-false (protobuf::enum-descriptor-closed-p (first (file-descriptor-enums file))))))
