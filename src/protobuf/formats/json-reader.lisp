;;;; Reading messages from JSON (protobuf.dev, "ProtoJSON format"), by the pull parser of
;;;; base/text/json.lisp. Each value is read directly as the field's type requires; no intermediate
;;;; data are built. A text that is not JSON and a value that is invalid for the type give the same
;;;; error, MESSAGE-TEXT-ERROR, with line, column and path.
;;;;
;;;; The reader is as strict as the conformance suite recommends: a repeated field, two members of a
;;;; oneof, unknown names and null as an element are errors. Recursion is limited by messages
;;;; (INPUT-MAX-DEPTH) and by brackets (the JSON-READER).

(in-package #:clgrpc.protobuf)

(defstruct (json-input (:include input (format :json)) (:copier nil))
  "A text in JSON that is being read."
  (reader (make-json-reader "") :type json-reader)) ; the reader of the JSON

(defun json-wrong (input control &rest arguments)
  "Signal MESSAGE-TEXT-ERROR at the present position of INPUT."
  (apply #'fail-input input (json-reader-position (json-input-reader input)) control arguments))

(defun want-json (input kind control &rest arguments)
  "Signal an error unless the next value is of KIND, a result of NEXT-JSON; CONTROL and ARGUMENTS
name the expected value."
  (declare (dynamic-extent arguments))
  (let ((next (next-json (json-input-reader input))))
    (unless (eq next kind)
      (json-wrong input "~? expected, not ~(~A~)" control (copy-list arguments) next))))

;;; Scalars

(defun text-number (text)
  "Return the digits, the exponent and the sign of TEXT, a JSON number, or nil if TEXT is not a
number."
  (handler-case
      (let ((reader (make-json-reader text)))
        (when (and (eql #\Space (skip-json-space reader))) (return-from text-number nil))
        (unless (zerop (json-reader-position reader)) (return-from text-number nil))
        (multiple-value-bind (digits exponent negative) (scan-json-number reader)
          (and (= (json-reader-position reader) (length (json-reader-octets reader)))
               (values digits exponent negative))))
    ((or json-error limit-exceeded) () nil)))

(defun integer-of-kind-p (kind value)
  (ecase kind
    ((:int32 :sint32 :sfixed32 :enum) (typep value '(signed-byte 32)))
    ((:uint32 :fixed32) (typep value '(unsigned-byte 32)))
    ((:int64 :sint64 :sfixed64) (typep value '(signed-byte 64)))
    ((:uint64 :fixed64) (typep value '(unsigned-byte 64)))))

(defun check-integer (input kind digits exponent negative)
  (let ((value (exact-integer digits exponent negative)))
    (cond ((null value) (json-wrong input "an integer for ~(~A~) expected" kind))
          ((integer-of-kind-p kind value) value)
          (t (json-wrong input "~D is out of the range of ~(~A~)" value kind)))))

(defun read-number (input kind function)
  "Read a number, or a string that holds one, and call FUNCTION with its digits, exponent and
sign."
  (let ((reader (json-input-reader input)))
    (if (eq :string (next-json reader))
        (let ((text (read-json-string reader)))
          (multiple-value-bind (digits exponent negative) (text-number text)
            (unless digits (json-wrong input "a number for ~(~A~) expected, not ~S" kind text))
            (funcall function digits exponent negative)))
        (progn
          (want-json input :number "number for ~(~A~)" kind)
          (multiple-value-bind (digits exponent negative) (scan-json-number reader)
            (funcall function digits exponent negative))))))

(defun read-json-integer (input kind)
  (flet ((check (digits exponent negative)
           (check-integer input kind digits exponent negative)))
    (declare (dynamic-extent #'check))
    (read-number input kind #'check)))

(defparameter *named-floats*
  `(("NaN" ,(bits-single #x7FC00000) ,(bits-double #x7FF8000000000000))
    ("Infinity" ,sb-ext:single-float-positive-infinity ,sb-ext:double-float-positive-infinity)
    ("-Infinity" ,sb-ext:single-float-negative-infinity ,sb-ext:double-float-negative-infinity))
  "The floats that are strings in JSON.")

(defun float-of (kind digits exponent negative)
  "Return the float of KIND nearest to DIGITS with EXPONENT, or nil if the number is too large."
  (if (eq kind :float)
      (digits-single digits exponent negative)
      (digits-double digits exponent negative)))

(defun read-json-float (input kind)
  (let* ((reader (json-input-reader input))
         (named (and (eq :string (next-json reader))
                     (find-if (lambda (row) (looking-at-p reader (first row))) *named-floats*))))
    (cond (named (read-json-string reader) (if (eq kind :float) (second named) (third named)))
          (t (read-number input kind
                          (lambda (digits exponent negative)
                            (or (float-of kind digits exponent negative)
                                (json-wrong input "the number is too large for ~(~A~)" kind))))))))

(defun looking-at-p (reader text)
  "True if the next string is TEXT, written without escapes."
  (let* ((octets (json-reader-octets reader))
         (start (1+ (json-reader-position reader)))
         (end (+ start (length text))))
    (and (< end (length octets))
         (= 34 (aref octets end))
         (loop for char across text
               for i from start
               always (= (char-code char) (aref octets i))))))

(defun read-json-boolean (input)
  (let ((reader (json-input-reader input)))
    (case (next-json reader)
      (:true (read-json-word reader "true" t))
      (:false (read-json-word reader "false" nil))
      (t (json-wrong input "true or false expected")))))

(defun read-json-text (input)
  (want-json input :string "string")
  (read-json-string (json-input-reader input)))

(defun read-json-octets (input)
  "Read octets in base64, of either alphabet."
  (want-json input :string "string in base64")
  (let ((text (read-json-string (json-input-reader input))))
    (handler-case (decode-base64 text :any-alphabet t)
      (invalid-base64 (condition)
        (json-wrong input "invalid base64 at character ~D" (invalid-base64-position condition))))))

(defun read-json-enum (input slot)
  "Read an enum value; return its number and true, or nil and nil for a value to ignore."
  (let* ((type (slot-type-object slot)) (reader (json-input-reader input)))
    (flet ((unknown (value)
             (unless (input-ignore-unknown input)
               (json-wrong input "~S is not a value of the enum ~A" value (enum-type-name type)))
             (values nil nil)))
      (case (next-json reader)
        (:string (let* ((name (read-json-string reader))
                        (number (enum-value-number type name)))
                   (if number (values number t) (unknown name))))
        (:null (unless (string= "google.protobuf.NullValue" (enum-type-name type))
                 (json-wrong input "name or number of an enum value expected, not null"))
               (read-json-word reader "null" nil)
               (values 0 t))
        (t (let ((number (read-json-integer input :enum)))
             (if (and (slot-closed-p slot) (not (enum-known-p type number)))
                 (unknown number)
                 (values number t))))))))

(defun read-json-item (input slot)
  "Read one value of SLOT in its stored form; the second value is nil if the value must be ignored."
  (let ((kind (slot-kind slot)))
    (case kind
      (:message (values (read-json-message input (slot-type-object slot)) t))
      (:enum (read-json-enum input slot))
      (:string (values (read-json-text input) t))
      (:bytes (values (read-json-octets input) t))
      (:bool (values (read-json-boolean input) t))
      ((:float :double) (values (read-json-float input kind) t))
      (t (values (read-json-integer input kind) t)))))

;;; Repeated fields and maps

(defun read-json-elements (input message slot)
  (want-json input :array "array")
  (let ((reader (json-input-reader input)) (items '()) (i 0))
    (declare (type index i))
    (do-json-elements (reader)
      (multiple-value-bind (item known) (with-step (input i) (read-json-item input slot))
        (when known (push item items)))
      (incf i))
    (set-slot message slot (to-stored slot (nreverse items)))))

(defun read-map-key (input kind text)
  "The key of KIND that TEXT, the name of a member, represents."
  (flet ((wrong () (json-wrong input "~S is not a key of type ~(~A~)" text kind)))
    (case kind
      (:string text)
      (:bool (cond ((string= text "true") t)
                   ((string= text "false") nil)
                   (t (wrong))))
      (t (multiple-value-bind (digits exponent negative) (text-number text)
           (if digits (check-integer input kind digits exponent negative) (wrong)))))))

(defun read-json-entries (input message slot)
  (want-json input :object "object")
  (let* ((reader (json-input-reader input))
         (map (slot-fresh-map slot))
         (key-kind (slot-kind (slot-entry-key slot)))
         (entry-value (slot-entry-value slot)))
    (do-json-members (name reader)
      (with-step (input name)
        (let ((key (read-map-key input key-kind name)))
          (when (nth-value 1 (map-value map key))
            (json-wrong input "the key ~S occurs twice" name))
          (multiple-value-bind (item known) (read-json-item input entry-value)
            (when known (setf (map-value map key) item))))))
    (set-slot message slot map)))

;;; Objects

(defun takes-null-p (slot)
  "True if null is a value of the singular SLOT and does not mean that its field is absent."
  (and (eq :singular (slot-label slot))
       (case (slot-kind slot)
         (:message (string= "google.protobuf.Value" (slot-type-name slot)))
         (:enum (string= "google.protobuf.NullValue" (slot-type-name slot))))))

(defun check-oneof (input message slot)
  "Check that no other member of the oneof of SLOT was read."
  (let ((oneof (slot-oneof slot)))
    (when (and oneof (/= 0 (oneof-case-of message oneof)))
      (json-wrong input "another field of the oneof ~A stands before ~A"
                  (field-descriptor-oneof (slot-field slot)) (slot-path slot)))))

(defun read-json-field (input message slot)
  (let ((reader (json-input-reader input)))
    (cond ((and (eq :null (next-json reader)) (not (takes-null-p slot)))
           (read-json-word reader "null" nil))
          (t (ecase (slot-label slot)
               (:singular
                (check-oneof input message slot)
                (multiple-value-bind (item known) (read-json-item input slot)
                  (when known (set-slot message slot item))))
               (:repeated (read-json-elements input message slot))
               (:map (read-json-entries input message slot)))))))

(defun read-json-fields (input message text-layout &optional any)
  "Read the members of an object into MESSAGE, whose layout is in TEXT-LAYOUT. If ANY is true, the
object belongs to an Any and also has the member @type."
  (want-json input :object "object")
  (let ((reader (json-input-reader input))
        (seen (make-array (length (text-layout-ordered text-layout)) :element-type 'bit
                          :initial-element 0))
        (others '()))
    (do-json-members (name reader)
      (flet ((once (new)
               (unless new (json-wrong input "the field ~A occurs twice" name))))
        (multiple-value-bind (slot index) (text-layout-slot text-layout name)
          (let ((slot (or slot (extension-named message name))))
            (cond (index (once (zerop (bit seen index)))
                         (setf (bit seen index) 1))
                  (slot (once (not (member slot others)))
                        (push slot others)))
            (cond (slot (with-step (input slot) (read-json-field input message slot)))
                  ((and any (string= name "@type"))
                   (once (not (member :type others)))
                   (push :type others)
                   (skip-json-value reader))
                  ((input-ignore-unknown input) (skip-json-value reader))
                  (t (json-wrong input "~A has no field ~S"
                                 (message-type-name (message-type-of message)) name)))))))))

(defun extension-named (message name)
  "Return the slot of the extension of MESSAGE with NAME, which is in brackets, or nil if MESSAGE
has no such extension."
  (and (plusp (length name))
       (char= #\[ (char name 0))
       (extension-slot-of message name)))

;;; Messages

(defun read-json-message (input type)
  (let ((position (json-reader-position (json-input-reader input))))
    (with-depth (input position)
      (multiple-value-bind (message layout) (begin-message input type position)
        (read-json-form input message (json-text-layout layout))
        message))))

(defun read-json-form (input message text-layout)
  "Read the JSON form of MESSAGE's type into MESSAGE, whose layout is in TEXT-LAYOUT."
  (ecase (text-layout-form text-layout)
    ((nil) (read-json-fields input message text-layout))
    (:any (read-json-any input message))
    (:timestamp (read-json-time input message #'parse-timestamp-text "Timestamp"))
    (:duration (read-json-time input message #'parse-duration-text "Duration"))
    (:field-mask (read-json-mask input message))
    (:struct (read-json-entries input message (numbered-slot message 1)))
    (:value (read-json-any-value input message))
    (:list (read-json-elements input message (numbered-slot message 1)))
    (:wrapper (let ((slot (numbered-slot message 1)))
                (set-slot message slot (read-json-item input slot))))))

(defun read-json-time (input message function name)
  (let ((text (read-json-text input)))
    (multiple-value-bind (seconds nanos) (funcall function text)
      (unless seconds (json-wrong input "~S is not a ~A" text name))
      (hold-number seconds message 1)
      (hold-number nanos message 2))))

(defun read-json-mask (input message)
  (let ((slot (numbered-slot message 1)))
    (set-slot message slot
              (to-stored slot (mapcar (lambda (path)
                                        (or (snake-path path)
                                            (json-wrong input "~S is not a path of a FieldMask"
                                                        path)))
                                      (split-text (read-json-text input) #\,))))))

(defun read-json-any-value (input message)
  "Read MESSAGE, a google.protobuf.Value."
  (let ((slot (numbered-slot message (ecase (next-json (json-input-reader input))
                                       (:null 1) (:number 2) (:string 3) ((:true :false) 4)
                                       (:object 5) (:array 6)))))
    (set-slot message slot (read-json-item input slot))))

(defun find-json-member (reader name)
  "Return two values: the string that is the member NAME of the next object, or nil if it has no
such member; and true if the object has any member. The position of READER does not change."
  (let ((position (json-reader-position reader)) (depth (json-reader-depth reader)) (any nil))
    (multiple-value-prog1
        (values (block found
                  (do-json-members (found reader)
                    (setf any t)
                    (when (and (string= found name) (eq :string (next-json reader)))
                      (return-from found (read-json-string reader)))
                    (skip-json-value reader))
                  nil)
                any)
      (setf (json-reader-position reader) position
            (json-reader-depth reader) depth))))

(defun read-json-any (input message)
  (want-json input :object "object")
  (let ((reader (json-input-reader input)))
    (multiple-value-bind (url any) (find-json-member reader "@type")
      (if (not any)
          (do-json-members (name reader))
          (let* ((name (if url
                           (or (url-type-name url) (json-wrong input "~S is not a type URL" url))
                           (json-wrong input "an Any needs @type")))
                 (type (funcall (input-finder input) name)))
            (unless (and type (message-type-defined-p type))
              (json-wrong input "there is no message type ~A for an Any" name))
            (hold-number url message 1)
            (hold-number (serialize (read-any-content input type)
                                    :partial (input-partial input))
                         message 2))))))

(defun read-any-content (input type)
  "Read the object of an Any, and return the message in it, which is of TYPE."
  (let ((text-layout (json-text-layout (message-type-layout type)))
        (position (json-reader-position (json-input-reader input))))
    (if (text-layout-form text-layout)
        (read-any-value input type)
        (with-depth (input position)
          (let ((message (begin-message input type position)))
            (read-json-fields input message text-layout t)
            message)))))

(defun read-any-value (input type)
  "Read the object of an Any with a message of TYPE, which has a special form in JSON."
  (let ((reader (json-input-reader input)) (found nil))
    (do-json-members (name reader)
      (cond ((string= name "@type") (skip-json-value reader))
            ((and (string= name "value") (not found))
             (setf found (read-json-message input type)))
            ((input-ignore-unknown input) (skip-json-value reader))
            (t (json-wrong input "an Any of ~A has no ~S" (message-type-name type) name))))
    (or found (json-wrong input "an Any of ~A needs \"value\"" (message-type-name type)))))

(defun call-with-json-input (input function)
  "Call FUNCTION; errors of INPUT's JSON reader become MESSAGE-TEXT-ERRORs."
  (handler-bind
      ((json-error
         (lambda (condition)
           (error 'message-text-error
                  :format :json :type (input-type-name input)
                  :position (json-reader-position (json-input-reader input))
                  :line (json-error-line condition) :column (json-error-column condition)
                  :path (path-text (input-path input)) :text (json-error-text condition))))
       (limit-exceeded
         (lambda (condition)
           (json-wrong input "the limit ~(~A~) of ~D is exceeded"
                       (limit-exceeded-option condition) (limit-exceeded-limit condition)))))
    (funcall function)))

(defun call-with-json-source (input source max-octets function)
  "Prepare INPUT to read SOURCE, a string or octets of at most MAX-OCTETS, call FUNCTION, which
reads all of it, and return the value of FUNCTION."
  (call-with-json-input
   input
   (lambda ()
     (let ((reader (make-json-reader source :max-length max-octets
                                     :max-depth (* 3 (1+ (input-max-depth input))))))
       (setf (json-input-reader input) reader
             (input-octets input) (json-reader-octets reader))
       (prog1 (funcall function)
         (expect-json-end reader))))))

(define-hot empty-object-p (source) boolean
  "True if SOURCE is the octets {}."
  (and (typep source 'octets)
       (= 2 (length source))
       (= #.(char-code #\{) (aref source 0))
       (= #.(char-code #\}) (aref source 1))))

(defun empty-object-layout (type source max-octets max-decoded-octets)
  "Return the layout of TYPE if SOURCE is {} and that is a valid message of TYPE, or nil if SOURCE
needs a reader. The shortcut matters because a peer can send many messages {} in a stream, at a cost
of only two octets each."
  (let ((layout (message-type-layout type)))
    (and layout
         (empty-object-p source)
         (<= 2 max-octets)
         (<= (message-memory layout) max-decoded-octets)
         (null (text-layout-form (json-text-layout layout)))
         layout)))

(defun parse-json-message (type source &key ignore-unknown partial (max-octets (expt 2 26))
                                         (max-message-depth **max-message-depth**)
                                         (max-decoded-octets **max-decoded-octets**)
                                         (finder #'find-message-type))
  "Return the message of TYPE (a symbol, a full name or a message type) that SOURCE, a string or
octets of UTF-8, represents in JSON. Fields may have their JSON name or their name in the .proto
file. With IGNORE-UNKNOWN, unknown members and names of enum values are ignored. FINDER maps the
full name of the type in an Any to its message type, or to nil. Signal MESSAGE-TEXT-ERROR with line,
column and path if SOURCE is not a message of TYPE or has more than MAX-OCTETS (64 MiB unless
given). Signal REQUIRED-FIELD-MISSING if a required field is missing, unless PARTIAL.
MAX-MESSAGE-DEPTH and MAX-DECODED-OCTETS are as in PARSE-MESSAGE. The second value is approximately
the number of octets of memory that the message and the messages inside it occupy. Source:
protobuf.dev, ProtoJSON format. From any thread."
  (let* ((type (need-message-type type))
         (source (if (stringp source) source (coerce source 'octets)))
         (empty (empty-object-layout type source max-octets max-decoded-octets)))
    (multiple-value-bind (message memory)
        (if empty
            (values (make-message type) (message-memory empty))
            (let* ((allowance (+ max-decoded-octets (* 8 (length source))))
                   (input (make-json-input :ignore-unknown ignore-unknown :partial partial
                                           :finder finder :type-name (message-type-name type)
                                           :max-depth max-message-depth :allowance allowance)))
              (values (call-with-json-source input source max-octets
                                             (lambda () (read-json-message input type)))
                      (- allowance (input-allowance input)))))
      (unless partial (check-required type message))
      (values message memory))))
