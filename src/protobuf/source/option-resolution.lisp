;;;; The meaning of options: each option as written becomes part of a record of the options message
;;;; that descriptor.proto declares for its place. Names are followed through messages and
;;;; extensions, values are checked against the type of their field, aggregates are read as text
;;;; format.
;;;;
;;;; Standard options are interpreted before features are resolved, custom ones afterwards, since
;;;; the encoding of the types of custom options may depend on features.

(in-package #:clgrpc.protobuf)

(define-condition wrong-value (error)
  ((text :initarg :text :reader wrong-value-text)) ; the fault
  (:documentation "The value of an option does not fit its type; internal to this file."))

(defun wrong-value (control &rest arguments)
  (error 'wrong-value :text (format nil "~?" control arguments)))

(defun options-type (descriptor)
  "Return the full name of the message type of DESCRIPTOR's options."
  (etypecase descriptor
    (file-descriptor "google.protobuf.FileOptions")
    (message-descriptor "google.protobuf.MessageOptions")
    (field-descriptor "google.protobuf.FieldOptions")
    (oneof-descriptor "google.protobuf.OneofOptions")
    (enum-descriptor "google.protobuf.EnumOptions")
    (enum-value-descriptor "google.protobuf.EnumValueOptions")
    (extension-range "google.protobuf.ExtensionRangeOptions")
    (service-descriptor "google.protobuf.ServiceOptions")
    (method-descriptor "google.protobuf.MethodOptions")))

(defun map-optioned (function file)
  "For every descriptor of FILE that can have options, call FUNCTION with the descriptor and the
full name of the scope of its options' names. The order is that in which protoc interprets options."
  (labels ((visit (descriptor) (funcall function descriptor (descriptor-full-name descriptor)))
           (visit-enum (enum)
             (mapc #'visit (enum-descriptor-values enum))
             (visit enum))
           (visit-message (message)
             (mapc #'visit (message-descriptor-oneofs message))
             (mapc #'visit (message-descriptor-fields message))
             (mapc #'visit-enum (message-descriptor-enums message))
             (dolist (range (message-descriptor-extension-ranges message))
               (funcall function range (descriptor-full-name message)))
             (mapc #'visit (message-descriptor-extensions message))
             (visit message)
             (mapc #'visit-message (message-descriptor-messages message))))
    (mapc #'visit-message (file-descriptor-messages file))
    (mapc #'visit-enum (file-descriptor-enums file))
    (dolist (service (file-descriptor-services file))
      (mapc #'visit (service-descriptor-methods service))
      (visit service))
    (mapc #'visit (file-descriptor-extensions file))
    (funcall function file (format nil "~A.file" (file-descriptor-package file)))))

(defun options-record (descriptor)
  "Return the record of the options of DESCRIPTOR that have been interpreted so far, or nil if there
are none."
  (values (gethash descriptor (linker-records *linker*))))

(defun ensure-options-record (descriptor)
  (or (options-record descriptor)
      (setf (gethash descriptor (linker-records *linker*))
            (make-record (find-thing (options-type descriptor))))))

(defun option-of (descriptor name &optional default)
  "The value of the standard option NAME of DESCRIPTOR, which belongs to the file being linked."
  (record-value (options-record descriptor) name default))

(defun any-option-of (descriptor name)
  "Return the values of the standard option NAME of DESCRIPTOR, which may belong to another file."
  (record-values (or (options-record descriptor)
                     (and (descriptor-source-option-octets descriptor)
                          (index-of descriptor 'source-options)))
                 name))

(defun source-options (descriptor)
  (read-options (descriptor-source-option-octets descriptor) (options-type descriptor)))

(defun read-options (octets type)
  "Parse OCTETS, an options message TYPE, and return its record."
  (read-record octets (find-thing type) #'field-numbered #'find-thing))

;;; Following the name of an option

(defun field-message (field)
  "The descriptor of the message type of FIELD."
  (find-thing (field-descriptor-type-name field)))

(defun extension-in-sight (name inside message)
  "Return the extension of MESSAGE that NAME denotes inside the full name INSIDE, or nil if NAME
denotes none."
  (let* ((declared (resolve-name name inside))
         (field (and declared (declared-thing declared))))
    (and (field-descriptor-p field)
         (equal (descriptor-full-name message) (field-descriptor-extendee field))
         field)))

(defun option-path (option descriptor inside)
  "Return the list of the fields in the name of OPTION, an option of DESCRIPTOR, or note an error
and return nil."
  (let ((message (find-thing (options-type descriptor)))
        (parts (option-name option))
        (path '()))
    (flet ((refuse (control &rest arguments)
             (apply #'complain option :option-name control arguments)
             (return-from option-path nil)))
      (loop for (part . more) on parts
            for field = (if (consp part)
                            (extension-in-sight (first part) inside message)
                            (field-inside message part))
            do (cond ((and field (faulty-p field)) (return-from option-path nil))
                     ((or (null field) (equal part "uninterpreted_option"))
                      (refuse-unknown-option option message part))
                     ((and (equal "features" (first parts)) (of-this-file-p field))
                      (refuse "a feature cannot be used in the file that declares it"))
                     ((null more))
                     ((not (message-typed-p field))
                      (refuse "\"~A\" is not a message and has no fields" (descriptor-name field)))
                     ((repeated-p field)
                      (refuse "\"~A\" is repeated; give each of its messages as { … }"
                              (descriptor-name field))))
               (unless field (return-from option-path nil))
               (push field path)
               (when more (setf message (field-message field)))))
    (nreverse path)))

(defun of-this-file-p (field)
  (let ((declared (raw-declared (descriptor-full-name field))))
    (and declared (eq (linked-file) (declared-file declared)))))

(defun refuse-unknown-option (option message part)
  (cond ((and (consp part) (linker-missing-p *linker*)) nil)
        ((not (consp part))
         (complain option :option-name "there is no option \"~A\": ~A has no field \"~A\""
                   (option-name-string (option-name option)) (descriptor-full-name message) part))
        ((linker-hidden *linker*)
         (complain option :option-name "the option (~A) is declared in ~A, which is not imported"
                   (first part) (descriptor-name (linker-hidden *linker*))))
        (t
         (complain option :option-name "there is no visible option (~A), an extension of ~A"
                   (first part) (descriptor-full-name message)))))

(defun path-set-p (record path)
  "True if the field at PATH, a list of fields, is set in RECORD."
  (loop for value in (field-values record (first path))
          thereis (or (null (rest path))
                      (and (record-p value) (path-set-p value (rest path))))))

(defun interpret-option (option descriptor inside)
  "Add the meaning of OPTION to the record of DESCRIPTOR. Return true unless the option is wrong."
  (when-let ((path (option-path option descriptor inside)))
    (let ((record (ensure-options-record descriptor)) (leaf (first (last path))))
      (cond ((and (not (repeated-p leaf)) (path-set-p record path))
             (complain option :option-name "the option \"~A\" is already set"
                       (option-name-string (option-name option))))
            (t
             (handler-case
                 (progn (add-option-at record path (constant-value leaf (option-value option)))
                        t)
               (wrong-value (wrong)
                 (complain option :option-value "~A" (wrong-value-text wrong)))))))))

(defun add-option-at (record path value)
  "Add VALUE to the field at PATH, a list of fields, in RECORD; make the messages on the path."
  (add-entry record (first path)
             (if (rest path)
                 (let ((inner (make-record (field-message (first path)))))
                   (add-option-at inner (rest path) value)
                   inner)
                 value)))

(defun interpret-options (file custom)
  "If CUSTOM is true, interpret the custom options in FILE, that is, options whose name begins with
an extension. Otherwise interpret the standard options."
  (map-optioned
   (lambda (descriptor inside)
     (dolist (option (descriptor-options descriptor))
       (when (eq custom (consp (first (option-name option))))
         (unless (interpret-option option descriptor inside)
           (note-faulty descriptor)))))
   file))

;;; Values

(defun word-of (value)
  "The text of VALUE, a constant, if it is an identifier; else nil."
  (and (consp value) (eq :identifier (first value)) (second value)))

(defun constant-value (field value)
  "The value of FIELD for the constant VALUE of an option. Signal WRONG-VALUE."
  (let* ((type (field-descriptor-type field))
         (name (descriptor-full-name field))
         (range (rest (assoc type *integer-ranges*)))
         (word (word-of value)))
    (cond (range
           (if (and (integerp value) (<= (first range) value (second range)))
               value
               (wrong-value "\"~A\" needs an integer from ~D to ~D" name (first range)
                            (second range))))
          ((member type '(:float :double))
           (constant-float type (cond ((realp value) value)
                                   ((equal word "inf") sb-ext:double-float-positive-infinity)
                                   ((equal word "nan") (double-nan))
                                   (t (wrong-value "\"~A\" wants a number" name)))))
          (t
           (ecase type
             (:bool (cond ((equal word "true") t)
                          ((equal word "false") nil)
                          (t (wrong-value "\"~A\" needs true or false" name))))
             (:enum (constant-enum field word))
             ((:string :bytes)
              (if (typep value 'octets) value (wrong-value "\"~A\" wants a string" name)))
             ((:message :group) (message-constant field value)))))))

(defun constant-float (type number)
  (if (eq type :float) (to-single number) (to-double number)))

(defun constant-enum (field word)
  (let* ((enum (find-thing (field-descriptor-type-name field)))
         (value (and word (enum-value-named enum word))))
    (if value
        (enum-value-descriptor-number value)
        (wrong-value "\"~A\" needs a value of the enum ~A" (descriptor-full-name field)
                     (descriptor-full-name enum)))))

(defun message-constant (field value)
  (let ((name (descriptor-full-name field)))
    (case (and (consp value) (first value))
      (:malformed (wrong-value "the value of \"~A\" is malformed: ~A" name (second value)))
      (:aggregate
       (let ((record (aggregate-record (field-message field) (rest value))))
         (check-complete record)
         record))
      (t (wrong-value "\"~A\" is a message; write { its fields } or set one with \".field\""
                      name)))))

;;; Aggregates

(defun aggregate-record (message fields)
  "The record of type MESSAGE whose text format is FIELDS, a list of (name . constant)."
  (let ((record (make-record message :literal-p t)))
    (loop for (name . value) in fields
          do (if (and (consp name) (find #\/ (first name)))
                 (add-any record (first name) value)
                 (let ((field (text-field message name)))
                   (unless (or (null field) (faulty-p field))
                     (add-text-field record field value)))))
    record))

(defun text-field (message name)
  "Return the field of MESSAGE with NAME, which is a list if the field is an extension. Return nil
if the name is reserved."
  (let ((full-name (descriptor-full-name message)))
    (cond ((consp name)
           (or (extension-in-sight (first name) (format nil "~A.field" full-name) message)
               (message-set-extension (first name) message)
               (wrong-value "there is no visible extension \"~A\" of ~A" (first name) full-name)))
          ((field-inside message name))
          ((let ((field (field-inside message (string-downcase name))))
             (and field
                  (field-descriptor-delimited-p field)
                  (equal name (descriptor-name (field-message field)))
                  field)))
          ((gethash name (index-of message 'reserved-name-set)) nil)
          (t (wrong-value "~A has no field \"~A\"" full-name name)))))

(defun reserved-name-set (message)
  (name-set (message-descriptor-reserved-names message)))

(defun message-set-extension (name message)
  "Return the extension of the message set MESSAGE that the message type NAME declares for its own
messages."
  (when (message-descriptor-message-set-p message)
    (let* ((declared (resolve-name name (format nil "~A.field" (descriptor-full-name message))))
           (type (and declared (declared-thing declared))))
      (and (message-descriptor-p type)
           (find-if (lambda (field)
                      (and (equal (field-descriptor-extendee field) (descriptor-full-name message))
                           (equal (field-descriptor-type-name field)
                                  (descriptor-full-name type))
                           (not (repeated-p field))))
                    (message-descriptor-extensions type))))))

(defun add-text-field (record field value)
  (let ((list-p (and (consp value) (eq :list (first value)))))
    (cond ((repeated-p field)
           (dolist (item (if list-p (rest value) (list value)))
             (add-entry record field (text-constant field item))))
          (list-p (wrong-value "\"~A\" is not repeated" (descriptor-full-name field)))
          (t
           (check-unset record field)
           (add-entry record field (text-constant field value))))))

(defun check-unset (record field)
  "Check that FIELD, which is about to be set, may be set in RECORD."
  (let ((oneof (field-descriptor-oneof field)))
    (when (field-values record field)
      (wrong-value "\"~A\" is set twice" (descriptor-full-name field)))
    (when (and oneof (null (field-descriptor-extendee field)))
      (let* ((oneofs (or (record-oneofs record)
                         (setf (record-oneofs record) (make-hash-table :test 'equal))))
             (other (gethash oneof oneofs)))
        (when other
          (wrong-value "\"~A\" and \"~A\" belong to the same oneof" (descriptor-full-name other)
                       (descriptor-full-name field)))
        (setf (gethash oneof oneofs) field)))))

(defun text-constant (field value)
  "Return the value of FIELD for VALUE, which is written in text format and may therefore have more
forms than the value of an option."
  (let* ((type (field-descriptor-type field)) (word (word-of value)))
    (cond ((and (eq type :bool) (member value '(0 1))) (= value 1))
          ((and (eq type :bool) (member word '("True" "t") :test #'equal)) t)
          ((and (eq type :bool) (member word '("False" "f") :test #'equal)) nil)
          ((and (eq type :enum) (integerp value)) (checked-enum-number field value))
          ((and (eq type :float) (realp value)) (text-single value))
          ((and (member type '(:float :double)) (member word '("inf" "infinity")
                                                        :test #'equalp))
           (constant-float type sb-ext:double-float-positive-infinity))
          ((and (member type '(:float :double)) (equalp word "nan"))
           (constant-float type (double-nan)))
          (t (constant-value field value)))))

(defun checked-enum-number (field number)
  (let ((enum (find-thing (field-descriptor-type-name field))))
    (if (and (typep number '(signed-byte 32))
             (or (not (enum-descriptor-closed-p enum))
                 (enum-value-numbered enum number)))
        number
        (wrong-value "~A has no value ~D" (descriptor-full-name enum) number))))

(defun add-any (record url value)
  "Add to RECORD, a google.protobuf.Any, the message that VALUE describes; URL is the URL of its
type."
  (let* ((message (record-message record))
         (slash (1+ (position #\/ url :from-end t)))
         (declared (find-name (subseq url slash)))
         (type (and declared (declared-thing declared))))
    (unless (and (equal "google.protobuf.Any" (descriptor-full-name message))
                 (member (subseq url 0 slash) '("type.googleapis.com/" "type.googleprod.com/")
                         :test #'string=)
                 (message-descriptor-p type)
                 (consp value)
                 (eq :aggregate (first value)))
      (wrong-value "\"[~A]\" is not a message for an Any" url))
    (let ((inner (aggregate-record type (rest value))))
      (check-complete inner)
      (flet ((add (name octets)
               (let ((field (field-inside message name)))
                 (check-unset record field)
                 (add-entry record field octets))))
        (add "type_url" (string-octets url))
        (add "value" (record-octets inner :canonical))))))

(defun required-fields (message)
  (remove :required (message-descriptor-fields message) :key #'field-descriptor-presence
                                                        :test-not #'eq))

(defun check-complete (record)
  "Check that RECORD and the messages in it have their required fields."
  (dolist (field (index-of (record-message record) 'required-fields))
    (unless (field-values record field)
      (wrong-value "the required field \"~A\" is missing" (descriptor-full-name field))))
  (loop for (nil . value) in (record-entries record)
        when (record-p value) do (check-complete value)))

;;; The result

(defun source-only-p (field)
  "True if FIELD is an option with the retention RETENTION_SOURCE."
  (member 2 (any-option-of field "retention"))) ; RETENTION_SOURCE

(defun store-options (file)
  "Store the octets of its options in every descriptor in FILE."
  (map-optioned
   (lambda (descriptor inside)
     (declare (ignore inside))
     (when-let ((record (options-record descriptor)))
       (let ((written (record-octets record :written))
             (runtime (record-octets (strip-record record #'source-only-p) :canonical)))
         (setf (descriptor-source-option-octets descriptor) written
               (descriptor-option-octets descriptor)
               (cond ((equalp written runtime) written)
                     ((plusp (length runtime)) runtime))))))
   file))
