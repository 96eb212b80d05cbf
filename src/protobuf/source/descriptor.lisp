;;;; Descriptors: the declarations of a .proto file, as structures. The parser makes descriptors
;;;; with names as written; the linker resolves names and features in them; the generator and
;;;; reflection read them.
;;;;
;;;; Invariants after linking: no full name has a leading dot. A field's TYPE-NAME is the full name
;;;; of a message or enum that is registered or about to be. Nothing refers from one file into
;;;; another or upwards, so a file descriptor can be dumped into a fasl as a literal.

(in-package #:clgrpc.protobuf)

(defstruct (descriptor (:copier nil) (:constructor nil))
  "The common part of all declarations."
  (name "" :type string)                ; the last part of the full name
  (full-name "" :type string)           ; the name with the package and the enclosing messages
  (comment nil :type (or null string))  ; the text of the declaration's comment, or nil
  (options '() :type list)              ; the options as written: a list of OPTIONs
  ;; the meaning of the options: a serialized google.protobuf.…Options message, without the options
  ;; that are for the source only; nil if the message is empty
  (option-octets nil :type (or null octets))
  (source-option-octets nil :type (or null octets)) ; all of the options, serialized
  (features nil :type list)             ; the resolved features, as a plist
  (line 1 :type index)                  ; the declaration's line, from 1
  (column 1 :type index))               ; the declaration's column, from 1

(defstruct (option (:copier nil))
  "One option in the form that it has in the source."
  (name '() :type list)                 ; strings, or (string) for a part in parentheses
  ;; octets, an integer, a float, (:identifier name) or (:aggregate fields)
  (value nil)
  (line 1 :type index)                  ; the option's line, from 1
  (column 1 :type index))               ; the option's column, from 1

(defstruct (file-descriptor (:include descriptor) (:copier nil))
  "A .proto file. NAME and FULL-NAME are its path as imports write it."
  (package "" :type string)             ; the name of the file's package, "" for none
  (syntax :proto2 :type (member :proto2 :proto3 :editions)) ; the language of the file
  (edition nil :type (or null string))  ; the edition as written, or nil
  (dependencies '() :type list)         ; the names of all files that the file imports
  (public-dependencies '() :type list)  ; the names of the files that are imported publicly
  (weak-dependencies '() :type list)    ; the names of the files that are imported weakly
  (option-dependencies '() :type list)  ; files that are imported for their options only
  ;; where each part of a declaration stands, until the file is linked; see NOTE-AT
  (places nil :type (or null hash-table))
  (messages '() :type list)             ; messages declared in the file, not in one of the file's
                                        ; messages
  (enums '() :type list)                ; enums declared in the file, not in one of the file's
                                        ; messages
  (extensions '() :type list)           ; extensions declared in the file, not in one of the file's
                                        ; messages
  (services '() :type list)             ; services that the file declares
  (fingerprint "" :type string)         ; a hash of the source
  ;; the native name of the file on disk that it was read from, or nil
  (source nil :type (or null string)))

(defstruct (message-descriptor (:include descriptor) (:copier nil))
  "A message type."
  (fields '() :type list)               ; fields in the order of the source
  (oneofs '() :type list)               ; oneofs in the order of the source
  (messages '() :type list)             ; messages declared inside this message, with its map
                                        ; entries
  (enums '() :type list)                ; enums that are declared inside the message
  (extensions '() :type list)           ; extensions that are declared inside the message
  (extension-ranges '() :type list)     ; the ranges of extension numbers, EXTENSION-RANGEs
  (reserved-ranges '() :type list)      ; ranges of numbers, (first . last), both inclusive
  (reserved-names '() :type list)       ; names that no field may have
  (map-entry-p nil :type boolean)       ; true of the entry type of a map field
  (message-set-p nil :type boolean)     ; true if its extensions are written as items
  (visibility nil :type (member nil :local :export)) ; the visibility as declared, or nil
  (symbol nil :type symbol))            ; the symbol that names the Lisp type

(defstruct (extension-range (:include descriptor) (:copier nil))
  "Field numbers of a message that extensions may have."
  (first 1 :type integer)               ; the lowest
  (last 1 :type integer))               ; the highest

(defstruct (field-descriptor (:include descriptor) (:copier nil))
  "A field or extension."
  (number 0 :type fixnum)               ; the field's number
  ;; the label as written, or as implied
  (label :optional :type (member :optional :required :repeated))
  (labelled-p nil :type boolean)        ; true if the label is written
  (type nil :type (or null keyword))    ; such as :int32, :message, :enum or :group
  (type-name nil :type (or null string)) ; the full name of its message or enum type, or nil
  (oneof nil :type (or null string))    ; the name of the oneof that the field belongs to, or nil
  (proto3-optional-p nil :type boolean) ; true of an `optional` field in proto3
  (extendee nil :type (or null string)) ; the full name of the message that it extends, or nil
  (default nil)                         ; the value, or nil for the type's own
  ;; the default, if one is written, as descriptor.proto writes it
  (default-text nil :type (or null string octets))
  (json-name "" :type string)           ; the field's name in JSON
  (presence :implicit :type keyword)    ; :implicit, :explicit, :required or :repeated
  (packed-p nil :type boolean)          ; whether repeated values are written packed
  (closed-p nil :type boolean)          ; whether the field's enum is closed
  (unchecked-p nil :type boolean)       ; whether the field's strings need not be UTF-8
  (delimited-p nil :type boolean)       ; whether the field's message is written as a group
  (map-p nil :type boolean))            ; whether the field is a map

(defstruct (oneof-descriptor (:include descriptor) (:copier nil))
  "A oneof; its fields are the message's fields whose ONEOF is its name.")

(defstruct (enum-descriptor (:include descriptor) (:copier nil))
  "An enum type."
  (values '() :type list)               ; ENUM-VALUE-DESCRIPTORs in the order of the source
  (reserved-ranges '() :type list)      ; ranges of numbers, (first . last), both inclusive
  (reserved-names '() :type list)       ; names that no value may have
  (closed-p nil :type boolean)          ; whether numbers without a name are unknown fields
  (visibility nil :type (member nil :local :export)) ; the visibility as declared, or nil
  (symbol nil :type symbol))            ; the name of the Lisp type

(defstruct (enum-value-descriptor (:include descriptor) (:copier nil))
  "One value of an enum: a name with a number."
  (number 0 :type (signed-byte 32)))    ; the value's number

(defstruct (service-descriptor (:include descriptor) (:copier nil))
  "A service."
  (methods '() :type list)              ; methods in the order of the source
  (symbol nil :type symbol))            ; the name of the Lisp class

(defstruct (method-descriptor (:include descriptor) (:copier nil))
  "A method."
  (input "" :type string)               ; the full name of its request's message
  (output "" :type string)              ; the full name of its response's message
  (client-streaming-p nil :type boolean) ; true if the method takes a stream of requests
  (server-streaming-p nil :type boolean) ; true if the method returns a stream of responses
  (symbol nil :type symbol))            ; the name of the generic function

(document-functions
  descriptor-name "The name in the declaration of DESCRIPTOR, as written. The name of a file is its
import path."
  descriptor-full-name "The full name, with package and outer messages: \"helloworld.HelloReply\"."
  descriptor-comment "The comment at the declaration, or nil if it has none."
  descriptor-options "The OPTIONs of the declaration, a list in the order of the source."
  descriptor-option-octets "The options of the declaration as a serialized message of their type in
descriptor.proto, such as google.protobuf.FieldOptions, or nil if it has none. Options with the
retention RETENTION_SOURCE are omitted."
  descriptor-source-option-octets "The options of the declaration as for DESCRIPTOR-OPTION-OCTETS,
but including options with the retention RETENTION_SOURCE."
  descriptor-line "The line of the declaration, from 1."
  descriptor-column "The column of the declaration, from 1."
  option-name "The name of OPTION, a list of its parts. A part is a string or, if it is in
parentheses, a list of a string."
  option-value "The value of OPTION: a string of octets, a number, (:identifier name) or
(:aggregate fields)."
  file-descriptor-package "The package of the file, \"\" if it has none."
  file-descriptor-syntax "The syntax of the file: :proto2, :proto3 or :editions."
  file-descriptor-dependencies "The import paths of the files it imports, in order."
  file-descriptor-public-dependencies "The import paths of the files that the file imports
publicly."
  file-descriptor-messages "The descriptors of the messages at the file's top level, in order."
  file-descriptor-enums "The descriptors of the enums at the file's top level, in order."
  file-descriptor-services "The descriptors of the file's services, in order."
  file-descriptor-extensions "The descriptors of the extensions at the file's top level, in order.")

(document-functions
  message-descriptor-fields "The descriptors of the message's fields, in order."
  message-descriptor-oneofs "The descriptors of the message's oneofs, in order."
  message-descriptor-messages "The descriptors of the messages inside the message, in order."
  message-descriptor-enums "The descriptors of the enums inside the message, in order."
  message-descriptor-map-entry-p "True if the message is the entry of a map field."
  field-descriptor-number "The number of the field."
  field-descriptor-label "The label of the field: :optional, :required or :repeated."
  field-descriptor-type "The type of the field, a keyword such as :int32, :message, :enum or
:group."
  field-descriptor-type-name "The full name of the field's message or enum type, or nil if the field
has another type."
  field-descriptor-default "The default of the field in the file, or nil if it declares none."
  field-descriptor-json-name "The name of the field in JSON."
  field-descriptor-presence "The presence of the field, that is, how it is known to be set:
:implicit, :explicit, :required or :repeated."
  field-descriptor-packed-p "True if the field is repeated and written packed."
  field-descriptor-oneof "The name of the oneof to which the field belongs, or nil if it belongs to
none."
  enum-descriptor-values "The descriptors of the enum's values, in order."
  enum-value-descriptor-number "The number of the enum value."
  service-descriptor-symbol "The name of the service's class."
  service-descriptor-methods "The descriptors of the service's methods, in order."
  method-descriptor-symbol "The name of the method's generic function."
  method-descriptor-input "The full name of the method's request type."
  method-descriptor-output "The full name of the method's response type."
  method-descriptor-client-streaming-p "True if the client sends a stream of messages."
  method-descriptor-server-streaming-p "True if the server sends a stream of messages.")

(define-printer (descriptor descriptor)
  "~A" (if (string= "" (descriptor-full-name descriptor))
           (descriptor-name descriptor)
           (descriptor-full-name descriptor)))

(defmethod make-load-form ((descriptor descriptor) &optional environment)
  (make-load-form-saving-slots descriptor :environment environment))

(defmethod make-load-form ((option option) &optional environment)
  (make-load-form-saving-slots option :environment environment))

(defun method-descriptor-path (method)
  "Return the :path of METHOD, \"/package.Service/Method\"."
  (let* ((full (descriptor-full-name method))
         (dot (position #\. full :from-end t)))
    (format nil "/~A/~A" (subseq full 0 dot) (subseq full (1+ dot)))))

(defun find-option (descriptor name)
  "Return two values: the value, as written, of the option NAME (a string such as \"packed\", or
\"(my.ext)\" for a custom option) of DESCRIPTOR, and true. Return nil and nil if DESCRIPTOR has no
such option."
  (let ((option (find name (descriptor-options descriptor)
                      :key (lambda (option) (option-name-string (option-name option)))
                      :test #'string=)))
    (if option (values (option-value option) t) (values nil nil))))

(defun option-name-string (name)
  (format nil "~{~A~^.~}"
          (mapcar (lambda (part) (if (consp part) (format nil "(~A)" (first part)) part)) name)))

(defun option-true-p (descriptor name)
  "True if the boolean option NAME of DESCRIPTOR is set to true."
  (equal '(:identifier "true") (find-option descriptor name)))

;;; Tables

(defun index-by (key things &key (test 'eql))
  "Return a table from the values of the function KEY for THINGS to these things. Of several things
with the same value, the table has the first."
  (let ((table (make-hash-table :test test)))
    (dolist (thing things table)
      (let ((value (funcall key thing)))
        (unless (gethash value table) (setf (gethash value table) thing))))))

(defun name-set (names)
  (let ((table (make-hash-table :test 'equal)))
    (dolist (name names table) (setf (gethash name table) t))))

;;; Walking

(defun map-messages (function owner)
  "Call FUNCTION with every message declared in OWNER, a file or message descriptor, outermost
first."
  (dolist (message (if (file-descriptor-p owner)
                       (file-descriptor-messages owner)
                       (message-descriptor-messages owner)))
    (funcall function message)
    (map-messages function message)))

(defun map-enums (function file)
  "Call FUNCTION with every enum declared in FILE at any depth."
  (mapc function (file-descriptor-enums file))
  (map-messages (lambda (message) (mapc function (message-descriptor-enums message))) file))

(defun map-extensions (function file)
  "Call FUNCTION with every extension field declared in FILE at any depth."
  (mapc function (file-descriptor-extensions file))
  (map-messages (lambda (message) (mapc function (message-descriptor-extensions message))) file))

(defun map-names (function file)
  "For every descriptor in FILE that has a full name, call FUNCTION with the descriptor and its
owner."
  (labels ((visit-enum (enum)
             (funcall function enum nil)
             (dolist (value (enum-descriptor-values enum)) (funcall function value enum)))
           (visit-message (message)
             (funcall function message nil)
             (dolist (field (message-descriptor-fields message)) (funcall function field message))
             (dolist (oneof (message-descriptor-oneofs message)) (funcall function oneof message))
             (dolist (field (message-descriptor-extensions message)) (funcall function field nil))
             (mapc #'visit-enum (message-descriptor-enums message))
             (mapc #'visit-message (message-descriptor-messages message))))
    (mapc #'visit-message (file-descriptor-messages file))
    (mapc #'visit-enum (file-descriptor-enums file))
    (dolist (field (file-descriptor-extensions file)) (funcall function field nil))
    (dolist (service (file-descriptor-services file))
      (funcall function service nil)
      (dolist (method (service-descriptor-methods service)) (funcall function method service)))))

;;; The registry of loaded files. Written only while code is loaded or compiled.

(defglobal **files** (make-hash-table :test 'equal :synchronized t))
(defglobal **descriptors** (make-hash-table :test 'equal :synchronized t))
(defglobal **symbol-files** (make-hash-table :test 'equal :synchronized t))
(defglobal **extension-descriptors** (make-hash-table :test 'equal :synchronized t))

(defvar *built-ins* (make-hash-table :test 'equal)
  "A table from an import path to the text of the file, or to true if the file is defined in every
image.")

(defun built-in (name)
  "Return true if the file NAME is defined in every image, its text if it is built in but not
defined yet, and nil if it is not built in."
  (values (gethash name *built-ins*)))

(defun find-file-descriptor (name)
  "Return the descriptor of the loaded file whose import path is NAME, or nil if no such file is
loaded."
  (values (gethash name **files**)))

(defun find-descriptor (full-name)
  "Return the descriptor of the loaded message, enum, service or extension FULL-NAME, or nil if
there is none."
  (values (gethash full-name **descriptors**)))

(defun file-of-symbol (full-name)
  "Return the descriptor of the loaded file that declares FULL-NAME, or nil if no loaded file does.
FULL-NAME may be the name of a message, enum, enum value, field, oneof, extension, service or
method."
  (values (gethash full-name **symbol-files**)))

(defun find-extension-descriptor (full-name number)
  "Return the descriptor of the loaded extension of the message FULL-NAME with NUMBER, or nil if
there is none."
  (let ((table (gethash full-name **extension-descriptors**)))
    (and table (values (gethash number table)))))

(defun extension-descriptors (full-name)
  "Return the descriptors of all loaded extensions of the message FULL-NAME, by number."
  (when-let ((table (gethash full-name **extension-descriptors**)))
    (sb-ext:with-locked-hash-table (table)
      (sort (loop for field being the hash-values of table collect field)
            #'< :key #'field-descriptor-number))))

(defun note-extension (field)
  (let ((extendee (field-descriptor-extendee field)))
    (sb-ext:with-locked-hash-table (**extension-descriptors**)
      (unless (gethash extendee **extension-descriptors**)
        (setf (gethash extendee **extension-descriptors**)
              (make-hash-table :synchronized t))))
    (setf (gethash (field-descriptor-number field)
                   (gethash extendee **extension-descriptors**))
          field)))

(defun forget-file (file)
  "Remove the declarations of FILE from the registry."
  (map-names (lambda (descriptor owner)
               (declare (ignore owner))
               (let ((name (descriptor-full-name descriptor)))
                 (when (eq file (gethash name **symbol-files**))
                   (remhash name **symbol-files**)
                   (remhash name **descriptors**))))
             file)
  (map-extensions (lambda (field)
                    (let ((table (gethash (field-descriptor-extendee field)
                                          **extension-descriptors**)))
                      (when (and table (eq field (gethash (field-descriptor-number field) table)))
                        (remhash (field-descriptor-number field) table))))
                  file))

;;; Which compiled files define a .proto file

(defglobal **definers** (make-hash-table :test 'eq :weakness :key :synchronized t)
  "A table from file descriptors that compiled files define to their definers. A definer has a text
that names the source of the compiled file, and a weak pointer to the run of the compiler that has
compiled it, or nil in place of the pointer.")

(defvar *definer* nil
  "The definer of the descriptors in the form that is being expanded, or nil at the REPL.")

(defun current-compilation ()
  "Return an object that identifies the run of COMPILE-FILE in this thread, or nil if the thread is
not in COMPILE-FILE."
  (let ((symbol (find-symbol "*SOURCE-INFO*" "SB-C"))) ; LOAD binds it as well
    (and *compile-file-truename* symbol (boundp symbol) (symbol-value symbol))))

(defun provided-p (file)
  "True if the form that is being expanded may omit FILE, a registered file descriptor. At the REPL
the function is always true. A form for another image may omit FILE only if that image gets FILE in
another way: FILE is built in, another compiled file defines it, or an earlier form of the same run
of the compiler does. The other image will not have the definitions that this image got from an
earlier version of the same file."
  (or (null *definer*)
      (eq t (built-in (descriptor-name file)))
      (destructuring-bind (&optional definer . compilation) (gethash file **definers**)
        (and definer
             (or (string/= definer *definer*)
                 (let ((current (current-compilation)))
                   (and current
                        compilation
                        (eq current (sb-ext:weak-pointer-value compilation)))))))))

(defun register-file (file &optional definer)
  "Register FILE for FIND-FILE-DESCRIPTOR, and its declarations for FIND-DESCRIPTOR, FILE-OF-SYMBOL
and FIND-EXTENSION-DESCRIPTOR, in place of the declarations of an earlier file of that name. DEFINER
is the definer of the compiled file that contains FILE. Return FILE."
  (when definer
    (let ((compilation (current-compilation)))
      (setf (gethash file **definers**)
            (cons definer (and compilation (sb-ext:make-weak-pointer compilation))))))
  (let ((before (find-file-descriptor (descriptor-name file))))
    (when before (forget-file before)))
  (flet ((note (descriptor &optional symbol)
           (when symbol (setf (get symbol 'declared-as) (descriptor-full-name descriptor)))
           (setf (gethash (descriptor-full-name descriptor) **descriptors**) descriptor)))
    (map-messages (lambda (message) (note message (message-descriptor-symbol message))) file)
    (map-enums (lambda (enum) (note enum (enum-descriptor-symbol enum))) file)
    (map-extensions #'note file)
    (dolist (service (file-descriptor-services file))
      (note service (service-descriptor-symbol service))))
  (map-extensions #'note-extension file)
  (map-names (lambda (descriptor owner)
               (declare (ignore owner))
               (setf (gethash (descriptor-full-name descriptor) **symbol-files**) file))
             file)
  (setf (gethash (descriptor-name file) **files**) file))

;;; Helpers for the files that make descriptors

(defmacro reverse-places (&rest places)
  "Reverse the lists in PLACES. PUSH has made them, so this puts their elements into the order of
the source."
  `(setf ,@(loop for place in places append `(,place (reverse ,place)))))

(defun text-fingerprint (text)
  "The 64-bit FNV-1a hash of TEXT in hexadecimal."
  (let ((hash #xCBF29CE484222325))
    (loop for char across text
          do (setf hash (ldb (byte 64 0) (* #x100000001B3 (logxor hash (char-code char))))))
    (format nil "~16,'0X" hash)))
