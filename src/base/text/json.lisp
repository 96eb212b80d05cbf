;;;; JSON (RFC 8259) as a pull parser over octets and a writer into a buffer. Code that knows which
;;;; values to expect (the JSON mapping of Protocol Buffers) takes one after the other from a
;;;; JSON-READER. PARSE-JSON takes any text and makes plain Lisp data of it, which WRITE-JSON
;;;; writes:
;;;;
;;;;   object             alist with string keys, in order, every member kept
;;;;   array              simple-vector
;;;;   number             integer if it has neither fraction nor exponent, else double-float
;;;;   string             string
;;;;   true, false, null  :true :false :null
;;;;
;;;; NIL is the empty object. Reading is strict: no comments, trailing commas, raw control
;;;; characters or lone surrogates. UTF-8 is validated in strings, the only places where characters
;;;; other than ASCII are allowed. The depth of nesting and the lengths of the text and of a number
;;;; are limited, since time and stack grow with them. Doubles are rounded correctly and written in
;;;; the fewest digits that read back as the same double. Output is safe for a terminal: DEL, C1 and
;;;; overrides of direction are escaped like C0.

(in-package #:clgrpc.base)

(define-condition json-error (clgrpc-error)
  ((line :initarg :line :reader json-error-line) ; the line of the fault, from 1
   (column :initarg :column :reader json-error-column) ; the column of the fault, from 1
   (text :initarg :text :reader json-error-text)) ; the expected element
  (:report (lambda (condition stream)
             (format stream "Invalid JSON at line ~D, column ~D: ~A."
                     (json-error-line condition) (json-error-column condition)
                     (json-error-text condition))))
  (:documentation "A text is not JSON. LINE and COLUMN, both counted from 1, are the place of the
error; TEXT describes the error."))

(document-functions
  json-error-line "The line, from 1, at which a text ceases to be JSON."
  json-error-column "The column, from 1, at which a text ceases to be JSON."
  json-error-text "A description of the error, as text.")

(defconstant +json-number-length+ 1100
  "The maximum number of characters of a number that is read. The exact decimal form of a double has
up to 1,077 characters.")

(defstruct (json-reader (:constructor %make-json-reader (octets end max-depth)) (:copier nil))
  "The state of reading a JSON text."
  (octets (make-octets 0) :type octets) ; the text, in UTF-8
  (position 0 :type index)              ; the octets still to be read begin here
  (end 0 :type index)                   ; the end of the part that is being read
  (depth 0 :type index)                 ; the number of arrays and objects open around POSITION
  (max-depth 0 :type index))            ; the most arrays and objects that may be open

(document-functions
  json-reader-position "The position of READER in its octets. SETF moves READER back to an earlier
position."
  json-reader-depth "The number of objects and arrays around the position of READER. SETF it
together with the position."
  json-reader-octets "The octets that READER reads.")

(defun source-octets (source max-length option)
  "Return SOURCE, a string or octets, as octets. Signal LIMIT-EXCEEDED for OPTION if SOURCE has more
than MAX-LENGTH characters or octets."
  (declare (type (or string octets) source))
  (when (> (length source) max-length)
    (error 'limit-exceeded :option option :limit max-length :actual (length source)))
  (if (stringp source) (string-octets source) source))

(defun make-json-reader (source &key (max-depth 100) (max-length (expt 2 24)))
  "Return a reader of the JSON text SOURCE, a string or octets in UTF-8. Signal LIMIT-EXCEEDED if
the text is longer than MAX-LENGTH characters or octets. Reading signals LIMIT-EXCEEDED at values
that nest deeper than MAX-DEPTH."
  (let ((octets (source-octets source max-length 'json-length)))
    (%make-json-reader octets (length octets) max-depth)))

(defun line-and-column (octets position)
  "Return the line and the column, both from 1 and in characters, of POSITION in OCTETS, UTF-8."
  (let* ((position (min position (length octets)))
         (newline (position 10 octets :end position :from-end t))
         (line-start (if newline (1+ newline) 0)))
    (values (1+ (count 10 octets :end line-start))
            (1+ (count-if-not (lambda (octet) (= #x80 (logand #xC0 octet))) octets
                              :start line-start :end position)))))

(defun json-fail (reader control &rest arguments)
  "Signal JSON-ERROR at the position of READER with the text that CONTROL and ARGUMENTS format."
  (multiple-value-bind (line column)
      (line-and-column (json-reader-octets reader) (json-reader-position reader))
    (error 'json-error :line line :column column :text (format nil "~?" control arguments))))

(define-hot (peek-json :inline t) ((reader json-reader)) (or null character)
  "Return the next octet as a character of the same code, or nil at the end."
  (let ((position (json-reader-position reader)))
    (if (< position (json-reader-end reader))
        (code-char (aref (json-reader-octets reader) position))
        nil)))

(defun describe-next (reader)
  "Return the next character of READER, as text for an error."
  (let ((char (peek-json reader)))
    (cond ((null char) "the end of the text")
          ((< 32 (char-code char) 127) (format nil "`~C'" char))
          (t (format nil "octet ~2,'0X" (char-code char))))))

(declaim (inline step-json))
(defun step-json (reader)
  (incf (json-reader-position reader)))

(define-hot skip-json-space ((reader json-reader)) (or null character)
  "Skip white space and return the character after it, or NIL at the end."
  (loop for char = (peek-json reader)
        while (and char (or (char= char #\Space) (char= char #\Newline) (char= char #\Return)
                            (char= char #\Tab)))
        do (step-json reader)
        finally (return char)))

(defun expect-json (reader char)
  "Skip white space and CHAR, which must follow; otherwise signal JSON-ERROR."
  (unless (eql char (skip-json-space reader))
    (json-fail reader "`~C' expected, not ~A" char (describe-next reader)))
  (step-json reader)
  nil)

(defun expect-json-end (reader)
  "Signal JSON-ERROR unless only white space is left."
  (when (skip-json-space reader)
    (json-fail reader "end of the text expected, not ~A" (describe-next reader))))

(defun read-json-word (reader word value)
  "Skip WORD, which must come next, and return VALUE."
  (let ((start (json-reader-position reader)))
    (loop for char across word
          do (unless (eql char (peek-json reader))
               (setf (json-reader-position reader) start)
               (json-fail reader "~A expected" word))
             (step-json reader))
    value))

;;; Numbers

(define-hot scan-json-digits ((reader json-reader) (value unsigned-byte))
    (values unsigned-byte index)
  "Skip one or more decimal digits. Return two values: VALUE with these digits appended, and their
number."
  (declare (sb-ext:muffle-conditions sb-ext:compiler-note)) ; numbers beyond a fixnum are rare
  (let ((small (if (typep value '(unsigned-byte 30)) value 0))
        (rest (if (typep value '(unsigned-byte 30)) nil value))
        (count 0))
    (declare (type (unsigned-byte 60) small) (type index count))
    (loop for char = (peek-json reader)
          while (and char (char<= #\0 char #\9))
          do (let ((digit (- (char-code char) 48)))
               (if (and (null rest) (< small (expt 10 17)))
                   (setf small (+ (* 10 small) digit))
                   (setf rest (+ (* 10 (or rest small)) digit))))
             (step-json reader)
             (when (> (incf count) +json-number-length+)
               (error 'limit-exceeded :option 'json-number-length :limit +json-number-length+)))
    (when (zerop count)
      (json-fail reader "digit expected, not ~A" (describe-next reader)))
    (values (or rest small) count)))

(defun skip-json-char (reader chars)
  "Skip the next character and return it if it is one of CHARS."
  (let ((char (peek-json reader)))
    (when (and char (find char chars))
      (step-json reader)
      char)))

(define-hot scan-json-number ((reader json-reader)) (values unsigned-byte fixnum boolean boolean)
  "Pass over a number. Return four values. The first two are the digits and an exponent; the
magnitude is the digits times ten to the power of the exponent. The third is true if the number has
a minus sign, and the fourth if it has neither fraction nor exponent."
  (let* ((start (json-reader-position reader))
         (negative (and (skip-json-char reader "-") t))
         (zero (eql #\0 (peek-json reader)))
         (plain t) (exponent 0))
    (declare (type fixnum exponent))
    (multiple-value-bind (digits count) (scan-json-digits reader 0)
      (when (and zero (> count 1))
        (setf (json-reader-position reader) start)
        (json-fail reader "a number must not begin with a superfluous 0"))
      (when (eql #\. (peek-json reader))
        (step-json reader)
        (multiple-value-bind (all count) (scan-json-digits reader digits)
          (setf digits all exponent (- count) plain nil)))
      (when (skip-json-char reader "eE")
        (let ((sign (skip-json-char reader "+-"))
              (given (locally (declare (sb-ext:muffle-conditions sb-ext:compiler-note))
                       ;; the digits may be of any size, but long ones are rare
                       (min (scan-json-digits reader 0) 1000000))))
          (setf plain nil)
          (incf exponent (if (eql sign #\-) (- given) given))))
      (values digits exponent negative plain))))

(defun read-json-number (reader)
  "Read a number; return an integer if it has neither fraction nor exponent, else a double."
  (multiple-value-bind (digits exponent negative plain) (scan-json-number reader)
    (cond ((not plain)
           (or (digits-double digits exponent negative)
               (json-fail reader "number too large for a double-float")))
          (negative (- digits))
          (t digits))))

;;; Strings

(defun read-json-unit (reader)
  "Read the four hexadecimal digits of a \\u escape."
  (let ((unit 0))
    (dotimes (i 4 unit)
      (let* ((char (peek-json reader))
             (digit (and char (digit-char-p char 16))))
        (unless digit
          (json-fail reader "hexadecimal digit expected, not ~A" (describe-next reader)))
        (setf unit (+ (* 16 unit) digit))
        (step-json reader)))))

(defun read-json-escape (reader)
  "Read the rest of an escape, after its backslash; return the character that the escape
represents."
  (let ((char (peek-json reader)))
    (step-json reader)
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
         (json-fail reader "escape expected, not ~A" (describe-next reader))))))

(defun read-json-low-surrogate (reader)
  (if (and (skip-json-char reader "\\") (skip-json-char reader "u"))
      (let ((unit (read-json-unit reader)))
        (if (<= #xDC00 unit #xDFFF)
            unit
            (json-fail reader "lone surrogate")))
      (json-fail reader "lone surrogate")))

(define-hot scan-json-plain ((reader json-reader)) (values index character)
  "Skip the characters of a string that need no decoding. Return the start of these characters, and
the quotation mark or backslash after them."
  (let* ((octets (json-reader-octets reader))
         (start (json-reader-position reader))
         (end (json-reader-end reader))
         (at start))
    (declare (type index at))
    (loop
      (when (= at end)
        (setf (json-reader-position reader) at)
        (json-fail reader "the text ends within a string"))
      (let ((octet (aref octets at)))
        (when (or (= octet 34) (= octet 92) (< octet 32))
          (setf (json-reader-position reader) at)
          (when (< octet 32)
            (json-fail reader "~A must be escaped in a string" (describe-next reader)))
          (return (values start (code-char octet)))))
      (incf at))))

(defun decode-json-text (reader start)
  "Return the string whose UTF-8 is between START and the position of READER."
  (handler-case (decode-utf8 (json-reader-octets reader) start (json-reader-position reader))
    (invalid-utf8 (condition)
      (setf (json-reader-position reader) (+ start (invalid-utf8-position condition)))
      (json-fail reader "invalid UTF-8"))))

(define-hot read-json-string ((reader json-reader)) simple-string
  "Read a string, whose opening quotation mark comes next."
  (step-json reader)
  (multiple-value-bind (start char) (scan-json-plain reader)
    (let ((string (decode-json-text reader start)))
      (step-json reader)
      (if (char= char #\")
          string
          ;; the muffled compiler note is harmless here
          (locally (declare (sb-ext:muffle-conditions sb-ext:compiler-note))
            (coerce (read-json-string-rest reader string) 'simple-string))))))

(defun read-json-string-rest (reader beginning)
  "Return BEGINNING followed by the rest of the string. The rest starts with an escape, whose
backslash has been read."
  (with-output-to-string (string)
    (write-string beginning string)
    (loop
      (write-char (read-json-escape reader) string)
      (multiple-value-bind (start char) (scan-json-plain reader)
        (write-string (decode-json-text reader start) string)
        (step-json reader)
        (when (char= char #\") (return))))))

;;; Values

(defun call-with-json-nesting (reader function)
  (let ((depth (incf (json-reader-depth reader))))
    (when (> depth (json-reader-max-depth reader))
      (error 'limit-exceeded :option 'json-depth :limit (json-reader-max-depth reader)
                             :actual depth))
    (funcall function)
    (decf (json-reader-depth reader))
    nil))

(defun read-json-items (reader open close read-item)
  "Call READ-ITEM at each item of a sequence between OPEN and CLOSE, separated by commas."
  (declare (type function read-item))
  (expect-json reader open)
  (flet ((items ()
           (cond ((eql close (skip-json-space reader)) (step-json reader))
                 (t (loop
                      (funcall read-item)
                      (unless (eql #\, (skip-json-space reader)) (return))
                      (step-json reader))
                    (expect-json reader close)))))
    (declare (dynamic-extent #'items))
    (call-with-json-nesting reader #'items)))

(defun read-json-name (reader)
  "Read the name of a member and the colon after it."
  (unless (eql #\" (skip-json-space reader))
    (json-fail reader "name of a member expected, not ~A" (describe-next reader)))
  (prog1 (read-json-string reader)
    (expect-json reader #\:)))

(defmacro do-json-elements ((reader) &body body)
  "Run BODY, which must read a value, for each element of the array that comes next in READER."
  (let ((element (gensym "ELEMENT")))
    `(flet ((,element () ,@body))
       (declare (dynamic-extent #',element))
       (read-json-items ,reader #\[ #\] #',element))))

(defmacro do-json-members ((name reader) &body body)
  "Run BODY, which must read a value, with NAME bound to the name of each member of the object that
comes next in READER."
  (let ((object (gensym "READER")) (item (gensym "MEMBER")))
    `(let ((,object ,reader))
       (flet ((,item ()
                (let ((,name (read-json-name ,object)))
                  (declare (ignorable ,name))
                  ,@body)))
         (declare (dynamic-extent #',item))
         (read-json-items ,object #\{ #\} #',item)))))

(defun next-json (reader)
  "Pass over white space. Return the kind of the next value: :OBJECT, :ARRAY, :STRING, :NUMBER,
:TRUE, :FALSE or :NULL. Signal JSON-ERROR if no value follows."
  (case (skip-json-space reader)
    (#\{ :object)
    (#\[ :array)
    (#\" :string)
    (#\t :true)
    (#\f :false)
    (#\n :null)
    ((#\- #\0 #\1 #\2 #\3 #\4 #\5 #\6 #\7 #\8 #\9) :number)
    (t (json-fail reader "value expected, not ~A" (describe-next reader)))))

(defun read-json-value (reader)
  "Read any value; return it as PARSE-JSON does."
  (let ((items '()))
    (ecase (next-json reader)
      (:object
       (do-json-members (name reader) (push (cons name (read-json-value reader)) items))
       (nreverse items))
      (:array
       (do-json-elements (reader) (push (read-json-value reader) items))
       (coerce (nreverse items) 'simple-vector))
      (:string (read-json-string reader))
      (:number (read-json-number reader))
      (:true (read-json-word reader "true" :true))
      (:false (read-json-word reader "false" :false))
      (:null (read-json-word reader "null" :null)))))

(defun skip-json-value (reader)
  "Skip any value, which must be valid."
  (case (next-json reader)
    (:object (do-json-members (name reader) (skip-json-value reader)))
    (:array (do-json-elements (reader) (skip-json-value reader)))
    (:number (scan-json-number reader))
    (t (read-json-value reader)))
  nil)

(defun parse-json (source &key (max-depth 100) (max-length (expt 2 24)))
  "Return the value of SOURCE, a JSON text, as a string or octets in UTF-8: one value with white
space around it. An object becomes an alist with strings as keys, and an array a simple-vector;
true, false and null become :TRUE, :FALSE and :NULL. Signal JSON-ERROR with line and column if
SOURCE is not JSON. Signal LIMIT-EXCEEDED if it nests deeper than MAX-DEPTH, is longer than
MAX-LENGTH characters or octets, or has a number that is too long."
  (let* ((reader (make-json-reader source :max-depth max-depth :max-length max-length))
         (value (read-json-value reader)))
    (expect-json-end reader)
    value))

;;; Writing

(define-hot append-ascii ((buffer buffer) (text simple-base-string)) null
  "Append TEXT to BUFFER."
  (let ((octets (ensure-buffer-room buffer (length text))))
    (setf (buffer-end buffer) (%copy-base-string text octets (buffer-end buffer)))
    nil))

(define-hot append-text ((buffer buffer) (text simple-string)) null
  (if (typep text 'simple-base-string)
      (append-ascii buffer text)
      (let ((octets (ensure-buffer-room buffer (* 4 (length text)))) (at (buffer-end buffer))
            (text (sb-ext:truly-the (simple-array character (*)) text)))
        (declare (type index at))
        (macrolet ((put (octet) `(setf (aref octets at) ,octet at (1+ at))))
          (loop for i of-type index from 0 below (length text)
                do (let ((code (char-code (schar text i))))
                     (declare (type (unsigned-byte 21) code))
                     (put-utf8 code put))))
        (setf (buffer-end buffer) at)
        nil)))

(define-hot append-escape ((code (unsigned-byte 21)) (octets octets) (at index)) index
  "Write the escape for the character CODE."
  (let ((letter (case code (34 #\") (92 #\\) (10 #\n) (13 #\r) (9 #\t))))
    (flet ((put (code)
             (setf (aref octets at) code)
             (incf at)))
      (put 92)
      (cond (letter (put (char-code letter)))
            (t (put (char-code #\u))
               (loop for shift from 12 downto 0 by 4
                     do (put (char-code (char "0123456789ABCDEF"
                                              (ldb (byte 4 shift) code))))))))
    at))

(define-hot append-quoted ((text simple-string) (start index) (end index) (octets octets)
                            (at index))
    index
  "Write the characters START to END of TEXT in the form that they have in strings of JSON. OCTETS
must have room for six octets for each character. Return the position after the last octet."
  (macrolet ((put (octet) `(setf (aref octets at) ,octet at (1+ at)))
             (quote-all (type)
               `(let ((text (sb-ext:truly-the ,type text)))
                  (loop for i from start below end
                        do (let ((code (char-code (schar text i))))
                             (declare (type (unsigned-byte 21) code))
                             (cond ((and (<= 32 code 126) (/= code 34) (/= code 92)) (put code))
                                   ((or (< code 128)
                                        (and (< code #x10000)
                                             (unsafe-code-p code)
                                             (not (<= #xD800 code #xDFFF)))) ; no character
                                    (setf at (append-escape code octets at)))
                                   (t (put-utf8 code put))))))))
    (etypecase text
      (simple-base-string (quote-all simple-base-string))
      ((simple-array character (*)) (quote-all (simple-array character (*)))))
    at))

(defun append-json-string (buffer string)
  "Append STRING to BUFFER, in quotation marks and with escapes."
  (let ((string (coerce string 'simple-string)) (chunk 4096))
    (append-octet buffer 34)
    (loop for start from 0 below (length string) by chunk
          for end = (min (length string) (+ start chunk))
          do (let ((octets (ensure-buffer-room buffer (* 6 (- end start)))))
               (setf (buffer-end buffer)
                     (append-quoted string start end octets (buffer-end buffer)))))
    (append-octet buffer 34)))

(define-hot append-json-integer ((buffer buffer) (integer integer)) null
  "Append INTEGER to BUFFER in decimal."
  (if (typep integer '(unsigned-byte 62))
      (let* ((size (loop for rest of-type (unsigned-byte 62) = integer then (truncate rest 10)
                         count t while (>= rest 10)))
             (octets (ensure-buffer-room buffer size))
             (end (+ (buffer-end buffer) size))
             (rest integer))
        (declare (type (unsigned-byte 62) rest))
        (loop for at of-type fixnum from (1- end) downto (buffer-end buffer)
              do (multiple-value-bind (quotient digit) (truncate rest 10)
                   (setf (aref octets at) (+ 48 digit)
                         rest quotient)))
        (setf (buffer-end buffer) end)
        nil)
      (append-ascii buffer (coerce (format nil "~D" integer) 'simple-base-string))))

(defun append-json-float (buffer float)
  "Append FLOAT, which is finite, to BUFFER in the fewest digits that are read back as the same
float."
  (unless (finite-p float)
    (misuse "JSON has no number for ~A." float))
  (append-ascii buffer (float-decimal float)))

(defun append-json-items (buffer items open close append-item)
  (append-octet buffer (char-code open))
  (let ((first t))
    (map nil (lambda (item)
               (if first (setf first nil) (append-octet buffer 44))
               (funcall append-item buffer item))
         items))
  (append-octet buffer (char-code close)))

(defun append-json-member (buffer member)
  (unless (and (consp member) (stringp (car member)))
    (misuse "~S is not a member of a JSON object: (string . value)." member))
  (append-json-string buffer (car member))
  (append-octet buffer 58)
  (append-json-value buffer (cdr member)))

(defun append-json-value (buffer value)
  "Append VALUE, in a form that PARSE-JSON returns, to BUFFER as JSON without white space. A float
may be of any format. Signal MISUSE for a value without a form in JSON."
  (typecase value
    (string (append-json-string buffer value))
    (integer (append-json-integer buffer value))
    (float (append-json-float buffer value))
    ((eql :true) (append-ascii buffer (load-time-value (coerce "true" 'simple-base-string))))
    ((eql :false) (append-ascii buffer (load-time-value (coerce "false" 'simple-base-string))))
    ((eql :null) (append-ascii buffer (load-time-value (coerce "null" 'simple-base-string))))
    (list (append-json-items buffer value #\{ #\} #'append-json-member))
    (vector (append-json-items buffer value #\[ #\] #'append-json-value))
    (t (misuse "~S has no form in JSON." value))))

(defun buffer-string (buffer)
  "Return the contents of BUFFER, which are UTF-8, as a string."
  (octets-string (buffer-octets buffer) :start (buffer-start buffer) :end (buffer-end buffer)))

(defun write-json (value &key stream)
  "Write VALUE, in a form that PARSE-JSON returns, as JSON without white space to STREAM, or return
this JSON as a string if STREAM is NIL. A float may be of any format. Signal MISUSE for a value
without a form in JSON, such as an infinity or a symbol."
  (let ((buffer (make-buffer :size 256)))
    (append-json-value buffer value)
    (if stream
        (progn (write-string (buffer-string buffer) stream) nil)
        (buffer-string buffer))))
