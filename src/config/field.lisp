;;;; Fields of objects as PARSE-JSON returns them, read as Protocol Buffers' JSON mapping reads
;;;; them: null counts as absent, numbers may be strings, a name may be written in_snake_case, and
;;;; fields of other names are ignored. Each reader takes the OBJECT, the NAME of the field in
;;;; lowerCamelCase, and the PATH of the object, for errors.

(in-package #:clgrpc.config)

(defun member-path (path name)
  "The path of the field NAME of the object at PATH."
  (if (string= "" path) name (format nil "~A.~A" path name)))

(defun element-path (path number)
  "The path of the element NUMBER, from 0, of the list at PATH."
  (format nil "~A[~D]" path number))

(defun object-p (value)
  (and (listp value)
       (every (lambda (member) (and (consp member) (stringp (car member)))) value)))

(defun check-object (value path)
  "Return VALUE, which must be an object."
  (unless (object-p value) (config-error path "an object is expected"))
  value)

(defun snake-case (name)
  "NAME, in lowerCamelCase, in_snake_case."
  (with-output-to-string (stream)
    (loop for character across name
          do (when (upper-case-p character) (write-char #\_ stream))
             (write-char (char-downcase character) stream))))

(defun field (object name)
  "The value of the field NAME of OBJECT, and true if there is one."
  (let* ((member (or (assoc name object :test #'string=)
                     (assoc (snake-case name) object :test #'string=)))
         (value (cdr member)))
    (if (or (null member) (eq :null value))
        (values nil nil)
        (values value t))))

(defmacro with-field ((value object name path default) &body body)
  "Evaluate BODY with VALUE bound to the field NAME of OBJECT and PATH to its path, or return
DEFAULT if there is none."
  (let ((present (gensym "PRESENT")))
    `(multiple-value-bind (,value ,present) (field ,object ,name)
       (if ,present
           (let ((,path (member-path ,path ,name))) ,@body)
           ,default))))

(defun list-field (object name path)
  "The field NAME of OBJECT, a list, as a list; empty if it is absent. True as second value if it is
there."
  (with-field (value object name path (values '() nil))
    (unless (and (vectorp value) (not (stringp value))) (config-error path "a list is expected"))
    (values (coerce value 'list) t)))

(defun object-field (object name path)
  "The field NAME of OBJECT, an object, and true if it is there."
  (with-field (value object name path (values '() nil))
    (values (check-object value path) t)))

(defun string-field (object name path &key default)
  "The field NAME of OBJECT, a string, or DEFAULT."
  (with-field (value object name path default)
    (unless (stringp value) (config-error path "a string is expected"))
    value))

(defun boolean-field (object name path &key default)
  "The field NAME of OBJECT as T or NIL, or DEFAULT."
  (with-field (value object name path default)
    (case value
      ((t :true) t)
      (:false nil)
      (t (config-error path "true or false is expected")))))

(defun number-of (value)
  "The rational that VALUE, a number or a string of one, is, or nil."
  (typecase value
    (real (rational value))
    (string (let ((number (ignore-errors (parse-json value))))
              (and (realp number) (rational number))))))

(defun number-text (number)
  (if (integerp number) (princ-to-string number) (format nil "~F" number)))

(defun check-range (value minimum maximum path)
  "Return VALUE, which must not be under MINIMUM nor over MAXIMUM, each nil for no limit."
  (unless (and (or (null minimum) (>= value minimum))
               (or (null maximum) (<= value maximum)))
    (config-error path "~A is out of range, which is~@[ from ~A~]~@[ to ~A~]"
                  (number-text value)
                  (and minimum (number-text minimum)) (and maximum (number-text maximum))))
  value)

(defun number-field (object name path &key default minimum maximum)
  "The field NAME of OBJECT, a rational from MINIMUM to MAXIMUM, or DEFAULT."
  (with-field (value object name path default)
    (check-range (or (number-of value) (config-error path "a number is expected"))
                 minimum maximum path)))

(defun integer-field (object name path &key default (minimum 0) (maximum (1- (expt 2 32))))
  "The field NAME of OBJECT, an integer from MINIMUM to MAXIMUM, or DEFAULT."
  (with-field (value object name path default)
    (let ((number (number-of value)))
      (unless (integerp number) (config-error path "an integer is expected"))
      (check-range number minimum maximum path))))

(defun parse-duration (text)
  "The nanoseconds that TEXT, such as \"1.5s\", is; nil if it is none."
  (let* ((end (1- (length text)))
         (start (if (and (plusp end) (char= #\- (char text 0))) 1 0))
         (point (or (position #\. text) end)))
    (flet ((digits-p (from to) (every #'digit-char-p (subseq text from to))))
      (when (and (plusp end)
                 (char= #\s (char text end))
                 (<= start point)
                 (<= 1 (- point start) 12)
                 (digits-p start point)
                 (<= (- end point) 10)
                 (or (= point end) (and (> end (1+ point)) (digits-p (1+ point) end))))
        (* (if (zerop start) 1 -1)
           (+ (* +ns-per-second+ (parse-integer text :start start :end point))
              (if (< point end)
                  (* (parse-integer text :start (1+ point) :end end)
                     (expt 10 (- 9 (- end point 1))))
                  0)))))))

(defun duration-field (object name path &key default (minimum 0) maximum)
  "The field NAME of OBJECT, a duration such as \"1.5s\" from MINIMUM to MAXIMUM, in nanoseconds; or
DEFAULT."
  (with-field (value object name path default)
    (let ((ns (and (stringp value) (parse-duration value))))
      (unless ns (config-error path "a duration such as \"1.5s\" is expected"))
      (unless (and (>= ns minimum) (or (null maximum) (<= ns maximum)))
        (config-error path "~A is out of range, which is from ~Fs~@[ to ~Fs~]" value
                      (ns-seconds minimum) (and maximum (ns-seconds maximum))))
      ns)))
