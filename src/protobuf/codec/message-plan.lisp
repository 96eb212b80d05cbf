;;;; The layout of messages: a PLAN for each message with a SLOT for each field. The generator
;;;; writes code from plans at compile time; the same function rebuilds them from the registered
;;;; descriptor at load time, for printing, comparing and the slow path of accessors.
;;;;
;;;; The hidden structure and its slots are named by the plan's fingerprint, a hash of everything
;;;; that layout and coders depend on: an unchanged definition names the existing structure.
;;;;
;;;; Presence, by slot: :implicit (present unless zero), :bit (a bit of a word of the message),
;;;; :value (a sub-message, nil if absent), :oneof (the oneof's case says), :elements (repeated and
;;;; maps), :extension (extension.lisp; such slots belong to no plan).

(in-package #:clgrpc.protobuf)

(defstruct (slot (:copier nil))
  "The layout of a field, or an extension."
  (field nil :type (or null field-descriptor)) ; the field's descriptor
  (number 0 :type (unsigned-byte 31))   ; more than 29 bits only in message sets
  (name "" :type string)                ; the slot's Lisp name
  (kind :int32 :type keyword)           ; the type, :message for groups too
  (label :singular :type (member :singular :repeated :map)) ; the kind of its value
  ;; the mark of its presence; see above
  (presence :implicit :type (member :implicit :bit :value :oneof :elements
                                        :extension))
  (type-name nil :type (or null string)) ; the full name of the field's message or enum type, or nil
  (type nil :type (or null message-type enum-type)) ; see SLOT-TYPE-OBJECT
  (item-p nil :type boolean)            ; an extension written as an item of a message set
  (default nil)                         ; the value while it is absent
  ;; the place of a slot of a structure, or of CONTENTS (dynamic.lisp)
  (place nil :type (or symbol index))
  (bits nil :type (or symbol index))    ; for :bit, the place of the word with the bit
  (bit 0 :type (unsigned-byte 6))       ; for :bit, the number of the bit
  (oneof nil)                           ; the ONEOF-SLOT that the slot belongs to, or nil
  (size nil :type (or symbol index))    ; where the size of a packed varint field is kept
  (entry-key nil :type (or null slot))  ; of a map, the slot of the keys
  (entry-value nil :type (or null slot)) ; of a map, the slot of the values
  (reader nil :type symbol))            ; the symbol of the field's accessor

(defstruct (oneof-slot (:copier nil))
  "The layout of a oneof."
  (name "" :type string)                ; the oneof's Lisp name
  (descriptor nil)                      ; the descriptor of the oneof
  ;; the place of the number of the field that is present, 0 for none
  (case nil :type (or symbol index))
  (value nil :type (or symbol index))   ; the place of the value of the field that is present
  (reader nil :type symbol)             ; the symbol of the oneof's accessor
  (slots '() :type list))               ; the oneof's fields

(defstruct (plan (:copier nil))
  "The layout of a message."
  (message nil :type (or null message-descriptor)) ; the message's descriptor
  (fingerprint "" :type string)         ; a digest of all that layout and coders depend on
  (structure nil :type symbol)          ; the name of the hidden structure
  (maker nil :type symbol)              ; the name of the function that makes an empty one
  (slots '() :type list)                ; the slots of the fields, in the order of the source
  (oneofs '() :type list)               ; the message's ONEOF-SLOTs
  (bits '() :type list))                ; the places of words with presence bits

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
  "The message or enum type of SLOT, or nil if its values are neither messages nor enums."
  (or (slot-type slot)
      (case (slot-kind slot)
        (:message (setf (slot-type slot) (intern-message-type (slot-type-name slot))))
        (:enum (setf (slot-type slot) (intern-enum-type (slot-type-name slot)))))))

(defun slot-scalar (slot)
  "The row of the scalar SLOT for its coders."
  (scalar-of (coder-kind slot)))

(defun coder-kind (slot)
  "The kind in the names of the coders of SLOT."
  (if (and (eq :string (slot-kind slot)) (field-descriptor-unchecked-p (slot-field slot)))
      :unchecked-string
      (slot-kind slot)))

(defun slot-function (verb slot)
  "The symbol of the function of sequence.lisp that does VERB for SLOT."
  (kind-function verb (coder-kind slot)))

(defun slot-packed-p (slot)
  (field-descriptor-packed-p (slot-field slot)))

(defun constant-size (tag)
  (length (tag-octets tag)))

(defun slot-wire (slot)
  (cond ((eq :message (slot-kind slot)) (if (slot-delimited-p slot) 3 2))
        (t (scalar-wire (slot-scalar slot)))))

(defun slot-tag (slot)
  (tag-of (slot-number slot) (slot-wire slot)))

(defun slot-keyword (slot)
  (intern (slot-name slot) :keyword))

;;; Fingerprints

(defun field-facts (field entries)
  "Return the properties of FIELD on which the layout and the coders of its message, including those
for JSON, depend. ENTRIES is the table that MAP-ENTRIES returned for the message."
  (let ((entry (map-entry-of field entries)))
    (list (field-descriptor-number field) (descriptor-name field) (field-descriptor-type field)
          (field-descriptor-type-name field) (field-descriptor-presence field)
          (field-descriptor-oneof field) (field-descriptor-packed-p field)
          (field-descriptor-closed-p field) (field-descriptor-delimited-p field)
          (field-descriptor-unchecked-p field) (field-descriptor-json-name field)
          (let ((default (field-descriptor-default field)))
            (if (floatp default) (multiple-value-list (float-key default)) default))
          (and entry (mapcar (lambda (field) (field-facts field nil))
                             (message-descriptor-fields entry))))))

(defun float-key (value)
  (etypecase value
    (single-float (single-bits value))
    (double-float (double-bits value))))

(defconstant +representation+ 1
  "The version of the form of generated code. It is part of every fingerprint, and must be changed
when code that an older version generated no longer fits.")

(defun message-fingerprint (message)
  (with-standard-io-syntax
    (text-fingerprint (prin1-to-string
                       (list* +representation+ (descriptor-full-name message)
                              (loop with entries = (map-entries message)
                                    for field in (message-descriptor-fields message)
                                    collect (field-facts field entries)))))))

;;; Slots

(defun map-entries (message)
  "A table of the entry types of the maps of MESSAGE by full name."
  (index-by #'descriptor-full-name
            (remove-if-not #'message-descriptor-map-entry-p (message-descriptor-messages message))
            :test 'equal))

(defun map-entry-of (field entries)
  "Return the entry type of FIELD, an element of ENTRIES, or nil if FIELD is not a map."
  (and (field-descriptor-map-p field)
       (values (gethash (field-descriptor-type-name field) entries))))

(defun field-kind (field)
  (if (eq :group (field-descriptor-type field)) :message (field-descriptor-type field)))

(defun default-of (kind field)
  (or (field-descriptor-default field)
      (if (eq kind :message) nil (scalar-default (scalar-of kind)))))

(defun field-slot (field place)
  "The slot of FIELD without its presence; PLACE maps a name to a symbol."
  (let ((kind (field-kind field)))
    (make-slot :field field :number (field-descriptor-number field)
               :name (lisp-name (descriptor-name field)) :kind kind
               :label (if (eq :repeated (field-descriptor-label field)) :repeated :singular)
               :type-name (field-descriptor-type-name field)
               :default (default-of kind field)
               :place (funcall place (lisp-name (descriptor-name field))))))

(defstruct (layout-state (:conc-name state-) (:copier nil))
  "The state of making the slots of a PLAN."
  (plan nil :type plan)                 ; the plan being made
  (place nil :type function)            ; maps a name to a place
  (names (make-hash-table :test 'equal) :type hash-table) ; names of the slots so far
  ;; Lisp names of oneofs, which places of fields must avoid
  (oneof-names (make-hash-table :test 'equal) :type hash-table)
  (oneofs (make-hash-table :test 'equal) :type hash-table) ; by the names in the .proto file
  (entries nil :type hash-table)        ; see MAP-ENTRIES
  (bit-count 0 :type index)             ; how many presence bits are taken
  (word nil :type (or symbol index)))   ; the place of the word that has the last bit

(defun state-place-of (state name)
  (funcall (state-place state) name))

(defun make-distinct (slot state)
  "Change the name and the place of SLOT if an earlier slot has the same name, as with fooBar and
foo_bar."
  (when (gethash (slot-name slot) (state-names state))
    (setf (slot-name slot) (format nil "~A-~D" (slot-name slot) (slot-number slot))
          (slot-place slot) (state-place-of state (slot-name slot))))
  (setf (gethash (slot-name slot) (state-names state)) t)
  (when (gethash (slot-name slot) (state-oneof-names state))
    (setf (slot-place slot) (state-place-of state (format nil "~A-~D" (slot-name slot)
                                                          (slot-number slot))))))

(defun add-presence (slot state)
  "Choose the mark that SLOT is present; the mark may be a bit."
  (let ((field (slot-field slot)))
    (setf (slot-presence slot)
          (cond ((not (eq :singular (slot-label slot))) :elements)
                ((field-descriptor-oneof field)
                 (let ((oneof (gethash (field-descriptor-oneof field) (state-oneofs state))))
                   (setf (slot-oneof slot) oneof)
                   (push slot (oneof-slot-slots oneof)))
                 :oneof)
                ((eq :message (slot-kind slot)) :value)
                ((eq :implicit (field-descriptor-presence field)) :implicit)
                (t (take-bit slot state) :bit)))))

(defconstant +bits-per-word+ 60
  "The number of presence bits in one word of a message.")

(defun take-bit (slot state)
  (multiple-value-bind (word bit) (floor (state-bit-count state) +bits-per-word+)
    (when (zerop bit)
      (setf (state-word state) (state-place-of state (format nil "+BITS-~D" word)))
      (push (state-word state) (plan-bits (state-plan state))))
    (incf (state-bit-count state))
    (setf (slot-bits slot) (state-word state)
          (slot-bit slot) bit)))

(defun add-map (slot state)
  "Make SLOT a map if its field is one."
  (when-let ((entry (map-entry-of (slot-field slot) (state-entries state))))
    (destructuring-bind (key value) (message-descriptor-fields entry)
      (setf (slot-label slot) :map
            (slot-entry-key slot) (field-slot key #'make-symbol)
            (slot-entry-value slot) (field-slot value #'make-symbol)))))

(defun add-size (slot place)
  "If SLOT is a packed field whose size must be computed, add a place for the size to SLOT."
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

(defun add-oneofs (state)
  (dolist (oneof (message-descriptor-oneofs (plan-message (state-plan state))))
    (let* ((name (lisp-name (descriptor-name oneof)))
           (slot (make-oneof-slot :name name :descriptor oneof
                                  :case (state-place-of state (format nil "+CASE-~A" name))
                                  :value (state-place-of state name))))
      (setf (gethash name (state-oneof-names state)) t
            (gethash (descriptor-name oneof) (state-oneofs state)) slot)
      (push slot (plan-oneofs (state-plan state))))))

(defun add-fields (plan place)
  "Add the slots and oneofs of its message to PLAN, each at the place that PLACE, a function,
returns for a name. Return PLAN."
  (let* ((message (plan-message plan))
         (state (make-layout-state :plan plan :place place :entries (map-entries message))))
    (add-oneofs state)
    (dolist (field (message-descriptor-fields message))
      (let ((slot (field-slot field place)))
        (make-distinct slot state)
        (add-map slot state)
        (add-size slot place)
        (add-presence slot state)
        (push slot (plan-slots plan))))
    (reverse-places (plan-oneofs plan) (plan-slots plan) (plan-bits plan))
    (dolist (oneof (plan-oneofs plan) plan)
      (reverse-places (oneof-slot-slots oneof)))))
