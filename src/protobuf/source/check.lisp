;;;; The rules of the language that only a resolved file, with options and features, can break:
;;;; presence, packing, maps, closed enums, names in JSON, message sets, extension declarations, and
;;;; from edition 2024 on naming style and visibility (protobuf language specification and protoc
;;;; 33). The checks visit the declarations in protoc's order, so that both find the same first
;;;; error.

(in-package #:clgrpc.protobuf)

(defun edition-2024-p ()
  (equal "2024" (file-descriptor-edition (linked-file))))

(defun proto3-p ()
  (eq :proto3 (file-descriptor-syntax (linked-file))))

;;; Files

(defun lite-p (file)
  (eql 3 (first (index-of file 'optimize-for)))) ; LITE_RUNTIME

(defun optimize-for (file)
  (last (any-option-of file "optimize_for")))

(defun imported-directly (file)
  "The files that FILE, which is being linked, imports directly, without the files that it imports
for options only."
  (let ((names (name-set (file-descriptor-dependencies file))))
    (remove-if-not (lambda (import) (gethash (descriptor-name import) names))
                   (linker-imports *linker*))))

(defun check-file-options (file)
  (when (file-descriptor-edition file)
    (when (eq :legacy-required (feature-of file :field-presence))
      (complain file :edition "a whole file cannot have required presence"))
    (when (option-of file "java_string_check_utf8")
      (complain file :edition "editions have the feature (pb.java).utf8_validation instead of ~
                               java_string_check_utf8")))
  (unless (lite-p file)
    (when-let ((import (find-if #'lite-p (imported-directly file))))
      (complain (find (descriptor-name import) (file-descriptor-dependencies file)
                      :test #'string=)
                :import "a file that is not for LITE_RUNTIME cannot import ~A, which is"
                (descriptor-name import))))
  (when (proto3-p)
    (dolist (field (file-descriptor-extensions file)) (check-proto3-field field))
    (mapc #'check-proto3-message (file-descriptor-messages file)))
  (when (and (edition-2024-p) (nth-value 1 (option-of file "java_multiple_files")))
    (complain file :edition "edition 2024 has the feature (pb.java).nest_in_file_class instead ~
                             of java_multiple_files")))

;;; proto3

(defparameter *options-types*
  (loop for kind in '("File" "Message" "Field" "Oneof" "Enum" "EnumValue" "Service" "Method"
                      "ExtensionRange" "Stream" "Source" "Top")
        collect (format nil "google.protobuf.~AOptions" kind))
  "The full names of the messages that custom options extend.")

(defun check-proto3-field (field)
  (when (and (field-descriptor-extendee field)
             (not (member (field-descriptor-extendee field) *options-types* :test #'string=)))
    (complain field :extendee "proto3 has extensions for options only"))
  (when (eq :required (field-descriptor-label field))
    (complain field :type "proto3 has no required fields"))
  (when (field-descriptor-default-text field)
    (complain field :default "proto3 has no defaults of fields"))
  (when (and (eq :enum (field-descriptor-type field)) (field-descriptor-closed-p field))
    (complain field :type "a field of proto3 cannot have a closed enum such as ~A"
              (field-descriptor-type-name field)))
  (when (eq :group (field-descriptor-type field))
    (complain field :type "proto3 has no groups")))

(defun check-proto3-message (message)
  (mapc #'check-proto3-message (message-descriptor-messages message))
  (mapc #'check-proto3-field (message-descriptor-fields message))
  (mapc #'check-proto3-field (message-descriptor-extensions message))
  (when (message-descriptor-extension-ranges message)
    (complain (first (message-descriptor-extension-ranges message)) :number
              "proto3 has no extension ranges"))
  (when (option-of message "message_set_wire_format")
    (complain message :name "proto3 has no message sets")))

;;; Messages

(defun check-message (message)
  (unless (option-of message "deprecated_legacy_json_field_conflicts")
    (check-json-names message nil)
    (check-json-names message t))
  (check-extension-declarations message))

(defun custom-json-name (field)
  "Return the name of FIELD in JSON if it differs from the name that is made from the field's own
name, else nil."
  (let ((name (field-descriptor-json-name field)))
    (and (string/= name (json-name (descriptor-name field))) name)))

(defun check-json-names (message custom)
  "Check that no two fields of MESSAGE have the same name in JSON. If CUSTOM is true, the names in
json_name count; otherwise the names that are made from the fields' own names."
  (let ((seen (make-hash-table :test 'equal)))
    (dolist (field (message-descriptor-fields message))
      (let* ((given (and custom (custom-json-name field)))
             (name (or given (json-name (descriptor-name field))))
             (other (gethash name seen)))
        (cond ((and given (plusp (length given))
                    (char= #\[ (char given 0)) (char= #\] (char given (1- (length given)))))
               (complain field :name "the JSON name \"~A\" has the form of an extension's name"
                         given))
              ((null other) (setf (gethash name seen) field))
              ((and custom (null given) (null (custom-json-name other))))
              ((and (eq :legacy-best-effort (feature-of message :json-format))
                    (not (and given (custom-json-name other)))))
              (t (complain field :name "\"~A\" and \"~A\" have the same name \"~A\" in JSON"
                           (descriptor-name field) (descriptor-name other) name)))))))

(defun check-extension-declarations (message)
  (let ((maximum (if (option-of message "message_set_wire_format") 2147483646 +maximum-number+))
        (names (make-hash-table :test 'equal)))
    (dolist (range (message-descriptor-extension-ranges message))
      (when (> (extension-range-last range) maximum)
        (complain message :number "extension numbers must be at most ~D" maximum))
      (when-let ((declarations (record-values (options-record range) "declaration")))
        (when (eql 1 (option-of range "verification"))
          (complain range :number "a range with declarations cannot be UNVERIFIED")
          (return))
        (check-declarations range declarations names)))))

(defun check-declarations (range declarations names)
  "Check that DECLARATIONS, of extensions in RANGE, are valid. NAMES is a table of the names in
earlier ranges; the names in this range are added to it."
  (let ((numbers (make-hash-table)))
    (dolist (declaration declarations)
      (flet ((value (name) (record-value declaration name))
             (refuse (control &rest arguments)
               (apply #'complain range :number control arguments)))
        (let ((number (record-value declaration "number" 0))
              (full-name (declared-text declaration "full_name"))
              (type (declared-text declaration "type")))
          (unless (number-in-range-p number range)
            (refuse "the range has no number ~D to declare" number))
          (when (gethash number numbers) (refuse "the number ~D is declared twice" number))
          (setf (gethash number numbers) t)
          (cond ((and (null full-name) (null type) (value "reserved")))
                ((not (and full-name type))
                 (refuse "the declaration of ~D needs full_name and type" number))
                ((gethash full-name names)
                 (refuse "the extension ~A is declared twice" full-name)
                 (return))
                (t
                 (setf (gethash full-name names) t)
                 (dolist (name (list full-name type))
                   (unless (or (qualified-name-p name)
                               (and (eq name type) (scalar-type name)))
                     (refuse "\"~A\" is not a full name with a leading dot" name))))))))))

(defun declared-text (declaration name)
  (let ((octets (record-value declaration name)))
    (and octets (lenient-string octets))))

(defun qualified-name-p (name)
  (and (> (length name) 1)
       (char= #\. (char name 0))
       (char/= #\. (char name (1- (length name))))
       (not (search ".." name))
       (every (lambda (char) (or (letter-p char) (digit-p char) (char= #\. char))) name)))

;;; Fields

(defun check-field (field message)
  "Check FIELD; MESSAGE is the message to which it belongs or that it extends."
  (when (file-descriptor-edition (linked-file)) (check-field-features field))
  (when (and (edition-2024-p) (nth-value 1 (option-of field "ctype")))
    (complain field :type "edition 2024 has the feature (pb.cpp).string_type instead of ctype"))
  (when (and (or (option-of field "lazy") (option-of field "unverified_lazy"))
             (or (not (eq :message (field-descriptor-type field)))
                 (field-descriptor-delimited-p field)))
    (complain field :type "only a message field can be lazy"))
  (when (and (option-of field "packed") (not (and (repeated-p field) (packable-p field))))
    (complain field :type "only a repeated field of a number, bool or enum type can be packed"))
  (when (message-descriptor-message-set-p message)
    (check-message-set-field field))
  (when (and (field-descriptor-extendee field) (lite-p (linked-file))
             (let ((declared (raw-declared (descriptor-full-name message))))
               (not (and declared (lite-p (declared-file declared))))))
    (complain field :extendee "a file for LITE_RUNTIME cannot extend a message of one that is ~
                               not"))
  (when (field-descriptor-map-p field) (check-map-field field))
  (check-js-type field)
  (when (and (field-descriptor-extendee field) (custom-json-name field))
    (complain field :json-name "an extension cannot have a json_name"))
  (when (find (code-char 0) (field-descriptor-json-name field))
    (complain field :json-name "json_name has a null character"))
  (when (and (field-descriptor-extendee field) (not (linker-read-p *linker*)))
    (check-declared field message)))

(defun check-message-set-field (field)
  (cond ((null (field-descriptor-extendee field))
         (complain field :name "a message set has no fields, only extensions"))
        ((or (not (eq :message (field-descriptor-type field)))
             (field-descriptor-delimited-p field)
             (member (field-descriptor-presence field) '(:required :repeated)))
         (complain field :type "an extension of a message set is an optional message"))))

(defun check-map-field (field)
  (let* ((entry (field-message field))
         (fields (message-descriptor-fields entry))
         (key (first fields)) (value (second fields)))
    (unless (and (repeated-p field)
                 (equal '("key" "value") (mapcar #'descriptor-name fields))
                 (equal '(1 2) (mapcar #'field-descriptor-number fields))
                 (equal (descriptor-name entry) (map-entry-name (descriptor-name field))))
      (complain field :type "map_entry cannot be set; map<K, V> makes a map")
      (return-from check-map-field))
    (when (member (field-descriptor-type key) '(:float :double :bytes :message :group :enum))
      (complain field :type "the key of a map must be an integer, bool or string"))
    (when (and (eq :enum (field-descriptor-type value))
               (/= 0 (enum-value-descriptor-number
                      (first (enum-descriptor-values (field-message value))))))
      (complain field :type "the first value of an enum in a map must be 0"))))

(defun check-js-type (field)
  (let ((js-type (option-of field "jstype" 0)))
    (unless (or (zerop js-type)
                (member (field-descriptor-type field)
                        '(:int64 :uint64 :sint64 :fixed64 :sfixed64)))
      (complain field :type "only a field of a 64-bit integer type has a jstype"))))

(defun check-field-features (field)
  "Check FIELD by the rules of editions."
  (flet ((refuse (control &rest arguments) (apply #'complain field :name control arguments))
         (written (name) (written-feature field name)))
    (when (nth-value 1 (option-of field "packed"))
      (refuse "editions have the feature repeated_field_encoding instead of packed"))
    (when (eq :implicit (field-descriptor-presence field))
      (when (field-descriptor-default-text field)
        (refuse "a field with implicit presence has no default of its own"))
      (when (and (eq :enum (field-descriptor-type field)) (field-descriptor-closed-p field))
        (refuse "an enum field with implicit presence has an open enum")))
    (when (and (field-descriptor-extendee field)
               (eq :required (field-descriptor-presence field)))
      (refuse "an extension cannot be required"))
    (unless (map-entry-field-p field)
      (check-written-presence field (written "field_presence") #'refuse)
      (when (and (written "repeated_field_encoding") (not (repeated-p field)))
        (refuse "only a repeated field has the feature repeated_field_encoding"))
      (when (and (written "utf8_validation") (not (eq :string (field-descriptor-type field)))
                 (not (string-map-p field)))
        (refuse "only a string field has the feature utf8_validation"))
      (when (and (eq :packed (written "repeated_field_encoding"))
                 (not (and (repeated-p field) (packable-p field))))
        (refuse "only a repeated field of a number, bool or enum type can be PACKED"))
      (when (and (written "message_encoding")
                 (or (not (message-typed-p field)) (field-descriptor-map-p field)))
        (refuse "only a message field has the feature message_encoding")))))

(defun check-written-presence (field presence refuse)
  "Check the PRESENCE that FIELD itself requests, unless it is nil."
  (cond ((null presence))
        ((field-descriptor-oneof field)
         (funcall refuse "a field of a oneof has no feature field_presence"))
        ((repeated-p field)
         (funcall refuse "a repeated field has no feature field_presence"))
        ((field-descriptor-extendee field)
         (unless (eq presence :legacy-required)
           (funcall refuse "an extension has no feature field_presence")))
        ((and (eq presence :implicit) (message-typed-p field))
         (funcall refuse "a message field cannot have implicit presence"))))

(defun string-map-p (field)
  (and (field-descriptor-map-p field)
       (find :string (message-descriptor-fields (field-message field))
             :key #'field-descriptor-type)))

(defun declarations-by-number (range)
  "Return a table from numbers to the declarations of extensions in RANGE, which are records."
  (index-by (lambda (record) (record-value record "number" 0))
            (any-option-of range "declaration")))

(defun check-declared (field message)
  "Check that FIELD, an extension of MESSAGE, agrees with the declarations of extensions in MESSAGE,
if it has any."
  (let* ((number (field-descriptor-number field))
         (range (extension-range-of message number))
         (declarations (index-of range 'declarations-by-number))
         (mine (gethash number declarations))
         (standard (let ((declared (raw-declared (descriptor-full-name message))))
                     (equal "google/protobuf/descriptor.proto"
                            (and declared (descriptor-name (declared-file declared)))))))
    (flet ((refuse (control &rest arguments)
             (apply #'complain field :extendee control arguments)))
      (cond (standard)
            ((and mine (record-value mine "reserved"))
             (refuse "the number ~D is reserved by the declarations of ~A" number
                     (descriptor-full-name message)))
            (mine (check-declaration field mine #'refuse))
            ((or (plusp (hash-table-count declarations))
                 (eql 0 (first (last (any-option-of range "verification")))))
             (refuse "the extension range of ~A has no declaration of ~D"
                     (descriptor-full-name message) number))))))

(defun check-declaration (field declaration refuse)
  (let ((type (declared-text declaration "type"))
        (full-name (declared-text declaration "full_name"))
        (actual (if (field-descriptor-type-name field)
                    (format nil ".~A" (field-descriptor-type-name field))
                    (string-downcase (field-descriptor-type field)))))
    (when (and type (string/= actual (if (or (scalar-type type) (eql 0 (position #\. type)))
                                         type
                                         (format nil ".~A" type))))
      (funcall refuse "this extension is declared with the type ~A, not ~A" type actual))
    (when (and full-name (string/= full-name (format nil ".~A" (descriptor-full-name field))))
      (funcall refuse "this extension is declared with the name ~A" full-name))
    (unless (eq (and (record-value declaration "repeated") t) (repeated-p field))
      (funcall refuse "this extension is declared ~:[optional~;repeated~]"
               (record-value declaration "repeated")))))

;;; Enums, services

(defun check-enum (enum)
  (check-enum-names enum)
  (let ((values (enum-descriptor-values enum)) (seen (make-hash-table)))
    (when (and (not (enum-descriptor-closed-p enum))
               (/= 0 (enum-value-descriptor-number (first values))))
      (complain (first values) :number "the first value of an open enum must be 0"))
    (unless (option-of enum "allow_alias")
      (dolist (value values)
        (let* ((number (enum-value-descriptor-number value)) (other (gethash number seen)))
          (if other
              (complain value :number "the number ~D is already used by \"~A\"; \"option ~
                                       allow_alias = true;\" would allow it"
                        number (descriptor-name other))
              (setf (gethash number seen) value)))))))

(defun plain-name (value enum)
  "Return the name of VALUE without the name of ENUM as a prefix, without underscores, and in one
case."
  (flet ((plain (text) (string-downcase (remove #\_ text))))
    (let* ((prefix (plain (descriptor-name enum)))
           (name (descriptor-name value))
           (end (loop with at = 0
                      for char across prefix
                      do (loop while (and (< at (length name)) (char= #\_ (char name at)))
                               do (incf at))
                         (if (and (< at (length name)) (char-equal char (char name at)))
                             (incf at)
                             (return nil))
                      finally (return at))))
      (if end
          (let ((rest (string-left-trim "_" (subseq name end))))
            (pascal-name (if (string= "" rest) name rest)))
          (pascal-name name)))))

(defun pascal-name (name)
  "Return NAME without underscores, with a capital at the beginning and after each removed
underscore, and with small letters elsewhere."
  (with-output-to-string (out)
    (let ((up t))
      (loop for char across name
            do (cond ((char= char #\_) (setf up t))
                     (t (write-char (if up (char-upcase char) (char-downcase char)) out)
                        (setf up nil)))))))

(defun check-enum-names (enum)
  (unless (and (option-of enum "deprecated_legacy_json_field_conflicts")
               (eq :proto2 (file-descriptor-syntax (linked-file))))
    (let ((seen (make-hash-table :test 'equal)))
      (dolist (value (enum-descriptor-values enum))
        (let* ((name (plain-name value enum)) (other (gethash name seen)))
          (cond ((null other) (setf (gethash name seen) value))
                ((and (string/= (descriptor-name value) (descriptor-name other))
                      (/= (enum-value-descriptor-number value)
                          (enum-value-descriptor-number other)))
                 (complain value :name "\"~A\" and \"~A\" are the same name if case and the enum's ~
                                        name as a prefix are ignored"
                           (descriptor-name value) (descriptor-name other)))))))))

(defun check-service (service)
  (when (and (lite-p (linked-file))
             (or (option-of (linked-file) "cc_generic_services")
                 (option-of (linked-file) "java_generic_services")))
    (complain service :name "a file for LITE_RUNTIME has no generic services")))

;;; Naming style and visibility, from edition 2024 on

(defun bad-underscores-p (name)
  (loop for (char next) on (coerce name 'list)
        for first = t then nil
        thereis (and (char= char #\_)
                     (or first (null next) (not (alpha-char-p next))))))

(defun title-case-p (name)
  (and (every #'alphanumericp name) (upper-case-p (char name 0))))

(defun snake-case-p (name case-p &optional (extra ""))
  "True if NAME consists of words separated by underscores; CASE-P is true for all their letters,
and digits and EXTRA may occur in them."
  (and (every (lambda (char) (or (digit-char-p char) (funcall case-p char) (char= char #\_)
                                 (find char extra)))
              name)
       (funcall case-p (char name 0))
       (not (bad-underscores-p name))))

(defun check-style (descriptor)
  (multiple-value-bind (good wanted)
      (let ((name (descriptor-name descriptor)))
        (typecase descriptor
          (file-descriptor
           (let ((package (file-descriptor-package descriptor)))
             (values (or (string= "" package) (snake-case-p package #'lower-case-p "."))
                     "lower_snake_case for its package")))
          ((or field-descriptor oneof-descriptor)
           (values (snake-case-p name #'lower-case-p) "lower_snake_case"))
          (enum-value-descriptor (values (snake-case-p name #'upper-case-p) "UPPER_SNAKE_CASE"))
          (extension-range t)
          (t (values (title-case-p name) "TitleCase"))))
    (unless good
      (complain descriptor :name "the naming style requires ~A, not \"~A\"; ~
                                  features.enforce_naming_style = STYLE_LEGACY allows it"
                wanted (if (file-descriptor-p descriptor)
                           (file-descriptor-package descriptor)
                           (descriptor-name descriptor))))))

(defun check-nested-visibility (file)
  "Check that under strict visibility no nested type is exported, except for enums in a message that
is their name space."
  (map-messages
   (lambda (outer)
     (flet ((check (type visibility)
              (when (and (eq :export visibility)
                         (eq :strict (feature-of type :default-symbol-visibility)))
                (complain type :name "under strict visibility a nested type is not exported"))))
       (dolist (message (message-descriptor-messages outer))
         (check message (message-descriptor-visibility message)))
       (unless (name-space-p outer file)
         (dolist (enum (message-descriptor-enums outer))
           (check enum (enum-descriptor-visibility enum))))))
   file))

(defun name-space-p (message file)
  "True if MESSAGE serves only as a name space for its enums: it is local, is declared at the top
level, and reserves all numbers."
  (and (member message (file-descriptor-messages file))
       (case (message-descriptor-visibility message)
         (:local t)
         ((nil) (member (feature-of message :default-symbol-visibility) '(:strict :local-all))))
       (= 1 (length (message-descriptor-reserved-ranges message)))
       (= 1 (car (first (message-descriptor-reserved-ranges message))))))

;;; Checks of protoc's command: reserved numbers, options in the wrong place

(defun check-number (field)
  (when (<= 19000 (field-descriptor-number field) 19999)
    (complain field :number "field numbers 19000 to 19999 are reserved for the implementation")))

(defun target-type (descriptor)
  "Return two values: the number and the name that descriptor.proto has for the kind of DESCRIPTOR
as a target of options."
  (etypecase descriptor
    (file-descriptor (values 1 "a file"))
    (extension-range (values 2 "an extension range"))
    (message-descriptor (values 3 "a message"))
    (field-descriptor (values 4 "a field"))
    (oneof-descriptor (values 5 "a oneof"))
    (enum-descriptor (values 6 "an enum"))
    (enum-value-descriptor (values 7 "an enum value"))
    (service-descriptor (values 8 "a service"))
    (method-descriptor (values 9 "a method"))))

(defun check-targets (descriptor)
  (multiple-value-bind (target what) (target-type descriptor)
    (labels ((check (record)
               (loop for (field . value) in (record-entries record)
                     for targets = (any-option-of field "targets")
                     do (when (and targets (not (member target targets)))
                          (complain descriptor :name "the option ~A is not for ~A"
                                    (descriptor-full-name field) what))
                        (when (and (record-p value) (not (field-descriptor-delimited-p field)))
                          (check value)))))
      (let ((record (options-record descriptor)))
        (when record (check record))))))

;;; The whole

(defun check-descriptor (descriptor around)
  (etypecase descriptor
    (file-descriptor (check-file-options descriptor))
    (message-descriptor (check-message descriptor))
    (field-descriptor
     (check-field descriptor (if (field-descriptor-extendee descriptor)
                                 (find-thing (field-descriptor-extendee descriptor))
                                 (if (oneof-descriptor-p around)
                                     (find-thing (scope-of around))
                                     around))))
    (enum-descriptor (check-enum descriptor))
    (service-descriptor (check-service descriptor))
    ((or oneof-descriptor enum-value-descriptor extension-range method-descriptor) nil)))

(defun check-rules (file)
  "Check that FILE, whose names are resolved and whose options are interpreted, breaks no rule."
  (map-inheriting #'check-descriptor file))

(defun check-style-and-use (file)
  "Check that FILE, a source, follows naming style and visibility, uses features of its edition, and
uses numbers and options only where they are allowed."
  (flet ((check-each (function)
           (map-inheriting (lambda (descriptor around)
                             (declare (ignore around))
                             (funcall function descriptor))
                           file)))
    (check-each (lambda (descriptor)
                  (when (eq :style2024 (feature-of descriptor :enforce-naming-style))
                    (check-style descriptor))))
    (check-nested-visibility file)
    (check-feature-lifetimes file)
    (check-each (lambda (descriptor)
                  (when (field-descriptor-p descriptor) (check-number descriptor))
                  (check-targets descriptor)))))
