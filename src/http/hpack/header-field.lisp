;;;; A header field as it passes between the layers.
;;;;
;;;; The meaning of a FIELD (name, value, size, sensitivity) never changes, so tables, lists and the
;;;; layers above share one object and may keep it. A field's other slots are memos. All threads use
;;;; constant fields, so code that stores a memo must store the same value in every thread. The
;;;; decoder returns the same object of its table each time, so a layer above finds its KIND and
;;;; MEMO for a repeated field without reading the octets.

(in-package #:clgrpc.hpack)

(defconstant +field-overhead-octets+ 32
  "The number of octets that count for a field in a table or list in addition to its name and value
(RFC 7541 section 4.1).")

(defconstant +static-unknown+ 255
  "The value of FIELD-STATIC if the static table has not been searched yet.")

(declaim (inline %make-field))
(defstruct (field (:constructor %make-field
                      (name value sensitive-p
                       &aux (size (+ (length name) (length value) +field-overhead-octets+))))
                  (:copier nil))
  "A header field. In KIND and MEMO the layers above may store their results about the field."
  (name (make-octets 0) :type octets :read-only t) ; the octets of the name
  (value (make-octets 0) :type octets :read-only t) ; the octets of the value
  (size 0 :type index :read-only t)     ; the size, as RFC 7541 section 4.1 counts it
  (sensitive-p nil :type boolean :read-only t) ; true if no table may contain the field
  (kind 0 :type fixnum)                 ; 0 at first
  (memo nil)                            ; nil at first
  (name-memo nil :type (or null simple-string)) ; the name as a string, made when needed
  (value-memo nil :type (or null simple-string)) ; the value as a string, made when needed
  (name-hash 0 :type hash)              ; the encoder's hash of the name; 0: not computed yet
  (hash 0 :type hash)                   ; the hash of the field's name and value
  (static +static-unknown+ :type octet)) ; the value of STATIC-MATCH for this field
(declaim (freeze-type field))

(document-functions
  field-name "The octets of the field's name, after Huffman decoding. Do not change them."
  field-value "The octets of the field's value, after Huffman decoding. Do not change them."
  field-size "The size of the field as RFC 7541 section 4.1 counts it: name + value + 32 octets."
  field-sensitive-p "True if the field must never be indexed (RFC 7541 section 7.1.3), even when it
is forwarded."
  field-kind "A fixnum by which the layer above classifies the field; 0 until it sets another value
by SETF."
  field-memo "An object that a layer above has stored in the field by SETF; NIL at first.")

(defun make-field (name value &key sensitive)
  "Return a field of the octets NAME and VALUE, which must not change afterwards. If SENSITIVE is
true, the field is always sent as a never-indexed literal."
  (check-type name octets)
  (check-type value octets)
  (%make-field name value (and sensitive t)))

(defun string-field (name value &key sensitive)
  "Return a field of the strings NAME (in lower case, as HTTP/2 requires) and VALUE. The codes of
their characters must be below 256 (ISO 8859-1). SENSITIVE is as for MAKE-FIELD."
  (make-field (ascii-octets name) (ascii-octets value) :sensitive sensitive))

(defmacro define-field (variable name value)
  "Define VARIABLE as a global variable, whose value is the field of the strings NAME and VALUE."
  `(sb-ext:defglobal ,variable (string-field ,name ,value)))

(defun latin-1-string (octets)
  (declare (type octets octets))
  (if (every (lambda (octet) (< octet 128)) octets)
      (octets-ascii octets 0 (length octets))
      (map '(simple-array character (*)) #'code-char octets)))

(define-hot field-name-string ((field field)) simple-string
  "The name of FIELD as a string with one character for each octet, which is made only once. It is a
base string if it is ASCII."
  (or (field-name-memo field)
      (setf (field-name-memo field) (latin-1-string (field-name field)))))

(define-hot field-value-string ((field field)) simple-string
  "The value of FIELD as a string with one character for each octet, which is made only once. It is
a base string if it is ASCII."
  (or (field-value-memo field)
      (setf (field-value-memo field) (latin-1-string (field-value field)))))

(defun secret-field-p (field)
  (or (field-sensitive-p field)
      (member (field-name-string field)
              '("authorization" "proxy-authorization" "cookie" "set-cookie")
              :test #'string-equal)))

(defmethod print-object ((field field) stream)
  (print-unreadable-object (field stream :type t)
    (format stream "~A: ~A" (field-name-string field)
            (if (secret-field-p field)
                (format nil "(~D octets, secret)" (length (field-value field)))
                (let ((value (field-value-string field)))
                  ;; the query of a path may contain a secret
                  (subseq value 0 (and (string= ":path" (field-name-string field))
                                       (position #\? value))))))))
