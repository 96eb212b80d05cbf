;;;; Messages of types that are known from descriptors alone, such as those of a peer's reflection
;;;; or of a descriptor set on disk. Nothing is interned or compiled for them. A TYPE-POOL has such
;;;; types. A message of one is a DYNAMIC-MESSAGE with a layout like any other: its slots' places
;;;; are elements of a vector, and its reader, sizer and writer are closures over the layout. So all
;;;; code that works on slots and message types (FIELD-VALUE, SERIALIZE, PARSE-MESSAGE, JSON, text,
;;;; copying) serves them unchanged. Values of their enums are strings, the names, or numbers.
;;;;
;;;; The reader gathers the pieces of each field and reads sub-messages once, from all their pieces;
;;;; this is the deferred way of decoder.lisp, so its work is linear in the input.

(in-package #:clgrpc.protobuf)

(defstruct (type-pool (:constructor %make-type-pool ()) (:copier nil))
  "Message and enum types of descriptors that no code was made for, by full name."
  (files '() :type list)                ; the file descriptors
  (messages (make-hash-table :test 'equal) :type hash-table) ; full name to message type
  (enums (make-hash-table :test 'equal) :type hash-table) ; full name to enum type
  (extensions (make-hash-table :test 'equal) :type hash-table)) ; full name to slot

(document-functions
  type-pool-files "The descriptors of the files that POOL was made of.")

(defmethod print-object ((pool type-pool) stream)
  (print-unreadable-object (pool stream :type t)
    (format stream "~D message type~:P" (hash-table-count (type-pool-messages pool)))))

(defun find-pool-type (pool full-name)
  "Return the message type FULL-NAME of POOL, or the one of the image if POOL has none, or nil. It
serves as :FINDER for JSON and text format."
  (or (gethash full-name (type-pool-messages pool))
      (find-message-type full-name)))

(defun pool-type-object (pool slot)
  "The type of the values of SLOT: one of POOL, or of the image."
  (let ((name (slot-type-name slot)))
    (flet ((found (types find)
             (or (gethash name types)
                 (funcall find name)
                 (misuse "The type ~A of ~A is neither in the pool nor loaded." name
                         (descriptor-full-name (slot-field slot))))))
      (case (slot-kind slot)
        (:message (found (type-pool-messages pool) #'find-message-type))
        (:enum (found (type-pool-enums pool) #'find-enum-type))))))

;;; Layouts

(defun settle-types (pool slots)
  (dolist (slot slots)
    (setf (slot-type slot) (pool-type-object pool slot))
    (when (slot-entry-value slot)
      (settle-types pool (list (slot-entry-key slot) (slot-entry-value slot))))))

(defun fresh-contents (plan count)
  "The contents of a fresh message of PLAN with COUNT places."
  (let ((contents (make-array count :initial-element nil)))
    (dolist (slot (plan-slots plan))
      (unless (eq :oneof (slot-presence slot))
        (setf (svref contents (slot-place slot))
              (case (slot-label slot)
                (:singular (slot-default slot))
                (:repeated (make-array 0 :element-type (element-type (slot-kind slot))))))))
    (dolist (oneof (plan-oneofs plan))
      (setf (svref contents (oneof-slot-case oneof)) 0))
    (dolist (bits (plan-bits plan) contents)
      (setf (svref contents bits) 0))))

(defun install-dynamic (pool type)
  "Give the message TYPE of POOL its layout."
  (let* ((count 0)
         (plan (add-fields (make-plan :message (message-type-descriptor type))
                           (lambda (name)
                             (declare (ignore name))
                             (prog1 count (incf count)))))
         (contents (fresh-contents plan count))
         (layout (make-layout :type type :slots (coerce (plan-slots plan) 'simple-vector)))
         (ordered (sort (copy-list (plan-slots plan)) #'< :key #'slot-number)))
    (settle-types pool (plan-slots plan))
    (setf (layout-maker layout) (lambda () (make-dynamic-message layout (copy-seq contents)))
          (layout-reader layout) (dynamic-reader layout)
          (layout-sizer layout) (lambda (message) (dynamic-size message layout ordered))
          (layout-writer layout) (lambda (message octets at)
                                   (write-dynamic message layout ordered octets at))
          (layout-copier layout) (dynamic-copier (layout-slots layout))
          (message-type-reader type) (layout-reader layout)
          (message-type-sizer type) (layout-sizer layout)
          (message-type-writer type) (layout-writer layout)
          (message-type-layout type) layout)))

;;; Reading

(defstruct (gathered (:copier nil) (:constructor make-gathered (slot)))
  "What was found of one slot in the octets."
  (slot nil :type slot)                 ; the slot
  (items '() :type list))               ; as READ-ITEMS gives them; of maps, ranges of entries

(defun dynamic-reader (layout)
  "The function that reads a message of LAYOUT."
  (let ((table (make-hash-table)))
    (loop for slot across (layout-slots layout)
          do (setf (gethash (slot-number slot) table) slot))
    (lambda (octets at end reading)
      (read-dynamic layout table octets at end reading))))

(defun enter-dynamic (layout at reading)
  "A fresh message of LAYOUT, if READING allows another one at AT."
  (when (minusp (decf (reading-depth reading))) (fail-recursion at))
  (when (minusp (decf (reading-allowance reading) (* 8 (+ 8 (length (layout-slots layout))))))
    (fail-allowance at))
  (funcall (the function (layout-maker layout))))

(defun read-dynamic (layout table octets at end reading)
  "Read a message of LAYOUT, TABLE of whose slots goes by number; nil to give up and read again."
  (declare (type octets octets) (type index at end))
  (let* ((message (enter-dynamic layout at reading))
         (found (make-hash-table :test 'eq)) ; slot to GATHERED, oneof to its last slot
         (order '()) (ranges '()))
    (flet ((gather (slot items)
             (let ((oneof (slot-oneof slot)))
               (when oneof
                 (let ((other (gethash oneof found)))
                   (when (and other (not (eq other slot)))
                     (setf (gathered-items (gethash other found)) '())))
                 (setf (gethash oneof found) slot)))
             (let ((gathered (or (gethash slot found)
                                 (first (push (setf (gethash slot found) (make-gathered slot))
                                              order)))))
               (setf (gathered-items gathered) (append items (gathered-items gathered))))))
      (loop while (< at end)
            do (let* ((start at) (tag (take-tag)) (inside at) (slot (gethash (ash tag -3) table)))
                 (setf at (skip-field octets at end tag))
                 (multiple-value-bind (items unknown)
                     (dynamic-items slot tag octets start inside at)
                   (cond ((or (eq items :misfit)
                              (and unknown (eq :singular (slot-label slot)))) ; kept as it came
                          (setf ranges (note-range ranges start at)))
                         (t (when items (gather slot items))
                            (setf ranges (append unknown ranges))))))))
    (dolist (gathered order)
      (let ((unknown (or (fill-dynamic message gathered octets reading)
                         (return-from read-dynamic nil))))
        (when (consp unknown) (setf ranges (append unknown ranges)))))
    (when ranges
      (setf (message-extra message)
            (or (gather-extra (layout-type layout) octets ranges reading)
                (return-from read-dynamic nil))))
    (incf (reading-depth reading))
    message))

(defun dynamic-items (slot tag octets start at end)
  "As READ-ITEMS, for any SLOT, or nil for none, whose field begins at START: of maps, START and the
range of the entry."
  (declare (type octets octets) (type index at end))
  (cond ((null slot) :misfit)
        ((not (eq :map (slot-label slot))) (read-items slot tag octets at end))
        ((= tag (tag-of (slot-number slot) 2))
         (with-delimited (inside stop) (list (list* start inside stop))))
        (t :misfit)))

(defun fill-dynamic (message gathered octets reading)
  "Give MESSAGE what was GATHERED. Return true, or ranges that are unknown after all, or nil to give
up and read again."
  (let ((slot (gathered-slot gathered)) (items (gathered-items gathered)))
    (cond ((null items) t)
          ((eq :map (slot-label slot)) (fill-dynamic-map message slot items octets reading))
          (t
           (let ((finding (make-finding slot)))
             (setf (finding-items finding) items)
             (multiple-value-bind (stored done) (finding-value finding octets nil reading)
               (when done
                 (set-slot message slot stored)
                 t)))))))

(defun fill-dynamic-map (message slot ranges octets reading)
  "Put the entries that stand in RANGES, as of DYNAMIC-ITEMS, the latest first, into the map SLOT of
MESSAGE. Values as FILL-DYNAMIC's."
  (let ((map (slot-fresh-map slot)) (unknown '()))
    (loop for (start inside . stop) in (reverse ranges)
          do (multiple-value-bind (key value known)
                 (read-dynamic-entry slot octets inside stop reading)
               (cond ((eq known :again) (return-from fill-dynamic-map nil))
                     (known (map-put map key value))
                     (t (push (cons start stop) unknown)))))
    (set-slot message slot map)
    (or unknown t)))

(defun read-dynamic-entry (slot octets at end reading)
  "The key and value of the entry of SLOT from AT to END as its map holds them, and true; nil if its
enum does not know the value, :again to give up and read again."
  (declare (type octets octets) (type index at end))
  (let* ((key-slot (slot-entry-key slot)) (value-slot (slot-entry-value slot))
         (key (slot-default key-slot)) (values '()) (known t))
    (loop while (< at end)
          do (let* ((tag (take-tag)) (inside at) (number (ash tag -3)))
               (setf at (skip-field octets at end tag))
               (when (<= 1 number 2)
                 (multiple-value-bind (items unknown)
                     (read-items (if (= number 1) key-slot value-slot) tag octets inside at)
                   (cond ((eq items :misfit))
                         ((= number 1) (setf key (first items)))
                         (t (setf values (append items values)
                                  known (null unknown))))))))
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
  "The functions of VERBS for the key or value SLOT of a map; nil for messages."
  (loop for verb in verbs
        collect (if (eq :message (slot-kind slot))
                    nil
                    (fdefinition (slot-function verb slot)))))

(defun dynamic-field-size (slot stored)
  (if (eq :map (slot-label slot))
      (let ((key (slot-entry-key slot)) (value (slot-entry-value slot)))
        (size-map stored (varint-size (tag-of (slot-number slot) 2))
                  (first (map-coders key '("SIZE"))) (first (map-coders value '("SIZE")))
                  (slot-type-object value)))
      (stored-size slot stored)))

(defun write-dynamic-field (slot stored octets at)
  (if (eq :map (slot-label slot))
      (let ((key (slot-entry-key slot)) (value (slot-entry-value slot)))
        (destructuring-bind (key-size key-put) (map-coders key '("SIZE" "PUT"))
          (destructuring-bind (value-size value-put) (map-coders value '("SIZE" "PUT"))
            (put-map stored octets at (tag-of (slot-number slot) 2) (slot-tag key) key-size key-put
                     (slot-tag value) value-size value-put (slot-type-object value)))))
      (put-stored slot stored octets at)))

(defun need-dynamic (message layout)
  (unless (and (dynamic-message-p message) (eq layout (dynamic-layout message)))
    (error 'type-error :datum message
                       :expected-type `(message ,(message-type-name (layout-type layout))))))

(defun dynamic-size (message layout slots)
  "The size of MESSAGE, of LAYOUT with SLOTS by number; kept in MESSAGE as well."
  (need-dynamic message layout)
  (let ((size (if (message-extra message) (extra-size (message-extra message)) 0)))
    (dolist (slot slots)
      (when (slot-present-p message slot)
        (incf size (dynamic-field-size slot (present-stored message slot)))))
    (setf (message-size message) size)))

(defun write-dynamic (message layout slots octets at)
  "Write MESSAGE, of LAYOUT with SLOTS by number; return the position after it."
  (need-dynamic message layout)
  (dolist (slot slots)
    (when (slot-present-p message slot)
      (setf at (write-dynamic-field slot (present-stored message slot) octets at))))
  (if (message-extra message) (put-extra (message-extra message) octets at) at))

;;; Pools

(defun add-pool-extension (pool field)
  "Make the extension FIELD one of the type of POOL that it extends, if there is such a type."
  (let ((type (gethash (field-descriptor-extendee field) (type-pool-messages pool))))
    (when type
      (let ((slot (extension-field-slot field)))
        (settle-types pool (list slot))
        (setf (slot-item-p slot) (message-type-message-set-p type))
        (setf (gethash (slot-number slot)
                       (or (message-type-extensions type)
                           (setf (message-type-extensions type) (make-hash-table))))
              slot)
        (setf (gethash (descriptor-full-name field) (type-pool-extensions pool)) slot)))))

(defun make-type-pool (source)
  "Return a pool of dynamic types: for each message and enum that SOURCE declares, which is a list
of file descriptors or octets, a serialized google.protobuf.FileDescriptorSet. What it imports and
does not hold must be loaded. Nothing is interned or compiled, and the types of the image stay what
they are; FIND-POOL-TYPE finds those of the pool, and MAKE-MESSAGE, PARSE-MESSAGE,
PARSE-JSON-MESSAGE and PARSE-TEXT-MESSAGE take them. Values of enums of the pool are strings, such
as \"STATUS_OK\", or numbers. Signal PROTOBUF-ERROR if octets are no such set, PROTO-SYNTAX-ERROR if
the files do not fit together, MISUSE if a type is missing."
  (let ((pool (%make-type-pool))
        (files (if (typep source 'octets) (link-set (set-files source)) source)))
    (setf (type-pool-files pool) files)
    (dolist (file files)
      (map-messages (lambda (message)
                      (let ((type (fresh-message-type (descriptor-full-name message))))
                        (setf (message-type-descriptor type) message
                              (message-type-message-set-p type)
                              (message-descriptor-message-set-p message)
                              (gethash (message-type-name type) (type-pool-messages pool)) type)))
                    file)
      (map-enums (lambda (enum)
                   (let ((name (descriptor-full-name enum)))
                     (setf (gethash name (type-pool-enums pool))
                           (fill-enum (%make-enum-type name) enum #'identity 'equal))))
                 file))
    (loop for type being the hash-values of (type-pool-messages pool)
          do (install-dynamic pool type))
    (dolist (file files pool)
      (map-extensions (lambda (field) (add-pool-extension pool field)) file))))
