;;;; Writing messages as JSON (protobuf.dev, "ProtoJSON format"): straight into a buffer of octets.
;;;; Fields are in the order of their numbers, extensions last, map entries in the order of the map.
;;;;
;;;; A type with a special form is written by its entry of *JSON-FORMS*; all others are objects with
;;;; a member for each field.

(in-package #:clgrpc.protobuf)

(defstruct (json-output (:include writing (format :json)) (:conc-name output-) (:copier nil))
  "An output in JSON, with the options that determine its form."
  (proto-names nil)                     ; whether fields have their names of the .proto file; an
                                        ; argument of MESSAGE-JSON
  (enum-numbers nil)                    ; whether enums are written as numbers
  ;; whether fields without presence are written even if they are zero
  (defaults nil)
  ;; how many spaces each level is indented, or nil for one line
  (indent nil :type (or null (integer 0 16)))
  (level 0 :type fixnum)                ; how many objects and arrays are open
  (fresh t))                            ; true if the innermost object or array is still empty

(defparameter *json-forms*
  '(("google.protobuf.Any" . :any) ("google.protobuf.Timestamp" . :timestamp)
    ("google.protobuf.Duration" . :duration) ("google.protobuf.FieldMask" . :field-mask)
    ("google.protobuf.Struct" . :struct) ("google.protobuf.Value" . :value)
    ("google.protobuf.ListValue" . :list) ("google.protobuf.DoubleValue" . :wrapper)
    ("google.protobuf.FloatValue" . :wrapper) ("google.protobuf.Int64Value" . :wrapper)
    ("google.protobuf.UInt64Value" . :wrapper) ("google.protobuf.Int32Value" . :wrapper)
    ("google.protobuf.UInt32Value" . :wrapper) ("google.protobuf.BoolValue" . :wrapper)
    ("google.protobuf.StringValue" . :wrapper) ("google.protobuf.BytesValue" . :wrapper))
  "The message types that have a special form in JSON, each with the keyword of that form.")

(defparameter *form-fields*
  '((:any (1 :string) (2 :bytes)) (:timestamp (1 :int64) (2 :int32))
    (:duration (1 :int64) (2 :int32)) (:field-mask (1 :string :repeated))
    (:struct (1 :message :map)) (:list (1 :message :repeated)) (:wrapper (1))
    (:value (1 :enum) (2 :double) (3 :string) (4 :bool) (5 :message) (6 :message)))
  "An alist from each form to its fields. A field is a list of its number, its kind, and its label
unless that is :SINGULAR; a field without a kind may have any scalar kind.")

