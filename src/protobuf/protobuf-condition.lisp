;;;; The errors of this layer: PROTOBUF-ERROR for octets that are not a message (the peer's fault),
;;;; with subclasses for JSON and text format, and PROTO-SYNTAX-ERROR for .proto text that is not
;;;; valid. Each condition has the position of the error; a syntax error contains the other errors
;;;; of the same file, so that one run shows all of them; its text has the first +MOST-SHOWN+.

(in-package #:clgrpc.protobuf)

(define-condition field-type-error (clgrpc-error type-error)
  ((field :initarg :field :reader field-type-error-field)) ; the full name of the field
  (:report (lambda (condition stream)
             (format stream "The field ~A takes ~A, not ~A."
                     (field-type-error-field condition)
                     (type-in-words (type-error-expected-type condition))
                     (printable-text (bounded-text (type-error-datum condition)
                                                   :limit 200 :escape t)))))
  (:documentation "A field cannot hold the value given for it; nothing was changed. FIELD is the
field's full name; EXPECTED-TYPE and DATUM are those of TYPE-ERROR."))

(document-functions
  field-type-error-field "The full name of the field that cannot hold the value, as text.")

(defun maker-hint (symbol)
  "Return a part of an error text, with the name of the function that makes a value of the
well-known type SYMBOL, or nil for other types."
  (let ((name (symbol-name symbol)))
    (when (string= "GOOGLE.PROTOBUF" (package-name (symbol-package symbol)))
      (cond ((string= "TIMESTAMP" name) "UNIX-TIME-TIMESTAMP or UNIVERSAL-TIME-TIMESTAMP makes one")
            ((string= "DURATION" name) "SECONDS-DURATION makes one")
            ((string= "ANY" name) "ANY-PACK makes one of a message")
            ((string= "VALUE" name) "DATA-VALUE makes one")
            ((string= "STRUCT" name) "ALIST-STRUCT makes one")
            ((uiop:string-suffix-p name "-VALUE")
             (format nil "google.protobuf:make-~(~A~) makes one" name))))))

(defun type-in-words (type)
  (cond ((eq 'string type) "a string")
        ((eq 'real type) "a real number")
        ((eq 'sequence type) "a sequence")
        ((equal '(and sequence (not string)) type)
         "a list or a vector, since it is repeated (APPEND-TO-FIELD adds to it)")
        ((eq 'octet-sequence type)
         "octets (for a text, (sb-ext:string-to-octets text :external-format :utf-8))")
        ((member 'hash-table (and (listp type) type)) "an alist, a hash table or another map")
        ((member 'null (and (listp type) type))
         (format nil "a message of type ~S~@[ (~A)~]" (third type) (maker-hint (third type))))
        (t (format nil "an object of type ~S" type))))

(define-condition protobuf-error (clgrpc-error)
  (;; the full name of the message type asked for, or nil
   (type :initarg :type :initform nil :reader protobuf-error-type)
   ;; the index of the octet where reading stopped, or nil
   (position :initarg :position :initform nil :reader protobuf-error-position)
   (text :initarg :text :reader protobuf-error-text)) ; the fault
  (:report (lambda (condition stream)
             (format stream "Cannot read ~:[a message~;~:*~A~]~@[ at octet ~D~]: ~A."
                     (protobuf-error-type condition) (protobuf-error-position condition)
                     (protobuf-error-text condition))))
  (:documentation "Octets are not a valid serialized message. TYPE is the full name of the requested
message type, or nil if it is not known. POSITION is the index of the octet at which reading
stopped, and TEXT describes the error."))

(define-condition memory-limit-exceeded (protobuf-error) ()
  (:documentation "The messages inside a serialized message take more memory than allowed."))

(document-functions
  protobuf-error-type "The full name of the requested message type, or nil if it is not known."
  protobuf-error-position "The index of the octet at which reading stopped, or nil if it is not
known."
  protobuf-error-text "The error in the octets, as text.")

(define-condition required-field-missing (protobuf-error)
  (;; the path from the message to the field, as text
   (path :initarg :path :reader required-field-missing-path))
  (:default-initargs :text "a required field is missing")
  (:report (lambda (condition stream)
             (format stream "~:[A message~;~:*~A~] lacks the required field ~A."
                     (protobuf-error-type condition) (required-field-missing-path condition))))
  (:documentation "A message that was read or was about to be written lacks a field that its type
requires. PATH is the path to the field, such as \"parts[2].size\". With :PARTIAL true required
fields are not checked."))

(document-functions
  required-field-missing-path "The path from the message to the field that it lacks, as text.")

(define-condition message-text-error (protobuf-error)
  ((format :initarg :format :reader message-text-error-format) ; the text's, :json or :text
   (line :initarg :line :reader message-text-error-line) ; the line of the fault, from 1
   (column :initarg :column :reader message-text-error-column) ; the column of the fault, from 1
   ;; the path of the field that was being read, as text
   (path :initarg :path :initform "" :reader message-text-error-path))
  (:report (lambda (condition stream)
             (format stream "Cannot read ~:[a message~;~:*~A~] from ~A at line ~D, column ~
                             ~D~:[, in ~A~;~*~]: ~A."
                     (protobuf-error-type condition)
                     (ecase (message-text-error-format condition)
                       (:json "JSON") (:text "text"))
                     (message-text-error-line condition) (message-text-error-column condition)
                     (string= "" (message-text-error-path condition))
                     (message-text-error-path condition)
                     (protobuf-error-text condition))))
  (:documentation "A text is not a message in JSON or text format. LINE and COLUMN are the place of
the error; PATH is the field."))

(document-functions
  message-text-error-format ":json or :text, the format of the input."
  message-text-error-line "The line at which reading stopped, from 1."
  message-text-error-column "The column at which reading stopped, from 1, in characters."
  message-text-error-path "The field that was being read, as text: \"orders[2].price\".")

(define-condition message-print-error (protobuf-error)
  ((format :initarg :format :reader message-print-error-format)) ; the text's, :json or :text
  (:report (lambda (condition stream)
             (format stream "Cannot write ~:[a message~;~:*~A~] as ~A: ~A."
                     (protobuf-error-type condition)
                     (ecase (message-print-error-format condition)
                       (:json "JSON") (:text "text"))
                     (protobuf-error-text condition))))
  (:documentation "A message has no form in JSON or text format, such as a Timestamp out of range or
an Any of an unknown type in JSON."))

(document-functions
  message-print-error-format ":json or :text, the format of the output.")

(defconstant +most-shown+ 20
  "The maximum number of errors of one file in the text of a PROTO-SYNTAX-ERROR.")

(define-condition proto-syntax-error (clgrpc-error)
  ((file :initarg :file :reader proto-syntax-error-file) ; the file's name as imports write it
   (line :initarg :line :reader proto-syntax-error-line) ; the line of the fault, from 1
   (column :initarg :column :reader proto-syntax-error-column) ; the column of the fault, from 1
   ;; the expected text, or nil
   (expected :initarg :expected :initform nil :reader proto-syntax-error-expected)
   (text :initarg :text :reader proto-syntax-error-text) ; the fault, as a sentence
   ;; further errors of the same file
   (others :initarg :others :initform '() :accessor proto-syntax-error-others))
  (:report (lambda (condition stream)
             (let* ((others (proto-syntax-error-others condition))
                    (more (max 0 (- (1+ (length others)) +most-shown+))))
               (format stream "~A:~D:~D: ~A~{~%~A~}~[~:;~:*~%and ~D more error~:P in this file~]"
                       (proto-syntax-error-file condition) (proto-syntax-error-line condition)
                       (proto-syntax-error-column condition) (proto-syntax-error-text condition)
                       (butlast others more) more))))
  (:documentation "A .proto source cannot be compiled. FILE, LINE and COLUMN (from 1) are the
position. EXPECTED is the text that was expected there, or nil if the error is another. TEXT is the
error as one sentence. OTHERS has the further errors of the same file, in the order in which they
were found; the first twenty are printed."))

(document-functions
  proto-syntax-error-file "The .proto file with the error, as text."
  proto-syntax-error-line "The line of the error, from 1."
  proto-syntax-error-column "The column of the error, from 1."
  proto-syntax-error-expected "The text or token that was expected, or nil if the error is another."
  proto-syntax-error-text "The error as one sentence."
  proto-syntax-error-others "The further errors of the same file, a list of PROTO-SYNTAX-ERRORs.")

(defun reinitialize-error-type (condition name)
  (setf (slot-value condition 'type) name))
