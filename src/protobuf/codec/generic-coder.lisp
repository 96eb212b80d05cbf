;;;; Coders that serve any layout: a reader, a sizer and a writer that read its slots at run time.
;;;; Dynamic messages have such coders, and so have types of files that are compiled for little code
;;;; (DEFINE-PROTO's :OPTIMIZE-FOR), whose own coders would take most of the compile time.
;;;;
;;;; The reader gathers the pieces of each field and reads sub-messages once, from all their pieces;
;;;; this is the deferred way of decoder.lisp, so its work is linear in the input.

(in-package #:clgrpc.protobuf)

;;; Reading

(defstruct (gathered (:constructor make-gathered (slot)))
  "The values of one slot that were found in the octets."
  (slot nil :type slot)                 ; the slot
  (items '() :type list))               ; values of READ-ITEMS; for a map, ranges of entries

(defun message-octets-of (layout)
  "Return the memory in octets that a reader charges for a message of LAYOUT. If LAYOUT has a
structure, a compiled reader charges as much."
  (if (layout-structure layout)
      (instance-octets (layout-structure layout))
      (* 8 (+ 8 (length (layout-slots layout))))))

(defun enter-message (layout memory at reading)
  "A fresh message of LAYOUT, which takes MEMORY, if READING allows another message at AT."
  (when (minusp (decf (reading-depth reading))) (fail-recursion at))
  (when (minusp (decf (reading-allowance reading) memory)) (fail-allowance at))
  (funcall (the function (layout-maker layout))))

(defun read-generic (layout table memory octets at end reading)
  "Read a message of LAYOUT; TABLE has the places of its slots by number. Return nil to give up and
read again. Only the message's own MEMORY is charged to READING."
  (declare (type octets octets) (type index at end))
  (let* ((message (enter-message layout memory at reading))
         (slots (layout-slots layout))
         (found nil)                    ; the GATHERED of each slot that has occurred
         (latest nil)                   ; a table from oneofs to their last GATHERED, or nil
         (order '()) (ranges '()))
    (flet ((gather (place items)
             (unless found (setf found (make-array (length slots) :initial-element nil)))
             (let* ((slot (svref slots place)) (oneof (slot-oneof slot))
                    (gathered (or (svref found place)
                                  (first (push (setf (svref found place) (make-gathered slot))
                                               order)))))
               (when oneof
                 (unless latest (setf latest (make-hash-table :test 'eq)))
                 (let ((other (gethash oneof latest)))
                   (when (and other (not (eq other gathered)))
                     (when (eq :message (slot-kind (gathered-slot other))) ; it must be valid
                       (or (read-pieces (slot-type-object (gathered-slot other)) octets
                                        (gathered-items other) reading)
                           (return-from read-generic nil)))
                     (setf (gathered-items other) '())))
                 (setf (gethash oneof latest) gathered))
               (setf (gathered-items gathered) (nconc items (gathered-items gathered))))))
      (loop while (< at end)
            do (let* ((start at) (tag (take-tag)) (inside at)
                   (place (gethash (ash tag -3) table))
                   (slot (and place (svref slots place))))
                 (setf at (skip-field octets at end tag))
                 (multiple-value-bind (items unknown)
                     (field-items slot tag octets start inside at)
                   (cond ((keywordp items) (setf ranges (note-range ranges start at)))
                         (t (when items (gather place items))
                            (setf ranges (append unknown ranges))))))))
    (dolist (gathered order)
      (let ((unknown (or (fill-field message gathered octets reading)
                         (return-from read-generic nil))))
        (when (consp unknown) (setf ranges (append unknown ranges)))))
    (when ranges
      (setf (message-extra message)
            (or (gather-extra (layout-type layout) octets ranges reading)
                (return-from read-generic nil))))
    (incf (reading-depth reading))
    message))

(defun field-items (slot tag octets start at end)
  "Return what READ-ITEMS returns for the field that begins at START. SLOT is nil if the field has
no slot. For a map, return START and the range of the entry."
  (declare (type octets octets) (type index at end))
  (cond ((null slot) :misfit)
        ((not (eq :map (slot-label slot))) (read-items slot tag octets at end))
        ((= tag (tag-of (slot-number slot) 2))
         (with-delimited (inside stop) (list (list* start inside stop))))
        (t :misfit)))

(defun fill-field (message gathered octets reading)
  "Set a field of MESSAGE to the values in GATHERED. Return true, or the ranges of fields that turn
out to be unknown, or nil if reading must be given up and repeated."
  (let ((slot (gathered-slot gathered)) (items (gathered-items gathered)))
    (cond ((null items) t)
          ((eq :map (slot-label slot)) (fill-map message slot items octets reading))
          (t
           (let ((finding (make-finding slot)))
             (setf (finding-items finding) items)
             (multiple-value-bind (stored done) (finding-value finding octets nil reading)
               (when done
                 (set-slot message slot stored)
                 t)))))))

(defun fill-map (message slot ranges octets reading)
  "Put the entries in RANGES, in the form that FIELD-ITEMS returns, the latest first, into the map
SLOT of MESSAGE. Return what FILL-FIELD returns."
  (let ((map (slot-fresh-map slot)) (unknown '()))
    (loop for (start inside . stop) in (reverse ranges)
          do (multiple-value-bind (key value known)
                 (read-generic-entry slot octets inside stop reading)
               (cond ((eq known :again) (return-from fill-map nil))
                     (known (map-put map key value))
                     (t (push (cons start stop) unknown)))))
    (set-slot message slot map)
    (or unknown t)))

(defun read-generic-entry (slot octets at end reading)
  "Return three values: the key and the value of the entry of SLOT from AT to END, as the map holds
them, and true. Otherwise nil if the value's enum does not know the value, or :again if reading must
be given up and repeated."
  (declare (type octets octets) (type index at end))
  (let* ((key-slot (slot-entry-key slot)) (value-slot (slot-entry-value slot))
         (key (slot-default key-slot)) (values '()) (known t))
    (loop while (< at end)
          do (let* ((tag (take-tag)) (inside at) (number (ash tag -3)))
               (setf at (skip-field octets at end tag))
               (when (<= 1 number 2)
                 (let ((items (read-items (if (= number 1) key-slot value-slot)
                                          tag octets inside at)))
                   (case items
                     (:misfit)
                     (:unknown (setf known nil))
                     (t (if (= number 1)
                            (setf key (first items))
                            (setf values (append items values)
                                  known t))))))))
    (let ((type (slot-type-object value-slot)))
      (case (slot-kind value-slot)
        (:message
         (let ((value (read-pieces type octets (or values (list (cons end end))) reading)))
           (values key value (if value t :again))))
        (:enum (values key (enum-keyword-of type (if values (first values)
                                                     (slot-default value-slot)))
                       known))
        (t (values key (if values (first values) (slot-default value-slot)) t))))))

;;; Writing

(defun map-coders (slot verbs)
  "Return the functions that perform VERBS on the key or value SLOT of a map, or nil if SLOT has
messages."
  (loop for verb in verbs
        collect (if (eq :message (slot-kind slot))
                    nil
                    (fdefinition (slot-function verb slot)))))

(defun stored-field-size (slot stored)
  (if (eq :map (slot-label slot))
      (let ((key (slot-entry-key slot)) (value (slot-entry-value slot)))
        (size-map stored (varint-size (tag-of (slot-number slot) 2))
                  (first (map-coders key '("SIZE"))) (first (map-coders value '("SIZE")))
                  (slot-type-object value)))
      (stored-size slot stored)))

(defun write-stored-field (slot stored octets at)
  (if (eq :map (slot-label slot))
      (let ((key (slot-entry-key slot)) (value (slot-entry-value slot)))
        (destructuring-bind (key-size key-put) (map-coders key '("SIZE" "PUT"))
          (destructuring-bind (value-size value-put) (map-coders value '("SIZE" "PUT"))
            (put-map stored octets at (tag-of (slot-number slot) 2) (slot-tag key) key-size key-put
                     (slot-tag value) value-size value-put (slot-type-object value)))))
      (put-stored slot stored octets at)))

(defun generic-size (message slots)
  "The size of MESSAGE, whose SLOTS are in the order of their numbers. Store the size in MESSAGE as
well."
  (let* ((extra (message-extra message)) (size (if extra (extra-size extra) 0)))
    (dolist (slot slots)
      (when (slot-present-p message slot)
        (incf size (stored-field-size slot (present-stored message slot)))))
    (setf (message-size message) size)))

(defun write-generic (message slots octets at)
  "Write MESSAGE, whose SLOTS are in the order of their numbers, to OCTETS, beginning at AT. Return
the position after it."
  (dolist (slot slots)
    (when (slot-present-p message slot)
      (setf at (write-stored-field slot (present-stored message slot) octets at))))
  (if (message-extra message) (put-extra (message-extra message) octets at) at))

;;; For layouts

(defun of-layout-p (message layout)
  "True if MESSAGE, of LAYOUT's type, has LAYOUT and is not a forwarder."
  (unless (and (message-p message) (eq (layout-type layout) (message-type-of message)))
    (error 'type-error :datum message
                       :expected-type `(message ,(message-type-name (layout-type layout)))))
  (and (eq layout (message-layout message)) (not (message-p (message-extra message)))))

(defun add-generic-coders (layout)
  "Add a reader, a sizer and a writer to LAYOUT, which already has a type, slots and a maker."
  (let* ((slots (layout-slots layout)) (name (message-type-name (layout-type layout)))
         (ordered (sort (coerce slots 'list) #'< :key #'slot-number))
         (memory (message-octets-of layout))
         (table (make-hash-table)))
    (loop for slot across slots
          for place from 0
          do (setf (gethash (slot-number slot) table) place))
    (setf (layout-reader layout)
          (lambda (octets at end reading)
            (read-generic layout table memory octets at end reading))
          (layout-sizer layout)
          (lambda (message)
            (if (of-layout-p message layout)
                (generic-size message ordered)
                (size-other message name)))
          (layout-writer layout)
          (lambda (message octets at)
            (if (of-layout-p message layout)
                (write-generic message ordered octets at)
                (write-message-other message octets at name))))))
