;;;; The names that a file sees while it is linked, and the errors that are found. Files that are
;;;; linked together share a SYMBOL-TABLE: every name declared in one of them, and in their direct
;;;; and indirect imports, is entered once. A name is visible if its file is imported, or is
;;;; imported publicly by a visible file. Name resolution is C++'s: the innermost scope that has the
;;;; first part of a name decides (protobuf language specification).
;;;;
;;;; Descriptors come from peers too, so the work here and in the files above is linear in their
;;;; octets: names that are looked up often have an index in the symbol table, and no recursion
;;;; follows the depth of imports.
;;;;
;;;; Errors are collected in the order in which protoc reports them; the first is signalled and
;;;; contains the others. protoc stops at the first stage that finds errors. After this a source
;;;; continues to the next stage without the declarations that have errors and those that need them,
;;;; so that one run shows the errors of the rest as well. A file read from octets ends as in
;;;; protoc.

(in-package #:clgrpc.protobuf)

(defstruct (declared (:constructor make-declared (thing file &optional owner)) (:copier nil))
  "The result of looking up a full name: a descriptor or a package."
  (thing nil)                           ; a descriptor or :PACKAGE
  (file nil :type (or null file-descriptor)) ; the file that declares the name
  ;; of a field its message, of an enum value its enum, else nil
  (owner nil))

(defconstant +longest-name+ 512
  "The maximum number of characters of a full name in files read from octets. It is limited because
nested names repeat the names around them.")

(defconstant +most-imports-in-sight+ 1000000
  "The maximum number of visible files, summed over all files that are linked together. This bounds
the work for public imports, because N public imports can make N × N files visible.")

(defstruct (symbol-table (:copier nil))
  "The state that files linked together share."
  (names (make-hash-table :test 'equal) :type hash-table) ; maps a full name to its DECLARED
  (entered (make-hash-table :test 'eq) :type hash-table)  ; the files whose names are in NAMES
  (extensions (make-hash-table :test 'equal) :type hash-table) ; extendee to fields by number
  (indexes (make-hash-table :test 'eq) :type hash-table)  ; descriptor to plist; see INDEX-OF
  (reach +most-imports-in-sight+ :type fixnum)) ; the number of imports that may still come in sight

(defstruct (linker (:constructor make-linker (&key file symbol-table read-p))
                   (:copier nil))
  "The state of linking one file."
  (file nil :type (or null file-descriptor)) ; the file
  ;; shared with the files that are linked together with FILE
  (symbol-table (make-symbol-table) :type symbol-table)
  (imports '() :type list)              ; the files in sight
  (option-imports '() :type list)       ; the files in sight for options only
  ;; maps names of files and of packages to T or :OPTIONS
  (sight (make-hash-table :test 'eq) :type hash-table)
  (packages (make-hash-table :test 'equal) :type hash-table) ; packages of the files in sight
  (records (make-hash-table :test 'eq) :type hash-table) ; descriptor to the RECORD of its options
  (problems '() :type list)             ; the errors so far, the latest first
  (problem-count 0 :type index)         ; the number of errors, including errors that were not kept
  ;; descriptors with an error, or that need a faulty descriptor
  (faulty (make-hash-table :test 'eq) :type hash-table)
  ;; true if an import is missing, so that its declarations are unknown
  (missing-p nil :type boolean)
  (read-p nil :type boolean)            ; whether the file comes from a descriptor set
  ;; after a look-up that failed, the file that has the name but is not imported
  (hidden nil :type (or null file-descriptor))
  (nearest nil :type (or null string))) ; the name in the scope that decided

(defvar *linker*)
(setf (documentation '*linker* 'variable) "The linker at work.")

(defun linked-file ()
  (linker-file *linker*))

;;; Errors

(defun noted-p (thing kind)
  "The line and column noted for the part KIND of THING, or nil if none are noted."
  (let ((places (file-descriptor-places (linked-file))))
    (rest (assoc kind (and places (gethash thing places))))))

(defun place-of (thing kind)
  "The line and column of the part KIND of THING, a descriptor, option, range or import."
  (let ((noted (noted-p thing kind)))
    (cond (noted (values (first noted) (second noted)))
          ((option-p thing) (values (option-line thing) (option-column thing)))
          ((descriptor-p thing) (values (descriptor-line thing) (descriptor-column thing)))
          (t (values 1 1)))))

(defconstant +most-problems+ 100
  "The maximum number of errors that are reported for one file read from octets.")

(defun faulty-p (thing)
  "True if THING has an error or needs a declaration that has one."
  (values (gethash thing (linker-faulty *linker*))))

(defun note-faulty (thing)
  (setf (gethash thing (linker-faulty *linker*)) t)
  nil)

(defun complain (thing kind control &rest arguments)
  "Note an error at the part KIND of THING; see PLACE-OF. Return nil."
  (note-faulty thing)
  (when (and (> (incf (linker-problem-count *linker*)) +most-problems+)
             (linker-read-p *linker*))
    (return-from complain nil))
  (multiple-value-bind (line column) (place-of thing kind)
    (push (make-condition 'proto-syntax-error
                          :file (descriptor-name (linked-file)) :line line :column column
                          :text (format nil "~?" control arguments))
          (linker-problems *linker*))
    nil))

(defun fail-on-problems ()
  (signal-problems (reverse (linker-problems *linker*))))

;;; Indexes

(defun index-of (thing make)
  "Return the index of THING in the symbol table. THING is a descriptor that does not change any
more; MAKE names the function that makes the index from THING when it is first needed."
  (let* ((table (symbol-table-indexes (linker-symbol-table *linker*)))
         (there (getf (gethash thing table) make table)))
    (if (eq there table)
        (setf (getf (gethash thing table) make) (funcall make thing))
        there)))

(defun enum-value-numbered (enum number)
  "Return the first value of ENUM with NUMBER, or nil if ENUM has none. ENUM must be linked."
  (values (gethash number (index-of enum 'values-by-number))))

(defun values-by-number (enum)
  (index-by #'enum-value-descriptor-number (enum-descriptor-values enum)))

(defun fields-by-number (message)
  (index-by #'field-descriptor-number (message-descriptor-fields message)))

(defun field-numbered (message number)
  "Return the field or the known extension of MESSAGE with NUMBER, or nil if it has neither. MESSAGE
must be linked."
  (or (gethash number (index-of message 'fields-by-number))
      (let ((extensions (gethash (descriptor-full-name message)
                                 (symbol-table-extensions (linker-symbol-table *linker*)))))
        (and extensions (values (gethash number extensions))))))

;;; Entering

(defun names ()
  (symbol-table-names (linker-symbol-table *linker*)))

(defun raw-declared (name)
  (gethash name (names)))

(defun know-extension (field)
  "Enter FIELD, an extension whose extendee is resolved, into the symbol table."
  (let ((extensions (symbol-table-extensions (linker-symbol-table *linker*)))
        (name (field-descriptor-extendee field)))
    (setf (gethash (field-descriptor-number field)
                   (alexandria:ensure-gethash name extensions (make-hash-table)))
          field)))

(defun identifier-p (name)
  (and (plusp (length name))
       (every (lambda (char) (or (letter-p char) (digit-p char))) name)))

(defun check-identifier (descriptor)
  (let ((name (descriptor-name descriptor)))
    (unless (identifier-p name)
      (complain descriptor :name "\"~A\" is not an identifier" name))))

(defun declare-name (descriptor &optional owner)
  "Enter DESCRIPTOR, which the file that is being linked declares, into the symbol table."
  (check-identifier descriptor)
  (let* ((name (descriptor-full-name descriptor))
         (there (raw-declared name)))
    (cond ((null there)
           (setf (gethash name (names)) (make-declared descriptor (linked-file) owner)))
          ((eq (declared-file there) (linked-file))
           (complain descriptor :name "\"~A\" is already declared~@[ at line ~D~]" name
                     (and (descriptor-p (declared-thing there))
                          (descriptor-line (declared-thing there)))))
          (t
           (complain descriptor :name "\"~A\" is already declared~:[~; as a package~] in ~A" name
                     (eq :package (declared-thing there))
                     (descriptor-name (declared-file there)))))))

(defun check-package (file)
  (unless (every #'identifier-p (split-name (file-descriptor-package file)))
    (complain file :name "the package has a part that is not an identifier")))

(defun enter-package (file own)
  "Enter the package of FILE and its enclosing packages; OWN is true if FILE is the one being
linked."
  (let ((package (file-descriptor-package file)) (names (names)))
    (unless (string= "" package)
      (loop for end = (length package) then (position #\. package :end end :from-end t)
            while end
            do (let* ((name (subseq package 0 end)) (there (gethash name names)))
                 (cond ((null there) (setf (gethash name names) (make-declared :package file)))
                       ((and own (not (eq :package (declared-thing there))))
                        (complain file :name "the package \"~A\" has the name of something in ~A"
                                  name (descriptor-name (declared-file there))))))))))

(defun enter-file (file)
  "Enter the declarations of FILE, which is linked, into the symbol table."
  (setf (gethash file (symbol-table-entered (linker-symbol-table *linker*))) t)
  (enter-package file nil)
  (map-names (lambda (descriptor owner)
               (setf (gethash (descriptor-full-name descriptor) (names))
                     (make-declared descriptor file owner)))
             file)
  (map-extensions #'know-extension file))

(defun all-imports (file)
  (append (file-descriptor-dependencies file) (file-descriptor-option-dependencies file)))

(defun map-import-closure (function names find select)
  "Call FUNCTION with each of the files called NAMES. If FUNCTION returns true for a file, continue
with the files whose names SELECT returns for that file. FIND returns the file of a name, or nil if
it is unknown."
  (let ((waiting (list names)))         ; lists of names
    (loop while waiting
          do (let ((name (pop (first waiting))))
               (if (null name)
                   (pop waiting)
                   (let ((file (funcall find name)))
                     (when (and file (funcall function file))
                       (push (funcall select file) waiting))))))))

(defun see-imports (names find kind)
  "Return the files called NAMES and their direct and indirect public imports, and make these files
visible. KIND is T, or :OPTIONS if they are visible only for options."
  (let ((files '()) (sight (linker-sight *linker*)) (symbol-table (linker-symbol-table *linker*)))
    (map-import-closure
     (lambda (file)
       (when (minusp (decf (symbol-table-reach symbol-table)))
         (fail-read nil "public imports make too many files visible"))
       (unless (gethash file sight)
         (setf (gethash file sight) kind)
         (push file files)))
     names find #'file-descriptor-public-dependencies)
    (nreverse files)))

(defun enter-imports (file find)
  (setf (linker-imports *linker*) (see-imports (file-descriptor-dependencies file) find t)
        (linker-option-imports *linker*)
        (see-imports (file-descriptor-option-dependencies file) find :options))
  (let ((entered (symbol-table-entered (linker-symbol-table *linker*))))
    (map-import-closure (lambda (file)
                          (unless (gethash file entered)
                            (enter-file file)
                            t))
                        (all-imports file) find #'all-imports))
  (dolist (seen (list* file (append (linker-imports *linker*) (linker-option-imports *linker*))))
    (see-package (file-descriptor-package seen))))

(defun see-package (package)
  "Note that PACKAGE is visible, and so are its enclosing packages."
  (let ((packages (linker-packages *linker*)))
    (loop for end = (length package) then (position #\. package :end end :from-end t)
          while (and end (plusp end))
          do (let ((name (subseq package 0 end)))
               (when (gethash name packages) (return))
               (setf (gethash name packages) t)))))

;;; The standard options, for files that do not import descriptor.proto

(defglobal **standard-names** nil)

(defun standard-names ()
  "The names in the built-in descriptor.proto; the empty list while that file itself is linked."
  (or **standard-names**
      (if-let ((file (find-file-descriptor "google/protobuf/descriptor.proto")))
        (let ((*linker* (make-linker)))
          (enter-file file)
          (setf **standard-names** (names)))
        (make-hash-table :test 'equal))))

(defun find-declared (full-name)
  "Return the DECLARED called FULL-NAME, whether it is visible here or not, or nil if there is
none."
  (or (raw-declared full-name) (gethash full-name (standard-names))))

(defun find-thing (full-name)
  "Return the thing declared as FULL-NAME, whether it is visible here or not, or nil if there is
none."
  (let ((declared (find-declared full-name)))
    (and declared (declared-thing declared))))

(defun find-inside (scope name owner)
  "Return the thing called NAME in SCOPE, a full name, that belongs to OWNER, a message or enum, or
nil if there is none."
  (let ((declared (find-declared (format nil "~:[~A.~;~*~]~A" (string= "" scope) scope name))))
    (and declared (eq owner (declared-owner declared)) (declared-thing declared))))

(defun enum-value-named (enum name)
  "Return the value of ENUM called NAME, or nil if there is none. ENUM must be declared."
  (find-inside (scope-of enum) name enum))

(defun field-inside (message name)
  "Return the field of MESSAGE called NAME, or nil if there is none. MESSAGE must be declared."
  (let ((found (find-inside (descriptor-full-name message) name message)))
    (and (field-descriptor-p found) found)))

;;; Finding

(defun in-sight-p (declared name)
  (let ((file (declared-file declared)) (thing (declared-thing declared)))
    (or (eq file (linked-file))
        (case (gethash file (linker-sight *linker*))
          ((t) t)
          (:options (field-descriptor-p thing)))
        (and (eq thing :package) (gethash name (linker-packages *linker*))))))

(defun find-name (name)
  "Return the DECLARED called NAME if it is visible here, else nil."
  (let ((declared (raw-declared name)))
    (cond ((null declared) nil)
          ((in-sight-p declared name) declared)
          (t (setf (linker-hidden *linker*) (declared-file declared))
             nil))))

(defun aggregate-p (thing)
  (typep thing '(or (eql :package) message-descriptor enum-descriptor service-descriptor)))

(defun type-descriptor-p (thing)
  (or (message-descriptor-p thing) (enum-descriptor-p thing)))

(defun scope-around (full-name)
  (subseq full-name 0 (or (position #\. full-name :from-end t) 0)))

(defun scope-of (descriptor)
  (scope-around (descriptor-full-name descriptor)))

(defun resolve-name (name inside &optional (accept (constantly t)))
  "Return the DECLARED that NAME denotes in the scope of the full name INSIDE, or nil if it denotes
none. A name of one part counts only if ACCEPT returns true for its DECLARED."
  (setf (linker-hidden *linker*) nil
        (linker-nearest *linker*) nil)
  (when (and (plusp (length name)) (char= #\. (char name 0)))
    (return-from resolve-name (find-name (subseq name 1))))
  (when (> (length name) +longest-name+) (return-from resolve-name nil))
  (let ((head (subseq name 0 (position #\. name))))
    (loop for scope = (scope-around inside) then (scope-around scope)
          until (string= "" scope)
          do (let ((first (find-name (format nil "~A.~A" scope head))))
               (cond ((null first))
                     ((string= head name)
                      (when (funcall accept (declared-thing first))
                        (return-from resolve-name first)))
                     ((aggregate-p (declared-thing first))
                      (let ((full (format nil "~A.~A" scope name)))
                        (return-from resolve-name
                          (or (find-name full)
                              (progn (setf (linker-nearest *linker*) full) nil))))))))
    (find-name name)))

(defun complain-unknown (thing kind name)
  "Note that NAME, for which RESOLVE-NAME found nothing, is not declared."
  (let ((hidden (linker-hidden *linker*)) (nearest (linker-nearest *linker*)))
    (cond ((linker-missing-p *linker*) (note-faulty thing))
          (hidden
           (complain thing kind "\"~A\" is declared in ~A, which is not imported" name
                     (descriptor-name hidden)))
          (nearest
           (complain thing kind "\"~A\" means \"~A\" here, which is not declared; a leading dot ~
                                 makes the search begin at the outermost scope"
                     name nearest))
          (t (complain thing kind "\"~A\" is not declared~@[ here; import \"~A\" declares it~]" name
                       (let ((file (file-of-symbol (string-left-trim "." name))))
                         (and file (built-in (descriptor-name file)) (descriptor-name file))))))))
