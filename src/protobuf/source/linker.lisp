;;;; Linking: names as written become full names, features become plain properties of each field,
;;;; and violations of the language's rules are found (protobuf language specification). The stages
;;;; are protoc's: declare names and resolve them; interpret standard options; resolve features;
;;;; interpret custom options; then the checks of check.lisp. LINK-FILE (import.lisp) and
;;;; LINK-READ-FILE (descriptor-set.lisp) run the stages. Between them, declarations with errors are
;;;; removed; see pool.lisp.

(in-package #:clgrpc.protobuf)

(defconstant +maximum-number+ 536870911
  "The maximum number of a field.")

;;; Declaring, with the checks that need no other declaration

(defun bounds (range)
  "Return the pair (first . last) of RANGE, which is an extension range or such a pair."
  (if (consp range) range (cons (extension-range-first range) (extension-range-last range))))

(defun number-in-range-p (number range)
  (destructuring-bind (first . last) (bounds range) (<= first number last)))

(defun check-range (range minimum what)
  "Check that RANGE, of numbers for WHAT, does not begin below MINIMUM and does not end before its
start."
  (destructuring-bind (first . last) (bounds range)
    (when (and minimum (< first minimum))
      (complain range :number "~A numbers must begin at ~D" what minimum))
    (unless (and (<= first last) (or (null minimum) (< last 2147483647)))
      (complain range :number "the range ends before it begins"))))

(defstruct (number-range (:constructor make-number-range (first last range place reach))
                         (:copier nil))
  "A range in a list of ranges of numbers."
  (first 0 :type integer)               ; the range's lowest number
  (last 0 :type integer)                ; the range's highest number
  (range nil)                           ; the range that the element was made from
  (place 0 :type index)                 ; the range's place in the list
  ;; the span, this one or before it in a vector, whose LAST is the greatest
  (reach nil :type (or null number-range)))

(defun number-ranges (ranges)
  "Return the vector of NUMBER-RANGEs for RANGES, sorted by their first numbers."
  (let ((number-ranges (sort (coerce (loop for range in ranges
                                           for place from 0
                                           for (first . last) = (bounds range)
                                           collect (make-number-range first last range place nil))
                                     'simple-vector)
                             #'< :key #'number-range-first))
        (reach nil))
    (loop for number-range across number-ranges
          do (when (or (null reach) (> (number-range-last number-range) (number-range-last reach)))
                   (setf reach number-range))
             (setf (number-range-reach number-range) reach))
    number-ranges))

(defun number-range-in (number-ranges first last)
  "Return the element of NUMBER-RANGES that contains a number from FIRST to LAST, or nil if there is
none."
  (let ((low 0) (high (length number-ranges)))
    ;; the ranges with an index below LOW begin at LAST or before it
    (loop while (< low high)
          do (let ((middle (floor (+ low high) 2)))
               (if (<= (number-range-first (svref number-ranges middle)) last)
                   (setf low (1+ middle))
                   (setf high middle))))
    (let ((reach (and (plusp low) (number-range-reach (svref number-ranges (1- low))))))
      (and reach (<= first (number-range-last reach)) reach))))

(defun overlaps (ranges)
  "Return pairs of RANGES that have a number in common, sorted by the place of the earlier range of
each pair in RANGES. Each range that overlaps with another range is in a pair."
  (let ((number-ranges (number-ranges ranges)))
    (sort (loop for i from 1 below (length number-ranges)
                for number-range = (svref number-ranges i)
                for before = (number-range-reach (svref number-ranges (1- i)))
                when (<= (number-range-first number-range) (number-range-last before))
                  collect (if (< (number-range-place number-range) (number-range-place before))
                              (cons number-range before)
                              (cons before number-range)))
          #'< :key (lambda (pair) (number-range-place (car pair))))))

(defun check-overlaps (ranges what)
  (loop for (number-range . other) in (overlaps ranges)
        do (complain (number-range-range number-range)
                     :number "the ~A ~D to ~D and ~D to ~D overlap" what
                     (number-range-first number-range) (number-range-last number-range)
                     (number-range-first other) (number-range-last other))))

(defun extension-number-ranges (message)
  (number-ranges (message-descriptor-extension-ranges message)))

(defun extension-range-of (message number)
  "Return the extension range of MESSAGE that contains NUMBER, or nil if no range does. MESSAGE must
have been declared."
  (let ((number-range (number-range-in (index-of message 'extension-number-ranges) number number)))
    (and number-range (number-range-range number-range))))

(defun check-reserved-twice (descriptor names)
  "Return the set of NAMES; check that none occurs twice."
  (let ((seen (make-hash-table :test 'equal)) (twice '()))
    (dolist (name names)
      (when (gethash name seen) (push name twice))
      (setf (gethash name seen) t))
    (dolist (name twice seen)
      (complain descriptor :name "the name \"~A\" is reserved twice" name))))

(defun declare-field (field &optional message)
  (when (and (field-descriptor-extendee field) (eq :required (field-descriptor-label field)))
    (complain field :type "an extension cannot be required"))
  (when (and (field-descriptor-default-text field) (repeated-p field))
    (complain field :default "a repeated field cannot have a default"))
  (let ((number (field-descriptor-number field)))
    (cond ((not (plusp number)) (complain field :number "a field number must be positive"))
          ((and (> number +maximum-number+) (null (field-descriptor-extendee field)))
           (complain field :number "a field number must be at most ~D" +maximum-number+))))
  (declare-name field message))

(defun declare-message (message)
  (dolist (oneof (message-descriptor-oneofs message)) (declare-name oneof message))
  (dolist (field (message-descriptor-fields message)) (declare-field field message))
  (mapc #'declare-enum (message-descriptor-enums message))
  (dolist (range (message-descriptor-extension-ranges message)) (check-range range 1 "extension"))
  (mapc #'declare-field (message-descriptor-extensions message))
  (dolist (range (message-descriptor-reserved-ranges message)) (check-range range 1 "reserved"))
  (mapc #'declare-message (message-descriptor-messages message))
  (declare-name message)
  (check-overlaps (message-descriptor-reserved-ranges message) "ranges")
  (check-fields-are-free message)
  (check-extension-ranges message))

(defun check-fields-are-free (message)
  "Check that MESSAGE reserves neither the number nor the name of one of its fields."
  (let ((names (check-reserved-twice message (message-descriptor-reserved-names message)))
        (reserved (number-ranges (message-descriptor-reserved-ranges message))))
    (dolist (field (message-descriptor-fields message))
      (let* ((number (field-descriptor-number field))
             (name (descriptor-name field))
             (range (extension-range-of message number)))
        (when range
          (complain range :number "the extension range has the number ~D of the field \"~A\"" number
                    name))
        (when-let ((number-range (number-range-in reserved number number)))
          (complain (number-range-range number-range)
                    :number "the number ~D of the field \"~A\" is reserved"
                    number name))
        (when (gethash name names)
          (complain field :name "the name \"~A\" is reserved" name))))))

(defun check-extension-ranges (message)
  (let ((reserved (number-ranges (message-descriptor-reserved-ranges message)))
        (ranges (message-descriptor-extension-ranges message)))
    (dolist (range ranges)
      (destructuring-bind (first . last) (bounds range)
        (when-let ((number-range (number-range-in reserved first last)))
          (complain range :number "the extension range overlaps with the reserved ~D to ~D"
                    (number-range-first number-range) (number-range-last number-range)))))
    (check-overlaps ranges "extension ranges")))

(defun declare-enum (enum)
  (unless (enum-descriptor-values enum)
    (complain enum :name "an enum needs at least one value"))
  (dolist (value (enum-descriptor-values enum)) (declare-name value enum))
  (dolist (range (enum-descriptor-reserved-ranges enum)) (check-range range nil "reserved"))
  (declare-name enum)
  (check-overlaps (enum-descriptor-reserved-ranges enum) "ranges")
  (let ((names (check-reserved-twice enum (enum-descriptor-reserved-names enum)))
        (reserved (number-ranges (enum-descriptor-reserved-ranges enum))))
    (dolist (value (enum-descriptor-values enum))
      (let* ((number (enum-value-descriptor-number value))
             (number-range (number-range-in reserved number number)))
        (when number-range
          (complain (number-range-range number-range)
                    :number "the number ~D of the value \"~A\" is reserved" number
                    (descriptor-name value)))
        (when (gethash (descriptor-name value) names)
          (complain value :name "the name \"~A\" is reserved" (descriptor-name value)))))))

(defun declare-file (file)
  (unless (string= "" (file-descriptor-package file)) (check-package file))
  (setf (gethash file (symbol-table-entered (linker-symbol-table *linker*))) t)
  (enter-package file t)
  (mapc #'declare-message (file-descriptor-messages file))
  (mapc #'declare-enum (file-descriptor-enums file))
  (dolist (service (file-descriptor-services file))
    (dolist (method (service-descriptor-methods service)) (declare-name method service))
    (declare-name service))
  (mapc #'declare-field (file-descriptor-extensions file)))

;;; Resolving

(defvar *numbers*)
(setf (documentation '*numbers* 'variable)
      "While names are resolved, a table of the fields by the full name of their message and their
number.")

(defun visible-type-p (declared)
  "True if edition 2024 allows the file that is being linked to use the type DECLARED."
  (let ((thing (declared-thing declared)) (file (declared-file declared)))
    (or (eq file (linked-file))
        (case (cond ((message-descriptor-p thing) (message-descriptor-visibility thing))
                    (t (enum-descriptor-visibility thing)))
          (:export t)
          (:local nil)
          (t (ecase (feature-of thing :default-symbol-visibility)
               (:export-all t)
               (:export-top-level
                (string= (scope-of thing)
                         (file-descriptor-package file)))
               ((:local-all :strict) nil)))))))

(defun check-visible (declared thing kind)
  "Return true if DECLARED, a type, may be used at THING; otherwise note an error."
  (or (linker-read-p *linker*)
      (visible-type-p declared)
      (complain thing kind "\"~A\" is local to ~A" (descriptor-full-name (declared-thing declared))
                (descriptor-name (declared-file declared)))))

(defun resolve-message (name inside thing kind)
  "Return the DECLARED of the message that NAME denotes inside the full name INSIDE, or note an
error and return nil."
  (let ((declared (resolve-name name inside)))
    (cond ((null declared) (complain-unknown thing kind name))
          ((message-descriptor-p (declared-thing declared)) declared)
          (t (complain thing kind "\"~A\" is not a message type" name)))))

(defun resolve-extendee (field)
  "Resolve the extendee of FIELD, an extension. Return true unless the extendee is wrong."
  (let ((declared (resolve-message (field-descriptor-extendee field)
                                   (descriptor-full-name field) field :extendee)))
    (when (and declared (check-visible declared field :extendee))
      (let ((message (declared-thing declared)) (number (field-descriptor-number field)))
        (setf (field-descriptor-extendee field) (descriptor-full-name message))
        (know-extension field)
        (unless (extension-range-of message number)
          (complain field :number "\"~A\" has no extension range with ~D"
                    (descriptor-full-name message) number))
        t))))

(defun resolve-type (field)
  "Resolve the type that FIELD names, if it names a type. Return true unless the type is wrong."
  (let* ((name (field-descriptor-type-name field))
         (declared (and name (resolve-name name (descriptor-full-name field)
                                           #'type-descriptor-p)))
         (thing (and declared (declared-thing declared)))
         (type (field-descriptor-type field))
         (scalar (not (member type '(nil :message :group :enum)))))
    (cond ((null name)
           (or scalar (complain field :type "the type has no name")))
          (scalar
           (complain field :type "a field of type ~(~A~) names the type \"~A\"" type name))
          ((null declared) (complain-unknown field :type name))
          ((not (type-descriptor-p thing)) (complain field :type "\"~A\" is not a type" name))
          ((not (check-visible declared field :type)) nil)
          ((if (enum-descriptor-p thing)
               (member type '(:message :group))
               (eq type :enum))
           (complain field :type "\"~A\" is ~:[no enum~;no message~] type" name
                     (enum-descriptor-p thing)))
          (t
           (setf (field-descriptor-type-name field) (descriptor-full-name thing))
           (unless type
             (setf (field-descriptor-type field) (if (enum-descriptor-p thing) :enum :message)))
           (resolve-default field thing)))))

(defun resolve-default (field type)
  "Find the default value of FIELD, whose TYPE is a message or enum. Return true."
  (let ((text (field-descriptor-default-text field)))
    (cond ((and text (message-descriptor-p type))
           (complain field :default "a message field cannot have a default"))
          ((message-descriptor-p type))
          (text
           (if-let ((value (and (stringp text) (enum-value-named type text))))
             (setf (field-descriptor-default field) (enum-value-descriptor-number value))
             (complain field :default "the default is not a value of the enum ~A"
                       (descriptor-full-name type))))
          ((enum-descriptor-values type)
           (setf (field-descriptor-default field)
                 (enum-value-descriptor-number (first (enum-descriptor-values type)))))))
  t)

(defun resolve-owner (field owner)
  "Return true if FIELD, which is a field of the message OWNER or an extension, is declared in a
valid place."
  (cond ((field-descriptor-extendee field) (resolve-extendee field))
        (owner t)
        (t (complain field :extendee "an extension names the message that it extends"))))

(defun resolve-field (field owner)
  (when (resolve-owner field owner)
    (resolve-type field)
    (let* ((message (or (field-descriptor-extendee field) (descriptor-full-name owner)))
           (key (cons message (field-descriptor-number field)))
           (other (gethash key *numbers*)))
      (if other
          (complain field :number "the number ~D is already used in \"~A\" by \"~A\"" (cdr key)
                    message (descriptor-name other))
          (setf (gethash key *numbers*) field)))))

(defun resolve-message-names (message)
  (mapc #'resolve-message-names (message-descriptor-messages message))
  (dolist (field (message-descriptor-fields message)) (resolve-field field message))
  (dolist (field (message-descriptor-extensions message)) (resolve-field field nil))
  (let ((used (name-set (mapcar #'field-descriptor-oneof (message-descriptor-fields message)))))
    (dolist (oneof (message-descriptor-oneofs message))
      (unless (gethash (descriptor-name oneof) used)
        (complain oneof :name "a oneof needs at least one field")))))

(defun resolve-method (method)
  (flet ((resolve (name kind)
           (let ((declared (resolve-message name (descriptor-full-name method) method kind)))
             (if declared (descriptor-full-name (declared-thing declared)) name))))
    (setf (method-descriptor-input method) (resolve (method-descriptor-input method) :input)
          (method-descriptor-output method) (resolve (method-descriptor-output method) :output))))

(defun resolve-file (file)
  (let ((*numbers* (make-hash-table :test 'equal)))
    (mapc #'resolve-message-names (file-descriptor-messages file))
    (dolist (field (file-descriptor-extensions file)) (resolve-field field nil))
    (dolist (service (file-descriptor-services file))
      (mapc #'resolve-method (service-descriptor-methods service)))))

;;; Facts that follow from features and options

(defun packable-p (field)
  (not (member (field-descriptor-type field) '(:string :bytes :message :group nil))))

(defun field-presence (field)
  (cond ((repeated-p field) :repeated)
        ((or (eq :required (field-descriptor-label field))
             (eq :legacy-required (feature-of field :field-presence)))
         :required)
        ((or (field-descriptor-oneof field)
             (field-descriptor-extendee field)
             (field-descriptor-proto3-optional-p field)
             (message-typed-p field))
         :explicit)
        (t (feature-of field :field-presence))))

(defun json-name (name)
  "The name that a field has in JSON: foo_bar → fooBar."
  (camel-case name nil))

(defun state-field-facts (field)
  (let ((type (and (field-descriptor-type-name field) (field-message field))))
    (when (and (string= "" (field-descriptor-json-name field))
               (not (noted-p field :json-name))) ; which may set the name
      (setf (field-descriptor-json-name field) (json-name (descriptor-name field))))
    (setf (field-descriptor-map-p field)
          (and (message-descriptor-p type) (message-descriptor-map-entry-p type))
          (field-descriptor-closed-p field)
          (and (enum-descriptor-p type) (enum-descriptor-closed-p type))
          (field-descriptor-presence field) (field-presence field)
          (field-descriptor-packed-p field)
          (and (repeated-p field) (packable-p field)
               (multiple-value-bind (packed given) (option-of field "packed")
                 (if given
                     packed
                     (eq :packed (feature-of field :repeated-field-encoding)))))
          (field-descriptor-unchecked-p field) (eq :none (feature-of field :utf8-validation))
          (field-descriptor-delimited-p field)
          (or (eq :group (field-descriptor-type field))
              (and (eq :message (field-descriptor-type field))
                   (not (field-descriptor-map-p field))
                   (not (map-entry-field-p field))
                   (eq :delimited (feature-of field :message-encoding)))))))

(defun map-entry-field-p (field)
  (let ((owner (and (null (field-descriptor-extendee field))
                    (find-thing (scope-of field)))))
    (and (message-descriptor-p owner) (message-descriptor-map-entry-p owner))))

(defun state-facts (file)
  (map-names (lambda (descriptor owner)
               (declare (ignore owner))
               (when (field-descriptor-p descriptor) (state-field-facts descriptor)))
             file))

;;; Removing declarations that have errors

(defun needs-faulty-p (descriptor owner)
  "True if DESCRIPTOR cannot be checked because it needs a declaration that has errors. OWNER is the
owner of DESCRIPTOR, as in MAP-NAMES."
  (flet ((faulty-name-p (full-name)
           (and full-name (faulty-p (find-thing full-name)))))
    (or (faulty-p owner)
        (faulty-name-p (scope-of descriptor))
        (typecase descriptor
          (field-descriptor (or (faulty-name-p (field-descriptor-type-name descriptor))
                                (faulty-name-p (field-descriptor-extendee descriptor))))
          (message-descriptor (and (message-descriptor-map-entry-p descriptor)
                                   (some #'faulty-p (message-descriptor-fields descriptor))))
          (enum-descriptor (every #'faulty-p (enum-descriptor-values descriptor)))))))

(defun set-aside (file)
  "Remove from FILE the declarations that have errors and those that need them."
  (loop while (let ((found nil))
                (map-names (lambda (descriptor owner)
                             (when (and (not (faulty-p descriptor))
                                        (needs-faulty-p descriptor owner))
                               (note-faulty descriptor)
                               (setf found t)))
                           file)
                found))
  (macrolet ((keep (&rest places)
               `(setf ,@(loop for place in places
                              append `(,place (remove-if #'faulty-p ,place))))))
    (labels ((keep-in-enum (enum) (keep (enum-descriptor-values enum)))
             (keep-in-message (message)
               (keep (message-descriptor-messages message) (message-descriptor-enums message)
                     (message-descriptor-fields message) (message-descriptor-extensions message))
               (mapc #'keep-in-enum (message-descriptor-enums message))
               (mapc #'keep-in-message (message-descriptor-messages message))))
      (keep (file-descriptor-messages file) (file-descriptor-enums file)
            (file-descriptor-extensions file))
      (mapc #'keep-in-enum (file-descriptor-enums file))
      (mapc #'keep-in-message (file-descriptor-messages file)))))

(defun end-stage (file)
  "If errors were found, signal them; if FILE is a source, remove the declarations that have errors
instead."
  (when (linker-problems *linker*)
    (if (linker-read-p *linker*) (fail-on-problems) (set-aside file))))

;;; The whole

(defvar *import-option* ":import-paths"
  "The name, for error texts, of the option by which users add import directories. A command of the
command line binds this variable to the name of the command's option.")

(defun check-imports (file find roots)
  "Check that FIND finds every import of FILE and that no import occurs twice."
  (let ((seen (make-hash-table :test 'equal)) (twice '()))
    (dolist (name (all-imports file))
      (when (gethash name seen) (push name twice))
      (setf (gethash name seen) t))
    (dolist (name twice) (complain name :import "the file \"~A\" is imported twice" name)))
  (dolist (name (if (linker-read-p *linker*)
                    ;; a missing file that is imported for options is no error
                    (file-descriptor-dependencies file)
                    (all-imports file)))
    (unless (funcall find name)
      (setf (linker-missing-p *linker*) t)
      (complain name :import "the import \"~A\" is not found~@[ in ~{~A~^, ~}; ~A names other ~
                              directories~]"
                name (mapcar #'sb-ext:native-namestring roots) *import-option*))))

(defun fail-on-circle (name open)
  "Report that the file NAME imports itself. OPEN are the names of open files; NAME is among them,
and imports itself through the files that were opened after it."
  (let* ((circle (member name (reverse open) :key #'descriptor-name :test #'string=))
         (file (first circle))
         (next (descriptor-name (or (second circle) file)))
         (*linker* (make-linker :file file)))
    (complain (find next (all-imports file) :test #'string=) :import
              "the file ~A imports itself~@[ through ~{~A~^, ~}~]" name
              (mapcar #'descriptor-name (rest circle)))
    (fail-on-problems)))

(defun resolve-imports (file find roots)
  (check-imports file find roots)
  (end-stage file)
  (enter-imports file find)
  (declare-file file)
  (resolve-file file)
  (when (linker-problems *linker*) (explain-map-conflicts file))
  (end-stage file))

(defun start-records (file)
  "Begin the options of declarations that have options although the source has none for them: the
entry messages of maps and, in descriptor.proto, methods with a block."
  (map-names (lambda (descriptor owner)
               (declare (ignore owner))
               (cond ((and (message-descriptor-p descriptor)
                           (message-descriptor-map-entry-p descriptor)
                           (null (options-record descriptor)))
                      (let ((record (ensure-options-record descriptor)))
                        (add-entry record (field-named (record-message record) "map_entry") t)))
                     ((and (method-descriptor-p descriptor) (noted-p descriptor :options))
                      (ensure-options-record descriptor))))
             file))

(defun explain-map-conflicts (file)
  "Report each name that collides with a map's entry type."
  (map-messages
   (lambda (message)
     (let ((seen (make-hash-table :test 'equal)))
       (dolist (descriptors (list (message-descriptor-messages message)
                                  (message-descriptor-fields message)
                                  (message-descriptor-enums message)
                                  (message-descriptor-oneofs message)))
         (dolist (descriptor descriptors) (incf (gethash (descriptor-name descriptor) seen 0))))
       (dolist (entry (message-descriptor-messages message))
         (when (and (message-descriptor-map-entry-p entry)
                    (< 1 (gethash (descriptor-name entry) seen)))
           (complain message :name "the entry type ~A of a map has the name of another declaration"
                     (descriptor-name entry))))))
   file))
