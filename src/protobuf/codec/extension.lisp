;;;; Extensions: fields that any file may declare for a message that leaves numbers free for them
;;;; (protobuf.dev, "Language Guide (proto 2)", Extensions), and message sets, whose extensions are
;;;; written as items of group 1.
;;;;
;;;; An extension is a SLOT with the presence :extension; no plan has it. A message has the values
;;;; of its extensions in EXTRAS (message.lisp). Readers treat extensions as unknown fields;
;;;; GATHER-EXTRA decodes those that are loaded when the message is read, SETTLED-EXTRAS those that
;;;; were loaded since. So a file with extensions may be loaded after messages were read. A value is
;;;; stored together with its slot, and goes through the wire format if the extension has another
;;;; definition by now.
;;;;
;;;; The functions here serve any slot: they test the slot's kind when they run. Extensions are few.

(in-package #:clgrpc.protobuf)

(defstruct (extension (:constructor %make-extension (name)) (:copier nil))
  "An extension field. The image has one EXTENSION object for each full name, and never frees it."
  (name "" :type string :read-only t)   ; the full name
  (symbol nil :type symbol)             ; the extension's accessor
  (slot nil :type (or null slot)))      ; the extension's current definition

(defmethod print-object ((extension extension) stream)
  (print-unreadable-object (extension stream :type t) (princ (extension-name extension) stream)))

(defglobal **extensions** (make-hash-table :test 'equal :synchronized t))

(defun intern-extension (full-name)
  (sb-ext:with-locked-hash-table (**extensions**)
    (alexandria:ensure-gethash full-name **extensions** (%make-extension full-name))))

(defun extension-extendee (extension)
  "The message type that EXTENSION extends."
  (intern-message-type (field-descriptor-extendee (slot-field (extension-slot extension)))))

(defun find-extension (full-name)
  "Return the field descriptor of the loaded extension FULL-NAME (\"my.package.my_extension\"), or
nil if there is none. From any thread."
  (let ((extension (gethash full-name **extensions**)))
    (and extension (extension-slot extension) (slot-field (extension-slot extension)))))

(defun find-extension-number (type number)
  "Return the field descriptor of the loaded extension that has NUMBER and extends the message TYPE
(a symbol, full name or message type), or nil if there is none."
  (let* ((table (message-type-extensions (need-message-type type)))
         (slot (and table (gethash number table))))
    (and slot (slot-field slot))))

(defun extension-fields (type)
  "Return the field descriptors of all loaded extensions of the message TYPE (a symbol, full name or
message type), by number."
  (when-let ((table (message-type-extensions (need-message-type type))))
    (mapcar #'slot-field
            (sort (loop for slot being the hash-values of table collect slot) #'<
                  :key #'slot-number))))

;;; The encoded size of a slot's value, and writing it

(define-hot value-octets ((slot slot) (value t)) index
  "The size of one VALUE of SLOT without its tag."
  (case (slot-kind slot)
    (:message
     (let* ((type (truly-the message-type (slot-type-object slot)))
            (size (truly-the index (funcall (message-type-sizer type) value))))
       (+ size (if (slot-delimited-p slot)
                   (length (the list (tag-octets (tag-of (slot-number slot) 4))))
                   (varint-size size)))))
    (:enum (size-enum (enum-number-of (slot-type-object slot) value)))
    (t (truly-the index (funcall (the function (scalar-sizer (slot-scalar slot))) value)))))

(define-hot put-value ((slot slot) (value t) (octets octets) (at index)) index
  "Write one VALUE of SLOT without its tag."
  (case (slot-kind slot)
    (:message
     (let ((type (truly-the message-type (slot-type-object slot)))
           (grouped (slot-delimited-p slot)))
       (unless grouped (put-varint (message-size value)))
       (setf at (truly-the index (funcall (message-type-writer type) value octets at)))
       (when grouped (put-varint (tag-of (slot-number slot) 4)))
       at))
    (:enum (put-enum (enum-number-of (slot-type-object slot) value) octets at))
    (t (truly-the index (funcall (the function (scalar-putter (slot-scalar slot))) value octets
                           at)))))

(defun packed-octets (slot stored)
  (loop for value across stored sum (value-octets slot value) of-type index))

(defun stored-size (slot stored)
  "The size of everything written for SLOT when its value is STORED."
  (let ((tag (varint-size (slot-tag slot))))
    (cond ((slot-item-p slot)
           (+ 4 (varint-size (slot-number slot)) (value-octets slot stored)))
          ((eq :singular (slot-label slot)) (+ tag (value-octets slot stored)))
          ((zerop (length stored)) 0)
          ((slot-packed-p slot)
           (let ((size (packed-octets slot stored)))
             (+ (varint-size (tag-of (slot-number slot) 2)) size (varint-size size))))
          (t (loop for value across stored sum (+ tag (value-octets slot value)))))))

(defun put-stored (slot stored octets at)
  "Write all values of SLOT. STORED is the stored value of SLOT and was measured just before. Return
the position after the values."
  (declare (type octets octets) (type index at))
  (flet ((put (value) (setf at (put-value slot value octets at))))
    (cond ((slot-item-p slot)
           (put-octet (tag-of 1 3))
           (put-octet (tag-of 2 0))
           (put-varint (slot-number slot))
           (put-octet (tag-of 3 2))
           (put stored)
           (put-octet (tag-of 1 4)))
          ((eq :singular (slot-label slot))
           (put-varint (slot-tag slot))
           (put stored))
          ((zerop (length stored)))
          ((slot-packed-p slot)
           (put-varint (tag-of (slot-number slot) 2))
           (put-varint (packed-octets slot stored))
           (map nil #'put stored))
          (t (loop for value across stored
                   do (put-varint (slot-tag slot))
                      (put value))))
    at))

(defun extra-size (extra)
  "The size of EXTRA, the data of a message in addition to its fields."
  (etypecase extra
    (octets (length extra))
    (extras (let ((size (length (extras-unknown extra))))
              (loop for (slot . stored) in (extras-entries extra)
                    do (incf size (the index (stored-size slot stored))))
              size))))

(defun put-extra (extra octets at)
  "Write EXTRA, the data of a message in addition to its fields, unknown fields last; return the
position after it."
  (declare (type octets octets) (type index at))
  (flet ((put (unknown)
           (if unknown (copy-octets unknown 0 (length unknown) octets at) at)))
    (etypecase extra
      (octets (put extra))
      (extras (loop for (slot . stored) in (extras-entries extra)
                    do (setf at (put-stored slot stored octets at)))
              (put (extras-unknown extra))))))

;;; Reading extensions out of unknown fields, whose form has been checked

(defstruct (finding (:copier nil) (:constructor make-finding (slot)))
  "The values of one slot found among the unknown fields."
  (slot nil :type slot)                 ; the slot
  ;; the slot's values, the latest first; of messages, ranges of octets
  (items '() :type list))

(defconstant +short-packed+ 16
  "The maximum length in octets of a packed field whose elements are read one by one.")

(defun read-packed-elements (slot octets start stop)
  "Return two values: the vector of the packed elements of SLOT from START to STOP, and a list of
the octets of elements that its enum does not know."
  (let ((type (slot-type-object slot)))
    (multiple-value-bind (vector count unknown)
        (if (slot-closed-p slot)
            (read-closed-elements octets start stop (vector) 0 (slot-number slot) type '())
            (funcall (the function (scalar-packed-reader (slot-scalar slot))) octets start stop
                     type))
      (values (fit-vector vector count) unknown))))

(defun read-items (slot tag octets at end)
  "Read a field of SLOT in OCTETS. AT is the position after the field's TAG; END is the end of the
field. Return two lists as values. The first has the items; if a packed field has more than a few
elements, they are a single item, a vector. The second has the octets of those elements that the
enum does not know. Instead of the items, return :misfit if TAG does not fit SLOT, or :unknown if
the field has a single value, which its enum does not know."
  (declare (type octets octets) (type index at end))
  (let ((items '()) (unknown '()) (number (slot-number slot)) (kind (slot-kind slot)))
    (flet ((take (at end)
             (multiple-value-bind (value next)
                 (funcall (scalar-reader (slot-scalar slot)) octets at end)
               (if (and (slot-closed-p slot) (not (enum-known-p (slot-type-object slot) value)))
                   (setf items :unknown)
                   (push value items))
               next)))
      (cond ((and (eq kind :message) (= tag (slot-tag slot)))
             (if (slot-delimited-p slot)
                 (push (cons at (content-end octets at end number)) items)
                 (with-delimited (start stop) (push (cons start stop) items))))
            ((eq kind :message) (setf items :misfit))
            ((= tag (slot-tag slot)) (take at end))
            ((and (= tag (tag-of number 2)) (eq :repeated (slot-label slot)))
             (with-delimited (start stop)
               (if (or (slot-closed-p slot) (< +short-packed+ (- stop start)))
                   (multiple-value-bind (elements more)
                       (read-packed-elements slot octets start stop)
                     (when (plusp (length elements)) (push elements items))
                     (setf unknown more))
                   (loop while (< start stop) do (setf start (take start stop))))))
            (t (setf items :misfit))))
    (values items unknown)))

(defun read-set-item (octets at end)
  "Return two values: the number of the message in the item of a message set from AT to END, and the
message's range. Return nil if the item lacks a number or a message."
  (declare (type octets octets) (type index at end))
  (let ((number nil) (range nil))
    (loop while (< at end)
          do (let ((tag (take-tag)))
               (cond ((and (= tag (tag-of 2 0)) (null number)) (setf number (take-varint32)))
                     ((and (= tag (tag-of 3 2)) (null range))
                      (with-delimited (start stop) (setf range (cons start stop))))
                     (t (setf at (skip-field octets at end tag))))))
    (and range number (values number range))))

(defun find-extensions (octets type)
  "Look for the loaded extensions of TYPE among the fields in OCTETS. Return two lists: the
FINDINGs; and the ranges of octets that belong to none of these extensions, the latest range first."
  (declare (type octets octets))
  (let ((at 0) (end (length octets)) (table (message-type-extensions type))
        (findings '()) (rest '()))
    (declare (type index at end))
    (flet ((note (slot items)
             (let ((finding (or (find slot findings :key #'finding-slot)
                                (first (push (make-finding slot) findings)))))
               (setf (finding-items finding) (append items (finding-items finding))))))
      (loop while (< at end)
            do (let* ((start at)
                      (tag (take-tag))
                      (inside at)
                      (slot (gethash (ash tag -3) table))
                      (items :misfit) (unknown '()))
                 (setf at (skip-field octets at end tag))
                 (cond ((and (message-type-message-set-p type) (= tag (tag-of 1 3)))
                        (multiple-value-bind (number range)
                            (read-set-item octets inside (content-end octets inside at 1))
                          (setf slot (and number (gethash number table)))
                          (when slot (setf items (list range)))))
                       (slot
                        (setf (values items unknown) (read-items slot tag octets inside at))))
                 (cond ((keywordp items) (setf rest (note-range rest start at)))
                       (t (when items (note slot items))
                          (setf rest (append unknown rest)))))))
    (values (nreverse findings) rest)))

(defun join-items (slot stored items)
  "The new value of the repeated SLOT: a vector of the elements of STORED, a vector or nil, followed
by those of ITEMS. An item is a single element (for an enum, its number) or a vector of packed
elements."
  (let* ((kind (slot-kind slot)) (type (slot-type-object slot))
         (packed (not (member kind '(:string :bytes)))) ; elements of these are vectors
         (vector (make-array (loop for item in items
                                   sum (if (and packed (vectorp item)) (length item) 1)
                                     into count
                                   finally (return (+ count (length stored))))
                             :element-type (element-type kind)))
         (at (length stored)))
    (when stored (replace vector stored))
    (dolist (item items vector)
      (cond ((and packed (vectorp item))
             (replace vector item :start1 at)
             (incf at (length item)))
            (t
             (setf (aref vector at) (if (eq kind :enum) (enum-keyword-of type item) item))
             (incf at))))))

(defun finding-value (finding octets stored reading)
  "Return the new stored value of the slot of FINDING; STORED is the former stored value, or nil if
there was none. The second value is nil if reading must be given up and repeated."
  (let* ((slot (finding-slot finding))
         (items (finding-items finding))
         (kind (slot-kind slot))
         (type (slot-type-object slot)))
    (flet ((read-message (pieces)
             (or (read-pieces type octets pieces reading)
                 (return-from finding-value (values nil nil)))))
      (values
       (cond ((eq :repeated (slot-label slot))
              (join-items slot stored (if (eq kind :message)
                                          (mapcar (lambda (range) (read-message (list range)))
                                                  (reverse items))
                                          (reverse items))))
             ((eq kind :message)
              (read-message (if stored (append items (list (message-octets stored))) items)))
             (t (first items)))
       t))))

(defun message-octets (message)
  "The serialized form of MESSAGE, even if some of its required fields are missing."
  (let* ((type (message-type-of message))
         (octets (make-octets (funcall (message-type-sizer type) message))))
    (funcall (message-type-writer type) message octets 0)
    octets))

(defun enter-stored (slot stored entries)
  "Return ENTRIES, in the order of numbers, with STORED as the only entry for SLOT."
  (merge 'list (remove (slot-number slot) entries :key (lambda (entry) (slot-number (car entry))))
         (list (cons slot stored)) #'< :key (lambda (entry) (slot-number (car entry)))))

(defun absorb-extensions (type octets entries epoch reading)
  "Return EXTRAS, extended by ENTRIES and by the extensions of TYPE that are found in OCTETS, which
are unknown fields. Return nil if reading must be given up and repeated."
  (multiple-value-bind (findings rest) (find-extensions octets type)
    (dolist (finding findings)
      (let ((slot (finding-slot finding)))
        (multiple-value-bind (stored done)
            (finding-value finding octets (cdr (assoc slot entries)) reading)
          (unless done (return-from absorb-extensions nil))
          (setf entries (enter-stored slot stored entries)))))
    (make-extras (and rest (gather-ranges octets rest)) entries epoch)))

(defun gather-extra (type octets ranges reading)
  "Return the EXTRA of a message of TYPE that was read from OCTETS; RANGES are the ranges of the
unknown fields, the latest first. Return nil if reading must be given up and repeated."
  (let ((unknown (gather-ranges octets ranges)))
    (if (message-type-extensions type)
        (absorb-extensions type unknown '() **epoch** reading)
        unknown)))

(defun settled-extras (message)
  "Decode the extensions in MESSAGE, which has the current layout, that have been loaded by now.
Return the EXTRAS of MESSAGE, or nil if it has none."
  (let* ((extra (message-extra message))
         (type (message-type-of message))
         (epoch **epoch**)
         (extras (etypecase extra
                   (null nil)
                   (octets (and (message-type-extensions type) (make-extras extra '() -1)))
                   (extras extra))))
    (cond ((null extras) nil)
          ((= epoch (extras-epoch extras)) extras)
          (t (setf (message-extra message) (settle type extras epoch))))))

(defun settle (type extras epoch)
  "EXTRAS of a message of TYPE, updated to the definitions of EPOCH."
  (let* ((table (message-type-extensions type))
         (unknown (or (extras-unknown extras) (make-octets 0)))
         (current (remove-if-not (lambda (entry)
                                   (and table
                                        (eq (car entry) (gethash (slot-number (car entry)) table))))
                                 (extras-entries extras)))
         (stale (set-difference (extras-entries extras) current)))
    (when stale
      (let ((old (make-extras unknown stale 0)))
        (setf unknown (make-octets (extra-size old)))
        (put-extra old unknown 0)))
    (read-twice (reading (length unknown))
      (absorb-extensions type unknown current epoch reading))))

;;; Extensions as slots of a message

(defun extension-entry (message slot)
  (let ((extras (settled-extras message)))
    (and extras (assoc slot (extras-entries extras)))))

(defun stored-extension (message slot)
  "The value that MESSAGE, of the current layout, stores for the extension SLOT."
  (let ((entry (extension-entry message slot)))
    (cond (entry (cdr entry))
          ((eq :repeated (slot-label slot))
           (make-array 0 :element-type (element-type (slot-kind slot))))
          (t (slot-default slot)))))

(defun extension-present-p (message slot)
  (when-let ((entry (extension-entry message slot)))
    (or (eq :singular (slot-label slot)) (plusp (length (cdr entry))))))

(defun drop-extension (message slot)
  (when-let ((extras (settled-extras message)))
    (setf (message-extra message)
          (if-let ((entries (remove slot (extras-entries extras) :key #'car)))
            (make-extras (extras-unknown extras) entries (extras-epoch extras))
            (extras-unknown extras)))))

(defun store-extension (message slot stored)
  "Make STORED the value of the extension SLOT in MESSAGE, which has the current layout."
  (let ((extras (or (settled-extras message) (make-extras (message-extra message) '() **epoch**))))
    (if (and (null stored) (eq :message (slot-kind slot)))
        (drop-extension message slot)
        (setf (message-extra message)
              (make-extras (extras-unknown extras)
                           (enter-stored slot stored (extras-entries extras))
                           (extras-epoch extras))))))

(defun extension-slot-of (message field)
  "The slot of the extension of MESSAGE that FIELD denotes: a number, a full name in brackets or a
field descriptor; nil if MESSAGE has no such extension."
  (let* ((table (message-type-extensions (message-type-of message)))
         (slot (and table
                    (typecase field
                      (integer (gethash field table))
                      (field-descriptor (gethash (field-descriptor-number field) table))
                      (string
                       (let ((last (1- (length field))))
                         (and (plusp last)
                              (char= #\[ (char field 0))
                              (char= #\] (char field last))
                              (extension-slot-named (subseq field 1 last) table))))))))
    (and slot (eq slot (gethash (slot-number slot) table)) slot)))

(defun extension-slot-named (full-name table)
  "The slot of the extension FULL-NAME in the image or, if the image has none, in TABLE, which
belongs to a dynamic type."
  (let ((extension (gethash full-name **extensions**)))
    (flet ((here-p (slot) (and slot (eq slot (gethash (slot-number slot) table)))))
      (if (and extension (here-p (extension-slot extension)))
          (extension-slot extension)
          (loop for slot being the hash-values of table
                when (string= full-name (descriptor-full-name (slot-field slot))) return slot)))))

(defun present-extensions (message)
  "The slots of the extensions that are present in MESSAGE, of the current layout, by number."
  (when-let ((extras (settled-extras message)))
    (loop for (slot) in (extras-entries extras)
          when (extension-present-p message slot) collect slot)))
