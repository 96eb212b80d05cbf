;;;; The common parts of the JSON mapping and the text format: views of a layout by name and in
;;;; order of numbers, names of enum values, errors with line, column and the path of fields, exact
;;;; integers, the types that an Any may name, and limits of writers.
;;;;
;;;; The octets in an Any are decoded only when the Any is written, and they may contain another
;;;; Any, and so on. So writing is bounded as reading is: one depth and one allowance for memory
;;;; apply to all levels (WRITING), and the text has a limit.
;;;;
;;;; The readers of JSON and of text work on octets and on slots (message-plan.lisp) through
;;;; message-reflection.lisp alone, so they serve every message that has slots, including dynamic
;;;; ones.

(in-package #:clgrpc.protobuf)

;;; Views

(defstruct (text-layout (:constructor make-text-layout (ordered indices)) (:copier nil))
  "The data of a layout for text formats."
  (ordered #() :type simple-vector)     ; the layout's slots by number
  ;; from the names of a field to the index of the field's slot in ORDERED
  (indices (make-hash-table) :type hash-table)
  (keys #() :type simple-vector)        ; for JSON, the text before the value of each field
  (proto-keys #() :type simple-vector)  ; the same with the names of the .proto file
  ;; for JSON: the name of a type with a form of its own, or nil
  (form nil :type symbol))

(defun slot-proto-name (slot)
  "The name that the .proto file gives the field of SLOT."
  (descriptor-name (slot-field slot)))

(defun slot-json-name (slot)
  (field-descriptor-json-name (slot-field slot)))

(defun slot-text-name (slot)
  "The name of SLOT in the text format: the name of a group's field is the group's message name."
  (let ((field (slot-field slot)))
    (if (group-like-p field)
        (base-name (field-descriptor-type-name field))
        (descriptor-name field))))

(defun base-name (full-name)
  (subseq full-name (1+ (or (position #\. full-name :from-end t) -1))))

(defun group-like-p (field)
  "True if FIELD has the form of a group: a delimited message with the same name as the field,
declared in the same place."
  (and (field-descriptor-delimited-p field)
       (let ((type-name (field-descriptor-type-name field))
             (full-name (descriptor-full-name field)))
         (and (string= (descriptor-name field) (string-downcase (base-name type-name)))
              (let ((scope (- (length full-name) (length (descriptor-name field)))))
                (and (= scope (- (length type-name) (length (descriptor-name field))))
                     (string= full-name type-name :end1 scope :end2 scope)))))))

(defun build-text-layout (slots &rest namers)
  (let ((ordered (sort (copy-seq slots) #'< :key #'slot-number))
        (indices (make-hash-table :test 'equal)))
    (dolist (namer namers)
      (loop for slot across ordered
            for i from 0
            do (setf (gethash (funcall namer slot) indices) i)))
    (make-text-layout ordered indices)))

(defun text-layout-slot (text-layout name)
  "Return the slot that has NAME in TEXT-LAYOUT, and its index, or nil if there is none."
  (let ((index (gethash name (text-layout-indices text-layout))))
    (and index (values (svref (text-layout-ordered text-layout) index) index))))

(defun text-text-layout (layout)
  (or (layout-text layout)
      (setf (layout-text layout)
            (build-text-layout (layout-slots layout) #'slot-proto-name #'slot-text-name))))

;;; Enums

(defstruct (enum-names (:constructor make-enum-names (descriptor)) (:copier nil))
  "Tables from the names of the values of an enum, including aliases, to the values and back."
  (descriptor nil)                      ; the descriptor of the enum
  (numbers (make-hash-table :test 'equal) :type hash-table) ; name to number
  (names (make-hash-table) :type hash-table)) ; number to name

(defun enum-names-of (type)
  (let ((known (enum-type-texts type)) (descriptor (enum-type-descriptor type)))
    (if (and known (eq descriptor (enum-names-descriptor known)))
        known
        (let ((fresh (make-enum-names descriptor)))
          (dolist (value (reverse (enum-descriptor-values descriptor))) ; of several names for a
                                                                        ; number the first stays
            (let ((name (descriptor-name value)) (number (enum-value-descriptor-number value)))
              (setf (gethash name (enum-names-numbers fresh)) number
                    (gethash number (enum-names-names fresh)) name)))
          (setf (enum-type-texts type) fresh)))))

(defun enum-value-name (type number)
  "Return the name of NUMBER in the enum TYPE, or nil if it has none."
  (values (gethash number (enum-names-names (enum-names-of type)))))

(defun enum-value-number (type name)
  "Return the number of NAME in the enum TYPE, or nil if TYPE has no such name."
  (values (gethash name (enum-names-numbers (enum-names-of type)))))

;;; Errors and the path to the field

(defstruct (input (:copier nil))
  "A text that is being read."
  (format :json :type (member :json :text)) ; the input's text format
  (octets (make-octets 0) :type octets) ; the text, in UTF-8
  (ignore-unknown nil)                  ; whether fields that the type does not have are skipped
  (partial nil)                         ; whether required fields may be missing
  ;; from the full name of a type in an Any to that type, or nil
  (finder #'find-message-type :type function)
  (type-name nil)                       ; the type of the outermost message, for errors
  ;; the path to the value being read, the innermost first: slots, indices and keys
  (path '() :type list)
  (depth 0 :type index)                 ; the number of open messages
  (max-depth **max-message-depth** :type index) ; the most below the outermost
  (allowance 0 :type fixnum))           ; octets of memory that messages may still take

(defmacro with-step ((input item) &body body)
  "Run BODY with ITEM, a slot, an index or a key, appended to the path of INPUT."
  (let ((step (gensym "STEP")))
    `(let ((,step (cons ,item (input-path ,input))))
       (declare (dynamic-extent ,step))
       (setf (input-path ,input) ,step)
       (multiple-value-prog1 (progn ,@body)
         (setf (input-path ,input) (cdr ,step))))))

(defmacro with-depth ((input position) &body body)
  "Run BODY one level of messages deeper; signal an error at POSITION if that exceeds the limit of
INPUT. The outermost message does not count as a level."
  `(progn
     (when (> (incf (input-depth ,input)) (1+ (input-max-depth ,input)))
       (fail-input ,input ,position "messages nest deeper than ~D levels" (input-max-depth ,input)))
     (multiple-value-prog1 (progn ,@body)
       (decf (input-depth ,input)))))

(defun message-memory (layout)
  "Return the approximate number of octets of memory that an empty message with LAYOUT takes."
  (* 8 (+ 6 (length (layout-slots layout)))))

(defun begin-message (input type position)
  "Return two values: a fresh message of TYPE, and its layout. The memory of the message is charged
to the ALLOWANCE of INPUT."
  (let* ((layout (or (message-type-layout type)
                     (misuse "The message type ~A is not defined." (message-type-name type))))
         (octets (message-memory layout)))
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
          (string (write-key item out)))
        (setf first nil)))))

(defun failure-text (control arguments)
  "Return the text that CONTROL and ARGUMENTS format. The text is made visible and short, because a
part of it may come from a peer."
  (multiple-value-bind (text cut)
      (with-bounded-text (stream 500) (apply #'format stream control arguments))
    (format nil "~A~:[~;…~]" (printable-text text) cut)))

(defun fail-input (input position control &rest arguments)
  "Signal MESSAGE-TEXT-ERROR for the octet POSITION of INPUT."
  (multiple-value-bind (line column) (line-and-column (input-octets input) position)
    (error 'message-text-error
           :format (input-format input) :type (input-type-name input) :position position
           :line line :column column :path (path-text (input-path input))
           :text (failure-text control arguments))))

;;; Values

(defun exact-integer (digits exponent negative)
  "Return DIGITS times ten to the power EXPONENT, or nil if that is not an integer or certainly has
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
  "Return the full name of the message type in URL, the type URL of an Any, or nil if URL has none."
  (let ((slash (position #\/ url :from-end t)))
    (and slash (< (1+ slash) (length url)) (subseq url (1+ slash)))))

(defun type-url-p (text)
  "True if TEXT can be written as the type URL of an Any in text format, which requires that it has
only allowed characters, and the name of a type after the last slash."
  (let ((slash (position #\/ text :from-end t)))
    (and slash
         (plusp slash)
         (char/= #\/ (char text 0))
         (every #'url-char-p text)
         (name-p text :start (1+ slash))
         (percents-right-p text slash))))

(defun url-char-p (char)
  (or (letter-p char) (char<= #\0 char #\9) (find char ".-/~!$&()*+,;=%")))

(defun name-p (text &key (start 0) (end (length text)))
  "True if the characters of TEXT from START to END are identifiers joined by points."
  (and (loop for i from start below end
             for char = (char text i)
             always (or (letter-p char) (char<= #\0 char #\9) (char= char #\.)))
       (loop for from = start then (1+ dot)
             for dot = (position #\. text :start from :end end)
             always (and (< from (or dot end)) (letter-p (char text from)))
             while dot)))

(defun percents-right-p (name end)
  "True if two hexadecimal digits follow each percent sign of NAME up to END."
  (loop for percent = (position #\% name :end end) then (position #\% name :start (1+ percent)
                                                                  :end end)
        while percent
        always (and (< (+ percent 2) end)
                    (digit-char-p (char name (+ percent 1)) 16)
                    (digit-char-p (char name (+ percent 2)) 16))))

(defun numbered-slot (message number)
  "The slot of the field NUMBER of MESSAGE, which must have such a field."
  (find-slot (message-layout message) number))

(defun number-held (message number)
  "The stored value of the field NUMBER of MESSAGE."
  (stored message (numbered-slot message number)))

(defun hold-number (stored message number)
  "Make STORED the value of the field NUMBER of MESSAGE."
  (set-slot message (numbered-slot message number) stored))

;;; Writing

(defconstant +text-octets+ (expt 2 26)
  "The default of the maximum number of octets of a text, for writers and readers.")

(defstruct (writing (:copier nil))
  "The output of a message as a text, and its limits."
  (format :json :type (member :json :text)) ; the text format
  (buffer (make-buffer) :type buffer)   ; the output so far
  ;; from the name of a type in an Any to that type, or nil
  (finder #'find-message-type :type function)
  (type-name nil)                       ; the type of the outermost message, for errors
  (levels 0 :type fixnum)               ; the number of messages that may still be entered
  (anys 0 :type fixnum)                 ; the number of Anys around
  (allowance 0 :type fixnum)            ; octets of memory that messages in Anys may still take
  (max-octets 0 :type fixnum))          ; the most octets of the text

(defun fail-writing (writing control &rest arguments)
  "Signal MESSAGE-PRINT-ERROR."
  (error 'message-print-error :format (writing-format writing) :type (writing-type-name writing)
                              :text (failure-text control arguments)))

(defun check-text-size (writing)
  (when (> (buffer-fill (writing-buffer writing)) (writing-max-octets writing))
    (fail-writing writing "it has more than the ~D octets that :max-octets allows"
                  (writing-max-octets writing))))

(defmacro with-level ((writing) &body body)
  "Run BODY, which writes a message, one level deeper; signal an error if that exceeds the limit of
WRITING."
  `(progn
     (when (minusp (decf (writing-levels ,writing)))
       (fail-writing ,writing "messages nest deeper than :max-message-depth allows"))
     (multiple-value-prog1 (progn ,@body)
       (incf (writing-levels ,writing)))))

(defun any-content (writing url octets)
  "Return the message of an Any with the type URL and OCTETS, or nil if its type is not known.
Signal a PROTOBUF-ERROR if OCTETS are not a message of that type, or exceed the limits of WRITING.
An outermost Any adds eight times its size to the allowance, as received octets do. Then its size is
charged to the allowance, because the message copies its octets."
  (let* ((name (url-type-name url))
         (type (and name (funcall (writing-finder writing) name))))
    (when (and type (message-type-defined-p type))
      (when (zerop (writing-anys writing)) (incf (writing-allowance writing) (* 8 (length octets))))
      (decf (writing-allowance writing) (length octets))
      (when (minusp (writing-allowance writing))
        (fail-writing writing "its Anys take more memory than :max-decoded-octets allows"))
      (unless (plusp (writing-levels writing))
        (fail-writing writing "messages nest deeper than :max-message-depth allows"))
      (handler-bind ((protobuf-error
                       (lambda (condition)
                         (unless (protobuf-error-type condition)
                           (reinitialize-error-type condition name)))))
        (read-twice (reading 0 :depth (1- (writing-levels writing))
                               :decoded-octets (writing-allowance writing))
          (let ((message (funcall (message-type-reader type) octets 0 (length octets) reading)))
            (when message (setf (writing-allowance writing) (reading-allowance reading)))
            message))))))

(defmacro within-any ((writing) &body body)
  "Run BODY, which writes the contents of an Any."
  `(progn (incf (writing-anys ,writing))
          ,@body
          (decf (writing-anys ,writing))))

(defun written-text (writing as)
  "The written text: a string or, if AS is :OCTETS, the text in UTF-8."
  (check-text-size writing)
  (let ((buffer (writing-buffer writing)))
    (ecase as
      (:string (buffer-string buffer))
      (:octets (subseq-octets (buffer-octets buffer) (buffer-start buffer)
                              (buffer-end buffer))))))
