;;;; .proto files as Lisp forms, which `clgrpc gen` writes and DEFINE-FILE reads. A form has the
;;;; file's descriptor, a google.protobuf.FileDescriptorProto in text format, not the code made from
;;;; it. So a generated file remains valid when clgrpc changes, can be read and compared, and needs
;;;; neither the .proto file nor its directory.
;;;;
;;;;   (clgrpc.protobuf:define-file "shop.proto" ("maker.proto")
;;;;     "name: 'shop.proto' package: 'shop' dependency: 'maker.proto'
;;;;      message_type { name: 'Item' field { name: 'tags' number: 2 label: LABEL_REPEATED
;;;;                                          type: TYPE_STRING } }")
;;;;
;;;; Comments are in the descriptor's source info. The descriptor is a vector of octets if it has
;;;; options unknown to the image that wrote it.

(in-package #:clgrpc.protobuf)

(defparameter *file-type* "google.protobuf.FileDescriptorProto")

;;; Writing

(defun commented-paths (file)
  "The comments in FILE, each with the path of its declaration, as in source info."
  (let ((found '()))
    (labels ((note (descriptor path)
               (when (descriptor-comment descriptor)
                 (push (cons (reverse path) (descriptor-comment descriptor)) found)))
             (each (number descriptors path &optional inside)
               (loop for descriptor in descriptors
                     for i from 0
                     for at = (list* i number path)
                     do (note descriptor at)
                        (when inside (funcall inside descriptor at))))
             (in-enum (enum path) (each 2 (enum-descriptor-values enum) path))
             (in-service (service path) (each 2 (service-descriptor-methods service) path))
             (in-message (message path)
               (each 2 (message-descriptor-fields message) path)
               (each 3 (message-descriptor-messages message) path #'in-message)
               (each 4 (message-descriptor-enums message) path #'in-enum)
               (each 5 (message-descriptor-extension-ranges message) path)
               (each 6 (message-descriptor-extensions message) path)
               (each 8 (message-descriptor-oneofs message) path)))
      (note file '(12))                 ; the path of the file's syntax
      (each 4 (file-descriptor-messages file) '() #'in-message)
      (each 5 (file-descriptor-enums file) '() #'in-enum)
      (each 6 (file-descriptor-services file) '() #'in-service)
      (each 7 (file-descriptor-extensions file) '()))
    (nreverse found)))

(defun commented-octets (file)
  "Return what FILE-DESCRIPTOR-OCTETS returns, with source info for the comments added."
  (let ((comments (commented-paths file)))
    (concatenate 'octets (file-descriptor-octets file)
                 (with-octets-out ()
                   (when comments
                     (dump-message 9
                       (dump-each 1 comments (comment)
                         (dump-message 1 (mapc #'write-wire-varint (car comment)))
                         (dump-text 3 (cdr comment)))))))))

(defun file-content (file)
  "Return the descriptor FILE as text, or as octets if a text would lose a part of FILE."
  (let* ((octets (commented-octets file))
         (message (parse-message *file-type* octets :partial t))
         (text (message-text message)))
    (if (message= message (parse-text-message *file-type* text :partial t))
        text
        (coerce octets 'simple-vector))))

;;; Reading

(defun link-form (name content)
  "The linked file descriptor of a DEFINE-FILE form."
  (let ((file (read-file-descriptor
               (etypecase content
                 (string (serialize (parse-text-message *file-type* content :partial t)
                                    :partial t))
                 (vector (coerce content 'octets))))))
    (unless (string= name (descriptor-name file))
      (misuse "The descriptor for ~A is the one of another file, ~A." name (descriptor-name file)))
    (link-read-file file #'find-file-descriptor)
    (name-fresh (list file))
    file))

;;; Defining

(defun generated-path (name)
  "The path of the generated file of the .proto file NAME. Signal MISUSE if the path could be
outside the directory for generated files."
  (unless (file-name-p name) (misuse "~A." (file-name-text name)))
  (concatenate 'string (subseq name 0 (- (length name) (if (proto-name-p name) 6 0))) ".lisp"))

(defun proto-name-p (name)
  (let ((start (- (length name) 6)))
    (and (plusp start) (string= ".proto" name :start2 start))))

(defun load-imports (name imports)
  "Load the generated files of those IMPORTS that are not loaded. The generated files are in the
same tree as the file of NAME, which is being loaded or compiled."
  (let ((source (or *compile-file-truename* *load-truename*)))
    (dolist (import imports)
      (unless (find-file-descriptor import)
        (let* ((up (count #\/ name))
               (root (and source (butlast (pathname-directory source) up)))
               (file (and root
                          (probe-file
                           (merge-pathnames (parse-native (generated-path import))
                                            (make-pathname :name nil :type nil :version nil
                                                           :directory root :defaults source))))))
          (unless file
            (misuse "~A imports ~A, which is not loaded~:[~; and has no generated file in the same ~
                     directory tree~]; load it first." name import source))
          (load file))))))

(defmacro define-file (name (&rest imports) content)
  "Define the declarations of the file descriptor CONTENT, as DEFINE-PROTO does for a .proto file;
`clgrpc gen` writes such forms. NAME is the file's name, by which other files import it; IMPORTS are
the names of the files that it imports. CONTENT is a google.protobuf.FileDescriptorProto, a string
in text format or a vector of octets.

Imports must be loaded, or be generated files in the same directory tree. Signal PROTO-SYNTAX-ERROR,
and PROTOBUF-ERROR if CONTENT is not such a message. The value is NAME. From one thread at a time,
like LOAD."
  `(progn
     ,@(when imports
         `((eval-when (:compile-toplevel :load-toplevel :execute)
             (load-imports ,name ',imports))))
     (define-linked-file ,name ,content)))

(defmacro define-linked-file (name content)
  "Define the declarations of CONTENT as DEFINE-FILE does. All imports must be loaded."
  (let ((*definer* (own-definer)))
    (expand-files (list (link-form name content)) (and *definer* t))))

;;; Generated files

(defun file-exports (file)
  "The exports of FILE's packages, as an alist from the names of packages to sorted names."
  ;; there are ten thousand names: EQUAL is a test for which REMOVE-DUPLICATES has a hash table
  (let* ((plans (file-plans file))
         (extensions (extension-symbols file (mapcan #'public-functions plans))))
    (loop for (nil package names) in (package-forms file plans extensions)
          collect (cons package (remove-duplicates (mapcar #'string-downcase (second names))
                                                   :test #'equal)))))

(defconstant +form-columns+ 98)

(defun print-filled (words stream)
  "Write WORDS as comment lines."
  (let ((column +form-columns+))
    (dolist (word words)
      (when (> (+ column 1 (length word)) +form-columns+)
        (format stream "~%;;;;  ")
        (setf column 6))
      (format stream " ~A" word)
      (incf column (1+ (length word))))))

(defun write-generated-file (file stream)
  "Write to STREAM, a character stream, a Lisp source that defines the declarations of FILE, a
linked file descriptor."
  (format stream ";;;; From ~A, by clgrpc. Do not edit: the next run overwrites it.~%;;;;~%~
                  ;;;; Load or compile it with clgrpc~:[/protobuf~;~] loaded."
          (descriptor-name file) (file-descriptor-services file))
  (loop for (package . names) in (file-exports file)
        do (format stream "~%;;;;~%;;;; Package ~A:" package)
           (print-filled names stream))
  (with-standard-io-syntax
    (let ((*print-readably* nil))
      (format stream "~2%(clgrpc.protobuf:define-file ~S (~{~S~^ ~})~%~S)~%" (descriptor-name file)
              (append (file-descriptor-dependencies file)
                      (file-descriptor-option-dependencies file))
              (file-content file)))))

(defun generated-files (files &optional (wanted files))
  "The generated sources of those FILES that are in WANTED, as an alist from paths to texts. FILES
are linked file descriptors, imports first."
  (let ((*linked* (make-hash-table :test 'equal)))
    (dolist (file files) (note-linked file *linked*))
    (loop for file in wanted
          collect (cons (generated-path (descriptor-name file))
                        (with-output-to-string (stream) (write-generated-file file stream))))))

(defun generate-sources (path &key import-paths (directory (source-directory)))
  "Return Lisp sources for the declarations of the .proto file PATH and of the files that it
imports. The value is an alist from paths, such as \"foo/bar.lisp\" for foo/bar.proto, to texts,
with imports first. It has no sources for files that every image has. PATH and its imports are
looked for as by DEFINE-PROTO; relative paths are relative to DIRECTORY. Signal PROTO-SYNTAX-ERROR,
and MISUSE if there is no file PATH."
  (let ((fresh (assign-symbols (read-protos path import-paths nil directory '()))))
    (generated-files (with-imports (first (last fresh)) fresh))))

(defun with-imports (file fresh)
  "Return FILE and all files that it imports, directly or not, imports first. Files that every image
has are omitted. FRESH are the files that are not registered."
  (let ((files (index-by #'descriptor-name fresh :test 'equal)) (all '()))
    (flet ((file-of (name) (or (gethash name files) (find-file-descriptor name))))
      (walk-imports (list (descriptor-name file))
                    (lambda (name)
                      (remove t (all-imports (file-of name)) :key #'built-in))
                    (lambda (name) (push (file-of name) all))
                    (lambda (name open) (declare (ignore name open)))))
    (nreverse all)))
