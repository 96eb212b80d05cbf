;;;; Load clgrpc strictly: a compiler warning or style warning in our own code is an error. So is a
;;;; note about a hot function, in the SBCL for which the code is written. A warning in a dependency
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

(defun direct-needs (name)
  "The names of the systems that the definition of NAME, a system of ours, lists as its
dependencies."
  (mapcar #'asdf:coerce-name (asdf:system-depends-on (asdf:find-system name))))

(defun needed-systems (name)
  "The names of the systems on which NAME depends, and last NAME, each after its own dependencies."
  (let ((names '()))
    (labels ((visit (name)
               (unless (member name names :test #'string=)
                 (when (our-system-p name)
                   (mapc #'visit (direct-needs name)))
                 (push name names))))
      (visit name))
    (nreverse names)))

(defparameter *start* (get-universal-time) "When this process began.")

(defun compiled-now-p (path)
  "True if the file at PATH is there and this process has written it."
  (and (probe-file path) (<= *start* (file-write-date path))))

(defun system-files (system type)
  "The components of SYSTEM that are files of TYPE, a class of ASDF's."
  (let ((files '()))
    (labels ((visit (component)
               (typecase component
                 (asdf:parent-component (mapc #'visit (asdf:component-children component)))
                 (t (when (typep component type) (push component files))))))
      (visit (asdf:find-system system)))
    (nreverse files)))

(defun fasls (system)
  "The paths of the fasls of SYSTEM's sources."
  (loop for file in (system-files system 'asdf:cl-source-file)
        collect (first (asdf:output-files 'asdf:compile-op file))))

(defun forget-fasls (systems)
  "Delete the fasls of SYSTEMS that were made now: the next load compiles, and warns, again."
  (dolist (system systems)
    (mapc #'delete-file (remove-if-not #'compiled-now-p (fasls system)))))

(defun compiled-p (system)
  "True if the fasls of SYSTEM are there, and none is older than any of its files, or than the fasls
of the systems that it names."
  (let ((fasls (fasls system)))
    (and (every #'probe-file fasls)
         (let ((oldest (reduce #'min fasls :key #'file-write-date
                                           :initial-value most-positive-fixnum)))
           (flet ((older-p (path) (<= (file-write-date path) oldest)))
             (and (every #'older-p (mapcar #'asdf:component-pathname
                                           (system-files system 'asdf:file-component)))
                  (loop for need in (direct-needs system)
                        always (or (not (our-system-p need))
                                   (every #'older-p (fasls need))))))))))

(defun warning-text (warning)
  (format nil "~@[~A: ~]~A"
          (and *compile-file-truename* (uiop:enough-pathname *compile-file-truename* *root*))
          warning))

(defparameter *accepted-notes* '("SPLAT-ANY" "\"<return value>\"")
  "The texts of notes that are ignored: a vector without a constant length is filled; the
out-of-line copy of an inline function returns an object.")

(defun hot-note-text (note)
  "A text about NOTE if it is about a hot function, else NIL. A function that accepts its notes
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

(defun call-strictly (function systems strict)
  "Call FUNCTION, which loads SYSTEMS. If the compiler warns of anything in our code, or has a note
about a hot function, say so and, if STRICT is true, exit with 1."
  (let ((warnings '())
        (*compile-verbose* nil)
        (*compile-print* nil))
    (handler-bind
        ((warning
           (lambda (warning)
             ;; muffled ones report, for instance, that a definition of compile time is made again
             ;; at load time; ASDF's own report that there were warnings
             (unless (typep warning `(or ,sb-ext:*muffled-warnings* uiop:compile-condition))
               (push (warning-text warning) warnings))))
         ((or asdf:compile-error uiop:compile-file-error)
           (lambda (condition)
             (forget-fasls systems)
             (note "~A~{~%~A~}" condition (reverse warnings))
             (quit 1)))
         (error
           (lambda (condition)
             (note "While loading ~{~A~^, ~}: ~A" (last systems) condition)
             (sb-debug:print-backtrace :stream *error-output* :count 15)
             (quit 1)))
         (sb-ext:compiler-note
           (lambda (note)
             (let ((text (and *familiar-lisp-p* (hot-note-text note))))
               (when text (push text warnings)))
             (muffle-warning note))))
      ;; notes count even if the user has not asked for them
      (with-compilation-unit (:policy '(optimize (sb-ext:inhibit-warnings 0)))
        (funcall function)))
    (when warnings
      (note "~D compiler warning~:P or notes in clgrpc:~{~%  ~A~}" (length warnings)
            (reverse warnings))
      (when strict
        (forget-fasls systems)
        (quit 1)))))

;;; While this process compiles a system, a process forked from it compiles another, whose fasls
;;; this one loads when they are there. Of the systems whose needs are loaded these are the two that
;;; begin the longest chains, since no load is shorter than its longest chain.

(defun posix (name &rest arguments)
  (apply #'uiop:symbol-call '#:sb-posix name arguments))

(defun forks-p ()
  "True if this process may fork, for which it must have one thread only, and there is a second
processor. A process forked under qemu may hang at once, in a lock of qemu's own."
  (require :sb-posix)
  (and (not (uiop:getenvp "CLGRPC_EMULATED"))
       (null (rest (sb-thread:list-all-threads)))
       (string/= "1" (uiop:run-program "nproc" :output '(:string :stripped t)
                                               :ignore-error-status t))))

(defun start-compiling (system strict)
  "Compile SYSTEM in a process of its own, and return its pid, or NIL if there can be none. It ends
with 0 if all is well."
  (finish-output)
  (finish-output *error-output*)
  (let ((pid (ignore-errors (posix '#:fork))))
    (when (eql 0 pid)
      ;; PR_SET_PDEATHSIG: the kernel kills this process when the first ends
      (sb-alien:alien-funcall (sb-alien:extern-alien "prctl" (function sb-alien:int sb-alien:int
                                                                       sb-alien:unsigned-long))
                              1 9)
      (call-strictly (lambda () (asdf:load-system system)) (list system) strict)
      (quit 0))
    pid))

(defun size (system)
  "How many octets the sources of SYSTEM have."
  (loop for file in (system-files system 'asdf:cl-source-file)
        sum (with-open-file (stream (asdf:component-pathname file)) (file-length stream))))

(defun chain-sizes (systems)
  "A table from each of SYSTEMS, which stand in an order in which they can be loaded, to the size of
the largest chain that begins with it: a system, one that needs it, one that needs this one, and so
on."
  (let ((sizes (make-hash-table :test 'equal)))
    (dolist (system (reverse systems) sizes)
      (let ((size (incf (gethash system sizes 0) (size system))))
        (dolist (need (direct-needs system))
          (setf (gethash need sizes) (max size (gethash need sizes 0))))))))

(defun load-side-by-side (systems strict)
  "Load SYSTEMS, each of which follows its dependencies; a second process compiles some of them."
  (let ((left systems) (beside nil) (pid nil) ; BESIDE: the system that PID compiles
        (chains (chain-sizes systems)))
    (labels ((chain (system) (gethash system chains))
             (ready-p (system)
               (loop for need in (direct-needs system)
                     never (or (equal need beside) (member need left :test #'string=))))
             (take (system)
               (setf left (remove system left :test #'string=))
               ;; its dependencies are loaded, and need no check
               (asdf:load-system system :force-not (remove system (needed-systems system)
                                                           :test #'string=)))
             (start (system)
               (setf pid (start-compiling system strict))
               (cond (pid (setf left (remove system left :test #'string=)
                                beside system))
                     (t (take system))))
             (ended-p (options)
               (multiple-value-bind (ended status) (posix '#:waitpid pid options)
                 (when (= pid ended)
                   (cond ((zerop status))
                         ;; this process compiles, and warns, in place of one that was killed
                         ((posix '#:wifsignaled status) (forget-fasls (list beside)))
                         (t (forget-fasls systems) ; it has printed the reason
                            (quit 1)))
                   t)))
             (join (options)
               (when (and beside (ended-p options))
                 (take (shiftf beside nil)))))
      (loop while (or left beside)
            do (join 1)                 ; WNOHANG
               (let* ((ready (sort (remove-if-not #'ready-p left) #'> :key #'chain))
                      (compiled (find-if #'compiled-p ready)))
                 (cond (compiled (take compiled))
                       ((and (rest ready) (not beside)) (start (first ready)))
                       (ready (take (first ready)))
                       (t (join 0))))))))

(defun call-with-room (function)
  "Call FUNCTION with fewer collections of garbage, which take a tenth of the time of a compilation
otherwise."
  (let ((octets (sb-ext:bytes-consed-between-gcs)))
    (setf (sb-ext:bytes-consed-between-gcs)
          (max octets (min (ash 1 28) (floor (sb-ext:dynamic-space-size) 8))))
    (unwind-protect (funcall function)
      (setf (sb-ext:bytes-consed-between-gcs) octets))))

(defun load-strictly (name &key (strict t))
  "Load the system NAME. If the compiler warns of anything in our code, or has a note about a hot
function, say so and, if STRICT is true, exit with 1."
  (let* ((systems (needed-systems name))
         (ours (remove-if-not #'our-system-p systems)))
    (let ((*error-output* (make-broadcast-stream))
          (*standard-output* (make-broadcast-stream))
          (*compile-verbose* nil)
          (*compile-print* nil))
      (mapc #'asdf:load-system (remove-if #'our-system-p systems)))
    (call-with-room
     (lambda ()
       (call-strictly (lambda ()
                        (when (forks-p)
                          (load-side-by-side ours strict))
                        (asdf:load-system name))
                      ours strict)))))
