;;;; Descriptors as google.protobuf.FileDescriptorProto (descriptor.proto), in octets, as protoc
;;;; writes them with --descriptor_set_out, without source info. Reflection serves these octets, and
;;;; generators get them. Fields are written by number, as a serializer does, so that the octets
;;;; equal protoc's.

(in-package #:clgrpc.protobuf)

(defvar *source-options* nil
  "True if options with the retention RETENTION_SOURCE are written too.")

(defun dump-text (number string)
  (write-wire-octets number (string-octets string)))

(defun dump-integer (number value)
  (write-wire-tag number 0)
  (write-wire-varint value))

(defmacro dump-message (number &body body)
  "Write the field NUMBER, a message whose content BODY writes."
  `(write-wire-octets ,number (with-octets-out () ,@body)))

(defmacro dump-each (number list (item) &body body)
  "For each ITEM of LIST write the field NUMBER, a message whose content BODY writes."
  `(dolist (,item ,list) (dump-message ,number ,@body)))

(defun dump-options (number descriptor)
  (let ((octets (if *source-options*
                    (descriptor-source-option-octets descriptor)
                    (descriptor-option-octets descriptor))))
    (when octets (write-wire-octets number octets))))

(defun dump-visibility (number visibility)
  (when visibility (dump-integer number (ecase visibility (:local 1) (:export 2)))))

;;; Fields

(defparameter *type-numbers*
  '(:double :float :int64 :uint64 :int32 :fixed64 :fixed32 :bool :string :group :message :bytes
    :uint32 :enum :sfixed32 :sfixed64 :sint32 :sint64)
  "The types of fields in the order of their numbers, from 1.")

(defun type-number (type)
  (1+ (position type *type-numbers*)))

