;;;; Reading messages in text format (protobuf.dev, "Text Format Language Specification") from
;;;; octets, with one token of look-ahead. An error, MESSAGE-TEXT-ERROR, is reported at the
;;;; unexpected token, with line, column and path.
;;;;
;;;; A singular field, and a field of a oneof, may occur only once; if keys of a map are equal, the
;;;; last one counts; fields with names that the type reserves are skipped. Recursion and the length
;;;; of numbers are limited; repeated fields are gathered and made once, so the work is linear.

(in-package #:clgrpc.protobuf)

(defstruct (text-input (:include input (format :text)) (:copier nil))
  "A text in text format that is being read, with the token that comes next."
  (at 0 :type index)                    ; where the text after the token begins
  (kind :end :type keyword)             ; :word, :number, :string, :symbol or :end
  (token 0 :type index)                 ; where the token begins
  ;; a string, (digits exponent radix float-p), octets, or a character
  (value nil))

(defun text-wrong (input control &rest arguments)
  "Signal MESSAGE-TEXT-ERROR at the next token."
  (apply #'fail-input input (text-input-token input) control arguments))

(defun text-wrong-here (input control &rest arguments)
  "Signal MESSAGE-TEXT-ERROR at the scanner's position, within a token."
  (apply #'fail-input input (text-input-at input) control arguments))

;;; Characters

(define-hot (text-char :inline t) ((input text-input)) (or null character)
  "The next octet of the scanner as a character of the same code, or nil at the end."
  (let ((at (text-input-at input)) (octets (input-octets input)))
    (if (< at (length octets)) (code-char (aref octets at)) nil)))

(declaim (inline step-text))
(defun step-text (input)
  (incf (text-input-at input)))

(defun decimal-p (char)
  (and char (char<= #\0 char #\9)))

(defun skip-text-blank (input)
  "Pass over white space and comments."
  (loop for char = (text-char input)
        while char
        do (case char
             ((#\Space #\Newline #\Tab #\Return #\Page #.(code-char 11)) (step-text input))
             (#\# (loop for char = (text-char input)
                        while (and char (char/= char #\Newline)) do (step-text input)))
             (t (return)))))

;;; Tokens

(defun scan-word (input)
  (let ((start (text-input-at input)))
    (loop for char = (text-char input)
          while (or (letter-p char) (decimal-p char)) do (step-text input))
    (ascii-string (input-octets input) start (text-input-at input))))

(defun scan-digits (input radix)
  "Pass over digits; return their value and count."
  (let ((value 0) (count 0))
    (loop for char = (text-char input)
          for digit = (and char (digit-char-p char radix))
          while digit
          do (setf value (+ (* radix value) digit))
             (step-text input)
             (when (> (incf count) 1100) (text-wrong-here input "a number has too many digits")))
    (values value count)))

(defun text-char-after (input)
  (let ((next (1+ (text-input-at input))) (octets (input-octets input)))
    (and (< next (length octets)) (code-char (aref octets next)))))

(defun scan-number (input)
  "The number that begins here, as (digits exponent radix float-p)."
  (prog1 (let ((first (text-char input)) (second (text-char-after input)))
           (cond ((and (eql first #\0) (member second '(#\x #\X)))
                  (step-text input)
                  (step-text input)
                  (multiple-value-bind (value count) (scan-digits input 16)
                    (when (zerop count) (text-wrong-here input "hexadecimal digit expected"))
                    (list value 0 16 nil)))
                 ((and (eql first #\0) (decimal-p second))
                  (list (scan-digits input 8) 0 8 nil))
                 (t (scan-decimal input))))
    (let ((char (text-char input)))
      (when (or (letter-p char) (decimal-p char) (eql char #\.))
        (text-wrong-here input "a number is followed by ~S" (string char))))))

(defun scan-decimal (input)
  (multiple-value-bind (digits count) (scan-digits input 10)
    (let ((exponent 0) (float nil) (fraction-count 0))
      (when (eql #\. (text-char input))
        (step-text input)
        (setf float t)
        (multiple-value-bind (fraction places) (scan-digits input 10)
          (setf digits (+ (* digits (expt 10 places)) fraction)
                exponent (- places)
                fraction-count places)))
      (when (zerop (+ count fraction-count)) (text-wrong-here input "digit expected"))
      (when (member (text-char input) '(#\e #\E))
        (step-text input)
        (setf float t)
        (let ((sign (case (text-char input)
                      (#\+ (step-text input) 1) (#\- (step-text input) -1) (t 1))))
          (multiple-value-bind (given count) (scan-digits input 10)
            (when (zerop count) (text-wrong-here input "digit expected"))
            (incf exponent (* sign (min given 1000000))))))
      (when (member (text-char input) '(#\f #\F))
        (step-text input)
        (setf float t))
      (list digits exponent 10 float))))

(defun scan-escape-digits (input radix most least)
  "The value of LEAST to MOST digits."
  (let ((value 0) (count 0))
    (loop for char = (text-char input)
          for digit = (and char (< count most) (digit-char-p char radix))
          while digit
          do (setf value (+ (* radix value) digit))
             (incf count)
             (step-text input))
    (when (< count least) (text-wrong-here input "digit of an escape expected"))
    value))

(defun scan-code (input letter)
  "The character of the escape with LETTER, u or U. Surrogates are refused, even in pairs, as the
conformance suite requires here; protoc accepts pairs in .proto files."
  (let* ((count (if (char= letter #\u) 4 8))
         (code (scan-escape-digits input 16 count count)))
    (cond ((<= #xD800 code #xDFFF) (text-wrong-here input "a surrogate is not a character"))
          ((> code #x10FFFF) (text-wrong-here input "there is no character U+~X" code))
          (t (code-char code)))))

(defun scan-escape (input buffer)
  "Append the character or octet of the escape, whose backslash was skipped, to BUFFER."
  (let* ((char (text-char input))
         (simple (and char (position char "abfnrtv\\?'\""))))
    (cond (simple
           (step-text input)
           (append-octet buffer (aref #(7 8 12 10 13 9 11 92 63 39 34) simple)))
          ((and char (char<= #\0 char #\7))
           (let ((value (scan-escape-digits input 8 3 1)))
             (when (> value 255) (text-wrong-here input "an octal escape is more than 377"))
             (append-octet buffer value)))
          ((eql char #\x)
           (step-text input)
           (append-octet buffer (scan-escape-digits input 16 2 1)))
          ((member char '(#\u #\U))
           (step-text input)
           (append-octets buffer (string-octets (string (scan-code input char)))))
          (t (text-wrong-here input "unknown escape")))))

(defun scan-string (input quote)
  "The octets of the literal that begins here with QUOTE."
  (step-text input)
  (let ((buffer (make-buffer :size 32)) (octets (input-octets input)))
    (loop
      (let* ((start (text-input-at input))
             (end (position-if (lambda (octet) (or (= octet 92) (= octet 10)
                                                   (= octet (char-code quote))))
                               octets :start start)))
        (setf (text-input-at input) (or end (length octets)))
        (unless (and end (/= 10 (aref octets end)))
          (text-wrong-here input "a string ends without its quotation mark"))
        (append-octets buffer octets :start start :end end)
        (step-text input)
        (when (= (aref octets end) (char-code quote))
          (return (subseq-octets (buffer-octets buffer) (buffer-start buffer)
                                 (buffer-end buffer))))
        (scan-escape input buffer)))))

(defun pass-token (input)
  "Advance to the next token."
  (skip-text-blank input)
  (setf (text-input-token input) (text-input-at input))
  (flet ((found (kind value)
           (setf (text-input-kind input) kind
                 (text-input-value input) value)))
    (let ((char (text-char input)))
      (cond ((null char) (found :end nil))
            ((letter-p char) (found :word (scan-word input)))
            ((or (decimal-p char)
                 (and (char= char #\.) (decimal-p (text-char-after input))))
             (found :number (scan-number input)))
            ((member char '(#\" #\')) (found :string (scan-string input char)))
            (t (step-text input) (found :symbol char))))))

(defun symbol-next-p (input &rest chars)
  (and (eq :symbol (text-input-kind input)) (member (text-input-value input) chars) t))

(defun pass-symbol (input char)
  "Skip the symbol CHAR and return true if it comes next; else return false."
  (when (symbol-next-p input char)
    (pass-token input)
    t))

(defun token-title (input)
  (ecase (text-input-kind input)
    (:end "the end of the text")
    (:string "a string")
    (:number "a number")
    (:word (text-input-value input))
    (:symbol (let ((char (text-input-value input)))
               (if (< 31 (char-code char) 127)
                   (format nil "`~C'" char)
                   (format nil "octet ~2,'0X" (char-code char)))))))

(defun expect-symbol (input char)
  (unless (pass-symbol input char)
    (text-wrong input "`~C' expected, not ~A" char (token-title input))))

;;; Scalars

(defun read-text-octets (input)
  "The octets of one or more consecutive literals."
  (unless (eq :string (text-input-kind input))
    (text-wrong input "string expected, not ~A" (token-title input)))
  (let ((parts (loop while (eq :string (text-input-kind input))
                     collect (text-input-value input)
                     do (pass-token input))))
    (if (rest parts) (gather-ranges (make-octets 0) (nreverse parts)) (first parts))))

(defun read-text-string (input slot)
  (let* ((token (text-input-token input)) (octets (read-text-octets input)))
    (handler-case (decode-utf8 octets 0 (length octets))
      (invalid-utf8 ()
        (if (eq :unchecked-string (coder-kind slot))
            (decode-escaped octets 0 (length octets))
            (fail-input input token "a string is not UTF-8"))))))

(defun read-text-integer (input kind)
  (let* ((token (text-input-token input)) (negative (pass-symbol input #\-)))
    (unless (eq :number (text-input-kind input))
      (text-wrong input "integer expected, not ~A" (token-title input)))
    (destructuring-bind (digits exponent radix float) (text-input-value input)
      (declare (ignore exponent radix))
      (when float (text-wrong input "integer expected, not a float"))
      (let ((value (if negative (- digits) digits)))
        (unless (integer-of-kind-p kind value)
          (fail-input input token "~D is out of the range of ~(~A~)" value kind))
        (pass-token input)
        value))))

(defun read-text-float (input kind)
  (let ((negative (pass-symbol input #\-)) (word (text-input-value input)))
    (flet ((named (name)
             (funcall (if (eq kind :float) #'second #'third)
                      (assoc name *named-floats* :test #'string=))))
      (case (text-input-kind input)
        (:word
         (prog1 (cond ((member word '("inf" "infinity") :test #'string-equal)
                       (named (if negative "-Infinity" "Infinity")))
                      ((string-equal word "nan") (if negative (- (named "NaN")) (named "NaN")))
                      (t (text-wrong input "number expected, not ~A" word)))
           (pass-token input)))
        (:number
         (destructuring-bind (digits exponent radix float) word
           (declare (ignore float))
           (unless (= radix 10) (text-wrong input "a float must be decimal"))
           (pass-token input)
           (or (float-of kind digits exponent negative)
               (named (if negative "-Infinity" "Infinity")))))
        (t (text-wrong input "number expected, not ~A" (token-title input)))))))

(defun read-text-boolean (input)
  (let ((value (text-input-value input)))
    (prog1 (case (text-input-kind input)
             (:word (cond ((member value '("true" "True" "t") :test #'string=) t)
                          ((member value '("false" "False" "f") :test #'string=) nil)
                          (t (text-wrong input "true or false expected, not ~A" value))))
             (:number (destructuring-bind (digits exponent radix float) value
                        (declare (ignore exponent radix))
                        (if (and (<= 0 digits 1) (not float))
                            (= digits 1)
                            (text-wrong input "0 or 1 expected"))))
             (t (text-wrong input "true or false expected, not ~A" (token-title input))))
      (pass-token input))))

(defun read-text-enum (input slot)
  (let ((type (slot-type-object slot)) (token (text-input-token input)))
    (flet ((unknown (value)
             (fail-input input token "~A is not a value of the enum ~A" value
                         (enum-type-name type))))
      (if (eq :word (text-input-kind input))
          (let ((name (text-input-value input)))
            (prog1 (or (enum-value-number type name) (unknown name))
              (pass-token input)))
          (let ((number (read-text-integer input :enum)))
            (if (and (slot-closed-p slot) (not (enum-known-p type number)))
                (unknown number)
                number))))))

(defun read-text-item (input slot)
  "Read one value of SLOT in its stored form."
  (let ((kind (slot-kind slot)))
    (case kind
      (:message (read-text-message input (slot-type-object slot)))
      (:enum (read-text-enum input slot))
      (:string (read-text-string input slot))
      (:bytes (read-text-octets input))
      (:bool (read-text-boolean input))
      ((:float :double) (read-text-float input kind))
      (t (read-text-integer input kind)))))

;;; Fields

(defun read-bracketed-name (input)
  "Read the text in the brackets that were just opened, without white space and comments, and skip
the closing bracket."
  (let ((buffer (make-buffer :size 64)))
    (setf (text-input-at input) (1+ (text-input-token input)))
    (loop
      (skip-text-blank input)
      (let ((char (text-char input)))
        (cond ((null char) (text-wrong-here input "`]' expected, not the end of the text"))
              ((char= char #\]) (return))
              ((url-char-p char)
               (append-octet buffer (char-code char))
               (step-text input))
              (t (text-wrong-here input "a name cannot have ~S" (string char))))))
    (step-text input)
    (pass-token input)
    (check-bracketed-name input (buffer-string buffer))))

(defun check-bracketed-name (input name)
  "Return NAME if it is a full name or a type URL."
  (unless (if (find #\/ name) (type-url-p name) (name-p name))
    (text-wrong input "~S is neither the name of an extension nor a type URL" name))
  name)

(defun named-extension (message name)
  "The slot of the extension of MESSAGE named NAME. In a message set NAME may also be the name of
the extension's message type."
  (or (extension-slot-of message (format nil "[~A]" name))
      (find-if (lambda (slot)
                 (and (slot-item-p slot) (equal name (set-item-type (slot-field slot)))))
               (let ((table (message-type-extensions (message-type-of message))))
                 (and table (loop for slot being the hash-values of table collect slot))))))

(defstruct (partial-message (:conc-name partial-message-) (:copier nil)
                            (:constructor make-partial-message (message)))
  "The part of a message that has been read."
  (message nil :type message)           ; the message
  (slots '() :type list)                ; the slots that occurred in the text
  (items '() :type list))               ; items of repeated slots, the latest first, by slot

(defun note-text-field (input partial-message slot)
  "Note that the field of SLOT occurs. Signal an error if the field is not allowed at all, or not a
second time."
  (unless (member slot (partial-message-slots partial-message) :test #'eq)
    (let ((oneof (slot-oneof slot)))
      (when (and oneof (/= 0 (oneof-case-of (partial-message-message partial-message) oneof)))
        (text-wrong input "another field of the oneof ~A stands before ~A"
                    (field-descriptor-oneof (slot-field slot)) (slot-path slot))))
    (push slot (partial-message-slots partial-message))
    (return-from note-text-field))
  (when (eq :singular (slot-label slot))
    (text-wrong input "the field ~A occurs twice" (slot-path slot))))

(defun gather-item (partial-message slot item)
  (let ((entry (or (assoc slot (partial-message-items partial-message))
                   (first (push (list slot) (partial-message-items partial-message))))))
    (push item (rest entry))))

(defun read-text-entry (input partial-message slot)
  (let* ((message (partial-message-message partial-message))
         (map (slot-user-value message slot))
         (parts (list (slot-entry-key slot) nil nil (slot-entry-value slot) nil nil)))
    (read-braced-fields
     input
     (lambda ()
        (let ((part (cond ((text-word-p input "key") parts)
                          ((text-word-p input "value") (nthcdr 3 parts))
                          (t (text-wrong input "an entry of a map has key and value, not ~A"
                                         (token-title input))))))
          (when (second part) (text-wrong input "~A occurs twice" (token-title input)))
          (pass-token input)
          (expect-colon input (first part))
          (setf (second part) t
                (third part) (read-text-item input (first part))))))
    (destructuring-bind (key-slot key-p key value-slot value-p value) parts
      (setf (map-value map (if key-p key (slot-default key-slot)))
            (cond (value-p value)
                  ((eq :message (slot-kind value-slot))
                   (make-message (slot-type-object value-slot)))
                  (t (slot-default value-slot)))))))

(defun text-word-p (input word)
  (and (eq :word (text-input-kind input)) (string= word (text-input-value input))))

(defun expect-colon (input slot)
  "Skip the colon after the name of SLOT. The colon may be missing only before messages."
  (unless (or (pass-symbol input #\:) (eq :message (slot-kind slot)))
    (text-wrong input "`:' expected, not ~A" (token-title input))))

(defun read-text-value (input partial-message slot)
  (ecase (slot-label slot)
    (:singular (set-slot (partial-message-message partial-message) slot
                         (read-text-item input slot)))
    (:repeated (gather-item partial-message slot (read-text-item input slot)))
    (:map (read-text-entry input partial-message slot))))

(defun read-text-list (input function)
  "Call FUNCTION at each item of the list that comes next."
  (expect-symbol input #\[)
  (unless (pass-symbol input #\])
    (loop
      (funcall function)
      (unless (pass-symbol input #\,) (return)))
    (expect-symbol input #\])))

(defun read-text-field (input partial-message slot)
  "Read the rest of the field of SLOT, after its name."
  (with-step (input slot)
    (note-text-field input partial-message slot)
    (expect-colon input slot)
    (if (and (symbol-next-p input #\[) (not (eq :singular (slot-label slot))))
        (read-text-list input (lambda () (read-text-value input partial-message slot)))
        (read-text-value input partial-message slot))))

;;; Fields and values that are skipped

(defun skip-text-field (input)
  "Pass over the rest of a field, after its name."
  (let ((colon (pass-symbol input #\:)))
    (cond ((symbol-next-p input #\{ #\<) (skip-text-message input))
          ((symbol-next-p input #\[)
           (read-text-list input (lambda ()
                                   (if (symbol-next-p input #\{ #\<)
                                       (skip-text-message input)
                                       (skip-text-scalar input)))))
          (colon (skip-text-scalar input))
          (t (text-wrong input "`:' expected, not ~A" (token-title input))))))

(defun skip-text-scalar (input)
  (let ((negative (pass-symbol input #\-)))
    (ecase (text-input-kind input)
      (:string (when negative (text-wrong input "number expected, not a string"))
       (read-text-octets input))
      ((:number :word) (pass-token input))
      ((:symbol :end) (text-wrong input "value expected, not ~A" (token-title input))))))

(defun skip-text-message (input)
  (with-depth (input (text-input-token input))
    (read-braced-fields input (lambda ()
                              (cond ((symbol-next-p input #\[) (read-bracketed-name input))
                                    ((eq :word (text-input-kind input)) (pass-token input))
                                    (t (text-wrong input "name of a field expected, not ~A"
                                                   (token-title input))))
                              (skip-text-field input)))))

;;; Messages

(defun read-text-fields (input close function)
  "Call FUNCTION at each field up to the symbol CLOSE, or the end of the text if CLOSE is nil."
  (loop
    (cond ((and close (pass-symbol input close)) (return))
          ((and (null close) (eq :end (text-input-kind input))) (return)))
    (funcall function)
    (or (pass-symbol input #\,) (pass-symbol input #\;))))

(defun read-braced-fields (input function)
  "Call FUNCTION at each field of the message in braces or angle brackets that comes next."
  (let ((close (if (symbol-next-p input #\<) #\> #\})))
    (expect-symbol input (if (eql close #\>) #\< #\{))
    (read-text-fields input close function)))

(defun reserved-name-p (type name)
  (member name (message-descriptor-reserved-names (message-type-descriptor type))
          :test #'string=))

(defun read-named-field (input partial-message text-layout)
  "Read the field whose name comes next."
  (let* ((message (partial-message-message partial-message))
         (type (message-type-of message))
         (token (text-input-token input))
         (bracketed (symbol-next-p input #\[))
         (name (cond (bracketed (read-bracketed-name input))
                     ((eq :word (text-input-kind input))
                      (prog1 (text-input-value input) (pass-token input)))
                     (t (text-wrong input "name of a field expected, not ~A"
                                    (token-title input)))))
         (slot (if bracketed (named-extension message name) (text-layout-slot text-layout name))))
    (cond (slot (read-text-field input partial-message slot))
          ((and bracketed (find #\/ name)
                (any-layout-p (message-layout message)))
           (read-text-any input partial-message name token))
          ((or (input-ignore-unknown input) (and (not bracketed) (reserved-name-p type name)))
           (skip-text-field input))
          (t (fail-input input token "~A has no ~:[field~;extension~] ~S" (message-type-name type)
                         bracketed name)))))

(defun read-text-any (input partial-message url token)
  "Read the message of an Any. URL is its type URL, which was read from the brackets at TOKEN."
  (let ((message (partial-message-message partial-message))
        (type (funcall (input-finder input) (url-type-name url))))
    (unless (and type (message-type-defined-p type))
      (fail-input input token "there is no message type for the Any of ~S" url))
    (when (partial-message-slots partial-message)
          (fail-input input token "an Any holds one message"))
    (setf (partial-message-slots partial-message)
          (coerce (layout-slots (message-layout message)) 'list))
    (pass-symbol input #\:)
    (hold-number url message 1)
    (hold-number (serialize (read-text-message input type) :partial (input-partial input))
                 message 2)))

(defun read-text-message (input type &optional (read-fields #'read-braced-fields))
  "Read a message of TYPE. READ-FIELDS is a function of INPUT and a function that reads one field;
it must call the latter at the beginning of each field."
  (let ((token (text-input-token input)))
    (with-depth (input token)
      (multiple-value-bind (message layout) (begin-message input type token)
        (let ((partial-message (make-partial-message message))
              (text-layout (text-text-layout layout)))
          (funcall read-fields input
                   (lambda () (read-named-field input partial-message text-layout)))
          (loop for (slot . items) in (partial-message-items partial-message)
                do (set-slot message slot (to-stored slot (nreverse items))))
          message)))))

(defun parse-text-message (type source &key ignore-unknown partial (max-octets (expt 2 26))
                                         (max-message-depth **max-message-depth**)
                                         (max-decoded-octets **max-decoded-octets**)
                                         (finder #'find-message-type))
  "Return the message of TYPE (a symbol, a full name or a message type) that SOURCE, a string or
octets of UTF-8, represents in text format. With IGNORE-UNKNOWN, unknown fields are ignored. FINDER
maps the full name of the type in an Any to its message type, or to nil. Signal MESSAGE-TEXT-ERROR
with line, column and path if SOURCE is not such a message or has more than MAX-OCTETS (64 MiB
unless given). Signal REQUIRED-FIELD-MISSING if a required field is missing, unless PARTIAL.
MAX-MESSAGE-DEPTH and MAX-DECODED-OCTETS are as in PARSE-MESSAGE. Source: protobuf.dev, Text Format
Language Specification. From any thread."
  (let* ((type (need-message-type type))
         (source (if (stringp source) source (coerce source 'octets)))
         (input (make-text-input :ignore-unknown ignore-unknown :partial partial :finder finder
                                 :type-name (message-type-name type)
                                 :max-depth max-message-depth
                                 :allowance (+ max-decoded-octets (* 8 (length source))))))
    (when (> (length source) max-octets)
      (fail-input input 0 "it has ~D octets and only ~D are allowed" (length source) max-octets))
    (setf (input-octets input) (if (stringp source) (string-octets source) source))
    (pass-token input)
    (let ((message (read-text-message input type
                                      (lambda (input function)
                                        (read-text-fields input nil function)))))
      (unless partial (check-required type message))
      message)))
