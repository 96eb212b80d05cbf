;;;; The functions on a message that users call: accessors, presence, oneof cases, the predicate
;;;; and, with :CODE-SIZE, the constructor. These functions are closures, made from a few templates
;;;; when a definition is loaded. A closure reads a place of the hidden structure as fast as a
;;;; function compiled for it, while compiled functions of seven fields would take as long to
;;;; compile as the coders.
;;;;
;;;; Every function checks the message's layout with one comparison and goes to
;;;; message-reflection.lisp for messages of other layouts. The compiler knows no types of these
;;;; functions: a caller compiled today must remain correct when a field changes its type tomorrow.

(in-package #:clgrpc.protobuf)

(defmacro holds-p (message wrapper)
  "True if MESSAGE has the SBCL layout WRAPPER, that of a hidden structure, and contains its fields
itself instead of being a forwarder."
  `(and (sb-kernel:%instancep ,message)
        (eq ,wrapper (sb-kernel:%instance-layout ,message))
        (not (message-p (message-extra (truly-the message ,message))))))

(defmacro by-storage ((structure place) form)
  "Expand into FORM, compiled for each way in which SBCL may store PLACE of STRUCTURE. In FORM,
(STORED) is the stored value at PLACE of MESSAGE, an instance of STRUCTURE."
  `(multiple-value-bind (index storage) (place-storage ,structure ,place)
     (declare (type index index))
     (ecase storage
       ,@(loop for (storage reader type) in *storages*
               collect `(,storage
                         (macrolet ((stored () '(truly-the ,type (,reader message index))))
                           ,form))))))

(defmacro accessor (lambda-list here elsewhere)
  "Return a function of LAMBDA-LIST that evaluates HERE if MESSAGE is an instance of STRUCTURE, and
ELSEWHERE if it is not."
  `(lambda ,lambda-list
     ;; at debug 0 the function has no lambda list to show
     (declare (optimize (speed 1) (safety 1) (debug 1)))
     (if (holds-p message wrapper) ,here ,elsewhere)))

(defmacro tagged-place (index)
  `(sb-kernel:%instance-ref message ,index))

(defun place-index (structure place)
  (nth-value 0 (place-storage structure place)))

;;; Values of users, converted to stored ones

(defun value-converter (slot)
  "A function that converts a user's value for SLOT to the stored value."
  (let ((kind (slot-kind slot)) (type (slot-type-object slot))
        (field (descriptor-full-name (slot-field slot))))
    (macrolet ((checked (label kind form)
                 `(lambda (value) (given (,(accepted-type label kind) field) ,form))))
      (ecase (slot-label slot)
        (:map (checked :map nil (to-stored slot value)))
        (:repeated (checked :repeated nil (to-stored slot value)))
        (:singular
         (ecase kind
           (:bool (checked :singular :bool (and value t)))
           ((:int32 :sint32 :sfixed32) (checked :singular :int32 value))
           ((:int64 :sint64 :sfixed64) (checked :singular :int64 value))
           ((:uint32 :fixed32) (checked :singular :uint32 value))
           ((:uint64 :fixed64) (checked :singular :uint64 value))
           (:double (checked :singular :double (to-double value)))
           (:float (checked :singular :float (to-single value)))
           (:string (checked :singular :string (to-text value)))
           (:bytes (checked :singular :bytes (to-octets value)))
           (:enum (lambda (value) (enum-number-of type value)))
           (:message (lambda (value)
                       (if (or (null value)
                               (and (message-p value) (eq type (message-type-of value))))
                           value
                           (refuse-value value `(or null ,(message-type-symbol type))
                                         field))))))))))

;;; Accessors

(defun reader-function (slot structure wrapper symbol)
  (let ((number (slot-number slot)) (place (slot-place slot)) (type (slot-type-object slot))
        (enum-p (and (eq :enum (slot-kind slot)) (eq :singular (slot-label slot)))))
    (macrolet ((reader (form) `(accessor (message) ,form (read-other message symbol number)))
               (user (form)
                 `(if enum-p (reader (enum-keyword-of type ,form)) (reader ,form))))
      (cond ((eq :oneof (slot-presence slot))
             (let ((case (place-index structure (oneof-slot-case (slot-oneof slot))))
                   (value (place-index structure (oneof-slot-value (slot-oneof slot))))
                   (default (slot-default slot)))
               (user (if (eql number (tagged-place case)) (tagged-place value) default))))
            ((eq :map (slot-label slot))
             (let ((index (place-index structure place)))
               (reader (or (tagged-place index)
                           (setf (tagged-place index) (slot-fresh-map slot))))))
            (enum-p
             (let ((index (place-index structure place)))
               (reader (enum-keyword-of type (tagged-place index)))))
            (t (by-storage (structure place) (reader (stored))))))))

(defun setter-function (slot structure wrapper symbol)
  (let ((number (slot-number slot)) (place (slot-place slot)) (convert (value-converter slot)))
    (declare (type function convert))
    (macrolet ((writer (form)
                 `(accessor (value message)
                            (progn ,form value)
                            (progn (write-other value message symbol number) value))))
      (case (slot-presence slot)
        (:oneof
         (let ((case (place-index structure (oneof-slot-case (slot-oneof slot))))
               (place (place-index structure (oneof-slot-value (slot-oneof slot))))
               (message-p (eq :message (slot-kind slot))))
           (writer (let ((stored (funcall convert value)))
                     ;; meanwhile no field is present, since an interrupt may end the assignment in
                     ;; between: the value of one field must not be taken for that of another
                     (setf (tagged-place case) 0
                           (tagged-place place) stored
                           (tagged-place case) (if (or stored (not message-p)) number 0))))))
        (:bit
         (let ((bits (place-index structure (slot-bits slot))) (mask (ash 1 (slot-bit slot))))
           (by-storage (structure place)
                       (writer (setf (stored) (funcall convert value)
                                     (tagged-place bits)
                                     (logior mask (the fixnum (tagged-place bits))))))))
        (t (by-storage (structure place) (writer (setf (stored) (funcall convert value)))))))))

(defun presence-function (slot structure wrapper symbol)
  "The function that returns true if the field of SLOT, which has presence, is present."
  (let ((number (slot-number slot)))
    (macrolet ((asker (form) `(accessor (message) ,form (present-other-p message symbol number))))
      (ecase (slot-presence slot)
        (:bit (let ((bits (place-index structure (slot-bits slot))) (bit (slot-bit slot)))
                (asker (logbitp bit (the fixnum (tagged-place bits))))))
        (:value (let ((index (place-index structure (slot-place slot))))
                  (asker (and (tagged-place index) t))))
        (:oneof (let ((case (place-index structure (oneof-slot-case (slot-oneof slot)))))
                  (asker (eql number (tagged-place case)))))))))

;;; Oneofs

(defun case-reader (oneof structure wrapper symbol)
  "The function that returns the keyword of ONEOF's present field."
  (let ((index (place-index structure (oneof-slot-case oneof)))
        (name (oneof-slot-name oneof))
        (keywords (loop for slot in (oneof-slot-slots oneof)
                        collect (cons (slot-number slot) (slot-keyword slot)))))
    (accessor (message)
              (cdr (assoc (the fixnum (tagged-place index)) keywords))
              (case-other message symbol name))))

(defun oneof-reader (oneof case)
  "Return the reader of ONEOF; the function CASE returns the keyword of ONEOF's present field."
  (let ((readers (loop for slot in (oneof-slot-slots oneof)
                       collect (cons (slot-keyword slot) (slot-reader slot)))))
    (lambda (message)
      (let ((case (funcall case message)))
        (values (and case (funcall (cdr (assoc case readers)) message)) case)))))

;;; Names and documentation

(defun has-presence-p (slot)
  (member (slot-presence slot) '(:bit :value :oneof)))

(defun present-oneofs (plan)
  (remove nil (plan-oneofs plan) :key #'oneof-slot-slots))

(defun public-functions (plan)
  "The names of all public functions of the message of PLAN."
  (let ((symbol (plan-symbol plan)))
    `(,(public-name "~A-P" symbol) ,(public-name "MAKE-~A" symbol)
      ,@(loop for slot in (plan-slots plan)
              for reader = (slot-reader slot)
              collect reader
              when (has-presence-p slot)
                append (list (public-name "HAS-~A" reader) (public-name "CLEAR-~A" reader)))
      ,@(loop for oneof in (present-oneofs plan)
              for reader = (oneof-slot-reader oneof)
              append (list reader (public-name "~A-CASE" reader)
                           (public-name "CLEAR-~A" reader))))))

(defun field-documentation (slot)
  (let ((field (slot-field slot)))
    (format nil "~@[~A~2%~]Field ~D of ~A, ~A.~A"
            (descriptor-comment field) (slot-number slot) (scope-of field)
            (case (slot-label slot)
              (:map (format nil "a map from ~(~A~) to ~A" (slot-kind (slot-entry-key slot))
                            (type-title (slot-entry-value slot))))
              (:repeated (format nil "a vector of ~A" (type-title slot)))
              (t (type-title slot)))
            (if (option-true-p field "deprecated") " Deprecated." ""))))

(defun type-title (slot)
  (or (slot-type-name slot) (format nil "~(~A~)" (slot-kind slot))))

(defun install-function (name function &optional text)
  "Make FUNCTION the definition of NAME, silently, with the documentation TEXT."
  (proclaim `(ftype function ,name))
  (setf (fdefinition name) function)
  (when text (setf (documentation name 'function) text))
  name)

(defun install-field-functions (slot structure wrapper symbol)
  (let ((reader (slot-reader slot)) (number (slot-number slot)))
    (install-function reader (reader-function slot structure wrapper symbol)
                      (field-documentation slot))
    (install-function `(setf ,reader) (setter-function slot structure wrapper symbol))
    (when (has-presence-p slot)
      (install-function (public-name "HAS-~A" reader)
                        (presence-function slot structure wrapper symbol)
                        (format nil "Return true if ~(~A~) is present." reader))
      (install-function (public-name "CLEAR-~A" reader)
                        (lambda (message) (clear-other message symbol number) message)
                        (format nil "Make ~(~A~) absent; return MESSAGE." reader)))))

(defun install-oneof-functions (oneof structure wrapper symbol)
  (let* ((reader (oneof-slot-reader oneof))
         (name (oneof-slot-name oneof))
         (case (case-reader oneof structure wrapper symbol))
         (case-name (public-name "~A-CASE" reader)))
    (install-function
     case-name case
     (format nil "~@[~A~2%~]Return the name of the present field of the oneof: ~{~(~S~)~^, ~} or ~
                  nil."
             (descriptor-comment (oneof-slot-descriptor oneof))
             (mapcar #'slot-keyword (oneof-slot-slots oneof))))
    (install-function
     reader (oneof-reader oneof case)
     (format nil "Return two values: the value of the present field of the oneof, or nil; and the ~
                  value of ~(~A~)." case-name))
    (install-function
     (public-name "CLEAR-~A" reader)
     (lambda (message) (clear-oneof-other message symbol name) message)
     "Make every field of the oneof absent; return MESSAGE.")))

(defun constructor-function (constructor plan maker)
  "Return a constructor like that of CONSTRUCTOR-FORM, for messages of PLAN; MAKER makes empty
messages."
  (declare (type function maker))
  (let ((rows (loop for slot in (plan-slots plan)
                    collect (list (slot-keyword slot) slot
                                  (fdefinition `(setf ,(slot-reader slot)))))))
    (lambda (&rest arguments &key &allow-other-keys)
      (declare (dynamic-extent arguments))
      (let ((message (funcall maker)) (oneofs '()) (given 0))
        (loop for (keyword slot setter) in rows
              for value = (getf arguments keyword rows) ; ROWS if not given
              for oneof = (and (eq :oneof (slot-presence slot)) (slot-oneof slot))
              do (unless (eq rows value)
                   (incf given 2)
                   (when (or value (not oneof) (not (eq :message (slot-kind slot))))
                     (when oneof
                       (when (member oneof oneofs)
                         (refuse-second-field constructor
                                              (mapcar #'slot-keyword (oneof-slot-slots oneof))))
                       (push oneof oneofs))
                     (funcall (the function setter) value message))))
        (unless (= given (length arguments))
          (apply #'refuse-unknown-keywords constructor arguments))
        message))))

(defun install-constructor (plan maker)
  "Define the public constructor of the message of PLAN, without compiling anything for it."
  (let ((constructor (public-name "MAKE-~A" (plan-symbol plan))))
    (install-function constructor (constructor-function constructor plan maker)
                      (constructor-text plan))))

(defun install-functions (plan wrapper)
  "Define the public functions of the message of PLAN, except its constructor. WRAPPER is the SBCL
layout of its hidden structure."
  (let ((symbol (plan-symbol plan)) (structure (plan-structure plan))
        (type (intern-message-type (plan-full-name plan))))
    (setf (compiler-macro-function (public-name "MAKE-~A" symbol)) #'checked-construction)
    (install-function (public-name "~A-P" symbol)
                      (lambda (object)
                        (and (message-p object) (eq type (message-type-of object))))
                      (format nil "Return true if OBJECT is a ~A." (plan-full-name plan)))
    (dolist (slot (plan-slots plan)) (install-field-functions slot structure wrapper symbol))
    (dolist (oneof (present-oneofs plan))
      (install-oneof-functions oneof structure wrapper symbol))))