(defun synthetic-oneofs (message)
  "Return the synthetic oneofs that descriptor.proto requires for the proto3 optional fields of
MESSAGE: a list of conses of a field and the name of its oneof."
  (let ((names (name-set (append (mapcar #'descriptor-name (message-descriptor-fields message))
                                 (mapcar #'descriptor-name (message-descriptor-oneofs message))))))
    (loop for field in (message-descriptor-fields message)
          when (field-descriptor-proto3-optional-p field)
            collect (let* ((name (descriptor-name field))
                           (oneof (if (char= #\_ (char name 0)) name (format nil "_~A" name))))
                      (loop while (gethash oneof names)
                            do (setf oneof (format nil "X~A" oneof)))
                      (setf (gethash oneof names) t)
                      (cons field oneof)))))

(defun oneof-indexes (message synthetic)
  "Return a function that returns the index of the oneof of a field of MESSAGE, or nil if it is in
no oneof. The oneofs in SYNTHETIC, which SYNTHETIC-ONEOFS returned, come last."
  (let ((table (make-hash-table :test 'equal)) (fields (make-hash-table :test 'eq)) (index -1))
    (dolist (oneof (message-descriptor-oneofs message))
      (setf (gethash (descriptor-name oneof) table) (incf index)))
    (loop for (field) in synthetic do (setf (gethash field fields) (incf index)))
    (lambda (field)
      (if (field-descriptor-oneof field)
          (gethash (field-descriptor-oneof field) table)
          (gethash field fields)))))

(defun dump-field (field oneof-index)
  "Write the content of a FieldDescriptorProto."
  (dump-text 1 (descriptor-name field))
  (when (field-descriptor-extendee field)
    (dump-text 2 (format nil ".~A" (field-descriptor-extendee field))))
  (dump-integer 3 (field-descriptor-number field))
  (dump-integer 4 (ecase (field-descriptor-label field) (:optional 1) (:required 2) (:repeated 3)))
  (dump-integer 5 (type-number (field-descriptor-type field)))
  (when (field-descriptor-type-name field)
    (dump-text 6 (format nil ".~A" (field-descriptor-type-name field))))
  (when-let ((default (field-descriptor-default-text field)))
    (write-wire-octets 7 (if (stringp default) (string-octets default) default)))
  (dump-options 8 field)
  (when oneof-index (dump-integer 9 oneof-index))
  (dump-text 10 (field-descriptor-json-name field))
  (when (field-descriptor-proto3-optional-p field) (dump-integer 17 1)))

;;; Messages and enums

(defun dump-ranges (number ranges after)
  "Write RANGES as the field NUMBER. The end that is written is the last number plus AFTER, which is
1 or 0."
  (dump-each number ranges (range)
    (dump-integer 1 (car range))
    (dump-integer 2 (+ (cdr range) after))))

(defun dump-descriptor (message)
  "Write the content of a DescriptorProto."
  (let* ((synthetic (synthetic-oneofs message))
         (index (oneof-indexes message synthetic)))
    (dump-text 1 (descriptor-name message))
    (dump-each 2 (message-descriptor-fields message) (field)
      (dump-field field (values (funcall index field))))
    (dump-each 3 (message-descriptor-messages message) (inner) (dump-descriptor inner))
    (dump-each 4 (message-descriptor-enums message) (enum) (dump-enum enum))
    (dump-each 5 (message-descriptor-extension-ranges message) (range)
      (dump-integer 1 (extension-range-first range))
      (dump-integer 2 (1+ (extension-range-last range)))
      (dump-options 3 range))
    (dump-each 6 (message-descriptor-extensions message) (field) (dump-field field nil))
    (dump-options 7 message)
    (dump-each 8 (message-descriptor-oneofs message) (oneof)
      (dump-text 1 (descriptor-name oneof))
      (dump-options 2 oneof))
    (dump-each 8 synthetic (pair) (dump-text 1 (cdr pair)))
    (dump-ranges 9 (message-descriptor-reserved-ranges message) 1)
    (dolist (name (message-descriptor-reserved-names message)) (dump-text 10 name))
    (dump-visibility 11 (message-descriptor-visibility message))))

(defun dump-enum (enum)
  "Write the content of an EnumDescriptorProto."
  (dump-text 1 (descriptor-name enum))
  (dump-each 2 (enum-descriptor-values enum) (value)
    (dump-text 1 (descriptor-name value))
    (dump-integer 2 (enum-value-descriptor-number value))
    (dump-options 3 value))
  (dump-options 3 enum)
  (dump-ranges 4 (enum-descriptor-reserved-ranges enum) 0)
  (dolist (name (enum-descriptor-reserved-names enum)) (dump-text 5 name))
  (dump-visibility 6 (enum-descriptor-visibility enum)))

;;; Services and files

(defun dump-service (service)
  "Write the content of a ServiceDescriptorProto."
  (dump-text 1 (descriptor-name service))
  (dump-each 2 (service-descriptor-methods service) (method)
    (dump-text 1 (descriptor-name method))
    (dump-text 2 (format nil ".~A" (method-descriptor-input method)))
    (dump-text 3 (format nil ".~A" (method-descriptor-output method)))
    (dump-options 4 method)
    (when (method-descriptor-client-streaming-p method) (dump-integer 5 1))
    (when (method-descriptor-server-streaming-p method) (dump-integer 6 1)))
  (dump-options 3 service))

(defun dump-imports (number names file)
  (let ((places (make-hash-table :test 'equal)))
    (loop for name in (file-descriptor-dependencies file)
          for place from 0
          do (setf (gethash name places) place))
    (dolist (name names) (dump-integer number (gethash name places)))))

(defun dump-file (file)
  "Write the content of a FileDescriptorProto."
  (dump-text 1 (descriptor-name file))
  (unless (string= "" (file-descriptor-package file))
    (dump-text 2 (file-descriptor-package file)))
  (dolist (name (file-descriptor-dependencies file)) (dump-text 3 name))
  (dump-each 4 (file-descriptor-messages file) (message) (dump-descriptor message))
  (dump-each 5 (file-descriptor-enums file) (enum) (dump-enum enum))
  (dump-each 6 (file-descriptor-services file) (service) (dump-service service))
  (dump-each 7 (file-descriptor-extensions file) (field) (dump-field field nil))
  (dump-options 8 file)
  (dump-imports 10 (file-descriptor-public-dependencies file) file)
  (dump-imports 11 (file-descriptor-weak-dependencies file) file)
  (unless (eq :proto2 (file-descriptor-syntax file))
    (dump-text 12 (string-downcase (file-descriptor-syntax file))))
  (when (file-descriptor-edition file)
    (dump-integer 14 (edition-number file)))
  (dolist (name (file-descriptor-option-dependencies file)) (dump-text 15 name)))

(defun file-descriptor-octets (file &key source-options)
  "Return FILE, a file descriptor, as octets of a google.protobuf.FileDescriptorProto. The octets
are those that protoc writes into a descriptor set, without source info. With SOURCE-OPTIONS true,
options with the retention RETENTION_SOURCE are included and custom options remain as they were
written, as with protoc's --retain_options and in versions of protoc without retention."
  (let ((*source-options* source-options))
    (with-octets-out () (dump-file file))))

(defun descriptor-set-octets (files &key source-options)
  "Return FILES, file descriptors, as octets of a google.protobuf.FileDescriptorSet in that order;
SOURCE-OPTIONS as for FILE-DESCRIPTOR-OCTETS."
  (with-octets-out ()
    (dolist (file files)
      (write-wire-octets 1 (file-descriptor-octets file :source-options source-options)))))
