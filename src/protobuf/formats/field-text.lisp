;;;; Fields of a message one at a time, for REST: found by a path of names, set from bare texts such
;;;; as the parameters of a query, read from JSON and written as JSON. A text means the same as the
;;;; JSON string or number with the same characters (protobuf.dev, "ProtoJSON format"): bytes are
;;;; base64 of either alphabet, and a Timestamp has the form of RFC 3339.

(in-package #:clgrpc.protobuf)

(define-condition field-text-error (clgrpc-error)
  ((path :initarg :path :reader field-text-error-path) ; the names of the fields
   (text :initarg :text :reader field-text-error-text)) ; the fault
  (:report (lambda (condition stream)
             (format stream "The field ~A ~A." (field-text-error-path condition)
                     (field-text-error-text condition))))
  (:documentation "A text does not represent a value of the field for which it was given. PATH is
the path to that field: names of fields, joined by points; TEXT describes the fault."))

(document-functions
  field-text-error-path "The path to the field that has an invalid text: names of fields, joined by
points."
  field-text-error-text "The fault in the text for a field, such as \"takes true or false\".")

;;; Paths

(defun layout-of-type (type)
  (or (message-type-layout type)
      (misuse "The message type ~A is not defined." (message-type-name type))))

(defun find-field (type name)
  "Return two values: the descriptor of the field NAME of the message TYPE (a symbol, full name or
message type), and the type of its message, or nil unless the field is a singular message. NAME is
the field's name in the .proto file or in JSON. Return nil if there is no such field."
  (when-let ((slot (text-layout-slot (json-text-layout (layout-of-type (need-message-type type)))
                                     name)))
    (values (slot-field slot)
            (and (eq :message (slot-kind slot))
                 (eq :singular (slot-label slot))
                 (slot-type-object slot)))))

(defun find-field-path (type path &key (max-steps 32))
  "Return two values: the descriptors of the fields on PATH, outermost first, and nil. PATH is a
string of names joined by points, and begins at the message TYPE. Each name is as for FIND-FIELD. If
there is no such field, or the path has more than MAX-STEPS names, return nil and the name at which
the path fails. All fields but the last are singular messages."
  (let ((fields '()) (type (need-message-type type)) (path (coerce path 'simple-string)))
    (loop for start = 0 then (1+ dot)
          for dot = (char-position #\. path :start start)
          for name = (if (and (zerop start) (null dot)) path (subseq path start dot))
          for step from 1
          do (multiple-value-bind (field inner) (find-field type name)
               (when (or (null field) (and dot (null inner)) (> step max-steps))
                 (return (values nil name)))
               (push field fields)
               (setf type inner))
          while dot
          finally (return (values (nreverse fields) nil)))))

(defun fields-path-text (fields)
  (format nil "~{~A~^.~}" (mapcar #'descriptor-name fields)))

;;; Texts

(defconstant +longest-number+ 128
  "The maximum number of characters of a number in a bare text. The number is limited because a
thousand digits take long to read, while a peer can repeat a path or query with such a number at the
cost of an octet or two.")

(defun bare-number (text)
  "Return what TEXT-NUMBER returns, but nil for a text that is too long."
  (and (<= (length text) +longest-number+) (text-number text)))

(defun text-integer (text)
  "Return the integer that TEXT, a decimal number, represents, or nil if its value is not an
integer."
  (let ((length (length text)))
    (if (and (< 0 length 19)
             (loop for char across text always (char<= #\0 char #\9))
             (or (= 1 length) (char/= #\0 (char text 0))))
        (parse-integer text)
        (multiple-value-bind (digits exponent negative) (bare-number text)
          (and digits (exact-integer digits exponent negative))))))

(defun text-float (kind text)
  "Return the float of KIND that TEXT represents, or nil if TEXT is not such a number."
  (if-let ((named (find text *named-floats* :key #'first :test #'string=)))
    (if (eq kind :float) (second named) (third named))
    (multiple-value-bind (digits exponent negative) (bare-number text)
      (and digits (float-of kind digits exponent negative)))))

(defun base64-text-octets (text)
  "The octets encoded by TEXT in base64, of either alphabet; nil if it is not base64."
  (handler-case (decode-base64 text :any-alphabet t)
    (invalid-base64 () nil)))

(defun text-enum (slot text)
  "Return the number of the enum value of SLOT whose name or number is TEXT, or nil if there is no
such value."
  (let ((type (slot-type-object slot)))
    (or (enum-value-number type text)
        (let ((number (text-integer text)))
          (and number
               (integer-of-kind-p :enum number)
               (or (not (slot-closed-p slot)) (enum-known-p type number))
               number)))))

(defun hold-text-time (message function text)
  "Set MESSAGE, a Timestamp or Duration, to the time that FUNCTION reads in TEXT; return nil if TEXT
is not a time."
  (multiple-value-bind (seconds nanos) (funcall function text)
    (when seconds
      (hold-number seconds message 1)
      (hold-number nanos message 2)
      message)))

(defun text-message (slot text)
  "Return the message of SLOT that TEXT represents, if the JSON form of its type is neither object
nor array. Otherwise return two values: nil, and a text that describes the values that SLOT takes."
  (let* ((type (slot-type-object slot))
         (form (text-layout-form (json-text-layout (layout-of-type type))))
         (message (make-message type)))
    (ecase form
      (:timestamp (values (hold-text-time message #'parse-timestamp-text text)
                          "takes a time as in 2024-02-29T12:00:00Z"))
      (:duration (values (hold-text-time message #'parse-duration-text text)
                         "takes a duration as in 1.5s"))
      (:field-mask (let ((paths (mapcar #'snake-path (split-text text #\,)))
                         (slot (numbered-slot message 1)))
                     (if (every #'identity paths)
                         (progn (set-slot message slot (to-stored slot paths)) message)
                         (values nil "takes paths in lower camel case"))))
      (:wrapper (let ((slot (numbered-slot message 1)))
                  (multiple-value-bind (value wrong) (text-value slot text)
                    (if wrong
                        (values nil wrong)
                        (progn (set-slot message slot value) message)))))
      ((nil :any :struct :value :list)
       (values nil "takes a message, which a text cannot represent")))))

(defun text-value (slot text)
  "Return two values: the value of SLOT for TEXT, and nil; or nil, and a text that describes the
values that SLOT takes."
  (let ((kind (slot-kind slot)))
    (flet ((found (value &optional wrong) (if value (values value nil) (values nil wrong))))
      (ecase kind
        (:string (values text nil))
        (:bool (cond ((string= text "true") (values t nil))
                     ((string= text "false") (values nil nil))
                     (t (values nil "takes true or false"))))
        ((:int32 :sint32 :sfixed32 :uint32 :fixed32 :int64 :sint64 :sfixed64 :uint64 :fixed64)
         (let ((integer (text-integer text)))
           (if (and integer (integer-of-kind-p kind integer))
               (values integer nil)
               (values nil (format nil "takes an integer, ~(~A~)" kind)))))
        ((:float :double) (if-let ((float (text-float kind text)))
                            (values float nil)
                            (values nil (format nil "takes a number, ~(~A~)" kind))))
        (:bytes (found (base64-text-octets text) "takes octets in base64"))
        (:enum (found (text-enum slot text) "takes the name or number of a value"))
        (:message (multiple-value-call #'found (text-message slot text)))))))

(defun text-field-p (field)
  "Return true if texts can be given to FIELD, a field descriptor: it is a scalar, an enum, or a
message whose form in JSON is a string or scalar."
  (case (field-descriptor-type field)
    ((:message :group)
     (and (member (cdr (assoc (field-descriptor-type-name field) *json-forms* :test #'string=))
                  '(:timestamp :duration :field-mask :wrapper))
          t))
    (t t)))

(defun set-field-text (message fields texts &key replace)
  "Set a field of MESSAGE to the values of TEXTS, a list of strings. FIELDS are the field
descriptors on the path from MESSAGE to that field, as FIND-FIELD-PATH returns them; missing
messages on the path are made. A repeated field gets all values, after the values that it has;
another field takes a single value, and only if it is absent or REPLACE is true. Signal
FIELD-TEXT-ERROR if the field takes no text or no further value, a text is invalid for it, or
another field of the same oneof is present."
  (labels ((wrong (text) (error 'field-text-error :path (fields-path-text fields) :text text))
           (check-alone (message slot)
             (let ((oneof (slot-oneof slot)))
               (unless (or (null oneof)
                           (member (oneof-case-of message oneof) (list 0 (slot-number slot))))
                 (wrong "excludes another field of its oneof, which is present"))))
           (value (slot text)
             (multiple-value-bind (value text) (text-value slot text)
               (if text (wrong text) value)))
           (walk (message fields)
             (let* ((message (current message)) (slot (need-slot message (first fields))))
               (check-alone message slot)
               (cond ((rest fields)
                      (unless (slot-present-p message slot)
                        (set-slot message slot (make-message (slot-type-object slot))))
                      (walk (present-stored message slot) (rest fields)))
                     (t (put message slot)))))
           (put (message slot)
             (unless (text-field-p (slot-field slot))
               (wrong "takes a message, which no text can be"))
             (ecase (slot-label slot)
               (:repeated (append-to-field message (slot-field slot)
                                           (mapcar (lambda (text) (value slot text)) texts)))
               (:singular
                (when (or (rest texts) (and (not replace) (slot-present-p message slot)))
                  (wrong "takes one value only"))
                (set-slot message slot (value slot (first texts)))))))
    (walk message fields)
    message))

;;; JSON

(defun parse-json-field (message field source &key ignore-unknown (max-octets (expt 2 26))
                                                (max-message-depth **max-message-depth**)
                                                (max-decoded-octets **max-decoded-octets**)
                                                (finder #'find-message-type))
  "Set FIELD of MESSAGE, as FIELD-VALUE accepts it, to the value of SOURCE, JSON in a string or in
octets of UTF-8, and return MESSAGE. Null leaves the field absent, unless null is a value of its
type. The keywords and errors are those of PARSE-JSON-MESSAGE, except that required fields may be
missing. The second value is approximately the number of octets of memory that the messages inside
the value occupy."
  (let* ((current (current message))
         (slot (need-slot current field))
         (source (if (stringp source) source (coerce source 'octets)))
         (allowance (+ max-decoded-octets (* 8 (length source))))
         (input (make-json-input :ignore-unknown ignore-unknown :partial t :finder finder
                                 :type-name (message-type-name (message-type-of current))
                                 :max-depth max-message-depth :allowance allowance)))
    (call-with-json-source input source max-octets
                           (lambda ()
                             (with-step (input slot) (read-json-field input current slot))))
    (values message (- allowance (input-allowance input)))))

(defun object-field-p (slot)
  "True if SLOT's values are messages that are objects in JSON, with a member for each field."
  (and (eq :singular (slot-label slot))
       (eq :message (slot-kind slot))
       (null (text-layout-form (json-text-layout (layout-of-type (slot-type-object slot)))))))

(defun field-json (message field &key (as :string) proto-names enum-numbers defaults indent
                                   (finder #'find-message-type) (max-octets +text-octets+)
                                   (max-message-depth **max-message-depth**)
                                   (max-decoded-octets **max-decoded-octets**))
  "Return FIELD of MESSAGE, as FIELD-VALUE accepts it, in JSON: a string, or UTF-8 if AS is :OCTETS.
For an absent field the JSON is that of its default. For an absent message it is {} if the message's
form in JSON is an object, else null. The keywords and errors are those of MESSAGE-JSON."
  (let* ((message (current message))
         (slot (need-slot message field))
         (output (make-json-output :buffer (make-buffer :size 256) :proto-names proto-names
                                   :enum-numbers enum-numbers :defaults defaults :indent indent
                                   :finder finder :max-octets max-octets
                                   :levels (1+ max-message-depth) :allowance max-decoded-octets
                                   :type-name (message-type-name (message-type-of message)))))
    (cond ((slot-present-p message slot)
           (append-stored output slot (present-stored message slot)))
          ((member (slot-presence slot) '(:implicit :elements :bit))
           (append-stored output slot (stored message slot)))
          ((object-field-p slot) (with-items (output #\{ #\})))
          (t (append-ascii (output-buffer output) (literal-text "null"))))
    (written-text output as)))
