;;;; Parses .proto declarations into descriptors with names as written (protobuf language
;;;; specification), one function per production: fields, messages, enums, services, files. An error
;;;; that protoc's parser reports is reported here, at the same token; the linker reports the
;;;; others.

(in-package #:clgrpc.protobuf)

(defun syntax-is (syntax)
  (eq syntax (file-descriptor-syntax (parser-file *parser*))))

;;; Fields

(defparameter *scalar-names*
  '("double" "float" "int32" "int64" "uint32" "uint64" "sint32" "sint64" "fixed32" "fixed64"
    "sfixed32" "sfixed64" "bool" "string" "bytes")
  "The types that a field can have without a declaration.")

(defun scalar-type (name)
  "The keyword of the scalar type NAME, or nil if NAME is not a scalar type."
  (when (member name *scalar-names* :test #'equal)
    (intern (string-upcase name) :keyword)))

(defun parse-type-name (what)
  "Consume the name of a declared type."
  (let ((token (this-token)))
    (cond ((and (eq :identifier (token-kind token))
                (or (scalar-type (token-value token)) (token-is "group")))
           (note-problem token "expected ~A, found ~A" what (describe-token token))
           (token-value (consume-token)))
          (t (expect-full-name what)))))

(defun parse-field-type (field)
  "Consume the type of FIELD, which may also be \"group\"."
  (let* ((token (this-token))
         (scalar (and (eq :identifier (token-kind token)) (scalar-type (token-value token)))))
    (cond (scalar
           (consume-token)
           (setf (field-descriptor-type field) scalar))
          ((accept "group")
           (when (syntax-is :editions)
             (note-problem token "editions have no groups; features.message_encoding = DELIMITED ~
                                  does the same for a message field"))
           (setf (field-descriptor-type field) :group))
          (t
           (setf (field-descriptor-type-name field)
                 (expect-full-name "the type of a field"))))))

(defun parse-field-number (field)
  (note-at field :number (this-token))
  (setf (field-descriptor-number field) (expect-integer "a field number")))

(defun parse-label (field)
  (let* ((token (this-token))
         (label (cond ((accept "optional") :optional)
                      ((accept "required") :required)
                      ((accept "repeated") :repeated))))
    (when label
      (when (and (syntax-is :editions) (not (eq label :repeated)))
        (note-problem token "editions have no label \"~(~A~)\"; use features.field_presence" label))
      (setf (field-descriptor-label field) label
            (field-descriptor-labelled-p field) t
            (field-descriptor-proto3-optional-p field)
            (and (eq label :optional) (syntax-is :proto3))))))

(defun parse-field (owner scope add &key oneof extendee)
  "Consume one field declaration, which may be a map or group, and call ADD with its descriptor.
OWNER is the descriptor of the surrounding message, or nil for an extension at the top of a file."
  (let ((first (this-token)) (field (make-field-descriptor :extendee extendee :oneof oneof)))
    (cond ((not oneof) (parse-label field))
          ((token-is-any '("optional" "required" "repeated"))
           (note-problem first "a field of a oneof has no label")
           (consume-token)))
    (note-at field :type (this-token))
    (let ((map (parse-field-kind field)))
      (parse-field-rest field owner scope first)
      (when map (add-map-entry field map owner)))
    (funcall add field)))

(defun parse-field-kind (field)
  "Consume the type of FIELD; for a map, return its key and value fields."
  (let ((map (accept "map")))
    (cond ((and map (token-is "<")) (parse-map-type field))
          (t
           (unless (or (field-descriptor-labelled-p field) (field-descriptor-oneof field)
                       (not (syntax-is :proto2)))
             (note-problem (this-token)
                           "expected \"required\", \"optional\" or \"repeated\", found ~A~:[; ~
                            without a syntax statement the file is proto2~;~]"
                           (describe-token (this-token))
                           (token-is "syntax" (svref (parser-tokens *parser*) 0))))
           (if map
               (setf (field-descriptor-type-name field) "map")
               (parse-field-type field))
           nil))))

(defun parse-field-rest (field owner scope first)
  "Consume name = number [options] and the end of FIELD, whose first token is FIRST."
  (let ((name-token (this-token)))
    (setf (descriptor-name field) (expect-name "the name of a field"))
    (expect "=" "\"=\" and a field number")
    (parse-field-number field)
    (when (eq :group (field-descriptor-type field))
      (setf (field-descriptor-type-name field) (descriptor-name field)
            (descriptor-name field) (string-downcase (descriptor-name field))))
    (parse-field-options field)
    (note-place field name-token scope)
    (cond ((eq :group (field-descriptor-type field))
           (parse-group-body field name-token owner scope first))
          (t
           (setf (descriptor-comment field) (statement-comment first (this-token)))
           (expect ";")))))

(defun parse-group-body (field token owner scope first)
  "Consume the body of the group FIELD, which is the declaration of the field's message type. TOKEN
is the group's name."
  (let ((message (note-place (make-message-descriptor :name (field-descriptor-type-name field))
                             token scope)))
    (unless (upper-case-p (char (descriptor-name message) 0))
      (note-problem token "expected a group name that begins with a capital letter, found ~A"
                    (describe-token token)))
    (unless (token-is "{") (parse-failure (this-token) "the body of the group"))
    (setf (descriptor-comment message) (token-leading first)
          (descriptor-comment field) (statement-comment first (this-token)))
    (with-nesting (+message-depth+) (parse-message-body message))
    (add-message message owner)))

(defun add-message (message owner)
  (if owner
      (push message (message-descriptor-messages owner))
      (push message (file-descriptor-messages (parser-file *parser*)))))

;;; Maps

(defun camel-case (name up)
  "NAME without its underscores. A letter after an underscore is made upper case, and if UP is true,
the first letter too."
  (with-output-to-string (out)
    (loop for char across name
          do (cond ((char= char #\_) (setf up t))
                   (t (write-char (if (and up (letter-p char)) (char-upcase char) char) out)
                      (setf up nil))))))

(defun map-entry-name (name)
  "The name protoc gives the entry type of a map field: some_map → SomeMapEntry."
  (concatenate 'string (camel-case name t) "Entry"))

(defun parse-map-type (field)
  "Consume <K, V> after \"map\"; return the fields of the entry."
  (let ((token (this-token))
        (key (make-field-descriptor :name "key" :number 1))
        (value (make-field-descriptor :name "value" :number 2)))
    (when (field-descriptor-oneof field)
      (parse-refusal token "a map field is not allowed in a oneof"))
    (when (field-descriptor-labelled-p field)
      (parse-refusal token "a map field has no label"))
    (when (field-descriptor-extendee field)
      (parse-refusal token "a map field cannot be an extension"))
    (setf (field-descriptor-label field) :repeated
          (field-descriptor-map-p field) t)
    (expect "<")
    (parse-field-type key)
    (expect ",")
    (parse-field-type value)
    (expect ">")
    (list key value)))

(defun add-map-entry (field entry-fields owner)
  "Declare in OWNER the message that the map FIELD repeats."
  (let* ((name (map-entry-name (descriptor-name field)))
         (scope (descriptor-full-name owner))
         (entry (make-message-descriptor :name name :full-name (format nil "~A.~A" scope name)
                                         :map-entry-p t :fields entry-fields
                                         :line (descriptor-line field)
                                         :column (descriptor-column field))))
    (dolist (part entry-fields)
      (setf (descriptor-line part) (descriptor-line field)
            (descriptor-column part) (descriptor-column field)
            (descriptor-full-name part) (format nil "~A.~A.~A" scope name (descriptor-name part))
            ;; the entry's fields have the features of the map
            (descriptor-options part) (remove-if-not #'feature-option-p
                                                     (descriptor-options field))))
    (setf (field-descriptor-type-name field) name)
    (add-message entry owner)))

(defun feature-option-p (option)
  (equal "features" (first (option-name option))))

;;; Field options

(defun parse-field-options (field)
  (call-in-brackets
   (lambda ()
     (cond ((token-is "default") (parse-default field))
           ((token-is "json_name") (parse-json-name field))
           (t (parse-option-assignment field)))))
  (setf (descriptor-options field) (reverse (descriptor-options field))))

(defun parse-json-name (field)
  (unless (string= "" (field-descriptor-json-name field))
    (note-problem (this-token) "json_name is already set"))
  (note-at field :json-name (this-token))
  (expect "json_name")
  (expect "=")
  (setf (field-descriptor-json-name field) (expect-text "a string, the name in JSON")))

(defun parse-default (field)
  (when (field-descriptor-default-text field)
    (note-problem (this-token) "default is already set"))
  (expect "default")
  (expect "=")
  (note-at field :default (this-token))
  (setf (values (field-descriptor-default-text field) (field-descriptor-default field))
        (parse-default-value (field-descriptor-type field))))

(defparameter *integer-ranges*
  '((:int32 -2147483648 2147483647) (:sint32 -2147483648 2147483647)
    (:sfixed32 -2147483648 2147483647) (:uint32 0 4294967295) (:fixed32 0 4294967295)
    (:int64 -9223372036854775808 9223372036854775807)
    (:sint64 -9223372036854775808 9223372036854775807)
    (:sfixed64 -9223372036854775808 9223372036854775807)
    (:uint64 0 18446744073709551615) (:fixed64 0 18446744073709551615))
  "The minimum and the maximum of each integer type.")

(defun parse-default-value (type)
  "Consume the default of a field of TYPE, which is nil for a field that has a type name. Return two
values: the default as descriptor.proto writes it, and its value. For a named type the linker
computes both."
  (let ((range (rest (assoc type *integer-ranges*))))
    (cond (range
           (let ((value (parse-integer-default range)))
             (values (format nil "~D" value) value)))
          ((member type '(:float :double)) (parse-float-default type))
          (t
           (ecase type
             (:bool (cond ((accept "true") (values "true" t))
                          ((accept "false") (values "false" nil))
                          (t (parse-failure (this-token) "\"true\" or \"false\""))))
             (:string (let ((octets (expect-string "a string as the default")))
                        (values octets (lenient-string octets))))
             (:bytes (let ((octets (expect-string "a string as the default")))
                       (values (c-escaped octets) octets)))
             (:group (parse-refusal (this-token) "a message has no default"))
             ((nil) (let ((token (consume-token)))
                      (values (if (eq :identifier (token-kind token)) (token-value token) "")
                              nil))))))))

(defun parse-integer-default (range)
  (destructuring-bind (minimum maximum) range
    (when (and (zerop minimum) (token-is "-"))
      (consume-token)
      (note-problem (this-token) "expected a default that is not negative"))
    (expect-integer "an integer as the default" :maximum maximum :signed (minusp minimum))))

(defun parse-float-default (type)
  (let* ((negative (accept "-"))
         (token (this-token))
         (value (cond ((accept "inf") sb-ext:double-float-positive-infinity)
                      ((accept "nan") (double-nan))
                      ((member (token-kind token) '(:integer :float))
                       (to-double (number-value (consume-token) nil)))
                      (t (parse-failure token "a number as the default"))))
         (signed (if (and negative (not (sb-ext:float-nan-p value))) (- value) value)))
    (if (eq type :float)
        (let ((single (text-single signed))) (values (default-float-text single) single))
        (values (default-float-text signed) signed))))

;;; Oneofs, ranges, extensions

(defun parse-oneof (message)
  (let ((first (expect "oneof"))
        (scope (descriptor-full-name message))
        (oneof (make-oneof-descriptor)))
    (let ((token (this-token)))
      (setf (descriptor-name oneof) (expect-name "the name of a oneof"))
      (note-place oneof token scope))
    (setf (descriptor-comment oneof) (token-leading first))
    (push oneof (message-descriptor-oneofs message))
    (do-block-fields ("the oneof")
      (if (token-is "option")
          (parse-option-statement oneof)
          (parse-field message scope
                       (lambda (field) (push field (message-descriptor-fields message)))
                       :oneof (descriptor-name oneof))))))

(defun parse-ranges (make &key signed (what "a number"))
  "Consume first [to last], …; call MAKE with each first and last, where last may be :MAX. Return a
list of the values of MAKE."
  (loop
    for token = (this-token)
    for first = (expect-integer what :signed signed)
    for last = (cond ((not (accept "to")) first)
                     ((accept "max") :max)
                     (t (expect-integer "a number" :signed signed)))
    for range = (funcall make first last)
    do (note-at range :number token)
    collect range
    while (accept ",")))

(defun parse-reserved (what signed)
  "Consume a reserved statement. Return two values: its ranges and its names. One of these is nil."
  (expect "reserved")
  (let ((kind (token-kind (this-token))) (ranges '()) (names '()))
    (flet ((list-of (function) (loop collect (funcall function) while (accept ","))))
      (case kind
        (:string
         (when (syntax-is :editions)
           (parse-failure (this-token) "an identifier, since editions reserve identifiers"))
         (setf names (list-of #'expect-text)))
        (:identifier
         (unless (syntax-is :editions)
           (parse-failure (this-token) "a string, since only editions reserve identifiers"))
         (setf names (list-of (lambda () (expect-name "a reserved name")))))
        (t (setf ranges (parse-ranges #'cons :signed signed :what what)))))
    (expect ";")
    (values ranges names)))

(defun parse-extension-ranges (message)
  (expect "extensions")
  (let ((ranges (parse-ranges (lambda (first last)
                                (make-extension-range :first first
                                                      :last (if (eq last :max) -1 last)))
                              :what "an extension number")))
    (parse-bracketed-options (first ranges))
    (reverse-places (descriptor-options (first ranges)))
    (dolist (range (rest ranges))
      (setf (descriptor-options range) (descriptor-options (first ranges))))
    (expect ";")
    (setf (message-descriptor-extension-ranges message)
          (revappend ranges (message-descriptor-extension-ranges message)))))

(defun parse-extend (owner scope)
  "Consume extend Name { fields }."
  (expect "extend")
  (let* ((token (this-token))
         (extendee (parse-type-name "the name of a message")))
    (do-block-fields ("the extension")
      (parse-field owner scope
                   (lambda (field)
                     (note-at field :extendee token)
                     (if owner
                         (push field (message-descriptor-extensions owner))
                         (push field (file-descriptor-extensions (parser-file *parser*)))))
                   :extendee extendee))))

;;; Messages

(defun parse-visibility ()
  "If the edition has visibilities, consume \"export\" or \"local\" before a type. Return it as a
keyword, or nil if neither is there."
  (when (and (token-is-any '("export" "local"))
             (equal "2024" (file-descriptor-edition (parser-file *parser*))))
    (let ((visibility (if (accept "export") :export (progn (consume-token) :local))))
      (unless (token-is-any '("message" "enum"))
        (parse-failure (this-token) "\"message\" or \"enum\", since only types have a visibility"))
      visibility)))

(defun parse-message-statement (message)
  (let ((scope (descriptor-full-name message)) (visibility (parse-visibility)))
    (cond ((token-is "message") (push (parse-message-declaration scope visibility)
                                      (message-descriptor-messages message)))
          ((token-is "enum") (push (parse-enum scope visibility)
                                   (message-descriptor-enums message)))
          ((token-is "extensions") (parse-extension-ranges message))
          ((token-is "reserved") (parse-message-reserved message))
          ((token-is "extend") (parse-extend message scope))
          ((token-is "option") (parse-option-statement message))
          ((token-is "oneof") (parse-oneof message))
          (t (parse-field message scope
                          (lambda (field) (push field (message-descriptor-fields message))))))))

(defun parse-message-reserved (message)
  (multiple-value-bind (ranges names) (parse-reserved "a field number" nil)
    (setf (message-descriptor-reserved-ranges message)
          (revappend ranges (message-descriptor-reserved-ranges message))
          (message-descriptor-reserved-names message)
          (revappend names (message-descriptor-reserved-names message)))))

(defun parse-message-body (message)
  (do-block-statements ("the message") (parse-message-statement message))
  (finish-lists message)
  (finish-ranges message)
  (when-let ((map-entry (find '("map_entry") (descriptor-options message)
                              :key #'option-name :test #'equal)))
    (push (make-condition 'proto-syntax-error
                          :file (descriptor-name (parser-file *parser*))
                          :line (option-line map-entry) :column (option-column map-entry)
                          :text "map_entry cannot be set; map<K, V> makes a map")
          (parser-problems *parser*))))

(defun parse-message-declaration (scope visibility)
  (with-nesting (+message-depth+)
    (let* ((first (expect "message"))
           (token (this-token))
           (message (make-message-descriptor :name (expect-name "the name of a message")
                                             :visibility visibility)))
      (note-place message token scope)
      (setf (descriptor-comment message) (statement-comment first (this-token)))
      (parse-message-body message)
      message)))

(defun finish-lists (message)
  (reverse-places (message-descriptor-fields message) (message-descriptor-oneofs message)
                  (message-descriptor-messages message) (message-descriptor-enums message)
                  (message-descriptor-extensions message) (descriptor-options message)
                  (message-descriptor-extension-ranges message)
                  (message-descriptor-reserved-ranges message)
                  (message-descriptor-reserved-names message))
  (dolist (oneof (message-descriptor-oneofs message))
    (reverse-places (descriptor-options oneof))))

(defun finish-ranges (message)
  "Replace :MAX in the ranges of MESSAGE by the maximum that its options allow."
  (setf (message-descriptor-message-set-p message)
        (option-true-p message "message_set_wire_format"))
  (let ((maximum (if (message-descriptor-message-set-p message) 2147483646 536870911)))
    (dolist (range (message-descriptor-reserved-ranges message))
      (when (eq :max (cdr range)) (setf (cdr range) maximum)))
    (dolist (range (message-descriptor-extension-ranges message))
      (when (= -1 (extension-range-last range)) (setf (extension-range-last range) maximum)))))

;;; Enums

(defun parse-enum (scope visibility)
  (let* ((first (expect "enum"))
         (token (this-token))
         (enum (make-enum-descriptor :name (expect-name "the name of an enum")
                                     :visibility visibility)))
    (note-place enum token scope)
    (setf (descriptor-comment enum) (statement-comment first (this-token)))
    (do-block-statements ("the enum") (parse-enum-statement enum scope))
    (reverse-places (enum-descriptor-values enum) (descriptor-options enum)
                    (enum-descriptor-reserved-ranges enum) (enum-descriptor-reserved-names enum))
    (check-aliases enum)
    enum))

(defun check-aliases (enum)
  "Check that allow_alias has an effect if ENUM, which was parsed before, has this option."
  (let ((option (find '("allow_alias") (descriptor-options enum)
                      :key #'option-name :test #'equal))
        (numbers (mapcar #'enum-value-descriptor-number (enum-descriptor-values enum))))
    (cond ((null option))
          ((not (equal '(:identifier "true") (option-value option)))
           (parse-refusal (this-token) "allow_alias = false has no effect; remove it from ~A"
                          (descriptor-name enum)))
          ((= (length numbers) (length (remove-duplicates numbers)))
           (parse-refusal (this-token) "~A has allow_alias but no aliases; leave it out"
                          (descriptor-name enum))))))

(defun parse-enum-statement (enum scope)
  (cond ((token-is "option") (parse-option-statement enum))
        ((token-is "reserved")
         (multiple-value-bind (ranges names) (parse-reserved "an enum number" t)
           (dolist (range ranges)
             (when (eq :max (cdr range)) (setf (cdr range) 2147483647)))
           (setf (enum-descriptor-reserved-ranges enum)
                 (revappend ranges (enum-descriptor-reserved-ranges enum))
                 (enum-descriptor-reserved-names enum)
                 (revappend names (enum-descriptor-reserved-names enum)))))
        (t (parse-enum-value enum scope))))

(defun parse-enum-value (enum scope)
  (let* ((token (this-token))
         (value (make-enum-value-descriptor :name (expect-name "the name of an enum value"))))
    (note-place value token scope)      ; a value is a sibling of its enum
    (expect "=" "\"=\" and a number")
    (note-at value :number (this-token))
    (setf (enum-value-descriptor-number value) (expect-integer "an enum number" :signed t))
    (parse-bracketed-options value)
    (reverse-places (descriptor-options value))
    (setf (descriptor-comment value) (statement-comment token (this-token)))
    (expect ";")
    (push value (enum-descriptor-values enum))))

;;; Services

(defun parse-method-type (method kind)
  "Consume ([stream] Name); return the name and whether it streams."
  (expect "(")
  (let ((stream (accept "stream")))
    (note-at method kind (this-token))
    (multiple-value-prog1 (values (parse-type-name "the name of a message") (and stream t))
      (expect ")"))))

(defun parse-method (service)
  (let* ((first (expect "rpc"))
         (token (this-token))
         (method (make-method-descriptor :name (expect-name "the name of a method"))))
    (note-place method token (descriptor-full-name service))
    (setf (values (method-descriptor-input method) (method-descriptor-client-streaming-p method))
          (parse-method-type method :input))
    (expect "returns")
    (setf (values (method-descriptor-output method) (method-descriptor-server-streaming-p method))
          (parse-method-type method :output))
    (setf (descriptor-comment method) (statement-comment first (this-token)))
    (cond ((token-is "{")
           (note-at method :options (this-token))
           (do-block-statements ("the method") (parse-option-statement method)))
          (t (expect ";")))
    (reverse-places (descriptor-options method))
    (push method (service-descriptor-methods service))))

(defun parse-service (scope)
  (let* ((first (expect "service"))
         (token (this-token))
         (service (make-service-descriptor :name (expect-name "the name of a service"))))
    (note-place service token scope)
    (setf (descriptor-comment service) (statement-comment first (this-token)))
    (do-block-statements ("the service")
      (if (token-is "option")
          (parse-option-statement service)
          (parse-method service)))
    (reverse-places (service-descriptor-methods service) (descriptor-options service))
    service))

;;; Files

(defun parse-syntax (file)
  "Consume the syntax or edition statement, if there is one. The file ends at an error in the
declaration."
  (let* ((first (this-token))
         (edition (accept "edition")))
    (note-at file :edition first)
    (when (or edition (accept "syntax"))
      (expect "=")
      (let* ((token (this-token))
             (name (expect-text "a string, the syntax or edition"))
             (syntax (cdr (assoc name '(("proto2" . :proto2) ("proto3" . :proto3))
                                 :test #'string=))))
        (expect ";")
        (cond (edition
               (unless (member name *editions* :test #'string=)
                 (parse-refusal token "there is no edition \"~A\"; the editions are ~{~A~^ and ~}"
                                name *editions*))
               (setf (file-descriptor-syntax file) :editions
                     (file-descriptor-edition file) name))
              (syntax (setf (file-descriptor-syntax file) syntax))
              (t (parse-refusal token "expected \"proto2\" or \"proto3\", found \"~A\"" name)))))))

(defun parse-import (file)
  (let* ((first (expect "import"))
         (token (this-token))
         (option (accept "option"))
         (edition-2024 (equal "2024" (file-descriptor-edition file)))
         (public (and (not option) (accept "public")))
         (weak (and (not option) (not public) (accept "weak"))))
    (cond (option (unless edition-2024
                    (note-problem token "\"import option\" requires edition 2024")))
          ((file-descriptor-option-dependencies file)
           (note-problem token "option imports must come after all others")))
    (when (and weak edition-2024)
      (note-problem token "edition 2024 has no weak imports; \"import option\" may replace them"))
    (let* ((place (this-token))
           (name (expect-text "a string, the file to import")))
      (unless (file-name-p name) (parse-refusal place "~A" (file-name-text name)))
      (note-at name :import first)
      (cond (option (push name (file-descriptor-option-dependencies file)))
            (t
             (push name (file-descriptor-dependencies file))
             (when public (push name (file-descriptor-public-dependencies file)))
             (when weak (push name (file-descriptor-weak-dependencies file)))))
      (expect ";"))))

(defun parse-package (file)
  (let ((token (this-token)))
    (unless (string= "" (file-descriptor-package file))
      (note-problem token "only one package statement is allowed"))
    (note-at file :name token)
    (consume-token)
    (setf (file-descriptor-package file)
          (format nil "~{~A~^.~}" (loop collect (expect-name "the name of a package")
                                        while (accept "."))))
    (expect ";")))

(defun parse-file-statement (file)
  (let ((scope (file-descriptor-package file)) (visibility (parse-visibility)))
    (cond ((token-is "message") (push (parse-message-declaration scope visibility)
                                      (file-descriptor-messages file)))
          ((token-is "enum") (push (parse-enum scope visibility) (file-descriptor-enums file)))
          ((token-is "service") (push (parse-service scope) (file-descriptor-services file)))
          ((token-is "extend") (parse-extend nil scope))
          ((token-is "import") (parse-import file))
          ((token-is "package") (parse-package file))
          ((token-is "option") (parse-option-statement file))
          (t (parse-failure (this-token)
                            "a declaration such as \"message\", \"service\" or \"import\"")))))

(defun parse-file-statements (file)
  (loop until (at-end-p)
        do (unless (accept ";")
             (call-recovering (lambda () (parse-file-statement file)))
             (when (token-is "}")
               (note-problem (this-token) "this \"}\" closes nothing")
               (consume-token)))))

(defun parse-proto (text name)
  "Return the unlinked descriptor of the file NAME whose source is TEXT. Signal PROTO-SYNTAX-ERROR
for the first error; this condition contains all further errors."
  (multiple-value-bind (tokens lexer-problems) (tokenize text name)
    (let* ((file (make-file-descriptor :name name :full-name name
                                       :places (make-hash-table :test 'eq)))
           (*parser* (make-parser :tokens tokens :file file)))
      (handler-case
          (let ((first (this-token)))
            (parse-syntax file)
            (setf (descriptor-comment file) (token-leading first))
            (parse-file-statements file))
        (proto-syntax-error (problem) (push problem (parser-problems *parser*))))
      (signal-problems (merge 'list lexer-problems (reverse (parser-problems *parser*)) #'<
                              :key #'proto-syntax-error-line))
      (reverse-places (file-descriptor-dependencies file)
                      (file-descriptor-public-dependencies file)
                      (file-descriptor-weak-dependencies file)
                      (file-descriptor-option-dependencies file)
                      (file-descriptor-messages file)
                      (file-descriptor-enums file) (file-descriptor-extensions file)
                      (file-descriptor-services file) (descriptor-options file))
      file)))

(defun signal-problems (problems)
  "Signal the first of PROBLEMS, if there are any; this condition contains all further problems."
  (when problems
    (setf (proto-syntax-error-others (first problems)) (rest problems))
    (error (first problems))))
