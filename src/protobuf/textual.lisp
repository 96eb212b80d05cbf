;;;; What the JSON mapping and the text format share: views of a layout by name and in order of
;;;; numbers, names of enum values, failures with line, column and the path of fields, exact
;;;; integers, and the types that an Any may name.
;;;;
;;;; Both readers work on octets and stand on slots (plan.lisp) through reflection.lisp alone, so
;;;; they serve every message that has slots, dynamic ones among them.

(in-package #:clgrpc.protobuf)

;;; Views

(defstruct (view (:constructor make-view (ordered indices)) (:copier nil))
  "A layout as texts see it: ORDERED are its slots by number, INDICES maps what a field may be
called to where it is among them. For JSON, KEYS and PROTO-KEYS are what is written before the value
of each, FORM is the name of a type with a form of its own, or nil."
  (ordered #() :type simple-vector)
  (indices (make-hash-table) :type hash-table)
  (keys #() :type simple-vector)
  (proto-keys #() :type simple-vector)
  (form nil :type symbol))

(defun slot-proto-name (slot)
  "The name that the .proto file gives the field of SLOT."
  (descriptor-name (slot-field slot)))

(defun slot-json-name (slot)
  (field-descriptor-json-name (slot-field slot)))

(defun slot-text-name (slot)
  "What the text format calls SLOT: a group goes by its message's name."
  (let ((field (slot-field slot)))
    (if (group-like-p field)
        (base-name (field-descriptor-type-name field))
        (descriptor-name field))))

(defun base-name (full-name)
  (subseq full-name (1+ (or (position #\. full-name :from-end t) -1))))

(defun group-like-p (field)
  "True if FIELD is what a group declares: a delimited message named like the field and declared
beside it."
  (and (field-descriptor-delimited-p field)
       (let ((type-name (field-descriptor-type-name field))
             (full-name (descriptor-full-name field)))
         (and (string= (descriptor-name field) (string-downcase (base-name type-name)))
              (let ((scope (- (length full-name) (length (descriptor-name field)))))
                (and (= scope (- (length type-name) (length (descriptor-name field))))
                     (string= full-name type-name :end1 scope :end2 scope)))))))

(defun build-view (slots &rest namers)
  (let ((ordered (sort (copy-seq slots) #'< :key #'slot-number))
        (indices (make-hash-table :test 'equal)))
    (dolist (namer namers)
      (loop for slot across ordered
            for i from 0
            do (setf (gethash (funcall namer slot) indices) i)))
    (make-view ordered indices)))

(defun view-slot (view name)
  "The slot that VIEW shows under NAME, and its index; or nil."
  (let ((index (gethash name (view-indices view))))
    (and index (values (svref (view-ordered view) index) index))))

(defun text-view (layout)
  (or (layout-text layout)
      (setf (layout-text layout)
            (build-view (layout-slots layout) #'slot-proto-name #'slot-text-name))))

(defun present-held (message slot)
  "What the field of SLOT, which is present in MESSAGE, holds: of a singular enum the number."
  (if (eq :oneof (slot-presence slot))
      (slot-content message (oneof-slot-value (slot-oneof slot)))
      (held message slot)))

;;; Enums

(defstruct (enum-names (:constructor make-enum-names (descriptor)) (:copier nil))
  "The names of the values of DESCRIPTOR, aliases among them, and back."
  (descriptor nil)
  (numbers (make-hash-table :test 'equal) :type hash-table)
  (names (make-hash-table) :type hash-table))

(defun enum-names-of (type)
  (let ((known (enum-type-texts type)) (descriptor (enum-type-descriptor type)))
    (if (and known (eq descriptor (enum-names-descriptor known)))
        known
        (let ((fresh (make-enum-names descriptor)))
          (dolist (value (reverse (enum-descriptor-values descriptor))) ; of aliases the first stays
            (let ((name (descriptor-name value)) (number (enum-value-descriptor-number value)))
              (setf (gethash name (enum-names-numbers fresh)) number
                    (gethash number (enum-names-names fresh)) name)))
          (setf (enum-type-texts type) fresh)))))

(defun enum-value-name (type number)
  "The name of NUMBER in the enum TYPE, or nil."
  (values (gethash number (enum-names-names (enum-names-of type)))))

(defun enum-value-number (type name)
  "The number of NAME in the enum TYPE, or nil."
  (values (gethash name (enum-names-numbers (enum-names-of type)))))

;;; Failures and the path to them

(defstruct (input (:copier nil))
  "A text that is being read: FORMAT is :json or :text, PATH what is being read now, the innermost
first: slots, indices and keys. FINDER maps the full name of a message type in an Any to the type,
or to nil. ALLOWANCE is how many octets of memory the messages may still take."
  (format :json :type (member :json :text))
  (octets (make-octets 0) :type octets)
  (ignore-unknown nil)
  (partial nil)
  (finder #'find-message-type :type function)
  (type-name nil)
  (path '() :type list)
  (depth 0 :type index)
  (max-depth **max-message-depth** :type index)
  (allowance 0 :type fixnum))

(defmacro with-step ((input item) &body body)
  "Run BODY with ITEM, a slot, an index or a key, added to the path of INPUT."
  (let ((step (gensym "STEP")))
    `(let ((,step (cons ,item (input-path ,input))))
       (declare (dynamic-extent ,step))
       (setf (input-path ,input) ,step)
       (multiple-value-prog1 (progn ,@body)
         (setf (input-path ,input) (cdr ,step))))))

(defmacro with-depth ((input position) &body body)
  "Run BODY one message deeper, if INPUT may be that deep at POSITION."
  `(progn
     (when (> (incf (input-depth ,input)) (input-max-depth ,input))
       (fail-input ,input ,position "messages nest deeper than ~D levels" (input-max-depth ,input)))
     (multiple-value-prog1 (progn ,@body)
       (decf (input-depth ,input)))))

(defun begin-message (input type position)
  "A fresh message of TYPE, which the ALLOWANCE of INPUT must cover, and its layout."
  (let* ((layout (or (message-type-layout type)
                     (misuse "The message type ~A is not defined." (message-type-name type))))
         (octets (* 8 (+ 6 (length (layout-slots layout))))))
    (when (minusp (decf (input-allowance input) octets))
      (fail-input input position "its messages take more memory than :max-decoded-octets allows"))
    (values (make-message type) layout)))

(defun path-text (path)
  (with-output-to-string (out)
    (let ((first t))
      (dolist (item (reverse path))
        (etypecase item
          (slot (format out "~:[.~;~]~A" first (slot-path item)))
          (integer (format out "[~D]" item))
          (string (format out "[~S]" item)))
        (setf first nil)))))

(defun fail-input (input position control &rest arguments)
  "Signal MESSAGE-TEXT-ERROR for the octet POSITION of INPUT."
  (multiple-value-bind (line column) (line-and-column (input-octets input) position)
    (error 'message-text-error
           :format (input-format input) :type (input-type-name input) :position position
           :line line :column column :path (path-text (input-path input))
           :text (format nil "~?" control arguments))))

;;; Values

(defun exact-integer (digits exponent negative)
  "The integer that is DIGITS times ten to the power EXPONENT, or nil if that is none or surely has
more than 64 bits."
  (let ((magnitude
          (cond ((zerop digits) 0)
                ((<= 0 exponent 20) (* digits (expt 10 exponent)))
                ((plusp exponent) nil)
                ((> (- exponent) (integer-length digits)) nil)
                (t (multiple-value-bind (whole rest) (truncate digits (expt 10 (- exponent)))
                     (and (zerop rest) whole))))))
    (and magnitude (if negative (- magnitude) magnitude))))

(defun url-type-name (url)
  "The full name of the message type that the type URL of an Any names, or nil."
  (let ((slash (position #\/ url :from-end t)))
    (and slash (< (1+ slash) (length url)) (subseq url (1+ slash)))))

(defun numbered-slot (message number)
  "The slot of the field NUMBER of MESSAGE, which has one."
  (find-slot (message-layout message) number))

(defun number-held (message number)
  "What the field NUMBER of MESSAGE holds."
  (held message (numbered-slot message number)))

(defun hold-number (held message number)
  "Make HELD what the field NUMBER of MESSAGE holds."
  (set-slot message (numbered-slot message number) held))
