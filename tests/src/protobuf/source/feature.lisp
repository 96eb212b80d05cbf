;;;; Features: the defaults of a syntax or an edition, changes by options, inheritance.

(in-package #:clgrpc.tests.protobuf)

(defun feature (descriptor feature)
  (protobuf::feature-of descriptor feature))

(test each-syntax-begins-with-its-row
  (loop for (header presence enum encoding utf8)
          in '(("syntax = 'proto2';" :explicit :closed :expanded :none)
               ("syntax = 'proto3';" :implicit :open :packed :verify)
               ("edition = '2023';" :explicit :open :packed :verify))
        do (let ((file (linked (format nil "~A message M {}" header))))
             (loop for (name value) on (list :field-presence presence :enum-type enum
                                             :repeated-field-encoding encoding
                                             :utf8-validation utf8)
                     by #'cddr
                   do (is (eq value (feature file name)) "~A ~A" header name)
                      (is (eq value (feature (first (file-descriptor-messages file)) name)))))))

(test options-override-and-inner-declarations-inherit
  (let* ((file (linked "edition = '2023'; option features.field_presence = IMPLICIT;
message M { int32 a = 1; int32 b = 2 [features.field_presence = EXPLICIT];
  message N { option features.json_format = LEGACY_BEST_EFFORT; message K { int32 c = 1; }
    enum E { option features.enum_type = CLOSED; Z = 0; } } }"))
         (message (first (file-descriptor-messages file)))
         (inner (first (message-descriptor-messages message))))
    (flet ((presence (&rest path) (feature (apply #'field-of file path) :field-presence)))
      (is (eq :implicit (feature file :field-presence)))
      (is (eq :implicit (presence "M" "a")))
      (is (eq :explicit (presence "M" "b")))
      (is (eq :implicit (presence "M" "N" "K" "c")) "Three messages inherit the feature."))
    (is (eq :allow (feature message :json-format)) "Outer declarations do not inherit.")
    (is (eq :legacy-best-effort (feature inner :json-format)))
    (is (eq :legacy-best-effort
            (feature (first (message-descriptor-messages inner)) :json-format)))
    (is (eq :closed (feature (first (message-descriptor-enums inner)) :enum-type)))
    (is-true (protobuf::enum-descriptor-closed-p (first (message-descriptor-enums inner))))
    (is (eq :open (feature inner :enum-type)))))

(test only-editions-have-features
  (flet ((complaint (text)
           (handler-case (progn (linked text) nil)
             (proto-syntax-error (error) (proto-syntax-error-text error)))))
    (is (search "features exist in editions only"
                (complaint "syntax = 'proto3'; option features.field_presence = IMPLICIT;")))
    (is (search "has a value that means nothing"
                (complaint "edition = '2023';
option features.field_presence = FIELD_PRESENCE_UNKNOWN;")))
    (is (search "comes with a later edition"
                (complaint "edition = '2023';
option features.default_symbol_visibility = EXPORT_ALL;")))))
