;;;; Descriptor sets: google.protobuf.FileDescriptorSet in octets, as protoc --descriptor_set_out
;;;; and buf write them, and in the form in which generators and reflection get them. The sets'
;;;; files become file descriptors, linked and registered like those of sources, with comments and
;;;; positions if the set has source info.
;;;;
;;;; The writer of a set has checked it, so only properties on which the code here depends are
;;;; checked again. A file that is in every image keeps the image's definition, and a loaded file
;;;; with the same octets is not changed.

(in-package #:clgrpc.protobuf)

;;; Fields of a message in octets

(defstruct (slice (:constructor make-slice (octets start end)) (:copier nil))
  "A part of octets. Slices avoid copying nested messages at each level."
  (octets nil :type octets)             ; the vector that contains the field
  (start 0 :type index)                 ; the slice's start
  (end 0 :type index))                  ; the slice's end

(defun slice-of (octets)
  (if (slice-p octets) octets (make-slice octets 0 (length octets))))

(defun slice-content (slice)
  (subseq-octets (slice-octets slice) (slice-start slice) (slice-end slice)))

(defun wire-fields (octets)
  "Return the fields in OCTETS, which may be a slice, as a list of (number . value). A value is an
integer or a slice."
  (let* ((fields '()) (slice (slice-of octets)) (octets (slice-octets slice)))
    (map-wire-fields (lambda (number wire-type value start end)
                       (declare (ignore wire-type))
                       (push (cons number (or value (make-slice octets start end))) fields))
                     octets (slice-start slice) (slice-end slice))
    (nreverse fields)))

(defun wire-all (fields number type)
  "Return the values of TYPE of the fields NUMBER among FIELDS, in order."
  (loop for (field . value) in fields
        when (and (= field number) (typep value type)) collect value))

(defun wire-octets (fields number)
  (let ((slice (first (last (wire-all fields number 'slice)))))
    (and slice (slice-content slice))))

(defun wire-texts (fields number)
  (loop for slice in (wire-all fields number 'slice)
        collect (lenient-string (slice-content slice))))

(defun wire-text (fields number)
  (first (last (wire-texts fields number))))

(defun wire-number (fields number &optional default)
  "The value of the 32-bit field NUMBER, or DEFAULT."
  (let ((value (first (last (wire-all fields number 'integer)))))
    (if value (signed-32 (ldb (byte 32 0) value)) default)))

(defun wire-numbers (fields number)
  "The values of the repeated 32-bit field NUMBER, packed or not."
  (loop for (field . value) in fields
        when (= field number)
          append (if (integerp value)
                     (list value)
                     (packed-values :uint32 (slice-content value)))))

(defun wire-true-p (fields number)
  (eql 1 (wire-number fields number)))

;;; Places and comments

(defvar *locations*)
(setf (documentation '*locations* 'variable) "While a file is read: its source info by path.")

(defconstant +longest-path+ 256
  "The maximum number of elements in a path of source info. Longer paths belong to no declaration
that is read.")

(defun inner-path (path &rest numbers)
  "Return the path of the declaration at NUMBERS, of 32 bits each, inside the declaration at PATH. A
path is an integer, 1 for the file, because a hash table hashes all of an integer but only a part of
a list."
  (dolist (number numbers path)
    (setf path (logior (ash path 32) (ldb (byte 32 0) number)))))

(defun read-locations (octets)
  "Return a table from paths to lists (line column comment), made from OCTETS, a SourceCodeInfo or
nil."
  (let ((table (make-hash-table)))
    (dolist (location (and octets (wire-all (wire-fields octets) 1 'slice)) table)
      (let* ((fields (wire-fields location))
             (path (wire-numbers fields 1))
             (span (wire-numbers fields 2))
             (comment (or (wire-text fields 3) (wire-text fields 4)))
             (text (and comment (comment-lines comment))))
        (unless (nthcdr +longest-path+ path)
          (setf (gethash (apply #'inner-path 1 path) table)
                (list (1+ (max 0 (or (first span) 0))) (1+ (max 0 (or (second span) 0)))
                      (and text (plusp (length text)) text))))))))

(defun joined-name (scope name)
  "Return the full name of NAME in SCOPE, in a file that is read from octets."
  (when (> (+ (length scope) (length name)) +longest-name+)
    (fail-read nil "a name is longer than ~D characters" +longest-name+))
  (if (string= "" scope) name (format nil "~A.~A" scope name)))

(defun fill-descriptor (descriptor fields options scope path)
  "Set the common slots of DESCRIPTOR from FIELDS. OPTIONS is the number of the field with options,
SCOPE the full name of the surrounding declaration, PATH the path of the declaration in the file."
  (setf (descriptor-name descriptor) (or (wire-text fields 1) "")
        (descriptor-full-name descriptor) (joined-name scope (descriptor-name descriptor)))
  (fill-options descriptor fields options)
  (destructuring-bind (&optional (line 1) (column 1) comment) (gethash path *locations*)
    (setf (descriptor-line descriptor) line
          (descriptor-column descriptor) column
          (descriptor-comment descriptor) comment))
  descriptor)

(defun fill-options (descriptor fields number)
  (let ((octets (wire-octets fields number)))
    (setf (descriptor-option-octets descriptor) octets
          (descriptor-source-option-octets descriptor) octets)))

(defun option-flag-p (descriptor number)
  "True if the boolean option NUMBER is set in the option octets of DESCRIPTOR."
  (let ((octets (descriptor-option-octets descriptor)))
    (and octets (wire-true-p (wire-fields octets) number))))

(defun read-each (read fields number path &rest arguments)
  "For each message in the field NUMBER of FIELDS, call READ with the message's slice, its path and
ARGUMENTS."
  (loop for slice in (wire-all fields number 'slice)
        for i from 0
        collect (apply read slice (inner-path path number i) arguments)))

(defun read-visibility (number)
  (case number (1 :local) (2 :export)))

;;; Fields

(defvar *nameless*)
(setf (documentation '*nameless* 'variable)
      "While a file is read: its fields whose name in JSON is given and empty.")

(defun places-of-nameless ()
  "The table of places by which the linker recognizes the fields of *NAMELESS*."
  (let ((places (make-hash-table :test 'eq)))
    (dolist (field *nameless* places)
      (setf (gethash field places) '((:json-name 1 1))))))

(defun read-field-descriptor (octets path scope oneofs)
  "Return the field of OCTETS, a FieldDescriptorProto. ONEOFS is a vector of the names of the oneofs
of its message, with nil for a oneof that only marks a proto3 optional field."
  (let* ((fields (wire-fields octets))
         (type (wire-number fields 5))
         (oneof (wire-number fields 9))
         (field (make-field-descriptor
                 :number (wire-number fields 3 0)
                 :label (case (wire-number fields 4 1) (2 :required) (3 :repeated) (t :optional))
                 :labelled-p t
                 :type (and type (<= 1 type 18) (elt *type-numbers* (1- type)))
                 :type-name (wire-text fields 6)
                 :extendee (wire-text fields 2)
                 :oneof (and oneof (< -1 oneof (length oneofs)) (svref oneofs oneof))
                 :proto3-optional-p (wire-true-p fields 17)
                 :json-name (or (wire-text fields 10) ""))))
    (when (equal "" (wire-text fields 10)) (push field *nameless*))
    (fill-descriptor field fields 8 scope path)
    (when (wire-octets fields 7)
      (setf (values (field-descriptor-default-text field) (field-descriptor-default field))
            (read-default (field-descriptor-type field) (wire-octets fields 7))))
    field))

(defun read-default (type octets)
  "Return the default in OCTETS of a field of TYPE: as text and, except for an enum, as a value."
  (let ((text (lenient-string octets)))
    (labels ((refuse () (fail-read 0 "\"~A\" is not a default of type ~(~A~)" text type))
             (magnitude (kinds)
               (let ((token (svref (tokenize (string-left-trim "-" text) "") 0)))
                 (if (member (token-kind token) kinds) (token-value token) (refuse))))
             (signed (value) (if (char= #\- (char text 0)) (- value) value)))
      (case type
        (:bool (values text (string= text "true")))
        (:string (values octets text))
        (:bytes (values text (or (c-unescaped text)
                                 (fail-read 0 "a default is escaped wrongly"))))
        ((:float :double)
         (let ((value (cond ((string= text "nan") (double-nan))
                            ((string= text "inf") sb-ext:double-float-positive-infinity)
                            ((string= text "-inf") sb-ext:double-float-negative-infinity)
                            (t (signed (to-double (magnitude '(:float :integer))))))))
           (values text (if (eq type :float) (text-single value) value))))
        (t (if-let ((range (rest (assoc type *integer-ranges*))))
             (let ((value (signed (magnitude '(:integer)))))
               (values text (if (<= (first range) value (second range)) value (refuse))))
             (values text nil)))))))

;;; Messages, enums, services

(defun real-oneofs (slices count)
  "Return, for each of COUNT oneofs, true if SLICES have a field of this oneof that is not proto3
optional."
  (let ((real (make-array count :initial-element nil)))
    (dolist (slice slices real)
      (let* ((fields (wire-fields slice)) (oneof (wire-number fields 9)))
        (when (and oneof (< -1 oneof count) (not (wire-true-p fields 17)))
          (setf (svref real oneof) t))))))

(defun read-oneof-descriptor (octets path scope)
  (fill-descriptor (make-oneof-descriptor) (wire-fields octets) 2 scope path))

(defun read-range (octets after)
  "Return the pair (first . last) of the range in OCTETS. The end in OCTETS is the last number plus
AFTER."
  (let ((fields (wire-fields octets)))
    (cons (wire-number fields 1 0) (- (wire-number fields 2 0) after))))

(defun read-extension-range (octets path scope)
  (let* ((fields (wire-fields octets))
         (range (make-extension-range :first (wire-number fields 1 0)
                                      :last (1- (wire-number fields 2 0)))))
    (fill-descriptor range '() 0 scope path)
    (fill-options range fields 3)
    range))

(defun read-message-descriptor (octets path scope &optional (depth 0))
  "The message of OCTETS, a DescriptorProto."
  (when (> depth +aggregate-depth+) (fail-recursion 0))
  (let* ((fields (wire-fields octets))
         (message (fill-descriptor (make-message-descriptor) fields 7 scope path))
         (inside (descriptor-full-name message))
         (oneofs (read-each #'read-oneof-descriptor fields 8 path inside))
         (real (real-oneofs (wire-all fields 2 'slice) (length oneofs)))
         (names (map 'simple-vector (lambda (oneof real-p) (and real-p (descriptor-name oneof)))
                     oneofs real)))
    (setf (message-descriptor-oneofs message)
          (loop for oneof in oneofs for real-p across real when real-p collect oneof)
          (message-descriptor-fields message)
          (read-each #'read-field-descriptor fields 2 path inside names)
          (message-descriptor-extensions message)
          (read-each #'read-field-descriptor fields 6 path inside #())
          (message-descriptor-messages message)
          (read-each #'read-message-descriptor fields 3 path inside (1+ depth))
          (message-descriptor-enums message) (read-each #'read-enum-descriptor fields 4 path inside)
          (message-descriptor-extension-ranges message)
          (read-each #'read-extension-range fields 5 path inside)
          (message-descriptor-reserved-ranges message)
          (loop for range in (wire-all fields 9 'slice) collect (read-range range 1))
          (message-descriptor-reserved-names message) (wire-texts fields 10)
          (message-descriptor-visibility message) (read-visibility (wire-number fields 11))
          (message-descriptor-map-entry-p message) (option-flag-p message 7)
          (message-descriptor-message-set-p message) (option-flag-p message 1))
    message))

(defun read-enum-value-descriptor (octets path scope)
  (let* ((fields (wire-fields octets))
         (value (make-enum-value-descriptor :number (wire-number fields 2 0))))
    (fill-descriptor value fields 3 scope path)))

(defun read-enum-descriptor (octets path scope)
  "The enum of OCTETS, an EnumDescriptorProto."
  (let* ((fields (wire-fields octets))
         (enum (make-enum-descriptor
                :values (read-each #'read-enum-value-descriptor fields 2 path scope)
                :reserved-ranges (loop for range in (wire-all fields 4 'slice)
                                       collect (read-range range 0))
                :reserved-names (wire-texts fields 5)
                :visibility (read-visibility (wire-number fields 6)))))
    (fill-descriptor enum fields 3 scope path)))

(defun read-method-descriptor (octets path scope)
  (let* ((fields (wire-fields octets))
         (method (make-method-descriptor
                  :input (or (wire-text fields 2) "") :output (or (wire-text fields 3) "")
                  :client-streaming-p (wire-true-p fields 5)
                  :server-streaming-p (wire-true-p fields 6))))
    (fill-descriptor method fields 4 scope path)))

(defun read-service-descriptor (octets path scope)
  (let* ((fields (wire-fields octets))
         (service (fill-descriptor (make-service-descriptor) fields 3 scope path)))
    (setf (service-descriptor-methods service)
          (read-each #'read-method-descriptor fields 2 path (descriptor-full-name service)))
    service))

;;; Files

(defun read-syntax (file syntax edition)
  (setf (file-descriptor-syntax file)
        (cond ((member syntax '(nil "" "proto2") :test #'equal) :proto2)
              ((string= syntax "proto3") :proto3)
              ((string= syntax "editions") :editions)
              (t (fail-read 0 "there is no syntax \"~A\"" syntax))))
  (when (eq :editions (file-descriptor-syntax file))
    (setf (file-descriptor-edition file)
          (or (cdr (assoc edition '((1000 . "2023") (1001 . "2024"))))
              (fail-read 0 "edition ~D is not known" edition)))))

(defun read-file-descriptor (octets)
  "The file descriptor, not yet linked, in OCTETS, a FileDescriptorProto. Signal PROTOBUF-ERROR."
  (let* ((fields (wire-fields octets))
         (name (or (wire-text fields 1) ""))
         (package (or (wire-text fields 2) ""))
         (dependencies (coerce (wire-texts fields 3) 'simple-vector))
         (*locations* (read-locations (wire-octets fields 9)))
         (*nameless* '()))
    (flet ((chosen (number)
             (loop for position in (wire-numbers fields number)
                   when (< -1 position (length dependencies))
                     collect (svref dependencies position))))
      (let ((file (make-file-descriptor
                   :name name :full-name name :package package
                   :dependencies (coerce dependencies 'list)
                   :public-dependencies (chosen 10) :weak-dependencies (chosen 11)
                   :option-dependencies (wire-texts fields 15)
                   :comment (third (gethash (inner-path 1 12) *locations*))
                   :messages (read-each #'read-message-descriptor fields 4 1 package)
                   :enums (read-each #'read-enum-descriptor fields 5 1 package)
                   :services (read-each #'read-service-descriptor fields 6 1 package)
                   :extensions (read-each #'read-field-descriptor fields 7 1 package #()))))
        (setf (file-descriptor-places file) (places-of-nameless))
        (fill-options file fields 8)
        (read-syntax file (wire-text fields 12) (wire-number fields 14))
        file))))

;;; Options in the form in which sources have them

(defun written-value (field value)
  "Return VALUE of FIELD as a constant in the form that a source would have; see OPTION-VALUE."
  (cond ((record-p value)
         (cons :aggregate
               (loop for (inner . item) in (record-entries value)
                     collect (cons (if (field-descriptor-extendee inner)
                                       (list (descriptor-full-name inner))
                                       (descriptor-name inner))
                                   (written-value inner item)))))
        ((eq :bool (field-descriptor-type field)) (list :identifier (if value "true" "false")))
        ((eq :enum (field-descriptor-type field))
         (let ((named (enum-value-numbered (find-thing (field-descriptor-type-name field))
                                           value)))
           (if named (list :identifier (descriptor-name named)) value)))
        (t value)))

(defun restore-options (descriptor)
  "Set the options of DESCRIPTOR, which was read from a descriptor set, to the options in the record
that was made when DESCRIPTOR was linked."
  (let ((record (options-record descriptor)))
    (setf (descriptor-options descriptor)
          (loop for (field . value) in (and record (record-entries record))
                collect (make-option :name (list (if (field-descriptor-extendee field)
                                                     (list (descriptor-full-name field))
                                                     (descriptor-name field)))
                                     :value (written-value field value))))))

(defun link-read-file (file find &optional (symbol-table (make-symbol-table)))
  "Do what LINK-FILE does, for FILE that was read from octets. Its options are already interpreted.
Rules for sources are not checked, because a descriptor set lacks data that they need."
  (let ((*linker* (make-linker :file file :symbol-table symbol-table :read-p t)))
    (resolve-imports file find '())
    (map-optioned (lambda (descriptor inside)
                    (declare (ignore inside))
                    (when-let ((octets (descriptor-source-option-octets descriptor)))
                      (setf (gethash descriptor (linker-records *linker*))
                            (read-options octets (options-type descriptor)))))
                  file)
    (resolve-features file)
    (state-facts file)
    (check-rules file)
    (fail-on-problems)
    (map-optioned (lambda (descriptor inside)
                    (declare (ignore inside))
                    (restore-options descriptor))
                  file)
    (setf (file-descriptor-places file) nil)
    file))

;;; Sets

(defun link-set (set)
  "Link the files of SET, octets of FileDescriptorProtos in any order. Return two lists, both with
imports first: all file descriptors, and the new file descriptors, which have no symbols yet. Signal
PROTOBUF-ERROR and PROTO-SYNTAX-ERROR."
  (let* ((read (mapcar #'read-file-descriptor set))
         (unlinked (make-hash-table :test 'equal))
         (linked (make-hash-table :test 'equal))
         (symbol-table (make-symbol-table))
         (all '()) (fresh '()))
    (labels ((imports (name)
               (let ((file (gethash name unlinked))) (and file (all-imports file))))
             (known (name)
               (or (gethash name linked) (find-file-descriptor name)))
             (link (name)
               (when-let ((file (gethash name unlinked)))
                 (push (setf (gethash name linked)
                             (settled (link-read-file file #'known symbol-table)))
                       all)))
             (settled (file)
               (let ((known (find-file-descriptor (descriptor-name file))))
                 (cond ((and known (equalp (file-descriptor-octets file)
                                           (file-descriptor-octets known)))
                        ;; replaces FILE, which declared the same names
                        (let ((*linker* (make-linker :symbol-table symbol-table)))
                             (enter-file known))
                        known)
                       (t
                        (push file fresh)
                        file)))))
      (dolist (file read)
        (unless (eq t (built-in (descriptor-name file)))
          (setf (gethash (descriptor-name file) unlinked) file)))
      (walk-imports (mapcar #'descriptor-name read) #'imports #'link
                    (lambda (name open)
                      (fail-on-circle name (mapcar (lambda (name) (gethash name unlinked))
                                                   open))))
      (values (remove-duplicates
               (append (loop for file in read
                             unless (gethash (descriptor-name file) unlinked)
                               collect (known (descriptor-name file)))
                       (nreverse all)))
              (nreverse fresh)))))

(defun name-fresh (files)
  "Assign symbols and fingerprints to FILES, the new file descriptors that LINK-SET returned."
  (dolist (file files)
    (setf (file-descriptor-fingerprint file)
          (text-fingerprint (c-escaped (file-descriptor-octets file)))))
  (assign-symbols files))

(defun set-files (octets)
  "The FileDescriptorProtos in OCTETS, a FileDescriptorSet."
  (mapcar #'slice-content (wire-all (wire-fields octets) 1 'slice)))

(defun load-descriptor-set (octets)
  "Register the files of OCTETS, a serialized google.protobuf.FileDescriptorSet in any order, so
that FIND-DESCRIPTOR and similar functions find their declarations. Imports that are not in the set
must be loaded. No code is made; DEFINE-DESCRIPTOR-SET makes code. Return the file descriptors,
imports first. Signal PROTOBUF-ERROR if OCTETS are not a descriptor set, PROTO-SYNTAX-ERROR if the
files contradict each other. From one thread at a time, like LOAD."
  (multiple-value-bind (all fresh) (link-set (set-files octets))
    (name-fresh fresh)
    (mapc #'register-file fresh)
    all))

(defmacro define-descriptor-set (path)
  "Define the declarations of all files in the serialized google.protobuf.FileDescriptorSet in the
file PATH, as DEFINE-PROTO does for a source. PATH is relative to the file of this form or, at the
REPL, to *DEFAULT-PATHNAME-DEFAULTS*. Signal PROTOBUF-ERROR if PATH does not contain a descriptor
set, PROTO-SYNTAX-ERROR if its files contradict each other. The value is the name of the last file
that is new, or nil if none is new. From one thread at a time, like LOAD."
  (let* ((truename (truename (merge-pathnames (parse-native path) (source-directory))))
         (octets (source-octets truename))
         (*definer* (own-definer))
         (for-file (and *definer* t)))
    (multiple-value-bind (all fresh) (link-set (set-files octets))
      (name-fresh fresh)
      (let ((files (if for-file (remove-if #'built-in all :key #'descriptor-name) fresh)))
        (and files (expand-files files for-file))))))
