;;;; Fields of the objects in a service config, read as Protocol Buffers' JSON mapping specifies: by
;;;; their name in lowerCamelCase or in snake_case, null as absent, integers as numbers or strings,
;;;; durations as strings ("1.5s"). Unknown fields are ignored, with a warning in the log if the
;;;; name is probably a misspelt known one; in a plist, which a programmer has written, they are
;;;; errors. Each reader takes the OBJECT, the NAME of the field in lowerCamelCase, and the PATH of
;;;; the object, for errors.
;;;;
;;;; A config is also read from Lisp data. There an object is a plist whose keywords are the names
;;;; (:max-attempts is maxAttempts), or an alist like those of PARSE-JSON; an array is a list or a
;;;; vector; true and false are T and NIL; a duration may be a number of seconds; a status may be
;;;; its keyword; NIL means absent, or, for booleans, false. A Lisp list may mean an object or an
;;;; array: the code that reads the field decides.

(in-package #:clgrpc.config)

(defvar *lisp-source* nil
  "True while a config that is Lisp data, not JSON, is read.")

(defun member-path (path name)
  "The path of the field NAME of the object at PATH."
  (if (string= "" path) name (format nil "~A.~A" path name)))

(defun element-path (path number)
  "The path of the element NUMBER, from 0, of the list at PATH."
  (format nil "~A[~D]" path number))

(defun map-numbered (function list path)
  "Call FUNCTION with each item of LIST, which is at PATH, and the item's own path."
  (loop for item in list
        for number from 0
        do (funcall function item (element-path path number))))

(defun shown (value)
  "VALUE in the form for an error's text."
  (cond (*lisp-source* (bounded-text value :limit 60 :escape t))
        ((stringp value) (bounded-text value :limit 60 :escape t))
        ((symbolp value) (if value (string-downcase value) "an object"))
        ((numberp value) (princ-to-string value))
        ((vectorp value) "a list")
        (t "an object")))

;;; Objects

(defun snake-case (name)
  "The snake_case form of NAME, which is in lowerCamelCase."
  (with-output-to-string (stream)
    (loop for character across name
          do (when (upper-case-p character) (write-char #\_ stream))
             (write-char (char-downcase character) stream))))

(defun key-name (key)
  "The name of KEY of an object: KEY itself if it is a string; the name of KEY in snake case if it
is a keyword."
  (if (stringp key) key (substitute #\_ #\- (string-downcase key))))

(defun plist-p (value)
  "True if VALUE, an object of Lisp data, is a plist, not an alist."
  (and *lisp-source* (consp value) (keywordp (first value))))

(defun object-p (value)
  "True if VALUE is an object of a config: an alist or a plist."
  (cond ((not (and (listp value) (ignore-errors (list-length value)))) nil)
        ((plist-p value)
         (and (evenp (length value))
              (loop for key in value by #'cddr always (typep key '(or keyword string)))))
        (t (every (lambda (member) (and (consp member) (stringp (car member)))) value))))

(defun check-object (value path)
  "Return VALUE, which must be an object."
  (unless (object-p value) (config-error path "must be an object, not ~A" (shown value)))
  value)

(defun object-members (object)
  "The fields of OBJECT as an alist whose keys are strings or, for a plist, keywords."
  (if (plist-p object)
      (loop for (key value) on object by #'cddr collect (cons key value))
      object))

(defun absent-p (value)
  "True if VALUE, a field's, means that the field is absent."
  (or (eq :null value)
      (and *lisp-source* (null value))))

(defvar *fields-read* (make-hash-table :test 'eq)
  "While a config is read: a table that maps each object in the config to a list of the object's
path and the names of its fields that were read.")

(defun note-field (object name path)
  (when object
    (let ((row (or (gethash object *fields-read*)
                   (setf (gethash object *fields-read*) (list path)))))
      (pushnew name (rest row) :test #'string=))))

(defun check-names ()
  "Signal SERVICE-CONFIG-ERROR if a plist that was read has a field that no reader has read. In
another object an unknown field is ignored; if its name is probably misspelt, a warning is logged."
  (loop for object being the hash-keys of *fields-read* using (hash-value (path . names))
        for keywords = (loop for name in names
                             collect (substitute #\- #\_ (snake-case name)))
        do (loop for (key) in (object-members object)
                 for given = (substitute #\- #\_ (snake-case (key-name key)))
                 for likely = (if (or (member (key-name key) names :test #'string=)
                                      (member given keywords :test #'string=))
                                  :known
                                  (suggested-name given keywords))
                 do (cond ((eq :known likely))
                          ((plist-p object)
                           (config-error path "has no field ~(~S~)~@[ (is it :~A?)~]; its fields ~
                                               are ~{:~A~^, ~}"
                                         key likely (sort (copy-list keywords) #'string<)))
                          (likely
                           (log-event :warning :service-config-field-ignored
                                      :path (member-path path (bounded-text key :limit 60))
                                      :likely-name (nth (position likely keywords :test #'string=)
                                                        names)))))))

(defun find-field (object name path)
  "Two values: the value of the field NAME of OBJECT, perhaps null, and true if OBJECT has the
field. Signal SERVICE-CONFIG-ERROR if OBJECT has the field twice, under the two forms of its name."
  (note-field object name path)
  (let ((found (loop with snake = (snake-case name)
                     for member in (object-members object)
                     for text = (key-name (car member))
                     when (or (string= name text) (string= snake text)) collect member)))
    (when (rest found) (config-error (member-path path name) "must be given exactly once"))
    (values (cdr (first found)) (and found t))))

(defun field (object name &optional (path ""))
  "Two values: the value of the field NAME of OBJECT, which is at PATH, and true; or nil twice if
the field is absent."
  (multiple-value-bind (value present) (find-field object name path)
    (if (and present (not (absent-p value)))
        (values value t)
        (values nil nil))))

(defmacro with-field ((value object name path default) &body body)
  "Evaluate BODY with VALUE bound to the field NAME of OBJECT and PATH to its path, or return
DEFAULT if the field is absent."
  (let ((present (gensym "PRESENT")))
    `(multiple-value-bind (,value ,present) (find-field ,object ,name ,path)
       (if (and ,present (not (absent-p ,value)))
           (let ((,path (member-path ,path ,name))) ,@body)
           ,default))))

(defun similar-key (object name)
  "The key of OBJECT, as text, that is probably a misspelt NAME; nil if there is no such key."
  (let ((snake (snake-case name)))
    (loop for (key) in (object-members object)
          for given = (key-name key)
          when (and (<= (length given) (* 2 (length name)))
                    (string/= snake (snake-case given))
                    (suggested-name (snake-case given) (list snake)))
            return (if (stringp key)
                       (bounded-text key :limit 60 :escape t)
                       (format nil "~(~S~)" key)))))

(defun absent-value (object name path required default)
  "The value of a reader for the field NAME of OBJECT, at PATH, which is absent. Signal an error if
the field is REQUIRED."
  (when required
    (config-error (member-path path name) "must be given~@[; is ~A a misspelling of it?~]"
                  (similar-key object name)))
  default)

(defun object-field (object name path)
  "Two values: the field NAME of OBJECT, an object or the empty list, and true if OBJECT has the
field."
  (with-field (value object name path (values '() nil))
    (values (check-object value path) t)))

;;; Lists

(defun check-list (value path)
  "VALUE, at PATH, as a list. Signal an error if the value is not a list, or contains null."
  (let ((items (cond ((and (vectorp value) (not (stringp value))) (coerce value 'list))
                     ((and *lisp-source* (listp value) (ignore-errors (list-length value))) value)
                     (t (config-error path "must be a list, not ~A" (shown value))))))
    (loop for item in items
          for number from 0
          when (eq :null item) do (config-error (element-path path number) "must not be null"))
    items))

(defun list-field (object name path)
  "The value of the field NAME of OBJECT as a list, which is empty if the field is absent. The
second value is true if OBJECT has the field."
  (with-field (value object name path (values '() nil))
    (values (check-list value path) t)))

;;; Strings and booleans

(defun string-field (object name path &key default)
  "The field NAME of OBJECT, a string, or DEFAULT."
  (with-field (value object name path default)
    (unless (stringp value) (config-error path "must be a string, not ~A" (shown value)))
    value))

(defun boolean-field (object name path &key default)
  "The field NAME of OBJECT as T or NIL, or DEFAULT."
  (multiple-value-bind (value present) (find-field object name path)
    (cond ((or (not present) (eq :null value)) default)
          ((or (eq :true value) (and *lisp-source* (eq t value))) t)
          ((or (eq :false value) (and *lisp-source* (null value))) nil)
          (t (config-error (member-path path name) "must be true or false, not ~A"
                           (shown value))))))

;;; Numbers

(defun number-of (value)
  "The rational equal to VALUE, a finite number or a string of one without white space, or nil."
  (typecase value
    (real (and (finite-p value) (rational value)))
    (string (let ((number (ignore-errors (parse-json value :max-length 100))))
              (and (realp number)
                   (not (find-if (lambda (char) (find char '(#\Space #\Tab #\Newline #\Return)))
                                 value))
                   (rational number))))))

(defun number-text (number)
  (if (integerp number) (princ-to-string number) (format nil "~F" number)))

(defun check-number (number value kind minimum maximum above path)
  "Return NUMBER, the number of VALUE at PATH or nil. Signal an error, with the text KIND, unless it
is a number from MINIMUM to MAXIMUM and more than ABOVE, each nil for no limit."
  (unless (and number
               (or (null minimum) (>= number minimum))
               (or (null maximum) (<= number maximum))
               (or (null above) (> number above)))
    (config-error path "must be ~A~@[ of more than ~A~]~@[ from ~A~]~@[ to ~A~], not ~A" kind
                  (and above (number-text above)) (and minimum (number-text minimum))
                  (and maximum (number-text maximum)) (shown value)))
  number)

(defun number-field (object name path &key default required minimum maximum above least most
                                        (text t))
  "The field NAME of OBJECT, a rational from MINIMUM to MAXIMUM and more than ABOVE, each nil for no
limit. If TEXT is true, the number may be in a string. If the field is absent return DEFAULT, unless
it is REQUIRED. A number below LEAST becomes LEAST, a number above MOST becomes MOST."
  (with-field (value object name path (absent-value object name path required default))
    (let ((number (check-number (and (or text (realp value)) (number-of value)) value "a number"
                                minimum maximum above path)))
      (clamp number least most))))

(defun integer-field (object name path &key default required (minimum 0) (maximum #xFFFFFFFF)
                                         (text t))
  "The field NAME of OBJECT, an integer from MINIMUM to MAXIMUM. If TEXT is true, the integer may be
in a string. If the field is absent return DEFAULT, unless it is REQUIRED. A number with a fraction
of zero is an integer."
  (with-field (value object name path (absent-value object name path required default))
    (let ((number (and (or text (realp value)) (number-of value))))
      (check-number (and (integerp number) number) value "an integer" minimum maximum nil path))))

;;; Durations

(defconstant +longest-seconds+ 315576000000
  "The longest duration that Protocol Buffers have: ten thousand years.")

(defun digits-number (digits)
  "The integer in the string DIGITS, 0 if it is empty; nil if it has other characters."
  (cond ((string= "" digits) 0)
        ((every (lambda (char) (char<= #\0 char #\9)) digits) (parse-integer digits))))

(defun parse-duration (text)
  "The nanoseconds of TEXT, a duration: decimal digits, at most nine of them after the point, and s,
such as \"1.5s\" or \".1s\". Nil if TEXT is not a duration."
  (let* ((end (1- (length text)))
         (start (if (and (plusp end) (char= #\- (char text 0))) 1 0))
         (point (or (position #\. text :end (max 0 end)) end)))
    (when (and (plusp end)
               (char= #\s (char text end))
               (<= start point)
               (<= (- point start) 12)
               (<= (- end point 1) 9)
               (plusp (- end start (if (< point end) 1 0)))) ; a digit
      (let ((whole (digits-number (subseq text start point)))
            (fraction (digits-number (subseq text (min end (1+ point)) end))))
        (and whole fraction
             (* (if (zerop start) 1 -1)
                (+ (* +ns-per-second+ whole)
                   (* fraction (expt 10 (- 9 (max 0 (- end point 1))))))))))))

(defun duration-text (ns)
  "NS nanoseconds as a duration in a config."
  (multiple-value-bind (seconds rest) (floor ns +ns-per-second+)
    (format nil "~D~:[.~A~;~*~]s" seconds (zerop rest)
            (string-right-trim "0" (format nil "~9,'0D" rest)))))

(defun duration-of (value)
  "The nanoseconds of VALUE, a duration; nil if VALUE is not a duration."
  (let ((ns (cond ((stringp value) (parse-duration value))
                  ((and *lisp-source* (realp value) (finite-p value))
                   (round (* (rational value) +ns-per-second+))))))
    (and ns
         (<= (abs ns) (* +longest-seconds+ +ns-per-second+))
         ns)))

(defun duration-field (object name path &key default required (minimum 0) maximum least)
  "The field NAME of OBJECT, a duration such as \"1.5s\" from MINIMUM to MAXIMUM, in nanoseconds; or
DEFAULT, unless it is REQUIRED. A duration less than LEAST becomes LEAST. A duration longer than the
type NANOSECONDS allows becomes the longest one of that type."
  (with-field (value object name path (absent-value object name path required default))
    (let ((ns (duration-of value)))
      (unless (and ns (>= ns minimum) (or (null maximum) (<= ns maximum)))
        (config-error path "must be a duration such as \"1.5s\"~@[ from ~A~]~@[ to ~A~], not ~A"
                      (and (plusp minimum) (duration-text minimum))
                      (and maximum (duration-text maximum)) (shown value)))
      (clamp ns least most-positive-fixnum))))
