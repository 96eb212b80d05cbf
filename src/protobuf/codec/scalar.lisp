;;;; The field types, each declared once: its Lisp type, default, wire type, the vector for repeated
;;;; values, and the forms that read, measure and write one value. The forms follow the conventions
;;;; of wire.lisp and see the value as VALUE; the generator splices them.
;;;;
;;;; Strings of fields that do not require UTF-8 (most fields of proto2) have a row of their own,
;;;; which only coders use.
;;;;
;;;; An enum's value is its number here; accessors translate it to a keyword. Repeated values are
;;;; simple vectors. In a loop (AREF v i) takes 0.5 ns if the type of the vector is declared and 2.2
;;;; if not, for a vector with a fill pointer 3.1 in both cases; a fill pointer takes 64 octets
;;;; more; and users build a list or vector as a whole (doc/decisions.md). Elements are unboxed
;;;; where the type allows.

(in-package #:clgrpc.protobuf)

(eval-when (:compile-toplevel :load-toplevel :execute)
(defstruct (scalar (:copier nil))
  "A kind of value that is not a message. TAKE, SIZE and PUT are forms in the manner of wire.lisp,
with VALUE bound."
  (kind nil :type keyword)              ; the kind of the type, such as :int32
  (lisp-type t)                         ; the Lisp type of one value
  (default nil)                         ; the value of an absent field
  (wire 0 :type (integer 0 5))          ; the wire type
  (element t)                           ; the element type of the vector of a repeated field
  (take nil)                            ; a form that reads a value
  (size nil)                            ; a form that measures a value
  (put nil)                             ; a form that writes a value
  ;; a function that does TAKE; this and the next three are set by sequence.lisp
  (reader nil :type (or null function))
  ;; a function of octets, start, end and enum type that returns a vector whose first elements are
  ;; the packed values there, and their count; nil for values that are never packed
  (packed-reader nil :type (or null function))
  (sizer nil :type (or null function))  ; a function that does SIZE
  (putter nil :type (or null function)))) ; a function that does PUT

(deftype text ()
  "The strings that messages hold."
  '(or simple-base-string (simple-array character (*))))

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defparameter *scalars* (make-hash-table)
    "A table from a kind of field to its SCALAR."))

