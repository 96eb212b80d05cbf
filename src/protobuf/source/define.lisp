;;;; DEFINE-PROTO: a .proto file becomes packages, types, functions and coders at the place of the
;;;; macro: in a file at compile time, at the REPL immediately. Imports that are not loaded yet are
;;;; defined along with it.
;;;;
;;;; At the REPL a message whose current definition has the same fingerprint is not defined again,
;;;; so an unchanged file changes nothing. A compiled file always contains all definitions, since it
;;;; is for another image.

(in-package #:clgrpc.protobuf)

(defglobal **service-expanders** '())   ; an alist from a name to a function

(defun add-service-expander (name function)
  "Register FUNCTION under NAME, a symbol, replacing a former function of this name. Expansions of
DEFINE-PROTO contain, for each service of a file, the top-level form that FUNCTION returns for its
SERVICE-DESCRIPTOR. From any thread."
  (sb-ext:atomic-update **service-expanders**
                        (lambda (expanders)
                          (append (remove name expanders :key #'car)
                                  (list (cons name function)))))
  name)

(defun remove-service-expander (name)
  "Remove the service expander NAME. Files that are defined later contain no form of it. From any
thread."
  (sb-ext:atomic-update **service-expanders** (lambda (expanders)
                                                (remove name expanders :key #'car)))
  nil)

(defun note-linked (file table)
  (flet ((note (descriptor)
           (setf (gethash (descriptor-full-name descriptor) table) descriptor)))
    (map-messages #'note file)
    (map-enums #'note file)))

;;; Names of public functions

(defun choose-accessors (plans)
  "Choose an accessor for every slot and oneof of PLANS. It differs from all other accessors,
including those of other files."
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

(defun exported-names (file plans extensions)
  (let ((names '()))
    (flet ((add (symbol) (push (symbol-name symbol) names)))
      (dolist (plan plans)
        (add (plan-symbol plan))
        (mapc #'add (public-functions plan)))
      (mapc #'add (extension-names extensions))
      (map-enums (lambda (enum) (add (enum-descriptor-symbol enum))) file)
      (dolist (service (file-descriptor-services file)) (add (service-descriptor-symbol service))))
    (sort names #'string<)))

(defun package-forms (file plans extensions)
  `((ensure-package ,(file-lisp-package file)
                    ',(exported-names file plans extensions))
    ,@(loop for service in (file-descriptor-services file)
            collect `(ensure-package
                      ,(service-package-name service file)
                      ',(mapcar (lambda (method) (symbol-name (method-descriptor-symbol method)))
                                (service-descriptor-methods service))))))

(defun enum-documentation (enum)
  (format nil "~@[~A~2%~]The enum ~A:~{ ~(~S~) (~D)~^,~}."
          (descriptor-comment enum) (descriptor-full-name enum)
          (loop for value in (enum-descriptor-values enum)
                for keyword in (enum-value-keywords enum)
                repeat 100              ; some have thousands
                collect keyword
                collect (enum-value-descriptor-number value))))

(defun enum-forms (file)
  (let ((forms '()))
    (map-enums (lambda (enum)
                 (push `(deftype ,(enum-descriptor-symbol enum) ()
                          ,(enum-documentation enum)
                          '(or keyword (signed-byte 32)))
                       forms)
                 (push `(install-enum ,(descriptor-full-name enum)) forms))
               file)
    (nreverse forms)))

(defvar *optimize-for* :speed
  "The optimization goal of the files that are being expanded: :SPEED or :CODE-SIZE. With :CODE-SIZE
messages have no code of their own and use the coders of generic-coder.lisp.")

(defun layout-form (plan)
  `(install-layout ,(plan-full-name plan) ,(plan-fingerprint plan)
                   (lambda () (,(plan-maker plan)))
                   ,(ecase *optimize-for*
                      (:speed `(list ,(reader-form plan) ,(sizer-form plan) ,(writer-form plan)))
                      (:code-size nil))
                   ',(mapcar #'slot-reader (plan-slots plan))
                   ',(mapcar #'oneof-slot-reader (plan-oneofs plan))))

(defun function-names (plans extensions)
  "Return the names of the functions and setters that users call for the messages of PLANS and for
EXTENSIONS."
  (append (mapcan #'public-functions plans)
          (extension-names extensions)
          (loop for reader in (append (loop for plan in plans
                                            append (mapcar #'slot-reader (plan-slots plan)))
                                      (mapcar #'cdr extensions))
                collect `(setf ,reader))))

;;; Large files: a thousand messages compile for half a minute, so on a terminal the user sees how
;;; far the compiler is.

(defconstant +messages-add-progress+ 200
  "The minimum number of messages of a file whose compilation reports its progress, because it takes
some seconds.")

(defun note-progress (name percent
                      &optional (stream (and (interactive-stream-p sb-sys:*stderr*)
                                             sb-sys:*stderr*)))
  "Write to STREAM, unless it is nil, that PERCENT of the messages of the file NAME are compiled. At
100 percent erase that line."
  (when stream
    (format stream "~C~C[K~:[; ~A: ~D % compiled~;~]" #\Return #\Escape (= 100 percent)
            name percent)
    (finish-output stream)))

(defun add-progress (file forms-of plans begin end)
  "The forms that FORMS-OF returns for each of PLANS. While the compiler works on the forms, they
report from BEGIN to END percent of FILE, if FILE is large."
  (loop with total = (length plans)
        with last = begin
        for plan in plans
        for done from 1
        for percent = (+ begin (floor (* done (- end begin)) total))
        append (funcall forms-of plan)
        when (and (<= +messages-add-progress+ total) (< last percent))
          collect `(eval-when (:compile-toplevel)
                     (note-progress ,(descriptor-name file) ,percent))
          and do (setf last percent)))

(defun file-forms (file for-file)
  "The top-level forms of FILE. With FOR-FILE return all forms, else only those for declarations
that have changed."
  (let* ((plans (file-plans file))
         (extensions (extension-symbols file (mapcan #'public-functions plans)))
         (changed (if for-file plans (remove-if #'layout-current-p plans))))
    `((eval-when (:compile-toplevel :load-toplevel :execute)
        ,@(package-forms file plans extensions))
      (eval-when (:compile-toplevel :load-toplevel :execute)
        (register-file ',file ,@(when for-file (list *definer*))))
      ,@(when for-file                  ; the rest of the file is compiled before it is loaded
          `((eval-when (:compile-toplevel)
              (proclaim '(ftype function ,@(function-names plans extensions))))))
      ,@(enum-forms file)
      ,@(loop for plan in changed collect (public-structure (plan-message plan)))
      ,@(add-progress file
          (lambda (plan)
            `(,@(when for-file
                  `((make-way ',(plan-structure plan) ',(plan-maker plan))))
              ,@(unless (and (not for-file) (get (plan-structure plan) 'layout))
                  (hidden-structure plan))))
          changed 0 50)
      ,@(let ((*plans-at-hand* (make-hash-table :test 'equal)))
          (dolist (plan plans)
            (setf (gethash (plan-full-name plan) *plans-at-hand*) plan))
          (add-progress file
            (lambda (plan)
              `(,(layout-form plan)
                ,@(when (eq :speed *optimize-for*) (list (constructor-form plan)))))
            changed 50 100))
      ,@(loop for (full-name . symbol) in extensions
              collect `(install-extension ,full-name ',symbol))
      ,@(loop for (nil . function) in **service-expanders**
              append (mapcar function (file-descriptor-services file))))))

(defun make-way (structure maker)
  "Remove the functions of STRUCTURE and MAKER, if an earlier file has defined them, because each
second definition would cause a warning. They can be removed because only inlined code uses them."
  (when (get structure 'layout)
    (dolist (slot (sb-mop:class-slots (find-class structure)))
      (let ((name (sb-mop:slot-definition-name slot)))
        (unless (member name '(message-extra message-size))
          (fmakunbound name)
          (fmakunbound `(setf ,name)))))
    (fmakunbound maker)))

(defun install-layout (full-name fingerprint maker coders accessors oneof-accessors)
  "Make the definition with FINGERPRINT the current definition of the message type FULL-NAME. The
type's descriptor must be registered, and its structure defined. CODERS are the reader, sizer and
writer, or nil for generic coders. ACCESSORS are the symbols of the readers of its fields,
ONEOF-ACCESSORS the symbols of the readers of its oneofs."
  (let* ((descriptor (find-descriptor full-name))
         (plan (plan-message-layout descriptor))
         (type (intern-message-type full-name))
         (structure (plan-structure plan))
         (layout (make-layout :type type :fingerprint fingerprint :structure structure :maker maker
                              :slots (coerce (plan-slots plan) 'simple-vector))))
    (assert (string= fingerprint (plan-fingerprint plan)) ()
            "~A was compiled with another definition than the loaded one." full-name)
    (loop for slot in (plan-slots plan)
          for accessor in accessors
          do (setf (slot-reader slot) accessor
                   (get accessor 'owner) full-name))
    (loop for oneof in (plan-oneofs plan)
          for accessor in oneof-accessors
          do (setf (oneof-slot-reader oneof) accessor))
    (note-places structure)
    (if coders
        (setf (values (layout-reader layout) (layout-sizer layout) (layout-writer layout))
              (values-list coders))
        (add-generic-coders layout))
    (setf (layout-copier layout) (structure-copier (layout-slots layout))
          (get structure 'layout) layout
          (get (plan-symbol plan) 'message-type) type
          (message-type-symbol type) (plan-symbol plan)
          (message-type-descriptor type) descriptor
          (message-type-message-set-p type) (message-descriptor-message-set-p descriptor))
    (adopt-layout type layout)
    (renew-layout-cache)
    (install-functions plan (sb-kernel:%instance-layout (funcall (the function maker))))
    (unless coders (install-constructor plan maker))
    (note-definition)
    type))

(defun proto-expansion (path &key import-paths source (directory (source-directory)) more-places
                             (for-file (and *compile-file-truename* t)))
  "Return the form that defines the declarations of the file PATH. PATH and IMPORT-PATHS are
relative to DIRECTORY. FOR-FILE is true if the form is for another image. MORE-PLACES are the
directories that are searched last."
  (let ((*definer* (and for-file (or *definer* (own-definer)))))
    (cond ((and (not source) (eq t (built-in path))) `',path)
          (t (expand-files (assign-symbols
                            (read-protos path import-paths source directory more-places))
                           for-file)))))

(defun own-definer ()
  "Return the definer for the definitions in the file that is being compiled, or nil if no file is."
  (and *compile-file-truename* (sb-ext:native-namestring *compile-file-truename*)))

(defun expand-files (files for-file)
  "Return the form that defines the declarations of FILES. FILES are fresh file descriptors, each
after its imports."
  (let ((*linked* (make-hash-table :test 'equal))
        (name (descriptor-name (first (last files)))))
    (dolist (file files) (note-linked file *linked*))
    (if for-file
        `(progn
           ,@(loop for file in files append (file-forms file t))
           ',name)
        `(evaluate-forms ',(loop for file in files append (file-forms file nil)) ',name))))

(defun evaluate-forms (forms name)
  "Evaluate the top-level FORMS in order, even inside another form at the REPL; return NAME."
  (with-compilation-unit ()
    (mapc #'eval forms))
  name)

(defmacro define-proto (path &key import-paths source (optimize-for :speed))
  "Define the declarations of the .proto file PATH: for each message a type, MAKE- function,
accessors and coders, for each enum its keywords, and with gRPC for each service its methods. PATH
is relative to the file of this form or, at the REPL, to *DEFAULT-PATHNAME-DEFAULTS*.

Imports are looked for in these directories, in this order:
  IMPORT-PATHS, which are relative as PATH is;
  the directory of the file of this form, and the directory of PATH;
  the root that PATH's package implies: /protos for package foo.bar in /protos/foo/bar/;
  *IMPORT-ROOTS*;
  the directory of the file's ASDF system, and those of the :PROTO-FILEs of the systems on which it
depends. Files named google/protobuf/… are built in.

If SOURCE, a string, is given, it is the text of the file, and PATH is only its name. SOURCE and
IMPORT-PATHS may be forms, evaluated at expansion. OPTIMIZE-FOR is :SPEED or, for messages that are
rarely read or written, :CODE-SIZE. With :CODE-SIZE all messages share one coder, which is many
times slower, and the file compiles in a tenth of the time. Signal PROTO-SYNTAX-ERROR, or MISUSE if
there is no file PATH. The value is the name under which others import the file. From one thread at
a time, like LOAD."
  (flet ((value (form)
           (if (and (consp form) (every (lambda (item) (typep item '(or string pathname))) form))
               form
               (eval form))))
    (unless (typep path '(or string pathname))
      (misuse "DEFINE-PROTO takes the path of a .proto file, a string, not ~S." path))
    (let ((*optimize-for* optimize-for))
      (proto-expansion (if (pathnamep path) (sb-ext:native-namestring path) path)
                       :import-paths (value import-paths) :source (value source)))))

;;; Files that every image has

(defmacro define-built-ins (directory optimize-for &rest names)
  "Define the files NAMES below DIRECTORY as built-in files. NAMES must have imports first;
OPTIMIZE-FOR is that of DEFINE-PROTO."
  `(progn
     ;; one after the other, so that the expansion of each finds the earlier ones registered
     ,@(loop for name in names collect `(define-built-in ,directory ,optimize-for ,name))))

(defmacro define-built-in (directory optimize-for name)
  `(progn
     ;; otherwise nothing would be left to compile
     ,(let ((*built-ins* (make-hash-table :test 'equal))
            (*optimize-for* optimize-for))
        (proto-expansion name :import-paths (list directory)))
     (setf (gethash ,name *built-ins*) t)))

(defmacro embed-built-ins (directory &rest names)
  "Keep the text of the files NAMES below DIRECTORY for files that import them."
  `(progn
     ,@(loop with roots = (absolute-directories (list directory) (source-directory))
             for name in names
             collect `(setf (gethash ,name *built-ins*) ,(read-source (find-proto name roots))))))
