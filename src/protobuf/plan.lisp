;;;; How a message is laid out: a PLAN per message with a SLOT per field. The generator writes code
;;;; from plans at compile time; the same function rebuilds them from the registered descriptor at
;;;; load time, for printing, comparing and the slow path of accessors.
;;;;
;;;; The hidden structure and its slots are named by the plan's fingerprint, a hash of everything
;;;; that layout and coders depend on: an unchanged definition names the structure that is already
;;;; there.
;;;;
;;;; Presence, by slot: :implicit (present unless zero), :bit (a bit of a word of the message),
;;;; :value (a sub-message, nil if absent), :oneof (the oneof's case says), :elements (repeated and
;;;; maps), :extension (extension.lisp; such slots belong to no plan).

(in-package #:clgrpc.protobuf)

(defstruct (slot (:copier nil))
  (field nil :type (or null field-descriptor))
  (number 0 :type (unsigned-byte 31))   ; above 29 bits in message sets only
  (name "" :type string)
  (kind :int32 :type keyword)
  (label :singular :type (member :singular :repeated :map))
  (presence :implicit :type (member :implicit :bit :value :oneof :elements
                                        :extension))
  (type-name nil :type (or null string))
  (type nil :type (or null message-type enum-type)) ; see SLOT-TYPE-OBJECT
  (item-p nil :type boolean)            ; an extension written as an item of a message set
  (default nil)
  (place nil :type (or symbol index))   ; of a slot of a structure, or of CONTENTS (dynamic.lisp)
  (bits nil :type (or symbol index))
  (bit 0 :type (unsigned-byte 6))
  (oneof nil)
  (size nil :type (or symbol index))    ; where the size of a packed varint field is kept
  (entry-key nil :type (or null slot))
  (entry-value nil :type (or null slot))
  (reader nil :type symbol))

(defstruct (oneof-slot (:copier nil))
  (name "" :type string)
  (descriptor nil)
  (case nil :type (or symbol index))
  (value nil :type (or symbol index))
  (reader nil :type symbol)
  (slots '() :type list))

(defstruct (plan (:copier nil))
  (message nil :type (or null message-descriptor))
  (fingerprint "" :type string)
  (structure nil :type symbol)
  (maker nil :type symbol)
  (slots '() :type list)
  (oneofs '() :type list)
  (bits '() :type list))

(defun plan-full-name (plan)
  (descriptor-full-name (plan-message plan)))

(defun plan-symbol (plan)
  (message-descriptor-symbol (plan-message plan)))

(defun slot-delimited-p (slot)
  (field-descriptor-delimited-p (slot-field slot)))

(defun slot-closed-p (slot)
  (and (eq :enum (slot-kind slot)) (field-descriptor-closed-p (slot-field slot))))

(defun slot-required-p (slot)
  (eq :required (field-descriptor-presence (slot-field slot))))

(defun slot-type-object (slot)
  "The message or enum type of SLOT, or nil."
  (or (slot-type slot)
      (case (slot-kind slot)
        (:message (setf (slot-type slot) (intern-message-type (slot-type-name slot))))
        (:enum (setf (slot-type slot) (intern-enum-type (slot-type-name slot)))))))

(defun slot-scalar (slot)
  "The row of the scalar SLOT for its coders."
  (scalar-of (coder-kind slot)))

(defun coder-kind (slot)
  "The kind by which the coders of SLOT are named."
  (if (and (eq :string (slot-kind slot)) (field-descriptor-unchecked-p (slot-field slot)))
      :unchecked-string
      (slot-kind slot)))

(defun slot-function (verb slot)
  "The symbol of the function of sequence.lisp that does VERB for SLOT."
  (kind-function verb (coder-kind slot)))

(defun slot-packed-p (slot)
  (field-descriptor-packed-p (slot-field slot)))

;;; Fingerprints

(defun hash-text (text)
  "The 64-bit FNV-1a hash of TEXT in hexadecimal."
  (let ((hash #xCBF29CE484222325))
    (loop for char across text
          do (setf hash (ldb (byte 64 0) (* #x100000001B3 (logxor hash (char-code char))))))
    (format nil "~16,'0X" hash)))

(defun field-facts (field entries)
  "All that layout and coders of a message, JSON's too, depend on in FIELD. ENTRIES are the map
entry types around."
  (let ((entry (and (field-descriptor-map-p field) (map-entry-of field entries))))
    (list (field-descriptor-number field) (descriptor-name field) (field-descriptor-type field)
          (field-descriptor-type-name field) (field-descriptor-presence field)
          (field-descriptor-oneof field) (field-descriptor-packed-p field)
          (field-descriptor-closed-p field) (field-descriptor-delimited-p field)
          (field-descriptor-unchecked-p field) (field-descriptor-json-name field)
          (let ((default (field-descriptor-default field)))
            (if (floatp default) (multiple-value-list (float-key default)) default))
          (and entry (mapcar (lambda (field) (field-facts field '()))
                             (message-descriptor-fields entry))))))

(defun float-key (value)
  (etypecase value
    (single-float (single-bits value))
    (double-float (double-bits value))))

(defconstant +representation+ 1
  "Changes when generated code of older versions no longer fits; part of every fingerprint.")

(defun message-fingerprint (message)
  (with-standard-io-syntax
    (hash-text (prin1-to-string
                (list* +representation+ (descriptor-full-name message)
                       (loop for field in (message-descriptor-fields message)
                             collect (field-facts field (message-descriptor-messages message))))))))

;;; Slots

(defun map-entry-of (field messages)
  (find (field-descriptor-type-name field) messages :key #'descriptor-full-name :test #'string=))

(defun field-kind (field)
  (if (eq :group (field-descriptor-type field)) :message (field-descriptor-type field)))

(defun default-of (kind field)
  (or (field-descriptor-default field)
      (if (eq kind :message) nil (scalar-default (scalar-of kind)))))

(defun field-slot (field place)
  "The slot of FIELD but for its presence; PLACE maps a name to a symbol."
  (let ((kind (field-kind field)))
    (make-slot :field field :number (field-descriptor-number field)
               :name (lisp-name (descriptor-name field)) :kind kind
               :label (if (eq :repeated (field-descriptor-label field)) :repeated :singular)
               :type-name (field-descriptor-type-name field)
               :default (default-of kind field)
               :place (funcall place (lisp-name (descriptor-name field))))))

(defun make-distinct (slot plan place)
  "Give SLOT a name and place of its own if one before it in PLAN has the same, as fooBar and
foo_bar do."
  (flet ((same-p (name) (string= name (slot-name slot))))
    (when (find-if #'same-p (plan-slots plan) :key #'slot-name)
      (setf (slot-name slot) (format nil "~A-~D" (slot-name slot) (slot-number slot))
            (slot-place slot) (funcall place (slot-name slot))))
    (when (find-if #'same-p (plan-oneofs plan) :key #'oneof-slot-name)
      (setf (slot-place slot) (funcall place (format nil "~A-~D" (slot-name slot)
                                                     (slot-number slot)))))))

(defun add-presence (slot plan place)
  "Decide how SLOT knows whether it is present; it may take a bit of PLAN."
  (let ((field (slot-field slot)))
    (setf (slot-presence slot)
          (cond ((not (eq :singular (slot-label slot))) :elements)
                ((field-descriptor-oneof field)
                 (let ((oneof (find (field-descriptor-oneof field) (plan-oneofs plan)
                                    :key (lambda (oneof)
                                           (descriptor-name (oneof-slot-descriptor oneof)))
                                    :test #'string=)))
                   (setf (slot-oneof slot) oneof
                         (oneof-slot-slots oneof) (append (oneof-slot-slots oneof) (list slot))))
                 :oneof)
                ((eq :message (slot-kind slot)) :value)
                ((eq :implicit (field-descriptor-presence field)) :implicit)
                (t (take-bit slot plan place) :bit)))))

(defconstant +bits-per-word+ 60
  "How many presence bits one word of a message holds.")

(defun take-bit (slot plan place)
  (let ((used (count :bit (plan-slots plan) :key #'slot-presence)))
    (multiple-value-bind (word bit) (floor used +bits-per-word+)
      (when (zerop bit)
        (setf (plan-bits plan)
              (append (plan-bits plan) (list (funcall place (format nil "+BITS-~D" word))))))
      (setf (slot-bits slot) (nth word (plan-bits plan))
            (slot-bit slot) bit))))

(defun add-map (slot entries)
  "Make SLOT a map if its field is one."
  (let ((field (slot-field slot)))
    (when (field-descriptor-map-p field)
      (destructuring-bind (key value) (message-descriptor-fields (map-entry-of field entries))
        (setf (slot-label slot) :map
              (slot-entry-key slot) (field-slot key #'make-symbol)
              (slot-entry-value slot) (field-slot value #'make-symbol))))))

(defun add-size (slot place)
  "Give a packed field whose size must be computed a place to keep it."
  (when (and (eq :repeated (slot-label slot))
             (slot-packed-p slot)
             (not (fixed-size (slot-kind slot))))
    (setf (slot-size slot) (funcall place (format nil "+SIZE-~D" (slot-number slot))))))

(defun plan-message-layout (message)
  "Return the plan of MESSAGE, whose symbols are assigned."
  (let* ((fingerprint (message-fingerprint message))
         (symbol (message-descriptor-symbol message))
         (package (symbol-package symbol))
         (base (format nil "~A.~A" symbol fingerprint))
         (plan (make-plan :message message :fingerprint fingerprint
                          :structure (intern (format nil "%~A" base) package)
                          :maker (intern (format nil "%MAKE-~A" base) package))))
    (flet ((place (name) (intern (format nil "%~A.~A" base name) package)))
      (add-fields plan #'place))))

(defun add-fields (plan place)
  "Give PLAN the slots and oneofs of its message, each at what PLACE makes of a name. Return PLAN."
  (let ((message (plan-message plan)))
    (setf (plan-oneofs plan)
          (loop for oneof in (message-descriptor-oneofs message)
                for name = (lisp-name (descriptor-name oneof))
                collect (make-oneof-slot :name name :descriptor oneof
                                         :case (funcall place (format nil "+CASE-~A" name))
                                         :value (funcall place name))))
    (dolist (field (message-descriptor-fields message) plan)
      (let ((slot (field-slot field place)))
        (make-distinct slot plan place)
        (add-map slot (message-descriptor-messages message))
        (add-size slot place)
        (add-presence slot plan place)
        (setf (plan-slots plan) (append (plan-slots plan) (list slot)))))))
