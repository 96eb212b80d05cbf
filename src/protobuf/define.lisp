;;;; DEFINE-PROTO: a .proto file becomes packages, types, functions and coders, where the macro
;;;; stands: in a file at compile time, at the REPL now. What the file imports and is not loaded yet
;;;; is defined along with it.
;;;;
;;;; At the REPL a message whose fingerprint is the current one is left alone, so an unchanged file
;;;; changes nothing; a compiled file always holds everything, since it is for another image.

(in-package #:clgrpc.protobuf)

(defvar *service-expander* nil
  "Nil, or a function of a SERVICE-DESCRIPTOR that returns a top-level form, to be part of what
DEFINE-PROTO expands to. The layer that has services installs it.")

(defvar *import-roots* '()
  "Directories in which every DEFINE-PROTO looks for imports after its own :IMPORT-PATHS.")

;;; Finding and reading files

(defun source-directory ()
  "The directory that relative paths of a DEFINE-PROTO are meant from."
  (let ((source (or *compile-file-truename* *load-truename*)))
    (if source
        (make-pathname :name nil :type nil :version nil :defaults source)
        ;; resolved, so that an error can say where
        (or (probe-file *default-pathname-defaults*) *default-pathname-defaults*))))

(defun directory-pathname (path)
  (let ((name (namestring path)))
    (parse-native (if (and (plusp (length name)) (char/= #\/ (char name (1- (length name)))))
                      (concatenate 'string name "/")
                      name))))

(defun parse-native (name)
  (sb-ext:parse-native-namestring name))

(defun import-roots (import-paths)
  "The directories to look in, in order."
  (let ((base (source-directory)))
    (append (mapcar (lambda (path) (merge-pathnames (directory-pathname path) base)) import-paths)
            (mapcar (lambda (path) (merge-pathnames (directory-pathname path))) *import-roots*))))

(defun find-proto (name roots)
  "The truename of the file NAME in the first of ROOTS that has it, or nil."
  (loop for root in roots
          thereis (probe-file (merge-pathnames (parse-native name) root))))

(defun import-name (path truename roots)
  "The name under which the file TRUENAME, asked for as PATH, is imported: its place below a root if
it is below one."
  (let ((full (sb-ext:native-namestring truename)))
    (dolist (root roots (if (or (search ".." path) (char= #\/ (char path 0)))
                            (file-namestring truename)
                            path))
      (let ((prefix (ignore-errors (sb-ext:native-namestring (truename root)))))
        (when (and prefix
                   (> (length full) (length prefix))
                   (string= prefix full :end2 (length prefix)))
          (return (subseq full (length prefix))))))))

(defun read-source (truename)
  (with-open-file (stream truename :element-type 'octet)
    (let ((octets (make-octets (file-length stream))))
      (read-sequence octets stream)
      (octets-string octets))))

;;; Built-in files

(defvar *built-ins* (make-hash-table :test 'equal)
  "Import path to true for a file that is defined in every image, or to its text.")

(defun import-text (name roots)
  "The text of the file that an import of NAME means, or nil if there is none or it is a built-in
one that is registered."
  (let ((built-in (gethash name *built-ins*)))
    (cond ((stringp built-in) built-in)
          (built-in nil)
          (t (let ((found (find-proto name roots))) (and found (read-source found)))))))

(defmacro define-built-ins (directory &rest names)
  "Define the files NAMES below DIRECTORY, imports first, as built-in ones."
  `(progn
     ;; one after the other: the expansion of each finds the ones before registered
     ,@(loop for name in names collect `(define-built-in ,directory ,name))))

(defmacro define-built-in (directory name)
  `(progn
     ,(let ((*built-ins* (make-hash-table :test 'equal))) ; or nothing would be left to compile
        (proto-expansion name (list directory) nil))
     (setf (gethash ,name *built-ins*) t)))

(defmacro embed-built-ins (directory &rest names)
  "Keep the text of the files NAMES below DIRECTORY for those who import them."
  `(progn
     ,@(loop with roots = (import-roots (list directory))
             for name in names
             collect `(setf (gethash ,name *built-ins*) ,(read-source (find-proto name roots))))))

;;; Compiling a file and its imports

(defun load-protos (name text roots)
  "Parse and link TEXT as the file NAME and every import that is not registered as it now reads.
Return the fresh file descriptors, imports first."
  (let ((files (make-hash-table :test 'equal)) (fresh '()) (open '()))
    (labels ((compile-text (name text)
               (let ((file (parse-proto text name)))
                 (setf (file-descriptor-fingerprint file) (hash-text text))
                 (push name open)
                 (link-file file #'import-file roots)
                 (pop open)
                 (assign-symbols file)
                 (setf (gethash name files) file)
                 (push file fresh)
                 file))
             (import-file (name)
               (when (member name open :test #'string=)
                 (misuse "The file ~A imports itself~@[ through ~{~A~^, ~}~]." name
                         (remove name open :test #'string=)))
               (or (gethash name files)
                   (let* ((known (find-file-descriptor name))
                          (text (import-text name roots)))
                     (if (and known (or (null text)
                                        (string= (hash-text text)
                                                 (file-descriptor-fingerprint known))))
                         known
                         (and text (compile-text name text)))))))
      (compile-text name text)
      (nreverse fresh))))

(defun note-linked (file table)
  (flet ((note (descriptor)
           (setf (gethash (descriptor-full-name descriptor) table) descriptor)))
    (map-messages #'note file)
    (map-enums #'note file)))

;;; Names of public functions

(defun choose-accessors (plans)
  "Give every slot and oneof of PLANS its accessor, all different and none of another file's."
  (let ((taken (make-hash-table :test 'eq)))
    (flet ((claim (symbol) (setf (gethash symbol taken) t))
           (choose (plan name number suffix)
             (let ((symbol (plan-symbol plan)) (owner (plan-full-name plan)))
               (loop for control in (list "~A-~A" (format nil "~~A-~~A-~A" suffix)
                                          (format nil "~~A-~~A-~D" number))
                     for candidate = (public-name control symbol name)
                     unless (or (gethash candidate taken)
                                (gethash (public-name "HAS-~A" candidate) taken)
                                (gethash (public-name "CLEAR-~A" candidate) taken)
                                (not (equal owner (get candidate 'owner owner))))
                       return candidate))))
      (dolist (plan plans)
        (claim (public-name "MAKE-~A" (plan-symbol plan)))
        (claim (public-name "~A-P" (plan-symbol plan))))
      (dolist (plan plans)
        (dolist (slot (plan-slots plan))
          (let ((reader (choose plan (slot-name slot) (slot-number slot) "FIELD")))
            (setf (slot-reader slot) reader)
            (mapc #'claim (list reader (public-name "HAS-~A" reader)
                                (public-name "CLEAR-~A" reader)))))
        (loop for oneof in (plan-oneofs plan)
              for i from 0
              do (let ((reader (choose plan (oneof-slot-name oneof) i "ONEOF")))
                   (setf (oneof-slot-reader oneof) reader)
                   (mapc #'claim (list reader (public-name "~A-CASE" reader)
                                       (public-name "CLEAR-~A" reader)))))))
    plans))

;;; The expansion

(defun file-plans (file)
  (let ((plans '()))
    (map-messages (lambda (message)
                    (unless (message-descriptor-map-entry-p message)
                      (push (plan-message-layout message) plans)))
                  file)
    (choose-accessors (nreverse plans))))

(defun layout-current-p (plan)
  "True if the definition of PLAN is the current one in this image."
  (let* ((type (find-message-type (plan-full-name plan)))
         (layout (and type (message-type-layout type))))
    (and layout (string= (layout-fingerprint layout) (plan-fingerprint plan)))))

(defun exported-names (file plans functions extensions)
  "The names that the package of FILE exports."
  (let ((names '()))
    (flet ((add (symbol) (push (symbol-name symbol) names)))
      (dolist (plan plans)
        (add (plan-symbol plan)))
      (dolist (form functions) (mapc #'add (public-names form)))
      (mapc #'add (extension-names extensions))
      (map-enums (lambda (enum) (add (enum-descriptor-symbol enum))) file)
      (dolist (service (file-descriptor-services file)) (add (service-descriptor-symbol service))))
    (sort names #'string<)))

(defun package-forms (file plans functions extensions)
  `((ensure-package ,(file-lisp-package file)
                    ',(exported-names file plans functions extensions))
    ,@(loop for service in (file-descriptor-services file)
            collect `(ensure-package
                      ,(service-package-name service file)
                      ',(mapcar (lambda (method) (lisp-name (descriptor-name method)))
                                (service-descriptor-methods service))))))

(defun enum-forms (file)
  (let ((forms '()))
    (map-enums (lambda (enum)
                 (push `(deftype ,(enum-descriptor-symbol enum) ()
                          ,@(when (descriptor-comment enum) (list (descriptor-comment enum)))
                          '(or keyword (signed-byte 32)))
                       forms)
                 (push `(install-enum ,(descriptor-full-name enum)) forms))
               file)
    (nreverse forms)))

(defun layout-form (plan)
  `(install-layout ,(plan-full-name plan) ,(plan-fingerprint plan)
                   (lambda () (,(plan-maker plan)))
                   ,(reader-form plan) ,(sizer-form plan) ,(writer-form plan)
                   ',(mapcar #'slot-reader (plan-slots plan))))

(defun file-forms (file for-file)
  "The top-level forms of FILE. FOR-FILE: all of them, not only what changed."
  (let* ((plans (file-plans file))
         (functions (mapcar #'function-forms plans))
         (extensions (extension-symbols file (mapcan #'public-names (apply #'append functions))))
         (changed (if for-file plans (remove-if #'layout-current-p plans))))
    `((eval-when (:compile-toplevel :load-toplevel :execute)
        ,@(package-forms file plans (apply #'append functions) extensions))
      (eval-when (:compile-toplevel :load-toplevel :execute)
        (register-file ',file))
      ,@(enum-forms file)
      ,@(loop for plan in changed collect (public-structure (plan-message plan)))
      ,@(loop for plan in plans
              for function-forms in functions
              when (member plan changed)
                append `(,@(when for-file
                             `((make-way ',(plan-structure plan) ',(plan-maker plan))))
                         ,@(unless (and (not for-file) (get (plan-structure plan) 'layout))
                             (hidden-structure plan))
                         ,(layout-form plan)
                         ,@function-forms))
      ,@(loop for (full-name . symbol) in extensions
              collect `(install-extension ,full-name ',symbol))
      ,@(when *service-expander*
          (mapcar *service-expander* (file-descriptor-services file))))))

(defun make-way (structure maker)
  "Forget the functions of STRUCTURE and MAKER, if an earlier file defined the same: nothing but
inlined code uses them, and to define them twice would give a warning each."
  (when (get structure 'layout)
    (dolist (slot (sb-mop:class-slots (find-class structure)))
      (let ((name (sb-mop:slot-definition-name slot)))
        (unless (member name '(message-extra message-size))
          (fmakunbound name)
          (fmakunbound `(setf ,name)))))
    (fmakunbound maker)))

(defun install-layout (full-name fingerprint maker reader sizer writer accessors)
  "Make the definition FINGERPRINT of the message type FULL-NAME, whose descriptor is registered and
whose structure is defined, the current one. ACCESSORS are the symbols of its fields' readers."
  (let* ((descriptor (find-descriptor full-name))
         (plan (plan-message-layout descriptor))
         (type (intern-message-type full-name))
         (structure (plan-structure plan))
         (layout (make-layout :type type :fingerprint fingerprint :structure structure :maker maker
                              :slots (coerce (plan-slots plan) 'simple-vector)
                              :reader reader :sizer sizer :writer writer)))
    (assert (string= fingerprint (plan-fingerprint plan)) ()
            "~A was compiled from another definition than the one loaded." full-name)
    (loop for slot in (plan-slots plan)
          for accessor in accessors
          do (setf (slot-reader slot) accessor
                   (get accessor 'owner) full-name))
    (setf (get structure 'layout) layout
          (get (plan-symbol plan) 'message-type) type
          (message-type-symbol type) (plan-symbol plan)
          (message-type-descriptor type) descriptor
          (message-type-layout type) layout
          (message-type-sizer type) sizer
          (message-type-writer type) writer
          (message-type-reader type) reader
          (message-type-message-set-p type) (message-set-p descriptor))
    (note-definition)
    type))

(defun proto-expansion (path import-paths source)
  (when (and (not source) (gethash path *built-ins*))
    (return-from proto-expansion (built-in-expansion path)))
  (let* ((roots (import-roots import-paths))
         (places (cons (source-directory) roots))
         (truename (and (not source) (or (find-proto path places)
                                         (misuse "There is no file ~A in ~{~A~^, ~}." path
                                                 (mapcar #'sb-ext:native-namestring places)))))
         (name (if source path (import-name path truename roots)))
         (files (load-protos name (or source (read-source truename)) places))
         (*linked* (make-hash-table :test 'equal)))
    (dolist (file files) (note-linked file *linked*))
    (if *compile-file-truename*
        `(progn
           ,@(loop for file in files append (file-forms file t))
           ',name)
        `(evaluate-forms ',(loop for file in files append (file-forms file nil)) ',name))))

(defun built-in-expansion (name)
  (let ((built-in (gethash name *built-ins*)))
    (if (stringp built-in) (proto-expansion name '() built-in) `',name)))

(defun evaluate-forms (forms name)
  "Evaluate the top-level FORMS in order, wherever DEFINE-PROTO stands at the REPL; return NAME."
  (with-compilation-unit ()
    (mapc #'eval forms))
  name)

(defmacro define-proto (path &key import-paths source)
  "Define what the .proto file PATH declares: for each message a type, MAKE- function, accessors and
coders, for each enum its keywords, for each service what *SERVICE-EXPANDER* makes of it. PATH is
relative to the file this stands in, at the REPL to *DEFAULT-PATHNAME-DEFAULTS*. IMPORT-PATHS, a
list of directories likewise, is where imports are found; the file's own directory and
*IMPORT-ROOTS* come after. With SOURCE, a string, that is the text and PATH only its name. Both may
be forms, evaluated at expansion. Signal PROTO-SYNTAX-ERROR. The value is the name under which
others import the file."
  (flet ((value (form)
           (if (and (consp form) (every (lambda (item) (typep item '(or string pathname))) form))
               form
               (eval form))))
    (proto-expansion path (value import-paths) (value source))))
