;;;; Message and enum types, one for each full name for the life of the image, and the parts that
;;;; all messages have.
;;;;
;;;; A MESSAGE-TYPE is interned by full name and never replaced: generated code, routes and tables
;;;; refer to it, and a new definition swaps its slots. A LAYOUT is one definition of a type: a
;;;; hidden concrete structure, named by the fingerprint of its fields, with its coders. Messages of
;;;; older layouts live on; current code that meets one turns it into a forwarder
;;;; (message-reflection.lisp, CURRENT-MESSAGE).
;;;;
;;;; Every message has two words besides its fields. EXTRA is nil; the octets of unknown fields;
;;;; EXTRAS if the message has extensions (extension.lisp); or, in a forwarder, the message that has
;;;; replaced it. SIZE is where the size pass stores its result for the write pass that follows it.

(in-package #:clgrpc.protobuf)

(defstruct (extras (:constructor make-extras (unknown entries epoch)) (:copier nil))
  "The data that a message with extensions has in addition to the fields of its type."
  (unknown nil :type (or null octets))  ; the octets of unknown fields
  ;; the extensions: an alist from slot to stored value, by number
  (entries '() :type list)
  ;; the epoch up to which unknown fields were searched for extensions
  (epoch 0 :type fixnum))
(declaim (sb-ext:freeze-type extras))

(declaim (inline message-extra (setf message-extra) message-size (setf message-size)))
(defstruct (message (:conc-name nil) (:constructor nil) (:copier nil) (:predicate message-p))
  "The root of all messages."
  (message-extra nil :type (or null octets extras message)) ; see above
  (message-size 0 :type index))         ; the result of the size pass, for the write pass

(document-functions
  message-p "True if OBJECT is a message of any type.")

(defstruct (dynamic-message (:include message) (:conc-name dynamic-) (:copier nil)
                            (:constructor make-dynamic-message (layout contents)))
  "A message of a type that is known from its descriptor alone (dynamic.lisp)."
  (layout nil)                          ; the message's LAYOUT
  (contents #() :type simple-vector))   ; the values of the message's slots
(declaim (sb-ext:freeze-type dynamic-message))

(defstruct (layout (:copier nil))
  "One definition of a message type."
  (type nil)                            ; the message type
  (fingerprint "" :type string) ; a digest of all that the structure and the coders depend on
  (structure nil :type symbol)          ; the name of the hidden structure
  (maker nil :type (or null function))  ; makes an empty message
  (slots #() :type simple-vector)       ; slots of its plan (message-plan.lisp)
  (json nil) ; the layout's view for JSON (textual.lisp), made when needed
  (text nil)                            ; the layout's view for the text format, made when needed
  (reader #'identity :type function)    ; as MESSAGE-TYPE-READER
  (sizer #'identity :type function)     ; as MESSAGE-TYPE-SIZER
  (writer #'identity :type function)    ; as MESSAGE-TYPE-WRITER
  (copier #'identity :type function))   ; copies a message (copier.lisp)

(declaim (inline message-type-reader message-type-sizer message-type-writer))
(defstruct (message-type (:constructor %make-message-type (name)) (:copier nil))
  "A message type. The image has one MESSAGE-TYPE object for each full name."
  (name "" :type string :read-only t)   ; the full name
  (symbol nil :type symbol) ; the symbol that names the type in Lisp, or nil before it is defined
  (descriptor nil :type (or null message-descriptor)) ; the current descriptor, or nil
  (layout nil :type (or null layout))   ; the current definition, or nil
  (extensions nil :type (or null hash-table)) ; number to slot; replaced, never changed
  (message-set-p nil :type boolean)     ; true if the message's extensions are written as items
  (requirement -1 :type fixnum)         ; see NEEDS-CHECK-P
  ;; a function of octets, start, end and a READING that returns a message, or nil to be read again
  (reader #'identity :type function)
  (sizer #'identity :type function)     ; a function of a message that returns its size in octets
  ;; a function of a message, octets and start that returns the end; called right after SIZER
  (writer #'identity :type function))

(document-functions
  message-type-name "The full name of the message type: \"helloworld.HelloReply\"."
  message-type-symbol "The symbol that names the type in Lisp, or nil before it is defined."
  message-type-descriptor "The descriptor of the message type, or nil before it is defined."
  message-type-sizer "A function of a message of the type. It returns the message's serialized size
in octets, and stores the sizes of the message's parts in the message, for the writer."
  message-type-writer "A function of a message of the type, octets and a start. It writes the
message to the octets, beginning at the start, and returns the end. Call it directly after the
sizer, so that the message cannot change in between. It may overwrite up to nine octets after the
end, if the vector has them.")

;;; A counter of definitions, so that data derived from several of them can be checked for changes

(declaim (type fixnum **epoch**))
(defglobal **epoch** 0)

(defun note-definition ()
  "Note that a message type or an extension has a new definition."
  (sb-ext:atomic-incf **epoch**))

(define-printer (type message-type)
  "~A~:[ (not defined)~;~]" (message-type-name type) (message-type-layout type))

(defmethod print-object ((layout layout) stream)
  (print-unreadable-object (layout stream :type t) (princ (layout-structure layout) stream)))

(defmethod make-load-form ((type message-type) &optional environment)
  (declare (ignore environment))
  `(intern-message-type ,(message-type-name type)))

;;; Reading messages from the outside in

(declaim (inline make-reading reading-depth reading-allowance reading-deferred-p reading-spare
                 reading-kept-start reading-kept-stop))
(defstruct (reading (:constructor make-reading (depth allowance deferred-p spare)) (:copier nil))
  "The state of reading one message with all messages inside it."
  (depth 0 :type fixnum)                ; how many levels may still be entered
  ;; how many octets of memory the messages being read may still take
  (allowance 0 :type fixnum)
  ;; whether sub-messages are read after their parents (decoder.lisp)
  (deferred-p nil :type boolean)
  ;; octets that are not needed afterwards: a field of bytes that is at least half of these octets
  ;; is not copied but gets them as its value
  (spare nil :type (or null octets))
  (kept-start 0 :type index)            ; the part of SPARE that becomes a value begins here
  (kept-stop 0 :type index))            ; the end of the part of SPARE that becomes a value; 0 while
                                        ; no field has it

(declaim (sb-ext:freeze-type reading))

(define-hot bytes-at ((octets octets) (start index) (stop index) (reading reading)) octets
  "The value of a field of type bytes: a copy of START to STOP, or the spare octets themselves."
  (cond ((and (eq octets (reading-spare reading))
              (<= (ash (length octets) -1) (- stop start))
              (zerop (reading-kept-stop reading)))
         (setf (reading-kept-start reading) start
               (reading-kept-stop reading) stop)
         octets)
        (t (subseq-octets octets start stop))))

(define-hot keep-spare ((reading reading)) boolean
  "If a field has taken the spare octets, make them its value and return true; else return false."
  (let ((spare (reading-spare reading))
        (start (reading-kept-start reading))
        (stop (reading-kept-stop reading)))
    (and spare
         (plusp stop)
         (progn (shorten-octets spare start stop) t))))

(defmacro read-twice ((reading size &key (depth '**max-message-depth**)
                                      (decoded-octets '**max-decoded-octets**) spare)
                      form)
  "Return the value of FORM with READING bound to fresh state for SIZE octets, in which messages may
nest DEPTH levels below the outermost. FORM reads the plain way first and, if it returns nil, a
second time the deferred way. SPARE is the slot of READING with that name."
  (let ((allowance (gensym "ALLOWANCE")) (levels (gensym "LEVELS")))
    `(let ((,allowance (+ ,decoded-octets (* 8 ,size))) (,levels (1+ ,depth)))
       (or (let ((,reading (make-reading ,levels ,allowance nil ,spare)))
             (declare (dynamic-extent ,reading))
             ,form)
           (let ((,reading (make-reading ,levels ,allowance t ,spare)))
             (declare (dynamic-extent ,reading))
             ,form)))))

(defglobal **message-types** (make-hash-table :test 'equal :synchronized t))

(defun intern-message-type (full-name)
  "Return the message type FULL-NAME, such as \"helloworld.HelloReply\". The type exists as long as
the image, even before its definition is loaded; until then its coders signal MISUSE."
  (or (gethash full-name **message-types**)
      (sb-ext:with-locked-hash-table (**message-types**)
        (alexandria:ensure-gethash full-name **message-types** (fresh-message-type full-name)))))

(defun fresh-message-type (full-name)
  (let* ((type (%make-message-type (copy-seq full-name)))
         (undefined (lambda (&rest arguments)
                      (declare (ignore arguments))
                      (misuse "The message type ~A is not defined." full-name))))
    (setf (message-type-reader type) undefined
          (message-type-sizer type) undefined
          (message-type-writer type) undefined)
    type))

(defun find-message-type (designator)
  "Return the message type denoted by DESIGNATOR (a full name, a symbol such as
HELLOWORLD:HELLO-REPLY, or a message type), or nil if there is no such type. Signal MISUSE for any
other object. From any thread."
  (typecase designator
    (message-type designator)
    (symbol (get designator 'message-type))
    (string (values (gethash designator **message-types**)))
    (t (misuse "A message type is named by a symbol or its full name, not ~A."
               (bounded-text designator :limit 60 :escape t)))))

(defun adopt-layout (type layout)
  "Make LAYOUT the current definition of TYPE."
  (setf (message-type-reader type) (layout-reader layout)
        (message-type-sizer type) (layout-sizer layout)
        (message-type-writer type) (layout-writer layout)
        (message-type-layout type) layout))

(defun message-type-defined-p (type)
  "True once the definition of the message type TYPE has been loaded."
  (and (message-type-layout type) t))

(defun likely-type (designator)
  "Return the symbol or the full name of the message type that was probably meant by DESIGNATOR, a
symbol or a string, or nil if no name is similar."
  (flet ((likely (name names) (suggested-name (string-downcase name) names)))
    (if (symbolp designator)
        (let* ((package (symbol-package designator))
               (names (when package
                        (loop for symbol being the external-symbols of package
                              when (get symbol 'message-type)
                                collect (string-downcase symbol))))
               (name (likely designator names)))
          (and name (find-symbol (string-upcase name) package)))
        (likely designator (sb-ext:with-locked-hash-table (**message-types**)
                             (loop for name being the hash-keys of **message-types**
                                   collect name))))))

(defun need-message-type (designator)
  (or (find-message-type designator)
      (let ((likely (likely-type designator)))
        (misuse "There is no message type ~S~@[ (is it ~S?)~]." designator likely))))

(defun make-message (type)
  "Return a fresh empty message of TYPE, a symbol, full name or message type. Signal MISUSE if no
such type is defined. From any thread."
  (let ((layout (message-type-layout (need-message-type type))))
    (unless layout (misuse "The message type ~A is not defined." type))
    (funcall (the function (layout-maker layout)))))

;;; The layout of a message is on the property list of its structure's name; a lookup in a cache, by
;;; the address of SBCL's own layout of the structure, takes a fifth of the time. A definition
;;; replaces the cache after it has changed the property list. So a thread that has read the list
;;; before enters the old layout into a cache that no code uses any more.

(declaim (type (simple-vector 512) **layout-cache**))
(defglobal **layout-cache** (make-array 512 :initial-element nil))

(defun renew-layout-cache ()
  "Forget the layouts that have been looked up. This is necessary when a structure gets another
layout."
  (sb-thread:barrier (:write))
  (setf **layout-cache** (make-array 512 :initial-element nil)))

(declaim (sb-ext:maybe-inline message-layout))
(define-hot message-layout ((message message)) layout
  "The layout with which MESSAGE was made."
  (let* ((wrapper (sb-kernel:%instance-layout message))
         (place (logand 511 (ash (sb-kernel:get-lisp-obj-address wrapper) -6)))
         (cache **layout-cache**)
         (entry (svref cache place)))
    (cond ((and (consp entry) (eq wrapper (car entry)))
           (truly-the layout (cdr entry)))
          ((dynamic-message-p message) (truly-the layout (dynamic-layout message)))
          (t
           (sb-thread:barrier (:read))
           (let ((layout (get (type-of message) 'layout)))
             (setf (svref cache place) (cons wrapper layout))
             layout)))))

(define-hot message-of-type-p (object (type message-type)) boolean
  "Return true if OBJECT is a message of TYPE. From any thread."
  (declare (inline message-layout))
  (and (message-p object)
       (eq type (layout-type (message-layout (truly-the message object))))))

(defun message-type-of (message)
  "Return the message type of MESSAGE."
  (layout-type (message-layout message)))

;;; Enums

(defstruct (enum-type (:constructor %make-enum-type (name)) (:copier nil))
  "An enum type. The image has one ENUM-TYPE object for each full name."
  (name "" :type string :read-only t)   ; the full name
  (descriptor nil :type (or null enum-descriptor)) ; the current descriptor, or nil
  (keywords #() :type simple-vector)    ; the keyword of each number from 0 where there is one
  (sparse (make-hash-table) :type hash-table) ; the keywords of all other numbers
  (numbers (make-hash-table :test 'eq) :type hash-table) ; keyword to number
  (texts nil))                          ; names as written (textual.lisp), made when needed

(document-functions
  enum-type-name "The full name of the enum type."
  enum-type-descriptor "The descriptor of the enum type, or nil before it is defined.")

(defmethod print-object ((type enum-type) stream)
  (print-unreadable-object (type stream :type t) (princ (enum-type-name type) stream)))

(defmethod make-load-form ((type enum-type) &optional environment)
  (declare (ignore environment))
  `(intern-enum-type ,(enum-type-name type)))

(defglobal **enum-types** (make-hash-table :test 'equal :synchronized t))

(defun intern-enum-type (full-name)
  "Return the enum type FULL-NAME, which exists as long as the image."
  (or (gethash full-name **enum-types**)
      (sb-ext:with-locked-hash-table (**enum-types**)
        (or (gethash full-name **enum-types**)
            (setf (gethash full-name **enum-types**) (%make-enum-type (copy-seq full-name)))))))

(defun find-enum-type (designator)
  "Return the enum type denoted by DESIGNATOR (a full name, a symbol, or an enum type), or nil if
there is no such type."
  (etypecase designator
    (enum-type designator)
    (symbol (get designator 'enum-type))
    (string (values (gethash designator **enum-types**)))))

(defconstant +dense-enum-limit+ 256
  "The number below which the numbers of an enum are looked up in a vector.")

(defun install-enum (full-name)
  "Set the values of the enum type FULL-NAME to those of its registered descriptor."
  (let ((type (intern-enum-type full-name)) (descriptor (find-descriptor full-name)))
    (fill-enum type descriptor (enum-value-keywords descriptor) 'eq)
    (setf (get (enum-descriptor-symbol descriptor) 'enum-type) type)))

(defun fill-enum (type descriptor designators test)
  "Set the values of the enum TYPE to those of DESCRIPTOR. DESIGNATORS are the Lisp designators of
the values, in order; TEST compares them."
  (let* ((values (enum-descriptor-values descriptor))
         ;; not a long vector for few values
         (limit (min +dense-enum-limit+ (+ 16 (* 4 (length values)))))
         (dense (loop for value in values
                      for number = (enum-value-descriptor-number value)
                      when (< -1 number limit) maximize (1+ number)))
         (keywords (make-array (or dense 0) :initial-element nil))
         (sparse (make-hash-table))
         (numbers (make-hash-table :test test)))
    (loop for value in (reverse values) ; so that the first of several aliases is kept
          for keyword in (reverse designators)
          for number = (enum-value-descriptor-number value)
          do (setf (gethash keyword numbers) number)
             (if (< -1 number limit)
                 (setf (svref keywords number) keyword)
                 (setf (gethash number sparse) keyword)))
    (setf (enum-type-descriptor type) descriptor
          (enum-type-numbers type) numbers
          (enum-type-sparse type) sparse
          (enum-type-keywords type) keywords)
    type))

(define-hot enum-keyword-of ((type enum-type) (number (signed-byte 32)))
    (or symbol fixnum simple-string)
  (let ((keywords (enum-type-keywords type)))
    (or (if (< -1 number (length keywords))
            (svref keywords number)
            (values (gethash number (enum-type-sparse type))))
        number)))

(define-hot enum-number-of ((type enum-type) (value t)) (signed-byte 32)
  (typecase value
    ((signed-byte 32) value)
    (t (or (values (gethash value (enum-type-numbers type)))
           (wrong-enum-value type value)))))

(defun wrong-enum-value (type value)
  (let ((keywords (loop for keyword being the hash-keys of (enum-type-numbers type)
                        when (keywordp keyword) collect keyword)))
    (misuse "~S is not a value of the enum ~A~:[~;, whose values are~{ ~(~S~)~^,~}~:[~;, and ~
             more~]~]."
            value (enum-type-name type) keywords
            (subseq keywords 0 (min 20 (length keywords))) (nthcdr 20 keywords))))

(defun enum-known-p (type number)
  (not (integerp (enum-keyword-of type number))))

(defun enum-number (type value)
  "Return the number of VALUE, a keyword or number, in the enum TYPE (a symbol, full name or enum
type). Signal MISUSE if the keyword is not a value of that enum, or if there is no such enum. From
any thread."
  (enum-number-of (or (find-enum-type type) (misuse "There is no enum type ~S." type)) value))

(defun enum-keyword (type number)
  "Return the keyword of NUMBER in the enum TYPE, or NUMBER itself if the enum has no keyword for
it. Signal MISUSE if there is no such enum. From any thread."
  (enum-keyword-of (or (find-enum-type type) (misuse "There is no enum type ~S." type)) number))
