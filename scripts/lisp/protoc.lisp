;;;; Our side of tests/conformance/protoc.py: a line of standard input is a job, kind, name,
;;;; directories and argument with tabs between; a line of standard output the job, a tab and
;;;; "passed" or what is wrong.
;;;;
;;;;   octets   the file gives the octets in the file ARGUMENT
;;;;   code     the file gives Lisp code that loads, without a warning
;;;;   lacking  compiling the file fails at its import of ARGUMENT, and says where that is

(load (merge-pathnames "../load.lisp" *load-truename*))
(in-package #:clgrpc.scripts)
(load-strictly "clgrpc/protobuf")
(in-package #:clgrpc.protobuf)

(defun directories (text)
  (mapcar #'directory-pathname (uiop:split-string text :separator ":")))

(defun octets-of-file (path)
  (with-open-file (stream path :element-type 'octet)
    (let ((octets (make-octets (file-length stream))))
      (read-sequence octets stream)
      octets)))

(defun compiled (name roots)
  (first (last (load-protos name (read-source (find-proto name roots)) roots))))

(defun judge-octets (name roots path)
  (if (equalp (octets-of-file path)
              (file-descriptor-octets (compiled name roots) :source-options t))
      "passed"
      "its octets differ"))

(defun judge-code (name roots)
  (handler-bind ((warning (lambda (warning)
                            (if (typep warning sb-ext:*muffled-warnings*)
                                (muffle-warning warning)
                                (return-from judge-code (princ-to-string warning)))))
                 (sb-ext:compiler-note #'muffle-warning))
    (let ((*error-output* (make-broadcast-stream)))
      (eval `(define-proto ,name
               :import-paths ,(mapcar #'sb-ext:native-namestring roots))))
    "passed"))

(defun judge-lacking (name roots import)
  (handler-case (progn (compiled name roots) "it compiles")
    (proto-syntax-error (condition)
      (let* ((source (read-source (find-proto name roots)))
             (line (1+ (count #\Newline source :end (search import source)))))
        (if (and (string= name (proto-syntax-error-file condition))
                 (= line (proto-syntax-error-line condition))
                 (search import (proto-syntax-error-text condition)))
            "passed"
            (princ-to-string condition))))))

(defun judge (kind name roots argument)
  (handler-case
      (cond ((string= kind "octets") (judge-octets name roots argument))
            ((string= kind "code") (judge-code name roots))
            (t (judge-lacking name roots argument)))
    (error (condition) (princ-to-string condition))))

(loop for line = (read-line *standard-input* nil)
      while line
      do (destructuring-bind (kind name directories argument)
             (uiop:split-string line :separator '(#\Tab))
           (format t "~A ~A~C~A~%" kind name #\Tab
                   (substitute #\Space #\Newline
                               (judge kind name (directories directories) argument)))))
(clgrpc.scripts:quit 0)
