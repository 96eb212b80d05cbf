;;;; The structures of a message and the constructor that users call, if it is compiled. All other
;;;; public functions are closures: accessor.lisp.
;;;;
;;;; The constructor is installed with DEFINE-FUNCTION, not DEFUN, so that the compiler never
;;;; derives its type: a caller compiled today must remain correct when a field changes its type
;;;; tomorrow.

(in-package #:clgrpc.protobuf)

(defmacro define-function (name lambda-list &body body)
  "Define a function as DEFUN does, but without a declared type on which compiled callers could
rely, and without a warning if the function is redefined."
  `(progn
     (declaim (ftype function ,name))
     (setf (fdefinition ',name)
           (sb-int:named-lambda ,name ,lambda-list
             ,@(when (stringp (first body)) (list (pop body)))
             (declare (optimize (speed 1) (safety 1) (debug 1) (compilation-speed 2)
                                (sb-ext:inhibit-warnings 3)))
             ,@body))
     ',name))

(defmacro the-message-type (name)
  `(truly-the message-type (load-time-value (intern-message-type ,name) t)))

(defmacro the-enum-type (name)
  `(truly-the enum-type (load-time-value (intern-enum-type ,name) t)))

(defun type-form (slot)
  "Return a form for the message or enum type of SLOT, or nil if it has neither."
  (case (slot-kind slot)
    (:message `(the-message-type ,(slot-type-name slot)))
    (:enum `(the-enum-type ,(slot-type-name slot)))))

(defun literal (value)
  (if (or (symbolp value) (consp value)) `',value value))

;;; Structures

(defun vector-type (slot)
  `(simple-array ,(element-type (slot-kind slot)) (*)))

(defun slot-definition (slot)
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

(defun install-place-function (name)
  "Define the accessor NAME of a hidden structure."
  (setf (fdefinition name)
        (if (consp name)
            (let ((place (second name)))
              (lambda (value message) (setf (place-value message place) value)))
            (lambda (message) (place-value message name)))))

(defmacro define-hidden-structure (&rest definition &environment environment)
  "Define a structure as DEFSTRUCT does with DEFINITION, but compile only its constructor. The
functions of accessors, which SBCL's classes need, are closures, because compiled code has accessors
inline."
  (let ((forms (macroexpand-1 `(defstruct ,@definition) environment)))
    (assert (eq 'progn (first forms)))
    `(progn
       ,@(loop for form in (rest forms)
               collect (if (and (listp form) (eq 'sb-c:xdefun (first form))
                                (eq :accessor (third form)))
                           `(install-place-function ',(second form))
                           form)))))

(defun hidden-structure (plan)
  "The forms that define the concrete structure of PLAN."
  `((declaim (inline ,(plan-maker plan)))
    (locally
        (declare (optimize (speed 0) (safety 1) (debug 0) (compilation-speed 3)
                           (sb-ext:inhibit-warnings 3)))
      (define-hidden-structure (,(plan-structure plan) (:include ,(plan-symbol plan))
                                (:conc-name nil) (:constructor ,(plan-maker plan) ())
                                (:copier nil) (:predicate nil))
        ,@(loop for slot in (plan-slots plan)
                unless (eq :oneof (slot-presence slot)) collect (slot-definition slot)
                when (slot-size slot) collect `(,(slot-size slot) 0 :type index))
        ,@(loop for oneof in (plan-oneofs plan)
                when (oneof-slot-slots oneof)
                  collect `(,(oneof-slot-case oneof) 0 :type (unsigned-byte 29))
                  and collect `(,(oneof-slot-value oneof) nil))
        ,@(loop for bits in (plan-bits plan) collect `(,bits 0 :type (unsigned-byte 60)))))
    (declaim (sb-ext:freeze-type ,(plan-structure plan)))))

;;; Forms on one slot; MESSAGE is of the hidden structure, VALUE is the user's value.

(defun kind-type-name (slot)
  "The Lisp type that a sub-message for SLOT must have."
  (message-descriptor-symbol (find-linked (slot-type-name slot))))

(defvar *linked* (make-hash-table :test 'equal)
  "A table from full names to descriptors that are being compiled and not registered yet.")

(defun find-linked (full-name)
  "The descriptor of the type FULL-NAME, which is being compiled or is registered."
  (or (gethash full-name *linked*)
      (find-descriptor full-name)
      (error "The type ~A is not linked." full-name)))

(defun fresh-map-form (slot)
  `(make-proto-map ,(slot-kind (slot-entry-key slot)) ,(slot-kind (slot-entry-value slot))
                   ,(type-form (slot-entry-value slot))))

