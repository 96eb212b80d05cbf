;;;; Load clgrpc strictly: a compiler warning or style warning in our own code is an error, and so,
;;;; in the SBCL that the code is written for, is a note about a hot function; one in a dependency
;;;; is not. Used by the build, the tests and the benchmarks; loaded, not compiled.

(require :asdf)

(defpackage #:clgrpc.scripts
  (:use #:cl)
  (:export #:*root* #:load-strictly #:note #:quit))

(in-package #:clgrpc.scripts)

(defvar *root* (uiop:pathname-parent-directory-pathname
                (uiop:pathname-directory-pathname (truename *load-truename*)))
  "The directory of clgrpc.asd.")

(defun note (control &rest arguments)
  (format *error-output* "~&~?~%" control arguments))

(defun quit (code)
  (finish-output)
  (finish-output *error-output*)
  (sb-ext:exit :code code :abort t))

(push *root* asdf:*central-registry*)

(defun our-system-p (name)
  (uiop:string-prefix-p "clgrpc" name))

(defun needed-systems (name)
  "The names of the systems that the system NAME stands on, and NAME, in no order."
  (let ((names '()))
    (labels ((visit (name)
               (unless (member name names :test #'string=)
                 (push name names)
                 (when (our-system-p name)
                   (mapc #'visit (mapcar #'asdf:coerce-name
                                         (asdf:system-depends-on (asdf:find-system name))))))))
      (visit name))
    names))

(defparameter *start* (get-universal-time) "When this process began.")

(defun compiled-now-p (path)
  "True if the file at PATH is there and this process has written it."
  (and (probe-file path) (<= *start* (file-write-date path))))

(defun forget-fasls (systems)
  "Delete the fasls of SYSTEMS that were made now: the next load compiles, and warns, again."
  (dolist (system systems)
    (labels ((visit (component)
               (typecase component
                 (asdf:parent-component (mapc #'visit (asdf:component-children component)))
                 (asdf:cl-source-file
                  (mapc #'delete-file
                        (remove-if-not #'compiled-now-p
                                       (asdf:output-files 'asdf:compile-op component)))))))
      (visit (asdf:find-system system)))))

(defun warning-text (warning)
  ;; FiveAM compiles some tests only when their fasl is loaded
  (format nil "~@[~A: ~]~A"
          (let ((file (or *compile-file-truename*
                          (and *load-truename* (string= "fasl" (pathname-type *load-truename*))
                                       *load-truename*))))
            (and file (uiop:enough-pathname file *root*)))
          warning))

(defparameter *accepted-notes* '("SPLAT-ANY" "\"<return value>\"")
  "The texts of notes that are ignored: a vector without a constant length is filled; the
out-of-line copy of an inline function returns an object.")

(defun hot-note-text (note)
  "If NOTE is about a hot function, what to say of it, else NIL. A function that accepts its notes
declares (MUFFLE-CONDITIONS COMPILER-NOTE), with the reason in a comment."
  (let* ((context (sb-c::find-error-context nil))
         ;; the expander of a local macro in a hot function is a component of its own
         (component (and context (boundp 'sb-c::*component-being-compiled*)
                         (princ-to-string
                          (sb-c::component-name sb-c::*component-being-compiled*))))
         (text (princ-to-string note)))
    (when (and component
               (or (uiop:string-prefix-p "DEFINE-HOT" component)
                   (uiop:string-prefix-p "DEFINE-LEAF" component))
               (not (typep note 'sb-ext:code-deletion-note))
               (notany (lambda (mark) (search mark text)) *accepted-notes*))
      (warning-text (format nil "note in ~A, in ~(~S~): ~A" component
                            (sb-c::compiler-error-context-original-form context) text)))))

(defparameter *familiar-lisp-p* (and (member :x86-64 *features*)
                                     (eql 0 (search "2.2.9" (lisp-implementation-version))))
  "True if this is the SBCL that is tested with each change. Notes of another version's compiler,
about code that was written for this one, are not defects.")

(defun load-strictly (name &key (strict t))
  "Load the system NAME. If the compiler warns of anything in our code, or has a note about a hot
function, say so and, if STRICT is true, exit with 1."
  (let* ((systems (needed-systems name))
         (ours (remove-if-not #'our-system-p systems))
         (warnings '())
         (*compile-verbose* nil)
         (*compile-print* nil))
    (let ((*error-output* (make-broadcast-stream))
          (*standard-output* (make-broadcast-stream)))
      (mapc #'asdf:load-system (set-difference systems ours :test #'string=)))
    (handler-bind
        ((warning
           (lambda (warning)
             ;; muffled ones report, for instance, that a definition of compile time is made again
             ;; at load time; ASDF's own report that there were warnings
             (unless (typep warning `(or ,sb-ext:*muffled-warnings* uiop:compile-condition))
               (push (warning-text warning) warnings))))
         ((or asdf:compile-error uiop:compile-file-error)
           (lambda (condition)
             (forget-fasls ours)
             (note "~A~{~%~A~}" condition (reverse warnings))
             (quit 1)))
         (error
           (lambda (condition)
             (note "While loading ~A: ~A" name condition)
             (sb-debug:print-backtrace :stream *error-output* :count 15)
             (quit 1)))
         (sb-ext:compiler-note
           (lambda (note)
             (let ((text (and *familiar-lisp-p* (hot-note-text note))))
               (when text (push text warnings)))
             (muffle-warning note))))
      ;; notes count even if the user has not asked for them
      (with-compilation-unit (:policy '(optimize (sb-ext:inhibit-warnings 0)))
        (asdf:load-system name)))
    (when warnings
      (note "~D compiler warning~:P or notes in clgrpc:~{~%  ~A~}" (length warnings)
            (reverse warnings))
      (when strict
        (forget-fasls ours)
        (quit 1)))))