(defun json-form (layout)
  "Return the keyword of the special form that the type of LAYOUT has in JSON, or nil if it has no
such form. The fields are compared too, because a peer's type may have the name of a type with a
special form, but other fields."
  (let ((form (cdr (assoc (message-type-name (layout-type layout)) *json-forms*
                          :test #'string=))))
    (loop for (number kind label) in (rest (assoc form *form-fields*))
          for slot = (find number (layout-slots layout) :key #'slot-number)
          do (unless (and slot
                          (eq (or label :singular) (slot-label slot))
                          (if kind
                              (eq kind (slot-kind slot))
                              (not (eq :message (slot-kind slot)))))
               (return nil))
          finally (return form))))

(defun any-layout-p (layout)
  (eq :any (text-layout-form (json-text-layout layout))))

(defun json-key (name)
  "The octets of NAME as the name of a member, with the quotes and the colon."
  (let ((buffer (make-buffer :size 32)))
    (append-json-string buffer name)
    (append-octet buffer (char-code #\:))
    (subseq-octets (buffer-octets buffer) (buffer-start buffer) (buffer-end buffer))))

(defun json-text-layout (layout)
  (or (layout-json layout)
      (let ((text-layout (build-text-layout (layout-slots layout) #'slot-proto-name
                                            #'slot-json-name)))
        (flet ((keys (namer)
                 (map 'simple-vector (lambda (slot) (json-key (funcall namer slot)))
                      (text-layout-ordered text-layout))))
          (setf (text-layout-keys text-layout) (keys #'slot-json-name)
                (text-layout-proto-keys text-layout) (keys #'slot-proto-name)
                (text-layout-form text-layout) (json-form layout)))
        (setf (layout-json layout) text-layout))))

;;; Line breaks and indentation of the text

(defmacro literal-text (text)
  `(load-time-value (coerce ,text 'simple-base-string) t))

(defun begin-line (output)
  (when (output-indent output)
    (let ((buffer (output-buffer output)))
      (append-octet buffer 10)
      (loop repeat (* (output-indent output) (output-level output))
            do (append-octet buffer 32)))))

(defun separate (output)
  "Begin a new item of the innermost object or array."
  (if (output-fresh output)
      (setf (output-fresh output) nil)
      (append-octet (output-buffer output) (char-code #\,)))
  (begin-line output))

(defun open-items (output char)
  (append-octet (output-buffer output) (char-code char))
  (incf (output-level output))
  (setf (output-fresh output) t))

(defun close-items (output char)
  (decf (output-level output))
  (unless (output-fresh output) (begin-line output))
  (append-octet (output-buffer output) (char-code char))
  (setf (output-fresh output) nil))

(defmacro with-items ((output open close) &body body)
  `(progn (open-items ,output ,open)
          ,@body
          (close-items ,output ,close)))

(defun append-space (output)
  (when (output-indent output) (append-octet (output-buffer output) 32)))

(defun append-name (output key)
  "Begin a member of an object. KEY has the octets of its name and of the colon."
  (separate output)
  (append-octets (output-buffer output) key)
  (append-space output))

(defun append-string-name (output name)
  (separate output)
  (append-json-string (output-buffer output) name)
  (append-octet (output-buffer output) (char-code #\:))
  (append-space output))

;;; Values

(defun append-quoted-integer (output integer)
  (let ((buffer (output-buffer output)))
    (append-octet buffer 34)
    (append-json-integer buffer integer)
    (append-octet buffer 34)))

(defun float-text (value)
  "Return the shortest text that is read back as the same float as VALUE; a whole number has no
point."
  (cond ((sb-ext:float-nan-p value) "NaN")
        ((sb-ext:float-infinity-p value) (if (plusp value) "Infinity" "-Infinity"))
        ((zerop value) (if (minusp (float-sign value)) "-0" "0"))
        ((and (< (abs value) (if (typep value 'single-float) 1f7 1d15))
              (= value (ftruncate value)))
         (format nil "~D" (truncate value)))
        (t (float-decimal value))))

(defun append-json-number (output value)
  (let ((text (float-text value)))
    (if (finite-p value)
        (append-ascii (output-buffer output) (coerce text 'simple-base-string))
        (append-json-string (output-buffer output) text))))

(defun append-enum (output type number)
  (let ((name (and (not (output-enum-numbers output)) (enum-value-name type number))))
    (cond ((string= "google.protobuf.NullValue" (enum-type-name type))
           (append-ascii (output-buffer output) (literal-text "null")))
          (name (append-json-string (output-buffer output) name))
          (t (append-json-integer (output-buffer output) number)))))

(defun check-text (output slot text)
  "Check that TEXT, a value of SLOT or a key of its map, has a form in JSON."
  (when (and (eq :unchecked-string (coder-kind slot)) (find-if #'escape-p text))
    (fail-writing output "the string ~A is not UTF-8" (slot-path slot)))
  text)

(defun append-value (output slot value)
  (check-text-size output)
  (let ((buffer (output-buffer output)))
    (ecase (slot-kind slot)
      (:message (append-message output value))
      (:string (append-json-string buffer (check-text output slot value)))
      ((:int32 :uint32 :sint32 :fixed32 :sfixed32) (append-json-integer buffer value))
      ((:int64 :uint64 :sint64 :fixed64 :sfixed64) (append-quoted-integer output value))
      (:bool (append-ascii buffer (if value (literal-text "true") (literal-text "false"))))
      ((:float :double) (append-json-number output value))
      (:bytes (append-json-string buffer (encode-base64 value :padding t)))
      (:enum (let ((type (slot-type-object slot)))
               (append-enum output type (enum-number-of type value)))))))

(defun map-key-text (output slot key)
  "Return KEY, a map key that SLOT describes, as a text."
  (ecase (slot-kind slot)
    (:string (check-text output slot key))
    (:bool (if key "true" "false"))
    ((:int32 :int64 :uint32 :uint64 :sint32 :sint64 :fixed32 :fixed64 :sfixed32 :sfixed64)
     (format nil "~D" key))))

(defun append-map (output slot map)
  (let ((entry-key (slot-entry-key slot)) (entry-value (slot-entry-value slot)))
    (with-items (output #\{ #\})
      (when map
        (do-map ((key value) map)
          (append-string-name output (map-key-text output entry-key key))
          (append-value output entry-value value))))))

(defun append-elements (output slot elements)
  (with-items (output #\[ #\])
    (loop for element across elements
          do (separate output)
             (append-value output slot element))))

(defun append-stored (output slot stored)
  "Write STORED, the value that SLOT stores."
  (ecase (slot-label slot)
    (:singular (append-value output slot stored))
    (:repeated (append-elements output slot stored))
    (:map (append-map output slot stored))))

;;; Messages

(defun shown-by-default-p (slot)
  "True if SLOT, whose field is absent, is written as a member when defaults are requested."
  (member (slot-presence slot) '(:implicit :elements)))

(defun append-fields (output message text-layout)
  "Write a member for each field and extension that MESSAGE has."
  (loop for slot across (text-layout-ordered text-layout)
        for key across (if (output-proto-names output) (text-layout-proto-keys text-layout)
                           (text-layout-keys text-layout))
        do (cond ((slot-present-p message slot)
                  (append-name output key)
                  (append-stored output slot (present-stored message slot)))
                 ((and (output-defaults output) (shown-by-default-p slot))
                  (append-name output key)
                  (append-stored output slot (stored message slot)))))
  (dolist (slot (present-extensions message))
    (append-string-name output (slot-path slot))
    (append-stored output slot (stored message slot))))

(defun append-message (output message)
  (with-level (output)
    (let ((message (current message)))
      (append-form output message (json-text-layout (message-layout message))))))

(defun append-form (output message text-layout)
  "Write MESSAGE, whose layout has the view TEXT-LAYOUT, in the special form of its type in JSON."
  (ecase (text-layout-form text-layout)
    ((nil) (with-items (output #\{ #\}) (append-fields output message text-layout)))
    (:any (append-any output message))
    (:timestamp (append-time output message #'timestamp-text "Timestamp"))
    (:duration (append-time output message #'duration-text "Duration"))
    (:field-mask (append-mask output message))
    (:value (append-any-value output message))
    ((:struct :list :wrapper)
     (let ((slot (numbered-slot message 1)))
       (append-stored output slot (stored message slot))))))

(defun append-time (output message function name)
  (let ((seconds (number-held message 1)) (nanos (number-held message 2)))
    (append-json-string (output-buffer output)
                        (or (funcall function seconds nanos)
                            (fail-writing output "~D seconds and ~D nanoseconds are not a ~A"
                                          seconds nanos name)))))

(defun append-mask (output message)
  (append-json-string
   (output-buffer output)
   (format nil "~{~A~^,~}"
           (map 'list (lambda (path)
                        (or (camel-path path)
                            (fail-writing output "the path ~S of a FieldMask has no form in JSON"
                                          path)))
                (number-held message 1)))))

(defun append-any-value (output message)
  "Write MESSAGE, a google.protobuf.Value."
  (let ((slot (find-if (lambda (slot) (slot-present-p message slot))
                       (layout-slots (message-layout message)))))
    (unless slot (fail-writing output "a Value holds nothing"))
    (let ((stored (present-stored message slot)))
      (unless (or (not (floatp stored)) (finite-p stored))
        (fail-writing output "a Value cannot be ~A" (float-text stored)))
      (append-stored output slot stored))))

(defun append-any (output message)
  (let ((url (number-held message 1)) (octets (number-held message 2)))
    (with-items (output #\{ #\})
      (unless (and (string= "" url) (zerop (length octets)))
        (let* ((inner (or (any-content output url octets)
                          (fail-writing output "there is no message type for the Any of ~A"
                                        (printable-text url :limit 200 :quoted t))))
               (text-layout (json-text-layout (message-layout inner))))
          (check-required (message-type-of inner) inner)
          (append-string-name output "@type")
          (append-json-string (output-buffer output) url)
          (within-any (output)
            (with-level (output)
              (cond ((text-layout-form text-layout)
                     (append-string-name output "value")
                     (append-form output inner text-layout))
                    (t (append-fields output inner text-layout))))))))))

(defun empty-message-p (message)
  "True if MESSAGE has no fields, not even unknown ones, and its form in JSON is an object."
  (and (zerop (the index (serialized-size message)))
       (null (text-layout-form (json-text-layout (message-layout message))))))

(defun message-json (message &key (as :string) proto-names enum-numbers defaults indent
                               (finder #'find-message-type) (max-octets +text-octets+)
                               (max-message-depth **max-message-depth**)
                               (max-decoded-octets **max-decoded-octets**))
  "Return MESSAGE in JSON: a string, or UTF-8 if AS is :OCTETS. PROTO-NAMES: fields have the names
of the .proto file instead of lowerCamelCase. ENUM-NUMBERS: enum values are numbers, not names.
DEFAULTS: fields without presence are written even if zero or empty. INDENT, 0 to 16, puts each
member on a separate line, indented by so many spaces for each level. FINDER maps the full name of
the type in an Any to its message type, or to nil. Unknown fields are omitted. Signal
MESSAGE-PRINT-ERROR if MESSAGE has no form in JSON, because it has an invalid Timestamp, Duration or
FieldMask, an empty Value, an Any of an unknown type or a string that is not UTF-8. Signal it also
if the text is longer than MAX-OCTETS, or if messages, including those in Anys, nest deeper than
MAX-MESSAGE-DEPTH levels. Signal PROTOBUF-ERROR if the octets in an Any are not a message of its
type, or if the messages in Anys occupy more than MAX-DECODED-OCTETS of memory beyond eight times
their size. Source: protobuf.dev, ProtoJSON format. From any thread, while no other thread changes
MESSAGE."
  (unless (typep indent '(or null (integer 0 16)))
    (misuse "INDENT is a number of spaces from 0 to 16, not ~S." indent))
  (if (and (not defaults) (<= 2 max-octets) (empty-message-p (current message)))
      (ecase as
        (:string (copy-seq "{}"))
        (:octets (ascii-octets "{}")))
      (let ((output (make-json-output :buffer (make-buffer :size 256) :proto-names proto-names
                                      :enum-numbers enum-numbers :defaults defaults :indent indent
                                      :finder finder :max-octets max-octets
                                      :levels (1+ max-message-depth)
                                      :allowance max-decoded-octets
                                      :type-name (message-type-name (message-type-of message)))))
        (append-message output message)
        (written-text output as))))