(defun checked-value-form (slot)
  "A form that converts VALUE, a user's value, to the stored value of the singular SLOT."
  (let ((kind (slot-kind slot)))
    (if (eq :message kind)
        (given-form slot `(or null ,(kind-type-name slot)) 'value)
        (given-form slot (accepted-type :singular kind)
                    (ecase kind
                      (:enum `(enum-number-of ,(type-form slot) value))
                      (:bool '(and value t))
                      (:string '(to-text value))
                      (:bytes '(to-octets value))
                      (:float '(to-single value))
                      (:double '(to-double value))
                      ((:int32 :int64 :uint32 :uint64 :sint32 :sint64 :fixed32 :fixed64 :sfixed32
                        :sfixed64)
                       'value))))))

(defun given-form (slot type form)
  `(given (,type ,(descriptor-full-name (slot-field slot))) ,form))

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
       `(let ((stored ,(checked-value-form slot)))
          (setf (,(oneof-slot-value oneof) message) stored
                (,(oneof-slot-case oneof) message)
                ,(if (eq :message (slot-kind slot))
                     `(if stored ,(slot-number slot) 0)
                     (slot-number slot)))))
      (:elements
       (if (eq :map (slot-label slot))
           (let ((key (slot-kind (slot-entry-key slot))) (stored (slot-entry-value slot)))
             `(setf (,place message)
                    ,(given-form slot (accepted-type :map nil)
                                 `(to-map ,key ,(slot-kind stored) ,(type-form stored) value
                                          ,(descriptor-full-name (slot-field slot))))))
           `(setf (,place message)
                  ,(given-form slot (accepted-type :repeated nil)
                               `(truly-the ,(vector-type slot)
                                           (to-vector
                                            ,(slot-kind slot) value ,(type-form slot)
                                            ,(descriptor-full-name (slot-field slot)))))))))))

(defun present-form (slot)
  (ecase (slot-presence slot)
    (:bit `(logtest ,(ash 1 (slot-bit slot)) (,(slot-bits slot) message)))
    (:value `(and (,(slot-place slot) message) t))
    (:oneof `(= ,(slot-number slot) (,(oneof-slot-case (slot-oneof slot)) message)))))

;;; The constructor

(defun refuse-second-field (constructor keywords)
  "Signal MISUSE, because CONSTRUCTOR was called with two of KEYWORDS, the fields of a oneof."
  (misuse "~(~S~) takes one of ~{:~(~A~)~^, ~}, the fields of a oneof, not several." constructor
          keywords))

(defun construct-form (slot constructor)
  "Return the form that WRITE-FORM returns, for use in CONSTRUCTOR. CONSTRUCTOR takes at most one
field of a oneof; a message that is nil counts as not given."
  (if (eq :oneof (slot-presence slot))
      (let ((oneof (slot-oneof slot)))
        `(when ,(if (eq :message (slot-kind slot)) 'value t)
           (unless (zerop (,(oneof-slot-case oneof) message))
             (refuse-second-field ',constructor
                                  ',(mapcar #'slot-keyword (oneof-slot-slots oneof))))
           ,(write-form slot)))
      (write-form slot)))

(defun constructor-text (plan)
  (format nil "Return a fresh ~A with the fields given." (plan-full-name plan)))

(defun constructor-form (plan)
  "The public constructor: a keyword per field."
  (let* ((symbol (plan-symbol plan))
         (package (symbol-package symbol))
         (constructor (public-name "MAKE-~A" symbol))
         (arguments (make-symbol "ARGUMENTS"))
         (parameters (loop for slot in (plan-slots plan)
                           for name = (intern (slot-name slot) package)
                           collect (list name nil (make-symbol (format nil "~A-GIVEN" name))))))
    `(define-function ,constructor (&rest ,arguments &key ,@parameters &allow-other-keys)
       ,(constructor-text plan)
       ;; the number of arguments is known from the call without cost; a list of them is made only
       ;; for errors
       (declare (dynamic-extent ,arguments))
       ;; a sum, since a variable with so many assignments takes the compiler as long as all the
       ;; rest
       (unless (= (+ ,@(loop for (nil nil given) in parameters collect `(if ,given 2 0)))
                  (length ,arguments))
         (apply #'refuse-unknown-keywords ',constructor ,arguments))
       (let ((message (,(plan-maker plan))))
         ,@(loop for slot in (plan-slots plan)
                 for (name nil given) in parameters
                 collect `(when ,given
                            (let ((value ,name)) ,(construct-form slot constructor))))
         message))))

;;; A keyword that is not a field of the message is refused, with a list of the fields: by the
;;; compiler in calls that spell it out, and by the constructor itself.

(defun constructor-keywords (name)
  "The keywords that the constructor NAME accepts, or :any if NAME is not a constructor."
  (let* ((symbol (find-symbol (subseq (string name) (length "MAKE-")) (symbol-package name)))
         (type (and symbol (get symbol 'message-type))))
    (if type
        (map 'list #'slot-keyword (layout-slots (message-type-layout type)))
        :any)))

(defun unknown-keyword-text (name keyword)
  "A text that explains that the constructor NAME does not accept KEYWORD, or nil if it does."
  (let ((known (constructor-keywords name)))
    (unless (or (eq :any known) (member keyword known))
      (let ((names (mapcar #'string-downcase known)))
        (format nil "~(~S~) has no field ~(~S~)~@[ (~A)~]; its fields are~:[ none~;~:*~{ :~A~^,~}~]"
                name keyword (keyword-hint name keyword names) names)))))

(defun keyword-hint (name keyword names)
  "Return a hint about KEYWORD, which the constructor NAME does not accept: a text that KEYWORD
names a oneof, or one with the element of NAMES that was probably meant; or nil if neither applies."
  (when (symbolp keyword)
    (let* ((message (subseq (string name) (length "MAKE-")))
           (accessor (find-symbol (format nil "~A-~A-CASE" message keyword)
                                  (symbol-package name))))
      (if (and accessor (fboundp accessor))
          "which is a oneof: give one of its fields"
          (let ((likely (suggested-name (string-downcase keyword) names)))
            (and likely (format nil "is it :~A?" likely)))))))

(defun refuse-unknown-keyword (name keyword)
  "Signal MISUSE unless the present definition of the constructor NAME accepts KEYWORD."
  (let ((text (unknown-keyword-text name keyword)))
    (when text (misuse "~A." text))))

(defun refuse-unknown-keywords (name &rest arguments)
  "Signal MISUSE if ARGUMENTS, with which the constructor NAME was called, have a keyword that it
does not accept."
  (unless (getf arguments :allow-other-keys)
    (loop for (keyword) on arguments by #'cddr
          do (unless (eq :allow-other-keys keyword) (refuse-unknown-keyword name keyword)))))

(defun checked-construction (form environment)
  "Expand FORM, as the compiler macro of constructors. Return FORM or, if it has a keyword that is
not a field, a form that signals MISUSE."
  (declare (ignore environment))
  (let* ((name (first form))
         (wrong (and (evenp (length (rest form)))
                     (loop for (keyword) on (rest form) by #'cddr
                           when (eq :allow-other-keys keyword) return nil
                           when (and (keywordp keyword) (unknown-keyword-text name keyword))
                             return keyword))))
    (cond (wrong
           (sb-int:style-warn "~A" (unknown-keyword-text name wrong))
           `(progn (refuse-unknown-keyword ',name ,wrong)
                   (locally (declare (notinline ,name)) ,form)))
          (t form))))
