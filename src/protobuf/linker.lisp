;;;; Linking: names as written become full names, features become plain facts about each field, and
;;;; what the language forbids is found (protobuf language specification; name resolution is C++'s:
;;;; the innermost scope that has the first part of a name decides). Errors are collected; LINK-FILE
;;;; signals the first with the others in it.

(in-package #:clgrpc.protobuf)

(defstruct (linker (:copier nil))
  (file nil :type (or null file-descriptor))
  (names (make-hash-table :test 'equal) :type hash-table)
  (problems '() :type list))

(defvar *linker*)
(setf (documentation '*linker* 'variable) "The linker at work.")

(defun complain (place text &optional expected)
  "Note the error TEXT at PLACE, a descriptor or option."
  (multiple-value-bind (line column)
      (if (option-p place)
          (values (option-line place) (option-column place))
          (values (descriptor-line place) (descriptor-column place)))
    (push (make-condition 'proto-syntax-error
                          :file (descriptor-name (linker-file *linker*))
                          :line line :column column :text text :expected expected)
          (linker-problems *linker*))
    nil))

(defun complain-of (place control &rest arguments)
  (complain place (format nil "~?" control arguments)))

;;; The names in sight

(defun enter-name (descriptor &optional own)
  (let* ((name (descriptor-full-name descriptor))
         (there (gethash name (linker-names *linker*))))
    (if (and own there)
        (complain-of descriptor "\"~A\" is already declared~@[ at line ~D~]" name
                     (and (descriptor-p there) (descriptor-line there)))
        (setf (gethash name (linker-names *linker*)) descriptor))))

(defun enter-package (package)
  (loop for end = (position #\. package) then (position #\. package :start (1+ end))
        do (let ((prefix (subseq package 0 end)))
             (unless (or (string= "" prefix) (gethash prefix (linker-names *linker*)))
               (setf (gethash prefix (linker-names *linker*)) :package)))
        while end))

(defun enter-message (message own)
  (enter-name message own)
  (dolist (field (message-descriptor-fields message)) (enter-name field own))
  (dolist (oneof (message-descriptor-oneofs message)) (enter-name oneof own))
  (dolist (field (message-descriptor-extensions message)) (enter-name field own))
  (dolist (enum (message-descriptor-enums message)) (enter-enum enum own))
  (dolist (inner (message-descriptor-messages message)) (enter-message inner own)))

(defun enter-enum (enum own)
  (enter-name enum own)
  (dolist (value (enum-descriptor-values enum)) (enter-name value own)))

(defun enter-file (file own)
  (enter-package (file-descriptor-package file))
  (dolist (message (file-descriptor-messages file)) (enter-message message own))
  (dolist (enum (file-descriptor-enums file)) (enter-enum enum own))
  (dolist (field (file-descriptor-extensions file)) (enter-name field own))
  (dolist (service (file-descriptor-services file)) (enter-name service own)))

(defun visible-files (file find)
  "The files whose names FILE sees: its imports and what those import publicly. FIND maps a name to
a file descriptor."
  (let ((seen '()))
    (labels ((visit (name)
               (let ((import (funcall find name)))
                 (unless (member import seen)
                   (push import seen)
                   (mapc #'visit (file-descriptor-public-dependencies import))))))
      (mapc #'visit (file-descriptor-dependencies file)))
    (nreverse seen)))

(defun resolve-name (name scope accept)
  "Return the descriptor that NAME, written inside SCOPE, means and ACCEPT holds of, or nil."
  (let ((names (linker-names *linker*)))
    (when (char= #\. (char name 0))
      (let ((found (gethash (subseq name 1) names)))
        (return-from resolve-name (and found (funcall accept found) found))))
    (let ((head (subseq name 0 (position #\. name))))
      (loop
        (let* ((prefix (if (string= "" scope) "" (format nil "~A." scope)))
               (first (gethash (concatenate 'string prefix head) names))
               (found (gethash (concatenate 'string prefix name) names)))
          (cond ((and found (funcall accept found)) (return found))
                ((and first (string/= head name) (aggregate-p first)) (return nil))
                ((string= "" scope) (return nil)))
          (setf scope (subseq scope 0 (or (position #\. scope :from-end t) 0))))))))

(defun aggregate-p (thing)
  (typep thing '(or (eql :package) message-descriptor enum-descriptor service-descriptor)))

(defun scope-of (descriptor)
  (let ((full (descriptor-full-name descriptor)))
    (subseq full 0 (or (position #\. full :from-end t) 0))))

;;; Fields

(defun type-descriptor-p (thing)
  (or (message-descriptor-p thing) (enum-descriptor-p thing)))

(defun link-field-type (field)
  "Resolve the type FIELD names; note whether it is a message or an enum."
  (when (field-descriptor-type-name field)
    (let* ((name (field-descriptor-type-name field))
           (found (resolve-name name (scope-of field) #'type-descriptor-p)))
      (cond ((null found)
             (complain-of field "the type \"~A\" of \"~A\" is not declared" name
                          (descriptor-name field)))
            (t
             (setf (field-descriptor-type-name field) (descriptor-full-name found))
             (unless (field-descriptor-type field)
               (setf (field-descriptor-type field)
                     (if (enum-descriptor-p found) :enum :message)))
             (when (enum-descriptor-p found)
               (setf (field-descriptor-closed-p field) (enum-descriptor-closed-p found))))))))

(defun packable-p (field)
  (not (member (field-descriptor-type field) '(:string :bytes :message :group nil))))

(defun link-presence (field)
  (setf (field-descriptor-presence field)
        (cond ((eq :repeated (field-descriptor-label field)) :repeated)
              ((or (eq :required (field-descriptor-label field))
                   (eq :legacy-required (getf (descriptor-features field) :field-presence)))
               :required)
              ((or (field-descriptor-oneof field)
                   (field-descriptor-extendee field)
                   (field-descriptor-proto3-optional-p field)
                   (member (field-descriptor-type field) '(:message :group)))
               :explicit)
              (t (getf (descriptor-features field) :field-presence)))))

(defun link-field-facts (field)
  "Turn the features and options of FIELD into facts."
  (let ((features (descriptor-features field))
        (packed (find-option field "packed")))
    (setf (field-descriptor-proto3-optional-p field)
          (and (eq :proto3 (file-descriptor-syntax (linker-file *linker*)))
               (field-descriptor-labelled-p field)
               (eq :optional (field-descriptor-label field))
               (null (field-descriptor-extendee field))))
    (link-presence field)
    (when (and packed (not (and (eq :repeated (field-descriptor-label field)) (packable-p field))))
      (complain-of field "only a repeated field of a number, bool or enum type can be packed"))
    (setf (field-descriptor-packed-p field)
          (and (eq :repeated (field-descriptor-label field))
               (packable-p field)
               (if packed
                   (equal packed '(:identifier "true"))
                   (eq :packed (getf features :repeated-field-encoding))))
          (field-descriptor-unchecked-p field) (eq :none (getf features :utf8-validation))
          (field-descriptor-delimited-p field)
          (or (eq :group (field-descriptor-type field))
              (and (eq :message (field-descriptor-type field))
                   (not (field-descriptor-map-p field))
                   (eq :delimited (getf features :message-encoding)))))))

(defun json-name (name)
  "The name a field has in JSON: foo_bar → fooBar."
  (with-output-to-string (out)
    (let ((up nil))
      (loop for char across name
            do (cond ((char= char #\_) (setf up t))
                     (t (write-char (if up (char-upcase char) char) out) (setf up nil)))))))

(defun link-json-name (field)
  (let ((given (find-option field "json_name")))
    (setf (field-descriptor-json-name field)
          (cond ((null given) (json-name (descriptor-name field)))
                ((typep given 'octets) (octets-string given))
                (t (complain-of field "json_name must be a string") "")))))

(defparameter *integer-ranges*
  '((:int32 -2147483648 2147483647) (:sint32 -2147483648 2147483647)
    (:sfixed32 -2147483648 2147483647) (:uint32 0 4294967295) (:fixed32 0 4294967295)
    (:int64 -9223372036854775808 9223372036854775807)
    (:sint64 -9223372036854775808 9223372036854775807)
    (:sfixed64 -9223372036854775808 9223372036854775807)
    (:uint64 0 18446744073709551615) (:fixed64 0 18446744073709551615))
  "The least and greatest number of each integer type.")

(defun default-value (field value)
  "The Lisp value that VALUE, the constant of the option default of FIELD, stands for; or nil and
true if it is none."
  (let* ((type (field-descriptor-type field))
         (word (and (consp value) (eq :identifier (first value)) (second value)))
         (range (rest (assoc type *integer-ranges*))))
    (cond (range
           (if (and (integerp value) (<= (first range) value (second range))) value (values nil t)))
          ((member type '(:float :double))
           (let ((number (cond ((realp value) value)
                               ((equal word "inf") sb-ext:double-float-positive-infinity)
                               ((equal word "nan") (double-nan)))))
             (cond ((null number) (values nil t))
                   ((eq type :double) (to-double number))
                   (t (to-single number)))))
          ((eq type :bool)
           (cond ((equal word "true") t) ((equal word "false") nil) (t (values nil t))))
          ((eq type :string) (if (typep value 'octets) (octets-string value) (values nil t)))
          ((eq type :bytes) (if (typep value 'octets) value (values nil t)))
          ((eq type :enum)
           (let ((named (find word (enum-values-of field) :key #'descriptor-name :test #'equal)))
             (if named (enum-value-descriptor-number named) (values nil t))))
          (t (values nil t)))))

(defun enum-values-of (field)
  (let ((enum (gethash (field-descriptor-type-name field) (linker-names *linker*))))
    (and (enum-descriptor-p enum) (enum-descriptor-values enum))))

(defun link-default (field)
  (multiple-value-bind (given present) (find-option field "default")
    (cond ((not present)
           (when (and (eq :enum (field-descriptor-type field)) (enum-values-of field))
             (setf (field-descriptor-default field)
                   (enum-value-descriptor-number (first (enum-values-of field))))))
          ((eq :implicit (field-descriptor-presence field))
           (complain-of field "a field with implicit presence has no default of its own"))
          ((eq :repeated (field-descriptor-label field))
           (complain-of field "a repeated field has no default"))
          (t
           (multiple-value-bind (value wrong) (default-value field given)
             (if wrong
                 (complain-of field "this is no default for a field of type ~(~A~)"
                              (field-descriptor-type field))
                 (setf (field-descriptor-default field) value)))))))

(defun link-field (field)
  (link-field-type field)
  (link-field-facts field)
  (link-json-name field)
  (link-default field)
  (when (<= 19000 (field-descriptor-number field) 19999)
    (complain-of field "field numbers 19000 to 19999 are reserved for the implementation"))
  (check-label field))

(defun check-label (field)
  (let ((syntax (file-descriptor-syntax (linker-file *linker*)))
        (label (field-descriptor-label field))
        (labelled (field-descriptor-labelled-p field)))
    (cond ((and (field-descriptor-oneof field) labelled)
           (complain-of field "a field of a oneof has no label"))
          ((and (eq syntax :proto3) (eq label :required))
           (complain-of field "proto3 has no required fields"))
          ((and (eq syntax :editions) labelled (member label '(:required :optional)))
           (complain-of field "editions have no label ~(~A~); use features.field_presence" label))
          ((and (eq syntax :proto2) (not labelled) (null (field-descriptor-oneof field))
                (not (field-descriptor-map-p field))
                (not (map-entry-field-p field)))
           (complain field "expected \"required\", \"optional\" or \"repeated\""
                     "\"required\", \"optional\" or \"repeated\""))
          ((and (not (eq syntax :proto2)) (eq :group (field-descriptor-type field)))
           (complain-of field "groups exist in proto2 only")))))

(defun map-entry-field-p (field)
  (let ((owner (gethash (scope-of field) (linker-names *linker*))))
    (and (message-descriptor-p owner) (message-descriptor-map-entry-p owner))))

;;; Messages

(defun in-ranges-p (number ranges)
  (loop for range in ranges
        for first = (first range)
        for last = (if (consp (rest range)) (second range) (rest range))
          thereis (<= first number last)))

(defun check-numbers (message)
  (let ((seen (make-hash-table)))
    (dolist (field (message-descriptor-fields message))
      (let* ((number (field-descriptor-number field))
             (other (gethash number seen)))
        (cond (other
               (complain-of field "field number ~D is already used by \"~A\"" number
                            (descriptor-name other)))
              ((in-ranges-p number (message-descriptor-reserved-ranges message))
               (complain-of field "field number ~D is reserved" number))
              ((in-ranges-p number (message-descriptor-extension-ranges message))
               (complain-of field "field number ~D is in an extension range" number)))
        (setf (gethash number seen) field)
        (when (member (descriptor-name field) (message-descriptor-reserved-names message)
                      :test #'string=)
          (complain-of field "the name \"~A\" is reserved" (descriptor-name field)))))))

(defun check-map-entry (message)
  (let ((key (first (message-descriptor-fields message))))
    (when (member (field-descriptor-type key) '(:float :double :bytes :message :enum :group))
      (complain key "the key of a map is an integer, bool or string"
                "an integer type, bool or string"))))

(defun link-message (message)
  (mapc #'link-field (message-descriptor-fields message))
  (mapc #'link-extension (message-descriptor-extensions message))
  (check-numbers message)
  (when (message-descriptor-map-entry-p message) (check-map-entry message))
  (dolist (oneof (message-descriptor-oneofs message))
    (unless (find (descriptor-name oneof) (message-descriptor-fields message)
                  :key #'field-descriptor-oneof :test #'equal)
      (complain-of oneof "a oneof has at least one field")))
  (mapc #'link-enum (message-descriptor-enums message))
  (mapc #'link-message (message-descriptor-messages message)))

(defun link-extension (field)
  (let ((extendee (resolve-name (field-descriptor-extendee field) (scope-of field)
                                #'message-descriptor-p)))
    (cond ((null extendee)
           (complain-of field "the message \"~A\" is not declared"
                        (field-descriptor-extendee field)))
          (t
           (setf (field-descriptor-extendee field) (descriptor-full-name extendee))
           (unless (in-ranges-p (field-descriptor-number field)
                                (message-descriptor-extension-ranges extendee))
             (complain-of field "\"~A\" has no extension range with ~D"
                          (descriptor-full-name extendee) (field-descriptor-number field)))))
    (link-field field)))

;;; Enums, services

(defun link-enum (enum)
  (let ((values (enum-descriptor-values enum))
        (seen (make-hash-table)))
    (cond ((null values) (complain-of enum "an enum has at least one value"))
          ((and (not (enum-descriptor-closed-p enum))
                (/= 0 (enum-value-descriptor-number (first values))))
           (complain-of (first values) "the first value of an open enum is 0")))
    (dolist (value values)
      (let ((number (enum-value-descriptor-number value)))
        (when (and (gethash number seen) (not (option-true-p enum "allow_alias")))
          (complain-of value "number ~D is already used by \"~A\"; \"option allow_alias = true;\" ~
                              would allow it"
                       number (descriptor-name (gethash number seen))))
        (setf (gethash number seen) value)
        (when (in-ranges-p number (enum-descriptor-reserved-ranges enum))
          (complain-of value "number ~D is reserved" number))
        (when (member (descriptor-name value) (enum-descriptor-reserved-names enum) :test #'string=)
          (complain-of value "the name \"~A\" is reserved" (descriptor-name value)))))))

(defun link-service (service)
  (dolist (method (service-descriptor-methods service))
    (enter-name method t)
    (flet ((link (name)
             (let ((found (resolve-name name (descriptor-full-name method) #'message-descriptor-p)))
               (if found
                   (descriptor-full-name found)
                   (progn (complain-of method "the message \"~A\" is not declared" name) name)))))
      (setf (method-descriptor-input method) (link (method-descriptor-input method))
            (method-descriptor-output method) (link (method-descriptor-output method))))))

;;; The whole

(defun link-file (file find places)
  "Resolve and check FILE in place and return it. FIND maps the path of an import to its linked file
descriptor, or nil; PLACES are the directories in which it looks. Signal PROTO-SYNTAX-ERROR."
  (let ((*linker* (make-linker :file file)))
    (loop for (name line column) in (file-descriptor-dependencies file)
          unless (funcall find name)
            do (complain-of (make-option :line line :column column)
                            "the import \"~A\" is not found in ~{~A~^, ~}; :import-paths names ~
                             other directories"
                            name (mapcar #'sb-ext:native-namestring places)))
    (fail-on-problems)
    (setf (file-descriptor-dependencies file) (mapcar #'first (file-descriptor-dependencies file)))
    (dolist (import (visible-files file find)) (enter-file import nil))
    (enter-file file t)
    (fail-on-problems)
    (resolve-features file #'complain)
    (mapc #'link-enum (file-descriptor-enums file))
    (mapc #'link-message (file-descriptor-messages file))
    (mapc #'link-extension (file-descriptor-extensions file))
    (mapc #'link-service (file-descriptor-services file))
    (fail-on-problems)
    file))

(defun fail-on-problems ()
  (let ((problems (stable-sort (reverse (linker-problems *linker*)) #'<
                               :key #'proto-syntax-error-line)))
    (when problems
      (setf (proto-syntax-error-others (first problems)) (rest problems))
      (error (first problems)))))
