;;;; Messages seen through their layout: reading and setting any field by number, and messages of
;;;; layouts that were redefined. Slower than the accessors (SLOT-VALUE per field), and right for
;;;; every message.
;;;;
;;;; A message made before its type was redefined keeps its structure. When current code meets such
;;;; an old message, CURRENT-MESSAGE makes a message of the current layout from it: fields that did
;;;; not change are moved as they are; the others and the unknown ones are serialized and parsed.
;;;; The old message gets the new one in its EXTRA word: it becomes a forwarder and remains the same
;;;; object, also for setters. So accessors compiled before, messages made before, and coders of
;;;; both work together safely.

(in-package #:clgrpc.protobuf)

;;; The content of a slot: in a structure the slot of that name, in a dynamic message the element

(declaim (inline slot-content (setf slot-content)))
(defun slot-content (message place)
  (if (symbolp place)
      (place-value message place)
      (svref (dynamic-contents message) place)))

(defun (setf slot-content) (value message place)
  (if (symbolp place)
      (setf (place-value message place) value)
      (setf (svref (dynamic-contents message) place) value)))

(defun stored (message slot)
  (if (eq :extension (slot-presence slot))
      (stored-extension message slot)
      (slot-content message (slot-place slot))))

(defun find-slot (layout number)
  (or (find number (layout-slots layout) :key #'slot-number)
      (misuse "~A has no field ~D." (message-type-name (layout-type layout)) number)))

(defun oneof-case-of (message oneof)
  (slot-content message (oneof-slot-case oneof)))

(defun slot-present-p (message slot)
  "True if the field of SLOT is present in MESSAGE: not zero, not empty, or set."
  (ecase (slot-presence slot)
    (:implicit (not (zero-value-p (stored message slot))))
    (:bit (logtest (ash 1 (slot-bit slot)) (slot-content message (slot-bits slot))))
    (:value (and (stored message slot) t))
    (:oneof (= (slot-number slot) (oneof-case-of message (slot-oneof slot))))
    (:extension (extension-present-p message slot))
    (:elements (let ((stored (stored message slot)))
                 (if (eq :map (slot-label slot))
                     (and stored (plusp (map-count stored)))
                     (plusp (length stored)))))))

(defun present-stored (message slot)
  "Return the stored value of the field of SLOT, which must be present in MESSAGE. For a singular
enum the value is the number."
  (if (eq :oneof (slot-presence slot))
      (slot-content message (oneof-slot-value (slot-oneof slot)))
      (stored message slot)))

(defun zero-value-p (value)
  (etypecase value
    (null t)
    (integer (zerop value))
    (single-float (zerop (single-bits value)))
    (double-float (zerop (double-bits value)))
    (vector (zerop (length value)))
    (t nil)))

(defun slot-user-value (message slot)
  "The value that the accessor of SLOT returns for MESSAGE."
  (flet ((user (stored)
           (if (eq :enum (slot-kind slot))
               (enum-keyword-of (slot-type-object slot) stored)
               stored)))
    (ecase (slot-label slot)
      (:repeated (stored message slot))
      (:map (or (stored message slot)
                (setf (slot-content message (slot-place slot)) (slot-fresh-map slot))))
      (:singular
       (cond ((not (eq :oneof (slot-presence slot))) (user (stored message slot)))
             ((slot-present-p message slot)
              (user (slot-content message (oneof-slot-value (slot-oneof slot)))))
             (t (and (slot-default slot) (user (slot-default slot)))))))))

(defun slot-fresh-map (slot)
  (make-proto-map (slot-kind (slot-entry-key slot)) (slot-kind (slot-entry-value slot))
                  (slot-type-object (slot-entry-value slot))))

(defun to-stored (slot value)
  "The value that SLOT stores when the user gives VALUE."
  (let ((kind (slot-kind slot)) (type (slot-type-object slot))
        (field (descriptor-full-name (slot-field slot))))
    (ecase (slot-label slot)
      (:repeated (to-vector kind value type field))
      (:map (to-map (slot-kind (slot-entry-key slot)) (slot-kind (slot-entry-value slot))
                    (slot-type-object (slot-entry-value slot)) value field))
      (:singular (case kind
                   (:enum (enum-number-of type value))
                   (:message (and value (naming-field (field) (to-kind kind value type))))
                   (t (naming-field (field) (to-kind kind value type))))))))

(defun set-slot (message slot stored)
  "Make STORED the value of SLOT of MESSAGE, and the field present."
  (case (slot-presence slot)
    (:oneof (let ((oneof (slot-oneof slot)))
              (setf (slot-content message (oneof-slot-case oneof)) 0 ; as in accessor.lisp
                    (slot-content message (oneof-slot-value oneof)) stored
                    (slot-content message (oneof-slot-case oneof))
                    (if (or stored (not (eq :message (slot-kind slot)))) (slot-number slot) 0))))
    (:extension (store-extension message slot stored))
    (t (setf (slot-content message (slot-place slot)) stored)
       (when (eq :bit (slot-presence slot))
         (setf (slot-content message (slot-bits slot))
               (logior (ash 1 (slot-bit slot)) (slot-content message (slot-bits slot))))))))

(defun clear-oneof (message oneof)
  (setf (slot-content message (oneof-slot-case oneof)) 0
        (slot-content message (oneof-slot-value oneof)) nil))

(defun clear-slot (message slot)
  (ecase (slot-presence slot)
    (:oneof (when (slot-present-p message slot) (clear-oneof message (slot-oneof slot))))
    (:extension (drop-extension message slot))
    (:elements (setf (slot-content message (slot-place slot))
                     (if (eq :map (slot-label slot))
                         nil
                         (make-array 0 :element-type (element-type (slot-kind slot))))))
    ((:value :implicit) (setf (slot-content message (slot-place slot)) (slot-default slot)))
    (:bit (setf (slot-content message (slot-place slot)) (slot-default slot)
                (slot-content message (slot-bits slot))
                (logandc2 (slot-content message (slot-bits slot)) (ash 1 (slot-bit slot)))))))

(defun present-slots (message)
  "Return the slots of the fields and extensions that are present in MESSAGE, in the order of their
numbers. MESSAGE must have the current layout."
  (let ((fields (loop for slot across (layout-slots (message-layout message))
                      when (slot-present-p message slot) collect slot)))
    (merge 'list (sort fields #'< :key #'slot-number) (present-extensions message)
           #'< :key #'slot-number)))

(defun slot-path (slot)
  (let ((field (slot-field slot)))
    (if (field-descriptor-extendee field)
        (format nil "[~A]" (descriptor-full-name field))
        (descriptor-name field))))

;;; Messages of other layouts

(defun current-message (message symbol)
  "Return the message of the current layout for MESSAGE, which has the public type SYMBOL: MESSAGE
itself, or the message to which it forwards."
  (unless (typep message symbol)
    (error 'type-error :datum message :expected-type symbol))
  (latest-message message))

(defun latest-message (message)
  "Return the message of the current layout for MESSAGE: MESSAGE itself, or the message to which it
forwards."
  (loop
    (let* ((layout (message-layout message))
           (current (message-type-layout (layout-type layout)))
           (extra (message-extra message)))
      ;; a forwarder may have the current layout, when a definition that was replaced has come back
      (cond ((message-p extra) (setf message extra))
            ;; loading a file again makes other layouts of the same structures
            ((eq (layout-structure layout) (layout-structure current)) (return message))
            (t (sb-ext:compare-and-swap (message-extra message) extra
                                        (convert-message message layout current)))))))

(defun same-holding-p (a b)
  "True if the slots A and B of two layouts store the same values for the same field."
  (flet ((facts (slot)
           (and slot
                (list (slot-number slot) (slot-kind slot) (slot-label slot) (slot-presence slot)
                      (slot-type-name slot) (slot-closed-p slot)))))
    (and (not (eq :oneof (slot-presence a)))
         (equal (facts a) (facts b))
         (equal (facts (slot-entry-key a)) (facts (slot-entry-key b)))
         (equal (facts (slot-entry-value a)) (facts (slot-entry-value b))))))

(defun convert-message (message from to)
  "Return a message of the layout TO with the contents of MESSAGE, of the layout FROM."
  (let* ((shared (loop for slot across (layout-slots from)
                       for other = (find (slot-number slot) (layout-slots to) :key #'slot-number)
                       when (and other (same-holding-p slot other) (slot-present-p message slot))
                         collect (cons slot other)))
         (rest (copy-structure message))
         (extra (message-extra message)))
    (loop for (slot) in shared do (clear-slot rest slot))
    (when (extras-p extra) (setf (message-extra rest) (extras-unknown extra)))
    (let* ((size (funcall (layout-sizer from) rest))
           (octets (make-octets size)))
      (funcall (layout-writer from) rest octets 0)
      (let ((new (read-with (layout-reader to) octets)))
        (loop for (slot . other) in shared do (set-slot new other (stored message slot)))
        (when (extras-p extra)
          (loop for (slot . stored) in (extras-entries extra) do (store-extension new slot stored)))
        new))))

(defun read-with (reader octets)
  "Return the message that READER makes from all of OCTETS."
  (read-twice (reading (length octets))
    (funcall reader octets 0 (length octets) reading)))

(defun current-and-slot (message symbol number)
  (let ((current (current-message message symbol)))
    (values current (find-slot (message-layout current) number))))

(defun read-other (message symbol number)
  "The value that the accessor of field NUMBER returns for MESSAGE, whose layout the accessor does
not know."
  (multiple-value-call #'slot-user-value (current-and-slot message symbol number)))

(defun write-other (value message symbol number)
  (multiple-value-bind (message slot) (current-and-slot message symbol number)
    (set-slot message slot (to-stored slot value))))

(defun present-other-p (message symbol number)
  (multiple-value-call #'slot-present-p (current-and-slot message symbol number)))

(defun clear-other (message symbol number)
  (multiple-value-call #'clear-slot (current-and-slot message symbol number)))

(defun oneof-other (message symbol name)
  "Return two values: the message of the current layout for MESSAGE, and its oneof NAME."
  (let* ((current (current-message message symbol))
         (slot (find-if (lambda (slot)
                          (and (slot-oneof slot)
                               (string= name (oneof-slot-name (slot-oneof slot)))))
                        (layout-slots (message-layout current)))))
    (values current (if slot (slot-oneof slot) (misuse "~S has no oneof ~A." symbol name)))))

(defun case-other (message symbol name)
  (multiple-value-bind (message oneof) (oneof-other message symbol name)
    (let ((slot (find (oneof-case-of message oneof) (oneof-slot-slots oneof) :key #'slot-number)))
      (and slot (slot-keyword slot)))))

(defun clear-oneof-other (message symbol name)
  (multiple-value-call #'clear-oneof (oneof-other message symbol name)))

(defun size-other (message full-name)
  "Return the size of MESSAGE, whose layout the sizer of FULL-NAME does not know. The size is also
stored in MESSAGE."
  (let ((current (current-message message (message-type-symbol (intern-message-type full-name)))))
    (setf (message-size message)
          (funcall (layout-sizer (message-layout current)) current))))

(defun write-message-other (message octets at full-name)
  "Write MESSAGE, whose layout the writer of FULL-NAME does not know, as it was measured. A message
that is not a forwarder was measured by its own layout, even if the type has another layout now."
  (let ((measured message))
    (loop while (message-p (message-extra measured))
          do (setf measured (message-extra measured)))
    (unless (typep measured (message-type-symbol (intern-message-type full-name)))
      (error 'type-error :datum measured
                         :expected-type (message-type-symbol (intern-message-type full-name))))
    (let ((layout (message-layout measured)))
      (unless (or (eq measured message) ; or perhaps converted since
                  (= (message-size message) (funcall (layout-sizer layout) measured)))
        (fail-room))
      (funcall (layout-writer layout) measured octets at))))

;;; For users

(defun current (message)
  (cond ((dynamic-message-p message) message)
        ((message-p message) (latest-message message))
        (t (error 'type-error :datum message :expected-type 'message))))

(defun need-slot (message field)
  "Return the slot of MESSAGE that FIELD denotes, in one of the forms that FIELD-VALUE accepts."
  (let ((slots (layout-slots (message-layout message))))
    (or (etypecase field
          (integer (find field slots :key #'slot-number))
          (string (find field slots :key (lambda (slot) (descriptor-name (slot-field slot)))
                                    :test #'string=))
          (symbol (find field slots :key #'slot-name :test #'string=))
          (field-descriptor (and (not (field-descriptor-extendee field))
                                 (find (field-descriptor-number field) slots :key #'slot-number))))
        (extension-slot-of message field)
        (misuse "~A has no field ~S." (message-type-name (message-type-of message)) field))))

(defun field-value (message field)
  "Return the value of FIELD of MESSAGE as its accessor does. FIELD is a number, a name as in the
.proto file, a keyword such as :page-size, a field descriptor, or, for an extension, its full name
in brackets: \"[my.package.my_extension]\". SETF sets the value. Signal MISUSE if MESSAGE has no
such field. Reading is possible from any thread while no other thread changes MESSAGE; writing from
one thread at a time."
  (let ((message (current message)))
    (slot-user-value message (need-slot message field))))

(defun (setf field-value) (value message field)
  (let* ((message (current message))
         (slot (need-slot message field)))
    (set-slot message slot (to-stored slot value))
    value))

(defun field-present-p (message field)
  "Return true if FIELD of MESSAGE is present. A field without explicit presence is present if it is
not zero or empty. FIELD is as for FIELD-VALUE; signal MISUSE if MESSAGE has no such field. From any
thread, while no other thread changes MESSAGE."
  (let ((message (current message)))
    (slot-present-p message (need-slot message field))))

(defun clear-field (message field)
  "Make FIELD of MESSAGE absent; return MESSAGE. FIELD is as for FIELD-VALUE; signal MISUSE if
MESSAGE has no such field. Only one thread at a time may change MESSAGE."
  (let ((current (current message)))
    (clear-slot current (need-slot current field))
    message))

(defun unknown-fields (message)
  "Return the octets of the unknown fields of MESSAGE, which were read into it although its type
does not have them, or nil if it has none. The octets are those that were received. They are written
unchanged when MESSAGE is serialized. Loaded extensions are not among the unknown fields. Do not
change the returned octets. From any thread, while no other thread changes MESSAGE."
  (let* ((message (current message)) (extras (settled-extras message)))
    (if extras (extras-unknown extras) (message-extra message))))

;;; Walking and building messages of any type

(defun present-fields (message)
  "Return the descriptors of the fields and extensions that are present in MESSAGE, by number. From
any thread, while no other thread changes MESSAGE."
  (mapcar #'slot-field (present-slots (current message))))

(defmacro do-fields (((field value) message &optional result) &body body)
  "Run BODY with FIELD bound to the descriptor and VALUE to the value, as FIELD-VALUE returns it, of
each field and extension that is present in MESSAGE, in the order of numbers; return RESULT. BODY
may change MESSAGE; it is run for the fields that were present at first. From any thread, while no
other thread changes MESSAGE."
  (let ((object (gensym "MESSAGE")) (slot (gensym "SLOT")))
    `(let ((,object (current ,message)))
       (dolist (,slot (present-slots ,object) ,result)
         (let ((,field (slot-field ,slot))
               (,value (slot-user-value ,object ,slot)))
           (declare (ignorable ,field ,value))
           ,@body)))))

(defun ensure-field (message field)
  "Return the sub-message in FIELD of MESSAGE; put a fresh one there first if it is absent. FIELD is
as for FIELD-VALUE; signal MISUSE if it is not a singular message. Only one thread at a time may
change MESSAGE."
  (let* ((message (current message)) (slot (need-slot message field)))
    (unless (and (eq :message (slot-kind slot)) (eq :singular (slot-label slot)))
      (misuse "~A is not a singular message." (descriptor-full-name (slot-field slot))))
    (unless (slot-present-p message slot)
      (set-slot message slot (make-message (slot-type-object slot))))
    (slot-user-value message slot)))

(defun append-to-field (message field values)
  "Add VALUES, a sequence, to the end of the repeated FIELD of MESSAGE, and return MESSAGE. FIELD is
as for FIELD-VALUE. Each call copies the present values, so add many values with one call. Signal
MISUSE if MESSAGE has no such field or the field is not repeated. Only one thread at a time may
change MESSAGE."
  (let* ((current (current message)) (slot (need-slot current field)))
    (unless (eq :repeated (slot-label slot))
      (misuse "~A is not repeated." (descriptor-full-name (slot-field slot))))
    (set-slot current slot (concatenate `(simple-array ,(element-type (slot-kind slot)) (*))
                                        (stored current slot) (to-stored slot values)))
    message))

(defun oneof-field (message oneof)
  "Return the descriptor of the field that is present in a oneof of MESSAGE. ONEOF is the oneof's
name as in the .proto file. Return nil if no field of the oneof is present, or if MESSAGE has no
oneof of this name. From any thread, while no other thread changes MESSAGE."
  (let ((current (current message)))
    (loop for slot across (layout-slots (message-layout current))
          when (and (slot-oneof slot)
                    (equal oneof (field-descriptor-oneof (slot-field slot)))
                    (slot-present-p current slot))
            return (slot-field slot))))
