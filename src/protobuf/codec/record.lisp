;;;; Messages known from their descriptors alone, as the compiler needs them for options: a RECORD
;;;; has (field descriptor . value) in order. Values are integers, floats, booleans, octets (of
;;;; strings and bytes) and records; an enum's value is its number. Records are written and read in
;;;; the wire format.
;;;;
;;;; One message has two written forms. :CANONICAL is a serializer's: fields by number, the parts of
;;;; one message merged, packed fields packed. :WRITTEN keeps each option where it was written;
;;;; protoc leaves custom options in this form until it has read their definitions.

(in-package #:clgrpc.protobuf)

(defstruct (record (:constructor make-record (message &key literal-p)) (:copier nil))
  "A message whose type is known only by its descriptor, such as the options of a declaration."
  (message nil :type message-descriptor) ; the descriptor with these fields
  (entries '() :type list)              ; (field . value), in order
  (tail '() :type list)                 ; the last cons of ENTRIES that ADD-ENTRY made
  (index nil :type (or null hash-table)) ; of a long record, a table from fields to values
  (oneofs nil :type (or null hash-table)) ; name to field; see CHECK-UNSET
  (literal-p nil :type boolean))        ; an aggregate has given the whole record

(defun add-entry (record field value)
  (let ((new (list (cons field value))))
    (if (record-entries record)
        (setf (rest (or (record-tail record) (last (record-entries record)))) new)
        (setf (record-entries record) new))
    (setf (record-tail record) new))
  (when (record-index record) (push value (gethash field (record-index record)))))

(defun field-values (record field)
  "The values of FIELD in RECORD, the last value first."
  (cond ((record-index record) (values (gethash field (record-index record))))
        ((nthcdr 16 (record-entries record))
         (let ((index (make-hash-table :test 'eq)))
           (loop for (there . value) in (record-entries record)
                 do (push value (gethash there index)))
           (setf (record-index record) index))
         (field-values record field))
        (t (let ((values '()))
             (loop for (there . value) in (record-entries record)
                   when (eq field there) do (push value values))
             values))))

(defun field-named (message name)
  "The field of MESSAGE called NAME, or nil if there is none."
  (find name (message-descriptor-fields message) :key #'descriptor-name :test #'string=))

(defun record-values (record name)
  "The values of the field NAME of RECORD, in order; the empty list if RECORD is nil."
  (and record
       (let ((field (field-named (record-message record) name)))
         (and field (reverse (field-values record field))))))

(defun record-value (record name &optional default)
  "Return two values: the last value of the field NAME of RECORD, and true; or DEFAULT and nil."
  (let ((values (record-values record name)))
    (if values (values (first (last values)) t) (values default nil))))

(defun message-typed-p (field)
  (member (field-descriptor-type field) '(:message :group)))

(defun repeated-p (field)
  (eq :repeated (field-descriptor-label field)))

;;; Writing

(defvar *out*)
(setf (documentation '*out* 'variable) "The buffer that octets are written to.")

(defmacro with-octets-out (() &body body)
  "Run BODY, return the octets that it wrote."
  `(let ((*out* (make-buffer :size 64)))
     ,@body
     (subseq-octets (buffer-octets *out*) (buffer-start *out*) (buffer-end *out*))))

(defun write-wire-varint (value)
  "Write the varint of VALUE, a negative one as 64 bits."
  (let ((rest (ldb (byte 64 0) value)))
    (loop until (< rest 128)
          do (append-octet *out* (logior 128 (ldb (byte 7 0) rest)))
             (setf rest (ash rest -7)))
    (append-octet *out* rest)))

(defun write-wire-fixed (value size)
  (dotimes (i size) (append-octet *out* (ldb (byte 8 (* 8 i)) value))))

(defun write-wire-tag (number wire-type)
  (write-wire-varint (logior (ash number 3) wire-type)))

(defun write-wire-octets (number octets)
  (write-wire-tag number 2)
  (write-wire-varint (length octets))
  (append-octets *out* octets))

(defun type-wire (type)
  (case type
    ((:fixed32 :sfixed32 :float) 5)
    ((:fixed64 :sfixed64 :double) 1)
    ((:string :bytes :message) 2)
    (:group 3)
    (t 0)))

(defun write-bare (type value)
  "Write VALUE of the scalar TYPE without a tag."
  (ecase type
    ((:int32 :int64 :uint32 :uint64 :enum) (write-wire-varint value))
    (:bool (write-wire-varint (if value 1 0)))
    (:sint32 (write-wire-varint (zigzag-32 value)))
    (:sint64 (write-wire-varint (zigzag value)))
    ((:fixed32 :sfixed32) (write-wire-fixed value 4))
    ((:fixed64 :sfixed64) (write-wire-fixed value 8))
    (:float (write-wire-fixed (single-bits value) 4))
    (:double (write-wire-fixed (double-bits value) 8))
    ((:string :bytes)
     (write-wire-varint (length value))
     (append-octets *out* value))))

(defun write-field-value (field value write-content)
  "Write VALUE of FIELD with the field's tag. WRITE-CONTENT writes a record."
  (let ((number (field-descriptor-number field)))
    (cond ((not (record-p value))
           (write-wire-tag number (type-wire (field-descriptor-type field)))
           (write-bare (field-descriptor-type field) value))
          ((field-descriptor-delimited-p field)
           (write-wire-tag number 3)
           (funcall write-content value)
           (write-wire-tag number 4))
          (t
           (write-wire-octets number (with-octets-out () (funcall write-content value)))))))

(defun merge-records (records)
  (let ((merged (make-record (record-message (first records)))))
    (setf (record-entries merged) (mapcan (lambda (record) (copy-list (record-entries record)))
                                          records))
    merged))

(defun group-entries (record)
  "Return the entries of RECORD as conses (field . values), in the order of field numbers. A field
that is not repeated has one value: the last value or, for messages, the result of merging all."
  (let ((groups '()) (by-number (make-hash-table)))
    (loop for (field . value) in (record-entries record)
          for number = (field-descriptor-number field)
          for group = (gethash number by-number)
          do (if group
                 (push value (rest group))
                 (push (setf (gethash number by-number) (list field value)) groups)))
    (loop for (field . reversed) in (sort groups #'<
                                          :key (lambda (group)
                                                 (field-descriptor-number (first group))))
          for values = (reverse reversed)
          collect (cons field (cond ((repeated-p field) values)
                                    ((record-p (first values)) (list (merge-records values)))
                                    (t (last values)))))))

(defun write-values (field values)
  "Write VALUES, all values of FIELD, packed if FIELD is packed."
  (if (and (field-descriptor-packed-p field) (repeated-p field))
      (write-wire-octets (field-descriptor-number field)
                         (with-octets-out ()
                           (dolist (value values)
                             (write-bare (field-descriptor-type field) value))))
      (dolist (value values) (write-field-value field value #'write-canonical))))

(defun write-set-item (field value)
  "Write VALUE of FIELD, an extension of a message set, as an item."
  (write-wire-tag 1 3)
  (write-wire-tag 2 0)
  (write-wire-varint (field-descriptor-number field))
  (write-wire-octets 3 (with-octets-out () (write-canonical value)))
  (write-wire-tag 1 4))

(defun write-canonical (record)
  "Write the content of RECORD with its fields in the order of their numbers, and each field that is
not repeated once: see GROUP-ENTRIES."
  (loop for (field . values) in (group-entries record)
        do (if (message-descriptor-message-set-p (record-message record))
               (write-set-item field (first values))
               (write-values field values))))

(defun standard-field-p (field)
  "True if FIELD is built into protoc, like the features of C++."
  (or (null (field-descriptor-extendee field))
      (string= "pb.cpp" (descriptor-full-name field))))

(defun write-written (record)
  "Write the content of RECORD, which is an options message that protoc knows, or a part of one.
Standard options are sorted by number; each custom option is written as it was in the source."
  (let ((standard (make-record (record-message record))))
    (setf (record-entries standard)
          (remove-if-not #'standard-field-p (record-entries record) :key #'first))
    (loop for (field . values) in (group-entries standard)
          do (if (and (record-p (first values)) (not (repeated-p field)))
                 (write-field-value field (first values) #'write-written)
                 (write-values field values)))
    (loop for (field . value) in (record-entries record)
          unless (standard-field-p field)
            do (write-field-value field value #'write-as-written))))

(defun write-as-written (record)
  (if (record-literal-p record)
      (write-canonical record)
      (loop for (field . value) in (record-entries record)
            do (write-field-value field value #'write-as-written))))

(defun record-octets (record form)
  "Return RECORD serialized, by WRITE-CANONICAL if FORM is :canonical or by WRITE-WRITTEN if it is
:written."
  (with-octets-out ()
    (ecase form
      (:canonical (write-canonical record))
      (:written (write-written record)))))

(defun strip-record (record drop)
  "RECORD without the fields for which DROP returns true, at any depth; a group stays whole."
  (let ((stripped (make-record (record-message record) :literal-p (record-literal-p record))))
    (loop for (field . value) in (record-entries record)
          unless (funcall drop field)
            do (add-entry stripped field
                          (if (and (record-p value) (not (field-descriptor-delimited-p field)))
                              (strip-record value drop)
                              value)))
    stripped))

;;; Reading

(defun map-wire-fields (function octets &optional (at 0) (end (length octets)))
  "Call FUNCTION with number, wire type, value, start and end of each field in OCTETS from AT to
END. The value is an unsigned integer. For wire types 2 and 3 it is nil, and their content is from
start to end. Signal PROTOBUF-ERROR."
  (let ((tag 0))
    (loop while (< at end)
          do (setf (values tag at) (read-tag octets at end))
             (let ((number (ash tag -3)) (wire-type (logand tag 7)) (start at))
               (ecase wire-type
                 (0 (multiple-value-bind (low high next) (read-varint64 octets at end)
                      (setf at next)
                      (funcall function number 0 (logior low (ash high 32)) start at)))
                 ((1 5)
                  (let ((size (if (= wire-type 1) 8 4)))
                    (when (> (+ at size) end) (fail-truncated at))
                    (setf at (+ at size))
                    (funcall function number wire-type
                             (if (= size 8) (u64le octets start) (u32le octets start))
                             start at)))
                 (2 (multiple-value-bind (length next) (read-length octets at end)
                      (when (> (+ next length) end) (fail-length at))
                      (setf at (+ next length))
                      (funcall function number 2 nil next at)))
                 (3 (multiple-value-bind (content-end next)
                        (group-end octets at end number)
                      (setf at next)
                      (funcall function number 3 nil start content-end)))
                 ((4 6 7) (fail-tag at)))))))

(defun bits-value (type bits)
  "The value of TYPE whose encoding is BITS, a varint or fixed-width number."
  (ecase type
    (:int32 (signed-32 (ldb (byte 32 0) bits)))
    (:enum (signed-32 (ldb (byte 32 0) bits)))
    ((:int64 :sfixed64) (signed-64 bits))
    (:sfixed32 (signed-32 bits))
    ((:uint32 :fixed32) (ldb (byte 32 0) bits))
    ((:uint64 :fixed64) bits)
    (:sint32 (unzigzag-32 (ldb (byte 32 0) bits)))
    (:sint64 (unzigzag bits))
    (:bool (/= 0 bits))
    (:float (bits-single bits))
    (:double (bits-double bits))))

(defun need-octets (count at end)
  (when (> (+ at count) end) (fail-truncated at)))

(defun packed-values (type octets)
  (let ((at 0) (end (length octets)) (wire-type (type-wire type)))
    (loop while (< at end)
          collect (bits-value
                   type
                   (ecase wire-type
                     (0 (multiple-value-bind (low high next) (read-varint64 octets at end)
                          (setf at next)
                          (logior low (ash high 32))))
                     (1 (need-octets 8 at end)
                      (prog1 (u64le octets at) (incf at 8)))
                     (5 (need-octets 4 at end)
                      (prog1 (u32le octets at) (incf at 4))))))))

(defun read-record (octets message find-field find-message
                    &optional (start 0) (end (length octets)) (depth 0))
  "The record of type MESSAGE in OCTETS from START to END. FIND-FIELD is called with a message
descriptor and a number, FIND-MESSAGE with a full name; fields that they do not find are omitted."
  (when (> depth +aggregate-depth+) (fail-recursion 0))
  (let ((record (make-record message)))
    (flet ((note (number wire-type value start end)
             (let* ((field (funcall find-field message number))
                    (type (and field (field-descriptor-type field))))
               (cond ((null type))
                     ((message-typed-p field)
                      (let ((inner (funcall find-message (field-descriptor-type-name field))))
                        (when (and inner (member wire-type '(2 3)))
                          (add-entry record field
                                     (read-record octets inner find-field find-message start end
                                                  (1+ depth))))))
                     ((and (= wire-type 2) (/= 2 (type-wire type)))
                      (dolist (value (packed-values type (subseq-octets octets start end)))
                        (add-entry record field value)))
                     ((/= wire-type (type-wire type)))
                     ((= wire-type 2) (add-entry record field (subseq-octets octets start end)))
                     (t (add-entry record field (bits-value type value)))))))
      (map-wire-fields #'note octets start end))
    record))
