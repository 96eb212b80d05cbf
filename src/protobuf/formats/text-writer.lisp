;;;; Writing messages in text format (protobuf.dev, "Text Format Language Specification"): fields by
;;;; number, including extensions, one on each line or all on one line; unknown fields by number on
;;;; request.
;;;;
;;;; Strings are written as UTF-8. Quotation marks, backslashes and characters that are not visible
;;;; (log/printable.lisp) are escaped; in octets everything but ASCII is escaped as well.

(in-package #:clgrpc.protobuf)

(defstruct (text-output (:include writing (format :text)) (:copier nil))
  "An output in text format, with the options that determine its form."
  ;; SINGLE-LINE and the next slot are arguments of MESSAGE-TEXT
  (single-line nil)
  (unknown nil)                         ; whether unknown fields are written
  (level 0 :type fixnum)                ; how many braces are open
  (fresh t))                            ; true if nothing has been written

(defun write-piece (output string)
  (append-octets (text-output-buffer output) (string-octets string)))

(defun begin-field (output)
  "Write the space or line break before the next field."
  (check-text-size output)
  (cond ((text-output-single-line output)
         (unless (text-output-fresh output) (write-piece output " "))
         (setf (text-output-fresh output) nil))
        (t (loop repeat (* 2 (text-output-level output))
                 do (append-octet (text-output-buffer output) 32)))))

(defun end-field (output)
  (unless (text-output-single-line output) (append-octet (text-output-buffer output) 10)))

(defun call-with-braces (output name function)
  "Write NAME and braces around the output of FUNCTION."
  (begin-field output)
  (write-piece output name)
  (write-piece output " {")
  (end-field output)
  (incf (text-output-level output))
  (funcall function)
  (decf (text-output-level output))
  (begin-field output)
  (write-piece output "}")
  (end-field output))

(defmacro with-braces ((output name) &body body)
  `(flet ((braced () ,@body))
     (declare (dynamic-extent #'braced))
     (call-with-braces ,output ,name #'braced)))

(defun put-line (output name text)
  "Write the scalar field NAME, whose value has the form TEXT."
  (begin-field output)
  (write-piece output name)
  (write-piece output ": ")
  (write-piece output text)
  (end-field output))

;;; Scalars

(defun octets-literal (octets)
  "Return OCTETS as a literal in ASCII."
  (with-output-to-string (out)
    (write-char #\" out)
    (loop for octet across octets do (put-escaped octet out))
    (write-char #\" out)))

(defun string-literal (string)
  "STRING as a literal in UTF-8; characters that represent octets outside UTF-8 are written as
escapes of these octets."
  (with-output-to-string (out)
    (write-char #\" out)
    (loop for char across string
          for code = (char-code char)
          do (cond ((< code 128) (put-escaped code out))
                   ((escape-p char) (put-escaped (- code +escape+) out))
                   ((unsafe-char-p char)
                    (loop for octet across (string-octets (string char))
                          do (put-escaped octet out)))
                   (t (write-char char out))))
    (write-char #\" out)))

(defun float-literal (value)
  (cond ((sb-ext:float-nan-p value) (if (minusp (float-sign value)) "-nan" "nan"))
        ((sb-ext:float-infinity-p value) (if (plusp value) "inf" "-inf"))
        (t (float-text value))))

(defun scalar-literal (slot value)
  "The text of VALUE, one value of SLOT, which is not a message."
  (ecase (slot-kind slot)
    (:string (string-literal value))
    (:bytes (octets-literal value))
    (:bool (if value "true" "false"))
    ((:float :double) (float-literal value))
    (:enum (let* ((type (slot-type-object slot)) (number (enum-number-of type value)))
             (or (enum-value-name type number) (format nil "~D" number))))
    ((:int32 :int64 :uint32 :uint64 :sint32 :sint64 :fixed32 :fixed64 :sfixed32 :sfixed64)
     (format nil "~D" value))))

;;; Fields

(defun text-field-name (slot)
  (let ((field (slot-field slot)))
    (cond ((not (field-descriptor-extendee field)) (slot-text-name slot))
          ;; an item of a message set has the name of its message, if it is declared there
          ((and (slot-item-p slot) (set-item-type field))
           (format nil "[~A]" (field-descriptor-type-name field)))
          (t (slot-path slot)))))

(defun set-item-type (field)
  "Return the type of FIELD, an extension of a message set, if FIELD is declared in that type, else
nil."
  (let* ((full-name (descriptor-full-name field))
         (dot (position #\. full-name :from-end t)))
    (and dot
         (equal (field-descriptor-type-name field) (subseq full-name 0 dot))
         (field-descriptor-type-name field))))

(defun put-text-value (output slot name value)
  (if (eq :message (slot-kind slot))
      (with-braces (output name) (put-message output value))
      (put-line output name (scalar-literal slot value))))

(defun put-field (output slot stored)
  "Write the field of SLOT, whose stored value is STORED."
  (let ((name (text-field-name slot)))
    (ecase (slot-label slot)
      (:singular (put-text-value output slot name stored))
      (:repeated (loop for value across stored do (put-text-value output slot name value)))
      (:map (do-map ((key value) stored)
              (with-braces (output name)
                (put-text-value output (slot-entry-key slot) "key" key)
                (put-text-value output (slot-entry-value slot) "value" value)))))))

(defun put-any (output message)
  "Write MESSAGE, an Any, as the message in it; return nil if that message cannot be read, or is too
deep or too large."
  (let* ((url (number-held message 1))
         (inner (and (type-url-p url)
                     (handler-case (any-content output url (number-held message 2))
                       (protobuf-error () nil)))))
    (when inner
      (within-any (output)
        (with-braces (output (format nil "[~A]" url)) (put-message output inner)))
      t)))

(defun put-message (output message)
  "Write the fields of MESSAGE."
  (with-level (output)
    (let ((message (current message)))
      (unless (and (any-layout-p (message-layout message)) (put-any output message))
        (dolist (slot (present-slots message))
          (put-field output slot (present-stored message slot))))
      (when (text-output-unknown output)
        (let ((octets (unknown-fields message)))
          (when octets (put-unknown output octets 0 (length octets) 10)))))))

;;; Unknown fields

(defun put-unknown (output octets at end depth)
  "Write the fields in the octets from AT to END. A value with a length is written as a message if
it has the form of a message and fewer than DEPTH levels are used; otherwise it is written as a
literal."
  (declare (type octets octets) (type index at end))
  (loop while (< at end)
        do (let* ((tag (take-tag)) (name (format nil "~D" (ash tag -3))))
             (ecase (logand tag 7)
               (0 (put-line output name (format nil "~D" (take-varint64))))
               (1 (put-line output name (format nil "0x~(~16,'0X~)" (take-u64))))
               (5 (put-line output name (format nil "0x~(~8,'0X~)" (take-u32))))
               (2 (with-delimited (start stop)
                    (if (and (plusp depth) (< start stop) (fields-p octets start stop))
                        (with-braces (output name)
                          (put-unknown output octets start stop (1- depth)))
                        (put-line output name (octets-literal (subseq octets start stop))))))
               (3 (multiple-value-bind (stop after) (group-end octets at end (ash tag -3))
                    (with-braces (output name) (put-unknown output octets at stop (1- depth)))
                    (setf at after)))))))

(defun fields-p (octets at end)
  (declare (type octets octets) (type index at end))
  (handler-case
      (loop while (< at end)
            do (let ((tag (take-tag)))
                 (when (= 4 (logand tag 7)) (return nil))
                 (setf at (skip-field octets at end tag)))
            finally (return t))
    (protobuf-error () nil)))

(defun message-text (message &key (as :string) single-line unknown (finder #'find-message-type)
                               (max-octets +text-octets+)
                               (max-message-depth **max-message-depth**)
                               (max-decoded-octets **max-decoded-octets**))
  "Return MESSAGE in text format: a string, or UTF-8 if AS is :OCTETS. SINGLE-LINE: write no line
breaks. UNKNOWN: write unknown fields too, by number; by default they are omitted. The message in an
Any is written out if its type is known, its octets are a message of that type, and it is within the
limits. The type is known if FINDER, a function of its full name, returns the message type and not
nil. It is within the limits if it nests at most MAX-MESSAGE-DEPTH levels below MESSAGE and,
together with other Anys, occupies at most MAX-DECODED-OCTETS of memory beyond eight times its size.
In all other cases the type and the octets of the Any are written. Signal MESSAGE-PRINT-ERROR if
MESSAGE itself nests deeper, or the text has more than MAX-OCTETS. Source: protobuf.dev, Text Format
Language Specification. From any thread, while no other thread changes MESSAGE."
  (let ((output (make-text-output :buffer (make-buffer :size 256) :single-line single-line
                                  :unknown unknown :finder finder :max-octets max-octets
                                  :levels (1+ max-message-depth) :allowance max-decoded-octets
                                  :type-name (message-type-name (message-type-of message)))))
    (put-message output message)
    (written-text output as)))
