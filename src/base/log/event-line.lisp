;;;; Lines of the log: an event as text for people, or as an object of JSON for programs. A server
;;;; may log each of its calls. So lines are written into a buffer value by value, and texts that
;;;; many lines share are made once: the forms of a key, the text of a second. A peer may have
;;;; written much of the text, so lines have a limited length and are made visible (printable.lisp).

(in-package #:clgrpc.base)

(defconstant +line-characters+ 16384
  "The maximum number of characters of values in a line. A backtrace has its own limit.")
(defconstant +backtrace-characters+ 40000
  "The maximum number of characters of a backtrace that are written. LOG-CONDITION does not make
longer backtraces.")

;;; Parts of lines in both forms, text and JSON

(defun simple-text (text)
  "Return TEXT as a simple string or, if it is ASCII, as a simple base string."
  (coerce text (if (every (lambda (char) (typep char 'base-char)) text)
                   'simple-base-string
                   'simple-string)))

(defun written (function)
  "Call FUNCTION with a buffer, and return as a string what FUNCTION has appended to the buffer."
  (let ((buffer (make-buffer :size 64)))
    (funcall function buffer)
    (buffer-string buffer)))

(defstruct (key-forms (:copier nil))
  "The forms in which lines contain a keyword."
  (name "" :type simple-string :read-only t) ; the name in lower case
  (text "" :type simple-string :read-only t) ; the text before a value in a line of text
  (json "" :type simple-string :read-only t)) ; the text before a value in JSON

(declaim (sb-ext:freeze-type key-forms))

(define-printer (forms key-forms)
  "~A" (key-forms-name forms))

(defun make-forms-of-key (key)
  (let ((name (simple-text (string-downcase key))))
    (make-key-forms :name name
                    :text (simple-text (format nil " ~A=" name))
                    :json (written (lambda (buffer)
                                     (append-json-string buffer (substitute #\_ #\- name))
                                     (append-octet buffer (char-code #\:)))))))

(defun forms-of-key (key)
  "The KEY-FORMS of KEY, a symbol, which keeps them, or a string."
  (if (symbolp key)
      (or (get key 'key-forms)
          (let ((forms (make-forms-of-key key)) (properties (symbol-plist key)))
            ;; if another thread adds a property at the same time, this one may be lost; the next
            ;; line adds it again
            (compare-and-swap (symbol-plist key) properties (list* 'key-forms forms properties))
            forms))
      (make-forms-of-key key)))

(defun name-text (name)
  "Return NAME, a symbol or a string, as a simple string. The name of a symbol is put into lower
case."
  (if (symbolp name) (key-forms-name (forms-of-key name)) (coerce name 'simple-string)))

(defun second-text (seconds)
  "Return the time SECONDS after the beginning of 1970 as text, in UTC, without a zone."
  (multiple-value-bind (second minute hour day month year)
      (decode-universal-time (+ seconds (encode-universal-time 0 0 0 1 1 1970 0)) 0)
    (coerce (format nil "~4,'0D-~2,'0D-~2,'0DT~2,'0D:~2,'0D:~2,'0D"
                    year month day hour minute second)
            'simple-base-string)))

(declaim (type cons **known-second**))
(defglobal **known-second** (cons -1 "")
  "A cons of the last second in which a line was written, and the text of that second. The cons is
replaced, never changed.")

(defun append-iso-time (buffer ns)
  "Append NS since 1970, in UTC with microseconds, to BUFFER."
  (multiple-value-bind (seconds rest) (floor ns +ns-per-second+)
    (let ((known **known-second**))
      (unless (eql seconds (car known))
        (setf known (cons seconds (second-text seconds)))
        (sb-thread:barrier (:write))    ; the text is complete before other threads see it
        (setf **known-second** known))
      (append-ascii buffer (cdr known))
      (let ((octets (ensure-buffer-room buffer 8)) (at (buffer-end buffer))
            (micros (floor rest 1000)))
        (setf (aref octets at) (char-code #\.)
              (aref octets (+ at 7)) (char-code #\Z))
        (loop for i from (+ at 6) above at
              do (multiple-value-bind (more digit) (floor micros 10)
                   (setf (aref octets i) (+ (char-code #\0) digit)
                         micros more)))
        (setf (buffer-end buffer) (+ at 8))))))

(defun proper-list-p (list)
  "True if LIST, a cons, is neither dotted nor circular."
  (handler-case (list-length list)
    (type-error () nil)))

(defun list-text (list depth)
  "Return LIST, which must be proper, as text, DEPTH levels deep. A text that is too long is cut and
ends with …."
  (let ((buffer (make-buffer :size 256)))
    (append-octet buffer (char-code #\())
    (loop for (item . more) on list
          do (append-text buffer (log-value-text item (1- depth)))
             (when more (append-octet buffer (char-code #\Space)))
          until (< (* 4 +visible-characters+) (buffer-end buffer))) ; of UTF-8
    (append-octet buffer (char-code #\)))
    (let ((text (buffer-string buffer)))
      (if (< +visible-characters+ (length text))
          (concatenate 'string (subseq text 0 +visible-characters+) "…")
          text))))

(defun log-value-text (value &optional (depth 8))
  "Return the text that PRINC prints for VALUE, as a simple string of bounded length. An error in
printing is not signalled. Lists are shown DEPTH levels deep."
  (cond ((keywordp value) (string-downcase value))
        ((and (typep value 'double-float) (finite-p value)) (float-decimal value))
        ((and (consp value) (plusp depth) (proper-list-p value)) (list-text value depth))
        (t (bounded-text value))))

;;; Text

(define-hot plain-word-p ((text string)) boolean
  "True if TEXT needs no quotes: it is a word of visible ASCII, not longer than a value may be."
  (and (<= 1 (length text) +visible-characters+)
       (sb-kernel:with-array-data ((text text) (start 0) (end nil))
         (flet ((plain-p (char)
                  (and (char<= #\! char #\~)
                       (not (or (char= char #\") (char= char #\\) (char= char #\=))))))
           (declare (inline plain-p))
           (etypecase text
             (simple-base-string
              (loop for i of-type index from start below end always (plain-p (schar text i))))
             ((simple-array character (*))
              (loop for i of-type index from start below end always (plain-p (schar text i)))))))))

(defun append-word (buffer value)
  "Append VALUE to BUFFER, if its text is a plain word, and return true; else return false."
  (flet ((plain (text)
           (when (plain-word-p text)
             (append-text buffer text)
             t)))
    (typecase value
      ((unsigned-byte 62) (append-json-integer buffer value) t)
      (keyword (plain (key-forms-name (forms-of-key value))))
      (double-float (and (finite-p value) (plain (float-decimal value))))
      (simple-string (plain value)))))

(defun append-words (buffer list)
  "Do what APPEND-WORD does, for the items of LIST, a cons, if all are plain words. Several words
are enclosed in quotes."
  (let ((start (buffer-end buffer)) (quoted (consp (rest list))))
    (when quoted (append-octet buffer (char-code #\")))
    (append-octet buffer (char-code #\())
    (loop for rest = list then (rest rest)
          for last = (atom (rest rest))
          do (unless (and (append-word buffer (first rest))
                          (< (- (buffer-end buffer) start) +visible-characters+)
                          (listp (rest rest)))
               (setf (buffer-end buffer) start)
               (return nil))
             (append-octet buffer (char-code (if last #\) #\Space)))
          until last
          finally (when quoted (append-octet buffer (char-code #\")))
                  (return t))))

(defun quoted-text (text)
  "Return TEXT, which is not a plain word of ASCII, in the form in which APPEND-VALUE writes it."
  (printable-text text :limit (1+ +visible-characters+)
                       :quoted (or (zerop (length text))
                                   (find-if (lambda (char)
                                              (or (unsafe-char-p char) (find char " \"\\=")))
                                            text))))

(defun append-value (buffer value)
  "Append VALUE, as LOG-VALUE-TEXT prints it, to BUFFER: between quotes unless it is a plain word.
Because a peer may have sent VALUE, characters in it that might look like another line are escaped."
  (or (append-word buffer value)
      (and (consp value) (append-words buffer value))
      (let ((text (log-value-text value)))
        (append-text buffer (if (plain-word-p text) text (quoted-text text))))))

(defun append-values (buffer plist)
  "Append the names and values of PLIST to BUFFER, except names whose value is nil. At the first
value that would make the line too long, append … and stop."
  (let ((start (buffer-end buffer)))
    (loop for (key value) on plist by #'cddr
          for before = (buffer-end buffer)
          unless (or (null value) (eq key :tracer) (eq key :backtrace))
            do (append-text buffer (key-forms-text (forms-of-key key)))
               (append-value buffer value)
               (when (< +line-characters+ (- (buffer-end buffer) start))
                 (setf (buffer-end buffer) before)
                 (append-text buffer " …")
                 (return)))))

(defun append-backtrace (buffer text)
  "Append the lines of TEXT, each indented."
  (with-input-from-string (lines text :end (min (length text) +backtrace-characters+))
    (loop for line = (read-line lines nil)
          while line
          do (append-text buffer (format nil "    ~A~%" (printable-text line))))))

(defun append-text-line (buffer ns level event plist)
  "Append EVENT, at NS since 1970, to BUFFER as a line of text, without values that are nil. If it
has a backtrace, append the backtrace's lines, indented."
  (let ((backtrace (getf plist :backtrace)))
    (flet ((append-name (name)
             (append-octet buffer (char-code #\Space))
             (append-text buffer (name-text name))))
      (append-iso-time buffer ns)
      (append-name (symbol-name level))
      (let ((tracer (getf plist :tracer))) (when tracer (append-name tracer)))
      (append-name event))
    (append-values buffer plist)
    (append-octet buffer (char-code #\Newline))
    (when backtrace (append-backtrace buffer backtrace))))

;;; JSON

(defun plist-p (value)
  "True if VALUE, a proper list, looks like a plist, and not like a list of keywords."
  (and (evenp (length value))
       (loop for (key) on value by #'cddr always (keywordp key))
       (notevery #'keywordp value)))

(defvar *line-room* 0
  "The number of characters of values for which the present line still has room.")

(defun line-text (text limit)
  "Return TEXT, cut to LIMIT characters or to the room in the present line, whichever is less."
  (let ((limit (max 0 (min limit *line-room*))))
    (decf *line-room* (+ 8 (min limit (length text)))) ; 8: quotation marks, a comma and so on
    (if (> (length text) limit)
        (concatenate 'string (subseq text 0 limit) "…")
        text)))

(defun append-line-members (buffer plist &optional (before #\{))
  "Append PLIST to BUFFER as an object of JSON, without members for which the line has no room.
BEFORE is the character before the first member."
  (loop for (key value) on plist by #'cddr
        while (plusp *line-room*)
        do (append-octet buffer (char-code (shiftf before #\,)))
           (append-text buffer (key-forms-json (forms-of-key key)))
           (if (and (eq key :backtrace) (stringp value))
               (let ((*line-room* +backtrace-characters+))
                 (append-json-string buffer (line-text value +backtrace-characters+)))
               (append-line-value buffer value)))
  (when (char= before #\{) (append-octet buffer (char-code #\{)))
  (append-octet buffer (char-code #\})))

(defun append-line-items (buffer list)
  "Append LIST to BUFFER as an array of JSON, without items for which the line has no room."
  (append-octet buffer (char-code #\[))
  (loop for (item . more) on list
        for first = t then nil
        while (plusp *line-room*)
        do (unless first (append-octet buffer (char-code #\,)))
           (append-line-value buffer item))
  (append-octet buffer (char-code #\])))

(defun append-line-value (buffer value)
  "Append VALUE to BUFFER as JSON; a plist becomes an object."
  (flet ((text (text) (append-json-string buffer (line-text text +visible-characters+))))
    (typecase value
      (string (text value))
      (integer (decf *line-room* 8) (append-json-integer buffer value))
      (float (if (finite-p value) (append-json-float buffer value) (text (log-value-text value))))
      (null (append-json-value buffer :null))
      ((eql t) (append-json-value buffer :true))
      (keyword (text (key-forms-name (forms-of-key value))))
      (cons (decf *line-room* 8)
       (cond ((not (proper-list-p value)) (text (log-value-text value)))
             ((plist-p value) (append-line-members buffer value))
             (t (append-line-items buffer value))))
      (t (text (log-value-text value))))))

(defun append-json-line (buffer ns level event plist)
  "Append EVENT, at NS since 1970, to BUFFER as a line of JSON. The line is an object with the
members time, level and event, and a member for each name in PLIST."
  (let ((*line-room* +line-characters+))
    (append-text buffer "{\"time\":\"")
    (append-iso-time buffer ns)
    (append-octet buffer (char-code #\"))
    (append-line-members buffer (list* :level (name-text level) :event (name-text event) plist)
                         #\,)
    (append-octet buffer (char-code #\Newline))))
