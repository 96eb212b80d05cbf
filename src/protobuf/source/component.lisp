;;;; An ASDF component for .proto files:
;;;;
;;;;   (defsystem "shop"
;;;;     :defsystem-depends-on ("clgrpc/protobuf")     ; or "clgrpc", for services
;;;;     :depends-on ("clgrpc")
;;;;     :components ((:proto-file "shop" :import-paths ("protos/"))   ; shop.proto
;;;;                  (:file "server")))
;;;;
;;;; Compiling it compiles a DEFINE-PROTO of the file. The component is compiled again when the file
;;;; or one that it imports, directly or not, has changed. The file's imports of the same system are
;;;; loaded before it, in any order of the components. Imports are looked for in the places of
;;;; DEFINE-PROTO, in the system's directory, and in the directories of the .proto files of systems
;;;; on which it depends.

(in-package #:clgrpc.protobuf)

(defclass proto-file (asdf:cl-source-file)
  ((type :initform "proto")             ; the file's extension, for ASDF
   ;; directories, relative to that of the system
   (import-paths :initarg :import-paths :initform '() :reader component-import-paths))
  (:documentation "The ASDF component (:proto-file \"name\"), the file name.proto. :IMPORT-PATHS is
a list of directories, relative to the system's directory, in which the file's imports are looked
for first. For a name with directories, such as (:proto-file \"depot/part\"), the directory of the
module is searched after these directories."))

;; where ASDF looks for the class of :PROTO-FILE
(import 'proto-file '#:asdf)

(defun system-directory (component)
  (asdf:system-source-directory (asdf:component-system component)))

(defun name-places (component)
  "If the name of COMPONENT has directories, return a list of the directory to which it is relative,
because other files import `depot/part.proto` by that name. Otherwise return the empty list."
  (when (find #\/ (asdf:component-name component))
    (list (asdf:component-pathname (asdf:component-parent component)))))

(defun given-places (component)
  (append (absolute-directories (component-import-paths component) (system-directory component))
          (name-places component)))

(defmethod component-places ((component proto-file))
  (let* ((file (probe-file (asdf:component-pathname component)))
         (package (and file (nth-value 1 (direct-imports file)))))
    (append (given-places component)
            (when file (list (directory-of file) (implied-root file package))))))

(defun import-directories (component)
  "The directories in which imports of COMPONENT are found, in order."
  (append (component-places component)
          (absolute-directories *import-roots* *default-pathname-defaults*)
          (system-places (asdf:component-system component))))

(defun component-imports (component)
  "The truenames of the files that COMPONENT imports, directly or not."
  (let ((file (probe-file (asdf:component-pathname component))))
    (and file (imported-files file (import-directories component)))))

;;; When to compile, and after which components

(defmethod asdf:input-files ((operation asdf:compile-op) (component proto-file))
  (cons (asdf:component-pathname component) (component-imports component)))

(defmethod asdf:output-files ((operation asdf:compile-op) (component proto-file))
  ;; not shop.fasl, which may be that of shop.lisp
  (let ((source (asdf:component-pathname component)))
    (list (make-pathname :name (format nil "~A.proto" (pathname-name source)) :type "fasl"
                         :defaults source))))

(defun proto-files (component)
  "The PROTO-FILEs in COMPONENT, at any depth."
  (typecase component
    (proto-file (list component))
    (asdf:parent-component (mapcan #'proto-files (copy-list (asdf:component-children component))))))

(defmethod asdf:component-depends-on ((operation asdf:prepare-op) (component proto-file))
  (let* ((imports (component-imports component))
         (needed (remove-if-not (lambda (other)
                                  (member (probe-file (asdf:component-pathname other)) imports
                                          :test #'equal))
                                (proto-files (asdf:component-system component)))))
    (if needed
        (cons (cons 'asdf:load-op needed) (call-next-method))
        (call-next-method))))

;;; Compiling and loading

(defun component-expansion (component for-file)
  (let* ((source (asdf:component-pathname component))
         (*definer* (and for-file (sb-ext:native-namestring source))))
    (proto-expansion (sb-ext:native-namestring source)
                     :directory (directory-of source)
                     :import-paths (given-places component)
                     :more-places (system-places (asdf:component-system component))
                     :for-file for-file)))

(defvar *expansion* nil
  "The form for the source file that is being compiled for a PROTO-FILE.")

(defmacro expansion ()
  *expansion*)

(defmethod asdf:perform ((operation asdf:compile-op) (component proto-file))
  (let ((fasl (first (asdf:output-files operation component)))
        ;; before the compiler runs, so that the caller gets an error unchanged
        (*expansion* (component-expansion component t)))
    (uiop:call-with-temporary-file
     (lambda (stream pathname)
       (write-string "(clgrpc.protobuf::expansion)" stream)
       (finish-output stream)
       (multiple-value-bind (output warnings failure)
           (with-compilation-unit (:source-namestring
                                   (sb-ext:native-namestring (asdf:component-pathname component)))
             (uiop:compile-file* pathname :output-file fasl :external-format :utf-8))
         (uiop:check-lisp-compile-results output warnings failure "~A"
                                          (list (asdf:component-pathname component)))))
     :want-stream-p t :want-pathname-p t :type "lisp")))

(defmethod asdf:perform ((operation asdf:load-source-op) (component proto-file))
  (eval (component-expansion component nil)))
