;;;; The parser's state, the operations on it for every production, and the productions of options
;;;; (protobuf language specification; proto2, proto3 and editions share one grammar). Recursive
;;;; descent over the token vector; grammar.lisp has the declarations.
;;;;
;;;; An error ends only its statement: parsing continues after the next semicolon or balanced brace.
;;;; The parser recovers at the same places as protoc, so both report the same first error. The
;;;; position of each part of a declaration is noted, for the errors that linking finds.

(in-package #:clgrpc.protobuf)

(defstruct (parser (:copier nil))
  "The state of parsing."
  (tokens #() :type simple-vector)      ; the tokens of the source
  (at 0 :type index)                    ; the index of the next token
  (file nil :type (or null file-descriptor)) ; the part parsed so far
  (problems '() :type list)             ; the errors so far, the latest first
  (depth 0 :type index))                ; the depth of nesting

(defvar *parser*)
(setf (documentation '*parser* 'variable) "The parser at work.")

(defconstant +message-depth+ 32
  "The depth of nested messages at which a source is refused, as protoc refuses it.")

(defconstant +aggregate-depth+ 100
  "The maximum depth of nesting in the value of an option.")

(defparameter *editions* '("2023" "2024")
  "The editions that are known.")

(declaim (inline this-token))
(defun this-token ()
  (svref (parser-tokens *parser*) (parser-at *parser*)))

(defun token-after ()
  (let ((tokens (parser-tokens *parser*)))
    (svref tokens (min (1+ (parser-at *parser*)) (1- (length tokens))))))

(defun consume-token ()
  "Consume and return the current token; the end is never passed."
  (prog1 (this-token)
    (when (< (1+ (parser-at *parser*)) (length (parser-tokens *parser*)))
      (incf (parser-at *parser*)))))

(defun at-end-p ()
  (eq :end (token-kind (this-token))))

;;; Errors

(defun make-problem (token text &optional expected)
  (make-condition 'proto-syntax-error
                  :file (descriptor-name (parser-file *parser*))
                  :line (token-line token) :column (token-column token) :expected expected
                  :text text))

(defun note-problem (token control &rest arguments)
  "Note an error at TOKEN after which the parser can continue."
  (push (make-problem token (format nil "~?" control arguments)) (parser-problems *parser*))
  nil)

(defun parse-failure (token expected)
  "Give up the statement at TOKEN, because EXPECTED should be in the place of TOKEN."
  (error (make-problem token (format nil "expected ~A, found ~A" expected (describe-token token))
                       expected)))

(defun parse-refusal (token control &rest arguments)
  "Give up the statement at TOKEN, with the error that CONTROL and ARGUMENTS format."
  (error (make-problem token (format nil "~?" control arguments))))

;;; Tokens

(defun token-is (text &optional (token (this-token)))
  "True if TOKEN is the symbol or identifier TEXT."
  (and (member (token-kind token) '(:symbol :identifier))
       (string= text (token-value token))))

(defun token-is-any (texts)
  (some #'token-is texts))

(defun accept (text)
  "Consume the current token and return it if it is TEXT; otherwise return nil."
  (when (token-is text) (consume-token)))

(defun expect (text &optional (expected (format nil "\"~A\"" text)))
  (or (accept text) (parse-failure (this-token) expected)))

(defun expect-kind (kind what)
  (if (eq kind (token-kind (this-token)))
      (token-value (consume-token))
      (parse-failure (this-token) what)))

(defun expect-name (what)
  (expect-kind :identifier what))

(defun expect-string (&optional (what "a string"))
  "Consume adjacent strings, return their octets joined."
  (let ((octets (expect-kind :string what)))
    (if (eq :string (token-kind (this-token)))
        (let ((buffer (make-buffer)))
          (append-octets buffer octets)
          (loop while (eq :string (token-kind (this-token)))
                do (append-octets buffer (token-value (consume-token))))
          (subseq-octets (buffer-octets buffer) (buffer-start buffer) (buffer-end buffer)))
        octets)))

(defun expect-text (&optional (what "a string"))
  "Consume adjacent strings that form valid UTF-8 together; return them as one string."
  (let ((token (this-token)) (octets (expect-string what)))
    (handler-case (octets-string octets)
      (invalid-utf8 () (note-problem token "this string is not UTF-8") ""))))

(defun expect-integer (what &key (maximum 2147483647) signed)
  "Consume an integer from 0, or from -1-MAXIMUM if SIGNED, to MAXIMUM. A number out of this range
is an error and counts as 0."
  (let* ((negative (and signed (accept "-")))
         (token (this-token))
         (magnitude (expect-kind :integer what)))
    (cond ((> magnitude (if negative (1+ maximum) maximum))
           (note-problem token "expected ~A up to ~D, found ~D" what maximum magnitude)
           0)
          (negative (- magnitude))
          (t magnitude))))

(defun expect-full-name (what)
  "Consume a possibly dotted, possibly absolute name; return it as a string."
  (with-output-to-string (out)
    (when (accept ".") (write-char #\. out))
    (write-string (expect-name what) out)
    (loop while (accept ".")
          do (write-char #\. out)
             (write-string (expect-name what) out))))

(defmacro with-nesting ((limit) &body body)
  "Run BODY one level deeper; at most LIMIT levels are allowed."
  `(progn
     (when (>= (1+ (parser-depth *parser*)) ,limit)
       (parse-refusal (this-token) "nesting is too deep: the limit is ~D levels" ,limit))
     (incf (parser-depth *parser*))
     (unwind-protect (progn ,@body) (decf (parser-depth *parser*)))))

;;; Statements and recovery

(defun skip-statement ()
  "Move after the next semicolon or balanced block, or to a closing brace."
  (let ((depth 0))
    (loop
      (let ((token (this-token)))
        (cond ((eq :end (token-kind token)) (return))
              ((token-is "{" token) (incf depth))
              ((token-is "}" token)
               (when (zerop depth) (return))
               (when (zerop (decf depth)) (consume-token) (return)))
              ((and (token-is ";" token) (zerop depth)) (consume-token) (return))))
      (consume-token))))

(defun call-recovering (function)
  "Call FUNCTION; on a syntax error note it and skip the statement."
  (handler-case (funcall function)
    (proto-syntax-error (problem)
      (push problem (parser-problems *parser*))
      (skip-statement))))

(defun fail-at-end (what)
  (when (at-end-p)
    (parse-failure (this-token) (format nil "\"}\" at the end of ~A" what))))

(defmacro do-block-statements ((what) &body body)
  "Consume { statements } that belong to WHAT: run BODY at each statement that is not empty."
  `(progn
     (expect "{")
     (loop until (accept "}")
           do (fail-at-end ,what)
              (unless (accept ";")
                (call-recovering (lambda () ,@body))))))

(defmacro do-block-fields ((what) &body body)
  "Consume { fields } that belong to WHAT, at least one: run BODY at each."
  `(progn
     (expect "{")
     (loop
       (fail-at-end ,what)
       (call-recovering (lambda () ,@body))
       (when (accept "}") (return)))))

;;; Descriptors and their positions

(defun statement-comment (first last)
  "Return the comment of a statement whose tokens are FIRST to LAST: the comment before it or, if
there is none, the comment after it."
  (or (token-leading first) (token-trailing last)))

(defun note-at (thing kind token)
  "Note that the part KIND of THING, a descriptor, option, range or name of an import, is at TOKEN."
  (push (list kind (token-line token) (token-column token))
        (gethash thing (file-descriptor-places (parser-file *parser*)))))

(defun note-place (descriptor token scope)
  "Set the place of DESCRIPTOR to that of TOKEN, and its full name to its name within SCOPE. Return
DESCRIPTOR."
  (setf (descriptor-line descriptor) (token-line token)
        (descriptor-column descriptor) (token-column token)
        (descriptor-full-name descriptor)
        (if (string= "" scope)
            (descriptor-name descriptor)
            (format nil "~A.~A" scope (descriptor-name descriptor))))
  descriptor)

;;; Options

(defconstant +most-option-parts+ 100
  "The maximum number of names in the path of an option. Each name but the last is a field that
holds a message, and messages are nested at most this deep.")

(defun parse-option-name ()
  (let ((parts '()))
    (loop
      (when (= (length parts) +most-option-parts+)
        (parse-refusal (this-token) "nesting is too deep: the limit is ~D levels"
                       +most-option-parts+))
      (push (if (accept "(")
                ;; no option has an empty name
                (prog1 (list (if (token-is ")") "" (expect-full-name "the name of an option")))
                  (expect ")"))
                (expect-name "the name of an option"))
            parts)
      (unless (accept ".") (return (nreverse parts))))))

(defun number-value (token negative)
  "Return the value of TOKEN, a number, negated if NEGATIVE. An integer that is too large becomes a
float."
  (let ((value (token-value token)))
    (cond ((floatp value) (if negative (- value) value))
          ((<= value (if negative (expt 2 63) (1- (expt 2 64)))) (if negative (- value) value))
          ((/= 10 (token-radix token))
           (note-problem token "an integer has at most 64 bits")
           0)
          (t (to-double (if negative (- value) value))))))

(defun parse-constant ()
  "Consume the value of an option."
  (let* ((negative (accept "-")) (token (this-token)))
    (case (token-kind token)
      (:identifier
       (consume-token)
       (cond ((not negative) (list :identifier (token-value token)))
             ((token-is "inf" token) sb-ext:double-float-negative-infinity)
             ((token-is "nan" token) (list :identifier "nan"))
             ;; the position that protoc reports
             (t (parse-refusal (this-token) "expected a number, inf or nan after \"-\", found ~A"
                               (describe-token token)))))
      (:string (if negative (parse-failure token "a number after \"-\"") (expect-string)))
      ((:integer :float) (number-value (consume-token) negative))
      (t (parse-failure token "the value of an option")))))

(defun parse-option-value ()
  "Consume the value of an option, which may be an aggregate."
  (cond ((token-is "{") (parse-braced-value))
        ((and (token-is "-") (token-is "{" (token-after))) (consume-token) (parse-braced-value))
        (t (parse-constant))))

(defun matching-brace ()
  "The index of the token that closes the brace at the current token."
  (let ((depth 0) (tokens (parser-tokens *parser*)))
    (loop for at from (parser-at *parser*) below (length tokens)
          for token = (svref tokens at)
          do (cond ((token-is "{" token) (incf depth))
                   ((token-is "}" token)
                    (when (zerop (decf depth)) (return-from matching-brace at)))))
    (parse-failure (svref tokens (1- (length tokens))) "\"}\" at the end of the value")))

(defun parse-braced-value ()
  "Consume an aggregate. A malformed value becomes (:malformed text), so that the error is reported
when the option is interpreted, as in protoc."
  (let ((end (matching-brace)) (depth (parser-depth *parser*)))
    (setf (parser-depth *parser*) 0)
    (unwind-protect
         (handler-case (prog1 (parse-aggregate "{" "}")
                         (unless (= (parser-at *parser*) (1+ end))
                           (parse-failure (this-token) "the end of the value")))
           (proto-syntax-error (problem)
             (list :malformed (format nil "~A at ~D:~D" (proto-syntax-error-text problem)
                                      (proto-syntax-error-line problem)
                                      (proto-syntax-error-column problem)))))
      (setf (parser-depth *parser*) depth
            (parser-at *parser*) (1+ end)))))

(defun parse-aggregate (open close)
  "Consume an aggregate value; return (:aggregate (name . value)…), in which a name in brackets
becomes (name)."
  (with-nesting (+aggregate-depth+)
    (expect open)
    (let ((fields '()))
      (loop until (accept close)
            do (let ((name (if (accept "[")
                               (prog1 (list (parse-bracketed-name)) (expect "]"))
                               (expect-name "the name of a field"))))
                 (push (cons name (parse-field-value)) fields))
               (or (accept ",") (accept ";")))
      (cons :aggregate (nreverse fields)))))

(defun parse-field-value ()
  "Consume the value after the name of a field; a message needs no colon."
  (unless (accept ":")
    (unless (or (token-is-any '("{" "<"))
                (and (token-is "[")
                     (member (token-value (token-after)) '("{" "<" "]") :test #'equal)))
      (parse-failure (this-token) "\":\"")))
  (parse-aggregate-value))

(defun parse-bracketed-name ()
  "An extension name, or a type URL as in Any."
  (let ((name (expect-full-name "the name of an extension")))
    (if (accept "/")
        (format nil "~A/~A" name (expect-full-name "the name of a type"))
        name)))

(defun parse-aggregate-value ()
  (cond ((token-is "<") (parse-aggregate "<" ">"))
        ((token-is "{") (parse-aggregate "{" "}"))
        ((accept "[")
         (with-nesting (+aggregate-depth+)
           (let ((values '()))
             (loop until (accept "]")
                   do (push (parse-aggregate-value) values)
                      (unless (token-is "]") (expect ",")))
             (cons :list (nreverse values)))))
        (t (parse-constant))))

(defun parse-option-assignment (descriptor)
  "Consume name = value, an option of DESCRIPTOR."
  (let* ((token (this-token))
         (option (make-option :name (parse-option-name)
                              :line (token-line token) :column (token-column token))))
    (expect "=")
    (note-at option :option-value (this-token))
    (setf (option-value option) (parse-option-value))
    (push option (descriptor-options descriptor))))

(defun parse-option-statement (descriptor)
  (expect "option")
  (parse-option-assignment descriptor)
  (expect ";"))

(defun call-in-brackets (function)
  "Consume [item, …] if that comes next; FUNCTION consumes an item."
  (when (accept "[")
    (loop
      (funcall function)
      (unless (accept ",") (return)))
    (expect "]")))

(defun parse-bracketed-options (descriptor)
  "If [name = value, …] comes next, consume it and add these options to DESCRIPTOR."
  (call-in-brackets (lambda () (parse-option-assignment descriptor))))
