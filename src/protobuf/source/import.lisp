;;;; Finding .proto files, and reading a file with all files that it imports.
;;;;
;;;; By default the roots of a file are, in order: the directory of the Lisp source that names the
;;;; file; the file's own directory; the directory that its package implies (foo.bar in
;;;; /protos/foo/bar/ implies /protos/); *IMPORT-ROOTS*; the directory of the surrounding ASDF
;;;; system and the roots of the systems on which this depends. A built-in name means the built-in
;;;; file in all cases; a name that is found nowhere means the file of that name in the image.

(in-package #:clgrpc.protobuf)

(defvar *import-roots* '()
  "Directories in which every DEFINE-PROTO looks for imports, after its own :IMPORT-PATHS and the
directories of the files themselves.")

(defun source-octets (truename)
  "The octets of TRUENAME. Signal MISUSE, which names the file, if it is too long."
  (handler-case (file-octets truename)
    (clgrpc-error (error) (misuse "~A cannot be read: ~A" truename error))))

(defun read-source (truename)
  (lenient-string (source-octets truename))) ; comments may be in any encoding

(defun find-proto (name places)
  "Return the truename of the file NAME in the first of PLACES that has it, or nil if no place has
it."
  (loop for place in places
        for found = (probe-file (merge-pathnames (parse-native name) place))
          thereis (and found (pathname-name found) found))) ; no directory

;;; ASDF's systems

(defun system-around (directory)
  "Return the ASDF system whose directory is DIRECTORY or the nearest directory above it, or nil if
ASDF knows none."
  (let ((full (sb-ext:native-namestring directory)) (best nil) (length 0))
    (dolist (name (asdf:registered-systems) best)
      (let* ((system (asdf:registered-system name))
             (home (asdf:system-source-directory system))
             (prefix (and home (sb-ext:native-namestring home))))
        (when (and prefix
                   (< length (length prefix) (1+ (length full)))
                   (string= prefix full :end2 (length prefix)))
          (setf best system length (length prefix)))))))

(defgeneric component-places (component)
  (:documentation "Return the directories in which imports are looked for, by the .proto files of
the ASDF component COMPONENT and by files that import these.")
  (:method ((component asdf:component)) '())
  (:method ((component asdf:parent-component))
    (mapcan #'component-places (copy-list (asdf:component-children component)))))

(defun needed-name (dependency)
  "The name of the system that DEPENDENCY, an element of a DEFSYSTEM's :DEPENDS-ON, denotes."
  (if (consp dependency)
      (ecase (first dependency)
        ((:version :require) (second dependency))
        (:feature (needed-name (third dependency))))
      dependency))

(defun system-places (system)
  "Return the directory of SYSTEM, the places of its .proto files, and the places of the .proto
files of all systems on which it depends."
  (let ((seen '()) (places '()))
    (labels ((visit (system)
               (unless (or (null system) (member system seen))
                 (push system seen)
                 (setf places (append places (component-places system)))
                 (dolist (needed (asdf:system-depends-on system))
                   (visit (asdf:registered-system (needed-name needed)))))))
      (visit system)
      (remove-duplicates (cons (asdf:system-source-directory system) places)
                         :test #'equal :from-end t))))

(defun surrounding-places (directory)
  (let ((system (system-around directory)))
    (and system (system-places system))))

(defun import-text (name places)
  "Return two values: the text of the file that is imported as NAME, and its truename if the file
was read. The text is nil if there is no such file, or if the file is built in and already defined."
  (let ((built-in (built-in name)))
    (cond ((stringp built-in) built-in)
          (built-in nil)
          (t (let ((found (find-proto name places)))
               (and found (values (read-source found) found)))))))

(defun note-source (file truename)
  "Note that FILE was read from the file TRUENAME, or from no file if TRUENAME is nil. Return FILE."
  (setf (file-descriptor-source file) (and truename (sb-ext:native-namestring truename)))
  file)

;;; Reading a file with its imports

(defun walk-imports (names imports leave circle)
  "Call LEAVE once with each of NAMES and each of their direct and indirect imports, imports first.
The function IMPORTS returns the names that a name imports; it is called when the walk reaches a
name. CIRCLE is called with a name that imports itself and the list of names on the path to it, the
last name first."
  (let ((states (make-hash-table :test 'equal)) ; name to :open or :left
        (way (list (cons nil names))))          ; each a name and the rest of its imports
    (loop
      (let ((step (first way)))
        (cond ((rest step)
               (let ((name (pop (rest step))))
                 (case (gethash name states)
                   ((nil)
                    (setf (gethash name states) :open)
                    (push (cons name (funcall imports name)) way))
                   (:open (funcall circle name (mapcar #'first (butlast way)))))))
              ((null (rest way)) (return))
              (t
               (pop way)
               (setf (gethash (first step) states) :left)
               (funcall leave (first step))))))))

(defun link-file (file find roots &optional (symbol-table (make-symbol-table)))
  "Resolve and check FILE, parsed from source, in place and return it. FIND is a function from the
path of an import to its linked file descriptor, or nil. ROOTS are the directories in which FIND
looks. SYMBOL-TABLE has the names of the files that were linked before FILE. Signal
PROTO-SYNTAX-ERROR."
  (let ((*linker* (make-linker :file file :symbol-table symbol-table)))
    (resolve-imports file find roots)
    (start-records file)
    (interpret-options file nil)
    (resolve-features file)
    (state-facts file)
    (unless (linker-missing-p *linker*) (interpret-options file t))
    (end-stage file)
    (check-rules file)
    (check-style-and-use file)
    (fail-on-problems)
    (store-options file)
    (setf (file-descriptor-places file) nil)
    file))

(defun load-protos (name text places)
  "Parse and link TEXT as the file NAME, and every import that is not PROVIDED-P or whose present
version is not registered. Return the fresh file descriptors with their symbols, imports first."
  (assign-symbols (link-protos (parse-proto text name) text places)))

(defun link-protos (file text places)
  "Do what LOAD-PROTOS does, for FILE, which has already been parsed from TEXT. The files get no
symbols."
  (let ((parsed (make-hash-table :test 'equal)) ; name to file and text, if not linked
        (files (make-hash-table :test 'equal)) (symbol-table (make-symbol-table)) (fresh '()))
    (labels ((read-import (name)
               (multiple-value-bind (text truename) (import-text name places)
                 (let ((known (find-file-descriptor name)))
                   (cond ((and known (or (null text)
                                         (and (provided-p known)
                                              (string= (text-fingerprint text)
                                                       (file-descriptor-fingerprint known)))))
                          (setf (gethash name files) known))
                         (text
                          (setf (gethash name parsed)
                                (cons (note-source (parse-proto text name) truename) text)))))))
             (imports (name)
               (let ((source (or (gethash name parsed)
                                 (progn (read-import name) (gethash name parsed)))))
                 (and source (all-imports (car source)))))
             (link (name)
               (destructuring-bind (&optional file . text) (gethash name parsed)
                 (when file
                   (setf (file-descriptor-fingerprint file) (text-fingerprint text))
                   (link-file file (lambda (name) ; registered files are not read
                                     (or (gethash name files) (find-file-descriptor name)))
                              places symbol-table)
                   (setf (gethash name files) file)
                   (push file fresh)))))
      (setf (gethash (descriptor-name file) parsed) (cons file text))
      (walk-imports (list (descriptor-name file)) #'imports #'link
                    (lambda (name open)
                      (fail-on-circle name (mapcar (lambda (name) (car (gethash name parsed)))
                                                   open))))
      (nreverse fresh))))

(defun read-protos (path import-paths source directory more-places)
  "Return the fresh file descriptors of the file PATH and of its imports, imports first; they have
no symbols. The text of the file is SOURCE or is read from PATH. See DEFINE-PROTO. MORE-PLACES are
the directories that are searched last."
  (let* ((given (absolute-directories import-paths directory))
         (registered (absolute-directories *import-roots* *default-pathname-defaults*))
         (roots (append given registered))
         (last (append registered more-places (surrounding-places directory)))
         (built-in (and (not source) (built-in path)))
         (truename (and (not source) (not built-in)
                        (find-file path (list* directory (append given last)))))
         (text (or source built-in (read-source truename)))
         (file (note-source
                (parse-proto text (if truename (or (name-below truename roots) path) path))
                truename))
         (package (file-descriptor-package file)))
    (when truename
      (let ((name (import-name path truename roots package)))
        (setf (descriptor-name file) name
              (descriptor-full-name file) name)))
    (link-protos file text
                 (remove-duplicates
                  (append given
                          (list directory)
                          (when truename
                            (list (directory-of truename) (implied-root truename package)))
                          last)
                  :test #'equal :from-end t))))

(define-keyword-function read-proto-files (path &key import-paths (directory (source-directory)))
  "Return the file descriptors of the .proto file PATH and of its imports, for MAKE-TYPE-POOL:
imports first and without those that the image has. Nothing is interned, registered or compiled.
PATH and its imports are looked for as by DEFINE-PROTO; relative paths are relative to DIRECTORY.
Signal PROTO-SYNTAX-ERROR, and MISUSE if there is no file PATH. From any thread."
  (read-protos path import-paths nil directory '()))

(defun direct-imports (truename)
  "Return two values: the names of the files that the file TRUENAME imports, and its package. Return
nil if TRUENAME is not a valid source."
  (handler-case (let ((file (parse-proto (read-source truename) (file-namestring truename))))
                  (values (all-imports file) (file-descriptor-package file)))
    (error () (values '() ""))))

(defun imported-files (truename places)
  "Return the truenames of all files that the file TRUENAME imports, directly or not, and that are
found in PLACES. Built-in files are omitted."
  (let ((seen (make-hash-table :test 'equal)) (waiting (list truename)) (files '()))
    (setf (gethash truename seen) t)
    (loop while waiting
          do (dolist (name (direct-imports (pop waiting)))
               (let ((found (and (not (built-in name)) (find-proto name places))))
                 (when (and found (not (gethash found seen)))
                   (setf (gethash found seen) t)
                   (push found files)
                   (push found waiting)))))
    (nreverse files)))

(defun find-file (path places)
  "The truename of PATH in PLACES; signal MISUSE if the file is in none of them."
  (or (find-proto path places)
      (misuse "There is no file ~A in ~{~A~^, ~}~@[: ~A~]." path
              (mapcar #'sb-ext:native-namestring
                      (remove-duplicates places :test #'equal :from-end t))
              (and (find #\; path) "the text of a file is the value of :source, after a name"))))
