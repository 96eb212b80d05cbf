;;;; JSON (RFC 8259), read into plain Lisp data and written from it:
;;;;
;;;;   object             alist with string keys, in order, every member kept
;;;;   array              simple-vector
;;;;   number             integer if it has neither fraction nor exponent, else double-float
;;;;   string             string
;;;;   true, false, null  :true :false :null
;;;;
;;;; NIL is the empty object. Reading is strict: no comments, trailing commas, raw control
;;;; characters or lone surrogates. Nesting, the length of the text and of a number are limited,
;;;; since time and stack grow with them; doubles are rounded correctly and written in the fewest
;;;; digits that read back alike.

(in-package #:clgrpc.base)

(define-condition json-error (clgrpc-error)
  ((line :initarg :line :reader json-error-line)
   (column :initarg :column :reader json-error-column)
   (text :initarg :text :reader json-error-text))
  (:report (lambda (condition stream)
             (format stream "Invalid JSON at line ~D, column ~D: ~A."
                     (json-error-line condition) (json-error-column condition)
                     (json-error-text condition))))
  (:documentation "A text is not JSON. LINE and COLUMN, both counted from 1, say where; TEXT says
what was expected."))

(document-functions
  json-error-line "The line, from 1, at which a text is not JSON."
  json-error-column "The column, from 1, at which a text is not JSON.")

(defconstant +json-number-length+ 1100
  "Longest number read: the exact decimal form of a double has up to 1,077 characters.")

(defstruct (json-reader (:copier nil))
  (text "" :type (simple-array character (*)))
  (position 0 :type index)
  (depth 0 :type index)
  (max-depth 0 :type index))
(declaim (sb-ext:freeze-type json-reader))

(defun json-fail (reader control &rest arguments)
  "Signal JSON-ERROR at the position of READER."
  (let* ((text (json-reader-text reader))
         (position (min (json-reader-position reader) (length text)))
         (line-start (let ((newline (position #\Newline text :end position :from-end t)))
                       (if newline (1+ newline) 0))))
    (error 'json-error :line (1+ (count #\Newline text :end line-start))
                       :column (1+ (- position line-start))
                       :text (format nil "~?" control arguments))))

(declaim (inline peek-json))
(defun peek-json (reader)
  "The character at the position of READER, or NIL at the end."
  (let ((text (json-reader-text reader))
        (position (json-reader-position reader)))
    (when (< position (length text))
      (schar text position))))

(defun skip-json-space (reader)
  "Pass over white space and return the character after it, or NIL at the end."
  (loop for char = (peek-json reader)
        while (member char '(#\Space #\Newline #\Return #\Tab))
        do (incf (json-reader-position reader))
        finally (return char)))

(defun describe-char (char)
  (cond ((null char) "the end of the text")
        ((graphic-char-p char) (format nil "`~C'" char))
        (t (format nil "U+~4,'0X" (char-code char)))))

(defun expect-json (reader char)
  "Pass over CHAR, which must come next after white space."
  (let ((found (skip-json-space reader)))
    (unless (eql found char)
      (json-fail reader "`~C' expected, not ~A" char (describe-char found)))
    (incf (json-reader-position reader))))

(defun read-json-word (reader word value)
  (let* ((start (json-reader-position reader))
         (end (+ start (length word)))
         (text (json-reader-text reader)))
    (unless (and (<= end (length text)) (string= word text :start2 start :end2 end))
      (json-fail reader "~A expected" word))
    (setf (json-reader-position reader) end)
    value))

;;; Numbers

(defun skip-json-digits (reader)
  "Pass over one or more decimal digits; return where they began."
  (let ((start (json-reader-position reader)))
    (loop for char = (peek-json reader)
          while (and char (char<= #\0 char #\9))
          do (incf (json-reader-position reader)))
    (when (= start (json-reader-position reader))
      (json-fail reader "digit expected, not ~A" (describe-char (peek-json reader))))
    start))

(defun skip-json-char (reader chars)
  "Pass over the next character and return it if it is one of CHARS."
  (let ((char (peek-json reader)))
    (when (and char (find char chars))
      (incf (json-reader-position reader))
      char)))

(defun json-double (reader negative digits exponent)
  "The double nearest to DIGITS times ten to the power EXPONENT."
  (let* ((magnitude (+ exponent (ceiling (* (integer-length digits) 0.30103d0))))
         (double (cond ((or (zerop digits) (< magnitude -330)) 0d0)
                       ((> magnitude 310) nil)
                       (t (rational-double (* digits (expt 10 exponent)))))))
    (unless double
      (json-fail reader "number too large for a double-float"))
    (if negative (- double) double)))

(defun rational-double (rational)
  "The double nearest to RATIONAL, which is positive, ties to even; NIL if it overflows."
  (flet ((exponent-of (rational)
           (- (integer-length (numerator rational)) (integer-length (denominator rational)))))
    ;; the quotient has 53 or 54 significant bits, fewer when the result is denormal
    (let* ((scale (min (- 54 (exponent-of rational)) 1074))
           (scaled (* rational (expt 2 scale)))
           (excess (if (= scale 1074) (max 0 (- (integer-length (floor scaled)) 53))
                       (- (integer-length (floor scaled)) 53)))
           (significand (round scaled (expt 2 excess)))
           (power (- excess scale)))
      (when (<= (+ (integer-length significand) power) 1024)
        (scale-float (coerce significand 'double-float) power)))))

(defun read-json-number (reader)
  (let* ((text (json-reader-text reader))
         (start (json-reader-position reader))
         (negative (skip-json-char reader "-"))
         (whole-start (skip-json-digits reader))
         (whole-end (json-reader-position reader))
         (fraction-start (when (skip-json-char reader ".") (skip-json-digits reader)))
         (fraction-end (json-reader-position reader))
         (exponent-sign (when (skip-json-char reader "eE") (or (skip-json-char reader "+-") #\+)))
         (exponent-start (when exponent-sign (skip-json-digits reader)))
         (end (json-reader-position reader)))
    (flet ((fail (text)
             (setf (json-reader-position reader) start)
             (json-fail reader text))
           (digits (start end)
             (parse-integer text :start start :end end)))
      (cond ((and (char= #\0 (schar text whole-start)) (< 1 (- whole-end whole-start)))
             (fail "a number must not begin with a superfluous 0"))
            ((< +json-number-length+ (- end start))
             (error 'limit-exceeded :option 'json-number-length :limit +json-number-length+
                                    :actual (- end start)))
            ((not (or fraction-start exponent-start))
             (* (if negative -1 1) (digits whole-start whole-end)))
            (t
             (let ((fraction-length (if fraction-start (- fraction-end fraction-start) 0))
                   (exponent (if exponent-start (digits exponent-start end) 0))
                   (whole (digits whole-start whole-end)))
               (json-double reader negative
                            (if fraction-start
                                (+ (* whole (expt 10 fraction-length))
                                   (digits fraction-start fraction-end))
                                whole)
                            (- (if (eql exponent-sign #\-) (- exponent) exponent)
                               fraction-length))))))))

;;; Strings

(declaim (inline json-special-p))
(defun json-special-p (char)
  (or (char= char #\") (char= char #\\) (< (char-code char) 32)))

(defun read-json-unit (reader)
  "Read the four hexadecimal digits of a \\u escape."
  (loop repeat 4
        for char = (peek-json reader)
        for digit = (and char (< (char-code char) 128) (digit-char-p char 16))
        for unit = (or digit (json-fail reader "hexadecimal digit expected, not ~A"
                                        (describe-char char)))
          then (+ (* 16 unit)
                  (or digit (json-fail reader "hexadecimal digit expected, not ~A"
                                       (describe-char char))))
        do (incf (json-reader-position reader))
        finally (return unit)))

(defun read-json-escape (reader)
  "Read what follows a backslash; return the character it means."
  (let ((char (peek-json reader)))
    (incf (json-reader-position reader))
    (case char
      ((#\" #\\ #\/) char)
      (#\b #\Backspace)
      (#\f #\Page)
      (#\n #\Newline)
      (#\r #\Return)
      (#\t #\Tab)
      (#\u (let ((unit (read-json-unit reader)))
             (cond ((<= #xD800 unit #xDBFF)
                    (code-char (+ #x10000 (ash (- unit #xD800) 10)
                                  (- (read-json-low-surrogate reader) #xDC00))))
                   ((<= #xDC00 unit #xDFFF) (json-fail reader "lone surrogate"))
                   (t (code-char unit)))))
      (t (decf (json-reader-position reader))
         (json-fail reader "escape expected, not ~A" (describe-char char))))))

(defun read-json-low-surrogate (reader)
  (if (and (skip-json-char reader "\\") (skip-json-char reader "u"))
      (let ((unit (read-json-unit reader)))
        (if (<= #xDC00 unit #xDFFF)
            unit
            (json-fail reader "lone surrogate")))
      (json-fail reader "lone surrogate")))

(defun read-json-string (reader)
  "Read a string whose opening quotation mark is next."
  (incf (json-reader-position reader))
  (let* ((text (json-reader-text reader))
         (start (json-reader-position reader))
         (plain-end (or (position-if #'json-special-p text :start start) (length text))))
    (setf (json-reader-position reader) plain-end)
    (if (eql #\" (peek-json reader))
        (progn (incf (json-reader-position reader))
               (subseq text start plain-end))
        (with-output-to-string (string)
          (write-string text string :start start :end plain-end)
          (read-json-string-rest reader string)))))

(defun read-json-string-rest (reader string)
  "Copy characters to the stream STRING up to the closing quotation mark, escapes decoded."
  (loop for char = (peek-json reader)
        do (cond ((null char) (json-fail reader "the text ends within a string"))
                 ((< (char-code char) 32)
                  (json-fail reader "~A must be escaped in a string" (describe-char char))))
           (incf (json-reader-position reader))
           (case char
             (#\" (return))
             (#\\ (write-char (read-json-escape reader) string))
             (t (write-char char string)))))

;;; Values

(defun read-json-member (reader)
  (let ((found (skip-json-space reader)))
    (unless (eql #\" found)
      (json-fail reader "name of a member expected, not ~A" (describe-char found))))
  (let ((name (read-json-string reader)))
    (expect-json reader #\:)
    (cons name (read-json-value reader))))

(defun read-json-sequence (reader close read-item)
  "Read items separated by commas up to the character CLOSE; return their list."
  (incf (json-reader-position reader))
  (let ((depth (incf (json-reader-depth reader))))
    (when (> depth (json-reader-max-depth reader))
      (error 'limit-exceeded :option 'json-depth :limit (json-reader-max-depth reader)
                             :actual depth)))
  (let ((items (if (eql close (skip-json-space reader))
                   (progn (incf (json-reader-position reader)) '())
                   (loop collect (funcall read-item reader)
                         while (eql #\, (skip-json-space reader))
                         do (incf (json-reader-position reader))
                         finally (expect-json reader close)))))
    (decf (json-reader-depth reader))
    items))

(defun read-json-value (reader)
  (let ((char (skip-json-space reader)))
    (case char
      (#\{ (read-json-sequence reader #\} #'read-json-member))
      (#\[ (coerce (read-json-sequence reader #\] #'read-json-value) 'simple-vector))
      (#\" (read-json-string reader))
      (#\t (read-json-word reader "true" :true))
      (#\f (read-json-word reader "false" :false))
      (#\n (read-json-word reader "null" :null))
      ((#\- #\0 #\1 #\2 #\3 #\4 #\5 #\6 #\7 #\8 #\9) (read-json-number reader))
      (t (json-fail reader "value expected, not ~A" (describe-char char))))))

(defun parse-json (source &key (max-depth 100) (max-length (expt 2 24)))
  "Return what SOURCE, a string or octets in UTF-8, says in JSON: one value with white space around
it. Objects are alists with string keys, arrays simple-vectors, the words :TRUE, :FALSE and :NULL.
Signal JSON-ERROR with line and column if it is not JSON, LIMIT-EXCEEDED if it nests deeper than
MAX-DEPTH, is longer than MAX-LENGTH characters or octets, or holds an excessively long number."
  (declare (type (or string octets) source))
  (when (> (length source) max-length)
    (error 'limit-exceeded :option 'json-length :limit max-length :actual (length source)))
  (let* ((text (if (stringp source) source (decode-json-octets source)))
         (reader (make-json-reader :text (coerce text '(simple-array character (*)))
                                   :max-depth max-depth))
         (value (read-json-value reader)))
    (when (skip-json-space reader)
      (json-fail reader "end of the text expected, not ~A" (describe-char (peek-json reader))))
    value))

(defun decode-json-octets (octets)
  (handler-case (octets-string octets)
    (invalid-utf8 (condition)
      (let* ((position (invalid-utf8-position condition))
             (before (octets-string octets :end position)))
        (json-fail (make-json-reader :text (coerce before '(simple-array character (*)))
                                     :position (length before))
                   "invalid UTF-8")))))

;;; Writing

(defun write-json-string (string stream)
  (write-char #\" stream)
  (loop for char across string
        for code = (char-code char)
        do (case char
             (#\" (write-string "\\\"" stream))
             (#\\ (write-string "\\\\" stream))
             (#\Newline (write-string "\\n" stream))
             (#\Return (write-string "\\r" stream))
             (#\Tab (write-string "\\t" stream))
             (t (if (or (< code 32) (<= #xD800 code #xDFFF))
                    (format stream "\\u~4,'0X" code)
                    (write-char char stream)))))
  (write-char #\" stream))

(defun write-json-float (float stream)
  "Write FLOAT, whose printed form is the shortest that reads back alike."
  (when (or (sb-ext:float-infinity-p float) (sb-ext:float-nan-p float))
    (misuse "JSON has no number for ~A." float))
  (let ((*read-default-float-format* (type-of float)))
    (prin1 float stream)))

(defun write-json-items (items open close stream write-item)
  (write-char open stream)
  (let ((first t))
    (map nil (lambda (item)
               (if first (setf first nil) (write-char #\, stream))
               (funcall write-item item stream))
         items))
  (write-char close stream))

(defun write-json-member (member stream)
  (unless (and (consp member) (stringp (car member)))
    (misuse "~S is not a member of a JSON object: (string . value)." member))
  (write-json-string (car member) stream)
  (write-char #\: stream)
  (write-json-value (cdr member) stream))

(defun write-json-value (value stream)
  (typecase value
    (string (write-json-string value stream))
    (integer (prin1 value stream))
    (float (write-json-float value stream))
    ((eql :true) (write-string "true" stream))
    ((eql :false) (write-string "false" stream))
    ((eql :null) (write-string "null" stream))
    (list (write-json-items value #\{ #\} stream #'write-json-member))
    (vector (write-json-items value #\[ #\] stream #'write-json-value))
    (t (misuse "~S has no form in JSON." value))))

(defun write-json (value &key stream)
  "Write VALUE, of the shapes that PARSE-JSON returns, as JSON without white space to STREAM, or
return it as a string if STREAM is NIL. A float may be of any format. Signal MISUSE for a value
without a form in JSON, such as an infinity or a symbol."
  (if stream
      (with-standard-io-syntax
        (write-json-value value stream)
        nil)
      (with-output-to-string (string)
        (write-json value :stream string))))
