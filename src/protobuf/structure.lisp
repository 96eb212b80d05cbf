;;;; The structures of a message and the functions around them that users call: constructor,
;;;; accessors, presence, oneof cases. Every public function checks the hidden structure's layout
;;;; with one comparison and goes to reflection.lisp for messages of other layouts.
;;;;
;;;; Public functions are installed with DEFINE-FUNCTION, not DEFUN, so that the compiler never
;;;; derives their types: a caller compiled today must stay right when a field changes its type
;;;; tomorrow.

(in-package #:clgrpc.protobuf)

(defmacro define-function (name lambda-list &body body)
  "As DEFUN, but promise nothing about the function to its callers, and redefine silently."
  `(progn
     (declaim (ftype function ,name))
     (setf (fdefinition ',name)
           (sb-int:named-lambda ,name ,lambda-list
             ,@(when (stringp (first body)) (list (pop body)))
             (declare (optimize (speed 1) (safety 1) (debug 1) (compilation-speed 2)
                                (sb-ext:inhibit-warnings 3)))
             ,@body))
     ',name))

;;; Users' objects are of the current layout, but for those that a redefinition has met

(defmacro holds-p (message structure)
  "True if MESSAGE is of the hidden STRUCTURE and holds its fields itself, being no forwarder."
  `(and (typep ,message ',structure)
        (not (message-p (message-extra ,message)))))

(defmacro the-message-type (name)
  `(truly-the message-type (load-time-value (intern-message-type ,name) t)))

(defmacro the-enum-type (name)
  `(truly-the enum-type (load-time-value (intern-enum-type ,name) t)))

(defun type-form (slot)
  "A form for the message or enum type of SLOT, or nil."
  (case (slot-kind slot)
    (:message `(the-message-type ,(slot-type-name slot)))
    (:enum `(the-enum-type ,(slot-type-name slot)))))

(defun literal (value)
  (if (or (symbolp value) (consp value)) `',value value))

;;; Structures

(defun vector-type (slot)
  `(simple-array ,(element-type (slot-kind slot)) (*)))

(defun slot-definition (slot)
  "What DEFSTRUCT says of SLOT."
  (let ((place (slot-place slot)) (kind (slot-kind slot)))
    (ecase (slot-label slot)
      (:map `(,place nil :type (or null proto-map)))
      (:repeated `(,place (load-time-value
                           (make-array 0 :element-type ',(element-type kind)) t)
                          :type ,(vector-type slot)))
      (:singular (if (eq kind :message)
                     `(,place nil :type (or null message))
                     `(,place ,(literal (slot-default slot))
                              :type ,(scalar-lisp-type (scalar-of kind))))))))

(defun public-structure (message)
  "The form that defines the public type of MESSAGE."
  (let ((symbol (message-descriptor-symbol message)))
    `(defstruct (,symbol (:include message) (:conc-name nil) (:constructor nil) (:copier nil)
                         (:predicate nil))
       ,@(when (descriptor-comment message) (list (descriptor-comment message))))))

(defun hidden-structure (plan)
  "The forms that define the concrete structure of PLAN."
  `((declaim (inline ,(plan-maker plan)))
    (defstruct (,(plan-structure plan) (:include ,(plan-symbol plan)) (:conc-name nil)
                (:constructor ,(plan-maker plan) ()) (:copier nil) (:predicate nil))
      ,@(loop for slot in (plan-slots plan)
              unless (eq :oneof (slot-presence slot)) collect (slot-definition slot)
              when (slot-size slot) collect `(,(slot-size slot) 0 :type index))
      ,@(loop for oneof in (plan-oneofs plan)
              when (oneof-slot-slots oneof)
                collect `(,(oneof-slot-case oneof) 0 :type (unsigned-byte 29))
                and collect `(,(oneof-slot-value oneof) nil))
      ,@(loop for bits in (plan-bits plan) collect `(,bits 0 :type (unsigned-byte 60))))
    (declaim (sb-ext:freeze-type ,(plan-structure plan)))))

(defun public-name (control symbol &rest arguments)
  (intern (apply #'format nil control symbol arguments) (symbol-package symbol)))

;;; Forms on one slot; MESSAGE is of the hidden structure, VALUE what the user gave.

(defun kind-type-name (slot)
  "The Lisp type that a sub-message for SLOT must have."
  (message-descriptor-symbol (find-linked (slot-type-name slot))))

(defvar *linked* (make-hash-table :test 'equal)
  "Full name to descriptor of what is being compiled and not registered yet.")

(defun find-linked (full-name)
  "The descriptor of the type FULL-NAME, among those being compiled or registered."
  (or (gethash full-name *linked*)
      (find-descriptor full-name)
      (error "The type ~A is not linked." full-name)))

(defun user-value-form (slot form)
  "FORM gives what the singular SLOT holds; return a form for what the user sees."
  (if (eq :enum (slot-kind slot))
      `(enum-keyword-of ,(type-form slot) ,form)
      form))

(defun read-form (slot)
  (ecase (slot-presence slot)
    ((:implicit :bit :value) (user-value-form slot `(,(slot-place slot) message)))
    (:elements
     (if (eq :map (slot-label slot))
         `(or (,(slot-place slot) message)
              (setf (,(slot-place slot) message) ,(fresh-map-form slot)))
         `(,(slot-place slot) message)))
    (:oneof
     (let ((oneof (slot-oneof slot)))
       `(if (= ,(slot-number slot) (,(oneof-slot-case oneof) message))
            ,(user-value-form slot `(,(oneof-slot-value oneof) message))
            ,(if (eq :message (slot-kind slot))
                 nil
                 (user-value-form slot (literal (slot-default slot)))))))))

(defun fresh-map-form (slot)
  `(make-proto-map ,(slot-kind (slot-entry-key slot)) ,(slot-kind (slot-entry-value slot))
                   ,(type-form (slot-entry-value slot))))

(defun checked-value-form (slot)
  "A form for what the singular SLOT holds when the user gives VALUE."
  (let ((kind (slot-kind slot)))
    (ecase kind
      (:message `(the (or null ,(kind-type-name slot)) value))
      (:enum `(enum-number-of ,(type-form slot) value))
      (:bool '(and value t))
      (:string '(to-text value))
      (:bytes '(to-octets value))
      (:float '(to-single value))
      (:double '(to-double value))
      ((:int32 :int64 :uint32 :uint64 :sint32 :sint64 :fixed32 :fixed64 :sfixed32 :sfixed64)
       `(the ,(scalar-type-of kind) value)))))

(defun set-bit-form (slot)
  `(setf (,(slot-bits slot) message) (logior ,(ash 1 (slot-bit slot)) (,(slot-bits slot) message))))

(defun write-form (slot)
  "A form that makes VALUE the value of SLOT."
  (let ((place (slot-place slot)) (oneof (slot-oneof slot)))
    (ecase (slot-presence slot)
      ((:implicit :value) `(setf (,place message) ,(checked-value-form slot)))
      (:bit `(progn (setf (,place message) ,(checked-value-form slot))
                    ,(set-bit-form slot)))
      (:oneof
       `(let ((held ,(checked-value-form slot)))
          (setf (,(oneof-slot-value oneof) message) held
                (,(oneof-slot-case oneof) message)
                ,(if (eq :message (slot-kind slot))
                     `(if held ,(slot-number slot) 0)
                     (slot-number slot)))))
      (:elements
       (if (eq :map (slot-label slot))
           (let ((key (slot-kind (slot-entry-key slot))) (held (slot-entry-value slot)))
             `(setf (,place message)
                    (to-map ,key ,(slot-kind held) ,(type-form held) value)))
           `(setf (,place message)
                  (truly-the ,(vector-type slot)
                             (to-vector ,(slot-kind slot) value ,(type-form slot)))))))))

(defun present-form (slot)
  (ecase (slot-presence slot)
    (:bit `(logtest ,(ash 1 (slot-bit slot)) (,(slot-bits slot) message)))
    (:value `(and (,(slot-place slot) message) t))
    (:oneof `(= ,(slot-number slot) (,(oneof-slot-case (slot-oneof slot)) message)))))

(defun clear-form (slot)
  (ecase (slot-presence slot)
    (:bit `(setf (,(slot-place slot) message) ,(literal (slot-default slot))
                 (,(slot-bits slot) message)
                 (logandc2 (,(slot-bits slot) message) ,(ash 1 (slot-bit slot)))))
    (:value `(setf (,(slot-place slot) message) nil))
    (:oneof `(when ,(present-form slot) ,(clear-oneof-form (slot-oneof slot))))))

(defun clear-oneof-form (oneof)
  `(setf (,(oneof-slot-case oneof) message) 0
         (,(oneof-slot-value oneof) message) nil))

;;; Public functions

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

(defun accessor-forms (plan slot)
  "The reader and the setter of SLOT, and its presence functions if it has presence."
  (let ((structure (plan-structure plan)) (symbol (plan-symbol plan)) (reader (slot-reader slot))
        (number (slot-number slot)))
    `((define-function ,reader (message)
        ,(field-documentation slot)
        (if (holds-p message ,structure)
            ,(read-form slot)
            (read-other message ',symbol ,number)))
      (define-function (setf ,reader) (value message)
        (if (holds-p message ,structure)
            ,(write-form slot)
            (write-other value message ',symbol ,number))
        value)
      ,@(when (member (slot-presence slot) '(:bit :value :oneof))
          `((define-function ,(public-name "HAS-~A" reader) (message)
              ,(format nil "Return true if ~(~A~) is present." reader)
              (if (holds-p message ,structure)
                  ,(present-form slot)
                  (present-other-p message ',symbol ,number)))
            (define-function ,(public-name "CLEAR-~A" reader) (message)
              ,(format nil "Make ~(~A~) absent; return MESSAGE." reader)
              (if (holds-p message ,structure)
                  ,(clear-form slot)
                  (clear-other message ',symbol ,number))
              message))))))

(defun oneof-forms (plan oneof)
  "The functions of ONEOF: its value, its case, and clearing it."
  (let* ((structure (plan-structure plan)) (symbol (plan-symbol plan))
         (reader (oneof-slot-reader oneof))
         (case (public-name "~A-CASE" reader)))
    `((define-function ,case (message)
        ,(format nil "~@[~A~2%~]Return which field of the oneof is present: ~{~(~S~)~^, ~} or nil."
                 (descriptor-comment (oneof-slot-descriptor oneof))
                 (mapcar #'slot-keyword (oneof-slot-slots oneof)))
        (if (holds-p message ,structure)
            (case (,(oneof-slot-case oneof) message)
              ,@(loop for slot in (oneof-slot-slots oneof)
                      collect `(,(slot-number slot) ,(slot-keyword slot))))
            (case-other message ',symbol ,(oneof-slot-name oneof))))
      (define-function ,reader (message)
        ,(format nil "Return the value of the present field of the oneof, or nil, and as second ~
                      value what ~(~A~) returns." case)
        (let ((case (,case message)))
          (values
           (case case
             ,@(loop for slot in (oneof-slot-slots oneof)
                     collect `(,(slot-keyword slot) (,(slot-reader slot) message))))
           case)))
      (define-function ,(public-name "CLEAR-~A" reader) (message)
        "Make every field of the oneof absent; return MESSAGE."
        (if (holds-p message ,structure)
            ,(clear-oneof-form oneof)
            (clear-oneof-other message ',symbol ,(oneof-slot-name oneof)))
        message))))

(defun slot-keyword (slot)
  (intern (slot-name slot) :keyword))

(defun constructor-form (plan)
  "The public constructor: a keyword per field."
  (let* ((symbol (plan-symbol plan))
         (package (symbol-package symbol))
         (parameters (loop for slot in (plan-slots plan)
                           for name = (intern (slot-name slot) package)
                           collect (list name nil (make-symbol (format nil "~A-GIVEN" name))))))
    `(define-function ,(public-name "MAKE-~A" symbol) (&key ,@parameters)
       ,(format nil "Return a fresh ~A with the fields given." (plan-full-name plan))
       (let ((message (,(plan-maker plan))))
         ,@(loop for slot in (plan-slots plan)
                 for (name nil given) in parameters
                 collect `(when ,given
                            (let ((value ,name)) ,(write-form slot))))
         message))))

(defun predicate-form (plan)
  (let ((symbol (plan-symbol plan)))
    `(define-function ,(public-name "~A-P" symbol) (object)
       ,(format nil "Return true if OBJECT is a ~A." (plan-full-name plan))
       (typep object ',symbol))))

(defun function-forms (plan)
  "All public functions of the message of PLAN."
  `(,(predicate-form plan)
    ,@(mapcan (lambda (slot) (accessor-forms plan slot)) (copy-list (plan-slots plan)))
    ,@(mapcan (lambda (oneof) (and (oneof-slot-slots oneof) (oneof-forms plan oneof)))
              (copy-list (plan-oneofs plan)))
    ,(constructor-form plan)))

(defun public-names (form)
  "The symbols of the public functions that FORM, an element of FUNCTION-FORMS, defines."
  (let ((name (second form)))
    (if (consp name) '() (list name))))
