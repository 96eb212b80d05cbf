;;;; The names a file sees while it is linked, and the errors that are found. Every name declared in
;;;; the file and in all that it imports, at any distance, is known; a name is in sight if its file
;;;; is imported, or is imported publicly by one that is. Name resolution is C++'s: the innermost
;;;; scope that has the first part of a name decides (protobuf language specification).
;;;;
;;;; Errors are collected in the order in which protoc reports them; the first is signalled with the
;;;; others in it.

(in-package #:clgrpc.protobuf)

(defstruct (declared (:constructor make-declared (thing file &optional owner)) (:copier nil))
  "A THING with a full name, a descriptor or :PACKAGE, the FILE it is from and, of a field its
message, of an enum value its enum."
  (thing nil)
  (file nil :type (or null file-descriptor))
  (owner nil))

(defstruct (linker (:copier nil))
  "READ-P: the file comes from a descriptor set. HIDDEN and NEAREST tell of the last failed lookup:
the file that has the name but is not imported, and the name in the scope that decided."
  (file nil :type (or null file-descriptor))
  (names (make-hash-table :test 'equal) :type hash-table)
  (imports '() :type list)
  (option-imports '() :type list)
  (records (make-hash-table :test 'eq) :type hash-table)
  (problems '() :type list)
  (read-p nil :type boolean)
  (hidden nil :type (or null file-descriptor))
  (nearest nil :type (or null string)))

(defvar *linker*)
(setf (documentation '*linker* 'variable) "The linker at work.")

(defun linked-file ()
  (linker-file *linker*))

;;; Errors

(defun noted-p (thing kind)
  "The line and column noted for the part KIND of THING, or nil."
  (let ((places (file-descriptor-places (linked-file))))
    (rest (assoc kind (and places (gethash thing places))))))

(defun place-of (thing kind)
  "The line and column of the part KIND of THING, a descriptor, option, range or import."
  (let ((noted (noted-p thing kind)))
    (cond (noted (values (first noted) (second noted)))
          ((option-p thing) (values (option-line thing) (option-column thing)))
          ((descriptor-p thing) (values (descriptor-line thing) (descriptor-column thing)))
          (t (values 1 1)))))

(defun complain (thing kind control &rest arguments)
  "Note an error at the part KIND of THING; see PLACE-OF."
  (multiple-value-bind (line column) (place-of thing kind)
    (push (make-condition 'proto-syntax-error
                          :file (descriptor-name (linked-file)) :line line :column column
                          :text (format nil "~?" control arguments))
          (linker-problems *linker*))
    nil))

(defun fail-on-problems ()
  (signal-problems (reverse (linker-problems *linker*))))

;;; Entering

(defun raw-declared (name)
  (gethash name (linker-names *linker*)))

(defun identifier-p (name)
  (and (plusp (length name))
       (every (lambda (char) (or (letter-p char) (digit-p char))) name)))

(defun check-identifier (descriptor)
  (let ((name (descriptor-name descriptor)))
    (unless (identifier-p name)
      (complain descriptor :name "\"~A\" is no identifier" name))))

(defun declare-name (descriptor &optional owner)
  "Enter DESCRIPTOR, which the file being linked declares."
  (check-identifier descriptor)
  (let* ((name (descriptor-full-name descriptor))
         (there (raw-declared name)))
    (cond ((null there)
           (setf (gethash name (linker-names *linker*))
                 (make-declared descriptor (linked-file) owner)))
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
    (complain file :name "the package has a part that is no identifier")))

(defun enter-package (file own)
  "Enter the package of FILE and those around it; OWN: FILE is the one being linked."
  (let ((package (file-descriptor-package file)) (names (linker-names *linker*)))
    (unless (string= "" package)
      (loop for end = (length package) then (position #\. package :end end :from-end t)
            while end
            do (let* ((name (subseq package 0 end)) (there (gethash name names)))
                 (cond ((null there) (setf (gethash name names) (make-declared :package file)))
                       ((and own (not (eq :package (declared-thing there))))
                        (complain file :name "the package \"~A\" has the name of something in ~A"
                                  name (descriptor-name (declared-file there))))))))))

(defun enter-file (file)
  "Enter what FILE, which is linked, declares."
  (enter-package file nil)
  (map-names (lambda (descriptor owner)
               (setf (gethash (descriptor-full-name descriptor) (linker-names *linker*))
                     (make-declared descriptor file owner)))
             file))

(defun all-imports (file)
  (append (file-descriptor-dependencies file) (file-descriptor-option-dependencies file)))

(defun import-closure (names find select)
  "The files called NAMES and, again and again, those that SELECT names of each. FIND maps a name to
its file, or nil."
  (let ((seen (make-hash-table :test 'eq)) (files '()))
    (labels ((visit (name)
               (let ((file (funcall find name)))
                 (unless (or (null file) (gethash file seen))
                   (setf (gethash file seen) t)
                   (push file files)
                   (mapc #'visit (funcall select file))))))
      (mapc #'visit names))
    (nreverse files)))

(defun enter-imports (file find)
  (setf (linker-imports *linker*)
        (import-closure (file-descriptor-dependencies file) find
                        #'file-descriptor-public-dependencies)
        (linker-option-imports *linker*)
        (import-closure (file-descriptor-option-dependencies file) find
                        #'file-descriptor-public-dependencies))
  (mapc #'enter-file (import-closure (all-imports file) find #'all-imports)))

;;; The standard options, for files that do not import descriptor.proto

(defglobal **standard-names** nil)

(defun standard-names ()
  "The names of the built-in descriptor.proto; none while that is linked itself."
  (or **standard-names**
      (let ((file (find-file-descriptor "google/protobuf/descriptor.proto")))
        (if file
            (let ((*linker* (make-linker)))
              (enter-file file)
              (setf **standard-names** (linker-names *linker*)))
            (make-hash-table :test 'equal)))))

(defun find-thing (full-name)
  "What is declared as FULL-NAME, in sight or not, or nil."
  (let ((declared (or (raw-declared full-name) (gethash full-name (standard-names)))))
    (and declared (declared-thing declared))))

;;; Finding

(defun in-package-p (file name)
  (let ((package (file-descriptor-package file)))
    (and (<= (length name) (length package))
         (string= name package :end2 (length name))
         (or (= (length name) (length package)) (char= #\. (char package (length name)))))))

(defun in-sight-p (declared name)
  (let* ((thing (declared-thing declared))
         (file (declared-file declared))
         (imports (linker-imports *linker*)))
    (flet ((has-package (file) (in-package-p file name)))
      (or (eq file (linked-file))
          (member file imports)
          (and (field-descriptor-p thing) (member file (linker-option-imports *linker*)))
          (and (eq thing :package)
               (or (has-package (linked-file)) (some #'has-package imports)
                   (some #'has-package (linker-option-imports *linker*))))))))

(defun find-name (name)
  "The DECLARED called NAME if it is in sight, or nil."
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
  "The DECLARED that NAME means where the full name INSIDE is declared, or nil. A name of one part
counts if ACCEPT is true of what it names."
  (setf (linker-hidden *linker*) nil
        (linker-nearest *linker*) nil)
  (when (and (plusp (length name)) (char= #\. (char name 0)))
    (return-from resolve-name (find-name (subseq name 1))))
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
    (cond (hidden
           (complain thing kind "\"~A\" is declared in ~A, which is not imported" name
                     (descriptor-name hidden)))
          (nearest
           (complain thing kind "\"~A\" means \"~A\" here, which is not declared; a leading dot ~
                                 would begin at the outermost scope"
                     name nearest))
          (t (complain thing kind "\"~A\" is not declared" name)))))