(defmacro define-scalar (kind type &rest arguments &key &allow-other-keys)
  `(eval-when (:compile-toplevel :load-toplevel :execute)
     (setf (gethash ,kind *scalars*)
           (make-scalar :kind ,kind :lisp-type ',type
                        ,@(loop for (key value) on arguments by #'cddr
                                collect key
                                collect (if (eq key :default) value `',value))))))

(defun scalar-of (kind)
  (or (gethash kind *scalars*) (error "~S is not a scalar kind." kind)))

(define-scalar :int32 (signed-byte 32) :default 0 :wire 0 :element (signed-byte 32)
  :take (signed-32 (take-varint32))
  :size (varint-size (unsigned-64 value))
  :put (put-varint value))
(define-scalar :int64 (signed-byte 64) :default 0 :wire 0 :element (signed-byte 64)
  :take (signed-64 (take-varint64))
  :size (varint-size (unsigned-64 value))
  :put (put-varint64 (unsigned-64 value)))
(define-scalar :uint32 (unsigned-byte 32) :default 0 :wire 0 :element (unsigned-byte 32)
  :take (take-varint32)
  :size (varint-size value)
  :put (put-varint value))
(define-scalar :uint64 (unsigned-byte 64) :default 0 :wire 0 :element (unsigned-byte 64)
  :take (take-varint64)
  :size (varint-size value)
  :put (put-varint64 value))
(define-scalar :sint32 (signed-byte 32) :default 0 :wire 0 :element (signed-byte 32)
  :take (unzigzag-32 (take-varint32))
  :size (varint-size (zigzag-32 value))
  :put (put-varint (zigzag-32 value)))
(define-scalar :sint64 (signed-byte 64) :default 0 :wire 0 :element (signed-byte 64)
  :take (unzigzag (take-varint64))
  :size (varint-size (zigzag value))
  :put (put-varint64 (zigzag value)))
(define-scalar :fixed32 (unsigned-byte 32) :default 0 :wire 5 :element (unsigned-byte 32)
  :take (take-u32)
  :size 4
  :put (put-u32 value))
(define-scalar :fixed64 (unsigned-byte 64) :default 0 :wire 1 :element (unsigned-byte 64)
  :take (take-u64)
  :size 8
  :put (put-u64 value))
(define-scalar :sfixed32 (signed-byte 32) :default 0 :wire 5 :element (signed-byte 32)
  :take (signed-32 (take-u32))
  :size 4
  :put (put-u32 (ldb (byte 32 0) value)))
(define-scalar :sfixed64 (signed-byte 64) :default 0 :wire 1 :element (signed-byte 64)
  :take (signed-64 (take-u64))
  :size 8
  :put (put-u64 (unsigned-64 value)))
(define-scalar :float single-float :default 0f0 :wire 5 :element single-float
  :take (bits-single (take-u32))
  :size 4
  :put (put-u32 (single-bits value)))
(define-scalar :double double-float :default 0d0 :wire 1 :element double-float
  :take (bits-double (take-u64))
  :size 8
  :put (put-u64 (double-bits value)))
(define-scalar :bool boolean :default nil :wire 0
  :take (take-boolean)
  :size 1
  :put (put-octet (if value 1 0)))
(define-scalar :enum (signed-byte 32) :default 0 :wire 0
  :take (signed-32 (take-varint32))
  :size (varint-size (unsigned-64 value))
  :put (put-varint value))
(define-scalar :string text :default (coerce "" 'simple-base-string) :wire 2
  :take (take-text)
  :size (let ((length (if (typep value 'simple-base-string)
                    (length value)
                    (%wide-utf8-length (truly-the wide-string value)))))
          (+ length (varint-size length)))
  :put (setf at (write-text value octets at)))
(define-scalar :unchecked-string text :default (coerce "" 'simple-base-string) :wire 2
  :take (take-unchecked-text)
  :size (let ((length (unchecked-length value))) (+ length (varint-size length)))
  :put (setf at (write-unchecked-text value octets at)))
(define-scalar :bytes octets :default (make-octets 0) :wire 2
  :take (take-octets)
  :size (let ((length (length value))) (+ length (varint-size length)))
  :put (setf at (write-octets value octets at)))

(defun fixed-size (kind)
  "Return the number of octets that each value of KIND takes, or nil if that depends on the value."
  (let ((size (scalar-size (scalar-of kind))))
    (and (integerp size) size)))

(defun element-type (kind)
  "The element type of the vector of a repeated field of KIND."
  (if (eq kind :message) t (scalar-element (scalar-of kind))))

;;; Values that accessors accept

(defun to-text (value)
  (typecase value
    (text value)
    (string (coerce value '(simple-array character (*))))
    (t (error 'type-error :datum value :expected-type 'string))))

(defun octet-sequence-p (value)
  (typecase value
    (octets t)
    (string nil)
    (list (and (ignore-errors (list-length value))
               (every (lambda (item) (typep item 'octet)) value)))
    (vector (every (lambda (item) (typep item 'octet)) value))))

(deftype octet-sequence ()
  "The values that a field of bytes accepts."
  '(or octets (satisfies octet-sequence-p)))

(defun to-octets (value)
  (typecase value
    (octets value)
    (octet-sequence (coerce value 'octets))
    (t (error 'type-error :datum value :expected-type 'octet-sequence))))

(defun to-kind (kind value type)
  "VALUE in the form in which a repeated field or map of KIND stores it. TYPE is the message or enum
type, if any."
  (ecase kind
    (:double (to-double value))
    (:float (to-single value))
    (:string (to-text value))
    (:bytes (to-octets value))
    (:bool (and value t))
    (:enum (enum-keyword-of type (enum-number-of type value)))
    (:message
     (unless (and (message-p value) (eq type (message-type-of value)))
       (error 'type-error :datum value :expected-type (or (message-type-symbol type)
                                                               'message)))
     value)
    ((:int32 :int64 :uint32 :uint64 :sint32 :sint64 :fixed32 :fixed64 :sfixed32 :sfixed64)
     (let ((expected (scalar-type-of kind)))
       (unless (typep value expected) (error 'type-error :datum value :expected-type expected))
       value))))

(defun accepted-type (label kind)
  "Return the type of the values that a field of LABEL and KIND, which is not a message, accepts, or
T if only the conversion can check the values."
  (ecase label
    (:map '(or list hash-table proto-map))
    (:repeated 'sequence)
    (:singular
     (ecase kind
       ((:double :float) 'real)
       (:string 'string)
       (:bytes 'octet-sequence)
       ((:bool :enum) t)
       ((:int32 :int64 :uint32 :uint64 :sint32 :sint64 :fixed32 :fixed64 :sfixed32 :sfixed64)
        (scalar-type-of kind))))))

(defun refuse-value (value type field)
  (error 'field-type-error :datum value :expected-type type :field field))

(defmacro naming-field ((field) &body body)
  "Run BODY; signal a TYPE-ERROR in BODY as an error of FIELD, a full name."
  `(handler-case (progn ,@body)
     (type-error (error) (refuse-value (type-error-datum error) (type-error-expected-type error)
                                       ,field))))

(defmacro given ((type field) form)
  "Evaluate FORM, the conversion of a user's VALUE for FIELD, a full name, if VALUE is of TYPE;
otherwise signal an error."
  (if (eq t type) form `(if (typep value ',type) ,form (refuse-value value ',type ,field))))

(defun scalar-type-of (kind)
  (scalar-lisp-type (scalar-of kind)))

(defun proper-list-p (value)
  "True if VALUE is a list that ends with nil. A list that PUSH makes from a vector does not."
  (and (listp value) (ignore-errors (list-length value)) t))

(deftype repeated-values ()
  "The values that a repeated field accepts."
  '(or vector (satisfies proper-list-p)))

(defun to-vector (kind value type field)
  "The sequence VALUE as a simple vector for the repeated FIELD, a full name, of KIND."
  (let ((element (element-type kind)))
    (if (and (not (eq element t)) (typep value `(simple-array ,element (*))))
        value
        (naming-field (field)
          (unless (typep value '(and repeated-values (not string)))
            (refuse-value value '(and sequence (not string)) field))
          (let ((vector (make-array (length value) :element-type element)) (i 0))
            (map nil (lambda (item)
                       (setf (aref vector i) (to-kind kind item type))
                       (incf i))
                 value)
            vector)))))
