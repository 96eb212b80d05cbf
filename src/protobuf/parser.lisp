;;;; .proto source to descriptors with names as written (protobuf language specification, proto2,
;;;; proto3 and editions share this grammar; the linker enforces what each allows). Recursive
;;;; descent over the token vector, one function per production.
;;;;
;;;; An error ends its statement only: parsing goes on behind the next semicolon or balanced brace,
;;;; and PARSE-PROTO signals the first error with the others attached.

(in-package #:clgrpc.protobuf)

(defstruct (parser (:copier nil))
  (tokens #() :type simple-vector)
  (at 0 :type index)
  (file nil :type (or null file-descriptor))
  (problems '() :type list)
  (depth 0 :type index))

(defvar *parser*)
(setf (documentation '*parser* 'variable) "The parser at work.")

(defconstant +source-depth+ 64
  "How deep messages, groups and aggregate values may nest in a source file.")

(declaim (inline this-token))
(defun this-token ()
  (svref (parser-tokens *parser*) (parser-at *parser*)))

(defun next ()
  "Consume and return the current token; the end is never passed."
  (prog1 (this-token)
    (when (< (1+ (parser-at *parser*)) (length (parser-tokens *parser*)))
      (incf (parser-at *parser*)))))

(defun parse-failure (token expected)
  (error 'proto-syntax-error
         :file (descriptor-name (parser-file *parser*))
         :line (token-line token) :column (token-column token) :expected expected
         :text (format nil "expected ~A, found ~A" expected (describe-token token))))

(defun token-is (text &optional (token (this-token)))
  "True if TOKEN is the symbol or identifier TEXT."
  (and (member (token-kind token) '(:symbol :identifier))
       (string= text (token-value token))))

(defun accept (text)
  "Consume the current token if it is TEXT; return it or nil."
  (when (token-is text) (next)))

(defun expect (text)
  (or (accept text) (parse-failure (this-token) (format nil "\"~A\"" text))))

(defun expect-kind (kind what)
  (if (eq kind (token-kind (this-token)))
      (token-value (next))
      (parse-failure (this-token) what)))

(defun expect-name (what)
  (expect-kind :identifier what))

(defun expect-string ()
  "Consume adjacent strings, return their octets joined."
  (let ((octets (expect-kind :string "a string")))
    (loop while (eq :string (token-kind (this-token)))
          do (setf octets (concatenate 'octets octets (token-value (next)))))
    octets))

(defun expect-integer (what &key (minimum 0) (maximum (1- (expt 2 64))))
  "Consume an integer with an optional minus (if MINIMUM is negative); check its range."
  (let* ((token (this-token))
         (negative (and (minusp minimum) (accept "-")))
         (magnitude (expect-kind :integer what))
         (value (if negative (- magnitude) magnitude)))
    (unless (<= minimum value maximum)
      (parse-failure token (format nil "~A from ~D to ~D" what minimum maximum)))
    value))

(defun expect-full-name (what)
  "Consume a possibly dotted, possibly absolute name; return it as a string."
  (with-output-to-string (out)
    (when (accept ".") (write-char #\. out))
    (write-string (expect-name what) out)
    (loop while (accept ".")
          do (write-char #\. out)
             (write-string (expect-name what) out))))

(defmacro with-nesting (() &body body)
  "Run BODY one level deeper, within the limit."
  `(progn
     (when (>= (parser-depth *parser*) +source-depth+)
       (parse-failure (this-token) (format nil "nesting of at most ~D levels" +source-depth+)))
     (incf (parser-depth *parser*))
     (unwind-protect (progn ,@body) (decf (parser-depth *parser*)))))

;;; Statements and recovery

(defun skip-statement ()
  "Go to behind the next semicolon or balanced block, or before a closing brace."
  (let ((depth 0))
    (loop
      (let ((token (this-token)))
        (cond ((eq :end (token-kind token)) (return))
              ((token-is "{" token) (incf depth))
              ((token-is "}" token)
               (when (zerop depth) (return))
               (when (zerop (decf depth)) (next) (return)))
              ((and (token-is ";" token) (zerop depth)) (next) (return))))
      (next))))

(defun call-recovering (function)
  "Call FUNCTION; on a syntax error note it and skip the statement."
  (let ((before (parser-at *parser*)))
    (handler-case (funcall function)
      (proto-syntax-error (problem)
        (push problem (parser-problems *parser*))
        (skip-statement)
        (when (= before (parser-at *parser*)) (next))))))

(defmacro do-block-statements (() &body body)
  "Consume { statements }: run BODY at each statement that is not empty."
  `(progn
     (expect "{")
     (loop until (or (token-is "}") (eq :end (token-kind (this-token))))
           do (unless (accept ";")
                (call-recovering (lambda () ,@body))))
     (expect "}")))

(defun statement-comment (first last)
  "The comment of a statement whose tokens run from FIRST to LAST: the one before, else behind."
  (or (token-leading first) (token-trailing last)))

(defun note-place (descriptor token scope)
  "Give DESCRIPTOR the place of TOKEN and its full name within SCOPE. Return it."
  (setf (descriptor-line descriptor) (token-line token)
        (descriptor-column descriptor) (token-column token)
        (descriptor-full-name descriptor)
        (if (string= "" scope)
            (descriptor-name descriptor)
            (format nil "~A.~A" scope (descriptor-name descriptor))))
  descriptor)

;;; Options

(defun parse-option-name ()
  (let ((parts '()))
    (loop
      (push (if (accept "(")
                (prog1 (list (expect-full-name "the name of an option")) (expect ")"))
                (expect-name "the name of an option"))
            parts)
      (unless (accept ".") (return (nreverse parts))))))

(defun parse-constant ()
  "Consume the value of an option."
  (let ((token (this-token)))
    (case (token-kind token)
      (:identifier (list :identifier (token-value (next))))
      (:string (expect-string))
      ((:integer :float) (token-value (next)))
      (t (cond ((accept "-")
                (let ((token (next)))
                  (cond ((member (token-kind token) '(:integer :float)) (- (token-value token)))
                        ((token-is "inf" token) sb-ext:double-float-negative-infinity)
                        ((token-is "nan" token) (list :identifier "nan"))
                        (t (parse-failure token "a number")))))
               ((token-is "{") (parse-aggregate "{" "}"))
               (t (parse-failure token "the value of an option")))))))

(defun parse-aggregate (open close)
  "Consume an aggregate value; return (:aggregate (name . value)…), a name in brackets as (name)."
  (with-nesting ()
    (expect open)
    (let ((fields '()))
      (loop until (accept close)
            do (let ((name (if (accept "[")
                               (prog1 (list (parse-bracketed-name)) (expect "]"))
                               (expect-name "the name of a field"))))
                 (push (cons name (cond ((token-is "<") (parse-aggregate "<" ">"))
                                        ((token-is "{") (parse-aggregate "{" "}"))
                                        (t (expect ":") (parse-aggregate-value))))
                       fields))
               (or (accept ",") (accept ";")))
      (cons :aggregate (nreverse fields)))))

(defun parse-bracketed-name ()
  "An extension name, or a type URL as in Any."
  (let ((name (expect-full-name "the name of an extension")))
    (if (accept "/")
        (format nil "~A/~A" name (expect-full-name "the name of a type"))
        name)))

(defun parse-aggregate-value ()
  (cond ((token-is "<") (parse-aggregate "<" ">"))
        ((accept "[")
         (with-nesting ()
           (let ((values '()))
             (loop until (accept "]")
                   do (push (parse-aggregate-value) values)
                      (unless (token-is "]") (expect ",")))
             (cons :list (nreverse values)))))
        (t (parse-constant))))

(defun parse-option-assignment ()
  (let ((token (this-token))
        (name (parse-option-name)))
    (expect "=")
    (make-option :name name :value (parse-constant)
                 :line (token-line token) :column (token-column token))))

(defun parse-option-statement (descriptor)
  (expect "option")
  (push (parse-option-assignment) (descriptor-options descriptor))
  (expect ";"))

(defun parse-bracketed-options (descriptor)
  "Consume [name = value, …] if it is there, into DESCRIPTOR."
  (when (accept "[")
    (loop
      (push (parse-option-assignment) (descriptor-options descriptor))
      (unless (accept ",") (return)))
    (expect "]")))

;;; Fields

(defparameter *scalar-names*
  '("double" "float" "int32" "int64" "uint32" "uint64" "sint32" "sint64" "fixed32" "fixed64"
    "sfixed32" "sfixed64" "bool" "string" "bytes")
  "The types a field can have without a declaration.")

(defun scalar-type (name)
  "The keyword of the scalar type NAME, or nil."
  (when (member name *scalar-names* :test #'string=)
    (intern (string-upcase name) :keyword)))

(defun parse-field-type (field)
  (let ((name (expect-full-name "the type of a field")))
    (setf (field-descriptor-type field) (scalar-type name)
          (field-descriptor-type-name field) (if (scalar-type name) nil name))))

(defun parse-field-number ()
  (expect-integer "a field number" :minimum 1 :maximum 536870911))

(defun parse-label (field)
  (let ((label (cond ((accept "optional") :optional)
                     ((accept "required") :required)
                     ((accept "repeated") :repeated))))
    (when label
      (setf (field-descriptor-label field) label
            (field-descriptor-labelled-p field) t))))

(defun parse-field (owner scope add &key oneof extendee)
  "Consume one field declaration, also a map or group, and call ADD with its descriptor. OWNER is
the message descriptor around it, or nil for an extension in a file."
  (let ((first (this-token)) (field (make-field-descriptor :extendee extendee)))
    (when oneof (setf (field-descriptor-oneof field) oneof))
    (parse-label field)
    (cond ((and (token-is "map") (token-is "<" (token-after)))
           (parse-map-field field owner first scope))
          ((accept "group") (parse-group field owner first scope))
          (t
           (parse-field-type field)
           (let ((name-token (this-token)))
             (setf (descriptor-name field) (expect-name "the name of a field"))
             (expect "=")
             (setf (field-descriptor-number field) (parse-field-number))
             (parse-bracketed-options field)
             (note-place field name-token scope))))
    (let ((last (this-token)))
      (unless (eq :group (field-descriptor-type field)) (expect ";"))
      (setf (descriptor-comment field) (statement-comment first last)))
    (funcall add field)))

(defun token-after ()
  (let ((tokens (parser-tokens *parser*)))
    (svref tokens (min (1+ (parser-at *parser*)) (1- (length tokens))))))

(defun parse-group (field owner first scope)
  "Consume Name = number { … }: a field and the message type it has."
  (let* ((token (this-token))
         (name (expect-name "the name of a group"))
         (message (note-place (make-message-descriptor :name name) token scope)))
    (unless (upper-case-p (char name 0))
      (parse-failure token "a group name that begins with a capital letter"))
    (expect "=")
    (setf (descriptor-name field) (string-downcase name)
          (field-descriptor-number field) (parse-field-number)
          (field-descriptor-type field) :group
          (field-descriptor-type-name field) name)
    (parse-bracketed-options field)
    (note-place field token scope)
    (setf (descriptor-comment message) (token-leading first))
    (parse-message-body message)
    (add-message message owner)))

(defun add-message (message owner)
  (if owner
      (push message (message-descriptor-messages owner))
      (push message (file-descriptor-messages (parser-file *parser*)))))

(defun map-entry-name (name)
  "The name protoc gives the entry type of a map field: some_map → SomeMapEntry."
  (with-output-to-string (out)
    (let ((up t))
      (loop for char across name
            do (cond ((char= char #\_) (setf up t))
                     (t (write-char (if up (char-upcase char) char) out)
                        (setf up nil)))))
    (write-string "Entry" out)))

(defun parse-map-field (field owner first scope)
  "Consume map<K, V> name = number, which declares a repeated field of an entry type."
  (when (or (field-descriptor-labelled-p field) (null owner) (field-descriptor-oneof field))
    (parse-failure first "a map field without label, directly in a message"))
  (let* ((key (make-field-descriptor :name "key" :number 1))
         (value (make-field-descriptor :name "value" :number 2))
         (token (progn (expect "map") (expect "<") (this-token))))
    (parse-field-type key)
    (expect ",")
    (parse-field-type value)
    (expect ">")
    (let* ((name-token (this-token))
           (name (expect-name "the name of a field"))
           (entry (note-place (make-message-descriptor :name (map-entry-name name) :map-entry-p t
                                                       :fields (list value key))
                              name-token scope)))
      (note-place key token (descriptor-full-name entry))
      (note-place value token (descriptor-full-name entry))
      (finish-lists entry)
      (expect "=")
      (setf (descriptor-name field) name
            (field-descriptor-number field) (parse-field-number)
            (field-descriptor-label field) :repeated
            (field-descriptor-map-p field) t
            (field-descriptor-type-name field) (descriptor-name entry))
      (parse-bracketed-options field)
      (note-place field name-token scope)
      (add-message entry owner))))

(defun parse-oneof (message)
  (let ((first (expect "oneof"))
        (scope (descriptor-full-name message))
        (oneof (make-oneof-descriptor)))
    (let ((token (this-token)))
      (setf (descriptor-name oneof) (expect-name "the name of a oneof"))
      (note-place oneof token scope))
    (setf (descriptor-comment oneof) (token-leading first))
    (push oneof (message-descriptor-oneofs message))
    (do-block-statements ()
      (if (token-is "option")
          (parse-option-statement oneof)
          (parse-field message scope
                       (lambda (field) (push field (message-descriptor-fields message)))
                       :oneof (descriptor-name oneof))))))

;;; Messages

(defun parse-range-end (first maximum)
  (if (accept "to")
      (if (accept "max") maximum (expect-integer "a number" :minimum -2147483648 :maximum maximum))
      first))

(defun parse-ranges (minimum maximum)
  "Consume first [to last], … ; return the list of (first . last)."
  (loop
    for first = (expect-integer "a number" :minimum minimum :maximum maximum)
    collect (cons first (parse-range-end first maximum))
    while (accept ",")))

(defun parse-reserved (minimum maximum add-ranges add-names)
  (expect "reserved")
  (cond ((eq :string (token-kind (this-token)))
         (funcall add-names (loop collect (octets-string (expect-string)) while (accept ","))))
        ((eq :identifier (token-kind (this-token)))
         (funcall add-names (loop collect (expect-name "a reserved name") while (accept ","))))
        (t (funcall add-ranges (parse-ranges minimum maximum))))
  (expect ";"))

(defun parse-extension-ranges (message)
  (expect "extensions")
  (let ((ranges (parse-ranges 1 536870911))
        (options (make-oneof-descriptor)))
    (parse-bracketed-options options)
    (expect ";")
    (setf (message-descriptor-extension-ranges message)
          (append (message-descriptor-extension-ranges message)
                  (loop for (first . last) in ranges
                        collect (list first last (descriptor-options options)))))))

(defun parse-extend (owner scope)
  "Consume extend Name { fields }."
  (expect "extend")
  (let ((extendee (expect-full-name "the name of a message")))
    (do-block-statements ()
      (parse-field owner scope
                   (lambda (field)
                     (if owner
                         (push field (message-descriptor-extensions owner))
                         (push field (file-descriptor-extensions (parser-file *parser*)))))
                   :extendee extendee))))

(defun parse-message-statement (message)
  (let ((scope (descriptor-full-name message)))
    (cond ((token-is "message") (push (parse-message-declaration scope)
                                      (message-descriptor-messages message)))
          ((token-is "enum") (push (parse-enum scope) (message-descriptor-enums message)))
          ((token-is "extensions") (parse-extension-ranges message))
          ((token-is "extend") (parse-extend message scope))
          ((token-is "option") (parse-option-statement message))
          ((token-is "oneof") (parse-oneof message))
          ((token-is "reserved")
           (parse-reserved 1 536870911
                           (lambda (ranges)
                             (setf (message-descriptor-reserved-ranges message)
                                   (append (message-descriptor-reserved-ranges message) ranges)))
                           (lambda (names)
                             (setf (message-descriptor-reserved-names message)
                                   (append (message-descriptor-reserved-names message) names)))))
          (t (parse-message-field message)))))

(defun parse-message-field (message)
  (parse-field message (descriptor-full-name message)
               (lambda (field) (push field (message-descriptor-fields message)))))

(defun parse-message-body (message)
  (with-nesting ()
    (do-block-statements () (parse-message-statement message))
    (finish-lists message)))

(defun parse-message-declaration (scope)
  (let* ((first (expect "message"))
         (token (this-token))
         (message (make-message-descriptor :name (expect-name "the name of a message"))))
    (note-place message token scope)
    (setf (descriptor-comment message) (statement-comment first (this-token)))
    (parse-message-body message)
    message))

(defun finish-lists (message)
  "Bring the lists of MESSAGE, which were pushed, into the order of the source."
  (macrolet ((turn (&rest places)
               `(progn ,@(loop for place in places collect `(setf ,place (reverse ,place))))))
    (turn (message-descriptor-fields message) (message-descriptor-oneofs message)
          (message-descriptor-messages message) (message-descriptor-enums message)
          (message-descriptor-extensions message) (descriptor-options message))))

;;; Enums

(defun parse-enum (scope)
  (let* ((first (expect "enum"))
         (token (this-token))
         (enum (make-enum-descriptor :name (expect-name "the name of an enum"))))
    (note-place enum token scope)
    (setf (descriptor-comment enum) (statement-comment first (this-token)))
    (do-block-statements () (parse-enum-statement enum scope))
    (setf (enum-descriptor-values enum) (nreverse (enum-descriptor-values enum)))
    enum))

(defun parse-enum-statement (enum scope)
  (cond ((token-is "option") (parse-option-statement enum))
        ((token-is "reserved")
         (parse-reserved -2147483648 2147483647
                         (lambda (ranges)
                           (setf (enum-descriptor-reserved-ranges enum)
                                 (append (enum-descriptor-reserved-ranges enum) ranges)))
                         (lambda (names)
                           (setf (enum-descriptor-reserved-names enum)
                                 (append (enum-descriptor-reserved-names enum) names)))))
        (t
         (let* ((token (this-token))
                (value (make-enum-value-descriptor
                        :name (expect-name "the name of an enum value"))))
           (note-place value token scope) ; a value is a sibling of its enum
           (expect "=")
           (setf (enum-value-descriptor-number value)
                 (expect-integer "an enum number" :minimum -2147483648 :maximum 2147483647))
           (parse-bracketed-options value)
           (setf (descriptor-comment value) (statement-comment token (this-token)))
           (expect ";")
           (push value (enum-descriptor-values enum))))))

;;; Services

(defun parse-method-type ()
  "Consume ([stream] Name); return the name and whether it streams."
  (expect "(")
  (let ((stream (accept "stream")))
    (multiple-value-prog1 (values (expect-full-name "the name of a message") (and stream t))
      (expect ")"))))

(defun parse-method (service)
  (let* ((first (expect "rpc"))
         (token (this-token))
         (method (make-method-descriptor :name (expect-name "the name of a method"))))
    (note-place method token (descriptor-full-name service))
    (setf (values (method-descriptor-input method) (method-descriptor-client-streaming-p method))
          (parse-method-type))
    (expect "returns")
    (setf (values (method-descriptor-output method) (method-descriptor-server-streaming-p method))
          (parse-method-type))
    (setf (descriptor-comment method) (statement-comment first (this-token)))
    (if (token-is "{")
        (do-block-statements () (parse-option-statement method))
        (expect ";"))
    (push method (service-descriptor-methods service))))

(defun parse-service (scope)
  (let* ((first (expect "service"))
         (token (this-token))
         (service (make-service-descriptor :name (expect-name "the name of a service"))))
    (note-place service token scope)
    (setf (descriptor-comment service) (statement-comment first (this-token)))
    (do-block-statements ()
      (if (token-is "option")
          (parse-option-statement service)
          (parse-method service)))
    (setf (service-descriptor-methods service) (nreverse (service-descriptor-methods service)))
    service))

;;; Files

(defun parse-syntax (file)
  "Consume the syntax or edition statement, if there is one."
  (cond ((accept "syntax")
         (expect "=")
         (let* ((token (this-token))
                (name (octets-string (expect-string)))
                (syntax (cdr (assoc name '(("proto2" . :proto2) ("proto3" . :proto3))
                                    :test #'string=))))
           (unless syntax (parse-failure token "\"proto2\" or \"proto3\""))
           (setf (file-descriptor-syntax file) syntax))
         (expect ";"))
        ((and (token-is "edition") (token-is "=" (token-after)))
         (next)
         (expect "=")
         (setf (file-descriptor-syntax file) :editions
               (file-descriptor-edition file) (octets-string (expect-string)))
         (expect ";"))))

(defun parse-import (file)
  (expect "import")
  (let* ((public (accept "public"))
         (weak (and (not public) (accept "weak")))
         (token (this-token))
         (name (octets-string (expect-string))))
    (expect ";")
    (when (member name (file-descriptor-dependencies file) :key #'car :test #'string=)
      (parse-failure token (format nil "one import of \"~A\" only" name)))
    ;; kept with its place until the linker has found the file
    (push (list name (token-line token) (token-column token)) (file-descriptor-dependencies file))
    (when public (push name (file-descriptor-public-dependencies file)))
    (when weak (push name (file-descriptor-weak-dependencies file)))))

(defun parse-file-statement (file)
  (let ((scope (file-descriptor-package file)))
    (cond ((token-is "import") (parse-import file))
          ((token-is "package")
           (let ((token (next)))
             (unless (string= "" scope) (parse-failure token "one package statement only"))
             (setf (file-descriptor-package file) (expect-full-name "the name of a package"))
             (expect ";")))
          ((token-is "option") (parse-option-statement file))
          ((token-is "message") (push (parse-message-declaration scope)
                                      (file-descriptor-messages file)))
          ((token-is "enum") (push (parse-enum scope) (file-descriptor-enums file)))
          ((token-is "extend") (parse-extend nil scope))
          ((token-is "service") (push (parse-service scope) (file-descriptor-services file)))
          (t (parse-failure (this-token)
                            "a declaration such as \"message\", \"service\" or \"import\"")))))

(defun parse-proto (text name)
  "Return the unlinked descriptor of the file NAME whose source is TEXT. Signal PROTO-SYNTAX-ERROR
for the first error, with the others in it."
  (let* ((file (make-file-descriptor :name name :full-name name))
         (*parser* (make-parser :tokens (tokenize text name) :file file)))
    (call-recovering (lambda ()
                       (let ((first (this-token)))
                         (parse-syntax file)
                         (setf (descriptor-comment file) (token-leading first)))))
    (loop until (eq :end (token-kind (this-token)))
          do (unless (accept ";")
               (call-recovering (lambda () (parse-file-statement file)))))
    (let ((problems (reverse (parser-problems *parser*))))
      (when problems
        (setf (proto-syntax-error-others (first problems)) (rest problems))
        (error (first problems))))
    (macrolet ((turn (&rest places)
                 `(progn ,@(loop for place in places collect `(setf ,place (reverse ,place))))))
      (turn (file-descriptor-dependencies file) (file-descriptor-public-dependencies file)
            (file-descriptor-weak-dependencies file) (file-descriptor-messages file)
            (file-descriptor-enums file) (file-descriptor-extensions file)
            (file-descriptor-services file) (descriptor-options file)))
    file))
