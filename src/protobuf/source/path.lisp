;;;; The names of .proto files and the directories that relative paths begin from. A file's name is
;;;; its path below a root, as imports write it. No name leads out of its root, except through links
;;;; that the owner of the root has made.

(in-package #:clgrpc.protobuf)

(defun source-directory ()
  "The directory to which paths of a DEFINE-PROTO are relative."
  (if-let ((source (or *compile-file-truename* *load-truename*)))
    (directory-of source)
    ;; resolved, so that an error can say where
    (or (probe-file *default-pathname-defaults*) *default-pathname-defaults*)))

(defun directory-of (pathname)
  (make-pathname :name nil :type nil :version nil :defaults pathname))

(defun directory-pathname (path)
  (let ((name (namestring path)))
    (parse-native (if (and (plusp (length name)) (char/= #\/ (char name (1- (length name)))))
                      (concatenate 'string name "/")
                      name))))

(defun parse-native (name)
  (sb-ext:parse-native-namestring name))

(defun absolute-directories (paths base)
  (mapcar (lambda (path) (merge-pathnames (directory-pathname path) base)) paths))

(defun split-name (name &optional (separator #\.))
  (loop for start = 0 then (1+ end)
        for end = (position separator name :start start)
        collect (subseq name start end)
        while end))

;;; Names

(defun control-character-p (char)
  (or (< (char-code char) 32) (<= 127 (char-code char) 159)))

(defun file-name-p (name)
  "True if NAME can be the name of a file: it is one line and, as protoc demands of a \"virtual
path\", does not leave its base directory."
  (flet ((part-p (part) (not (member part '("" "." "..") :test #'string=))))
    (and (every #'part-p (split-name name #\/))
         (not (find #\\ name))
         (notany #'control-character-p name)
         (not (and (> (length name) 1) (letter-p (char name 0)) (char= #\: (char name 1)))))))

(defun file-name-text (name)
  "Return the text of the error that NAME does not satisfy FILE-NAME-P."
  (format nil "\"~A\" is not the name of a file: it must not have \".\", \"..\" or nothing between ~
               slashes, or a backslash, drive or control character"
          (substitute-if #\? #'control-character-p name)))

(defun name-below (truename roots)
  "Return the path of the file TRUENAME relative to the first of ROOTS that contains it, or nil if
none does."
  (let ((full (sb-ext:native-namestring truename)))
    (dolist (root roots)
      (let ((prefix (ignore-errors (sb-ext:native-namestring (truename root)))))
        (when (and prefix
                   (> (length full) (length prefix))
                   (string= prefix full :end2 (length prefix)))
          (return (subseq full (length prefix))))))))

(defun implied-root (truename package)
  "The directory to which the name of the file TRUENAME, which declares PACKAGE, is relative. If the
file's last directories are the parts of PACKAGE, this is the directory above these; otherwise it is
the file's own directory."
  (let* ((own (directory-of truename))
         (parts (and (string/= "" package) (split-name package)))
         (directories (pathname-directory own))
         (rest (- (length directories) (length parts))))
    (if (and (plusp rest) (equal parts (nthcdr rest directories)))
        (make-pathname :directory (subseq directories 0 rest) :defaults own)
        own)))

(defun import-name (path truename roots package)
  "The name under which the file TRUENAME, requested as PATH, is imported."
  (let ((implied (implied-root truename package)))
    (cond ((name-below truename roots))
          ((and (string/= "" package) (not (equal implied (directory-of truename))))
           (name-below truename (list implied)))
          ((file-name-p path) path)
          (t (name-below truename (list (directory-of truename)))))))
