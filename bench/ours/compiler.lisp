;;;; Compiles .proto files for bench/parts/compiler.py. Loaded after scripts/load.lisp, this prints
;;;; `ready`, and answers each line of standard input, {"proto": PATH, "lisp": PATH}: it writes the
;;;; Lisp source for the first file to the second, and compiles the second. The answer is a line of
;;;; JSON with the seconds of CPU, garbage collections included, for each step.

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc")

(defpackage #:clgrpc.bench.compiler
  (:use #:cl)
  (:local-nicknames (#:base #:clgrpc.base) (#:protobuf #:clgrpc.protobuf)))

(in-package #:clgrpc.bench.compiler)

(defmacro seconds-of (&body body)
  "The seconds of CPU that BODY takes."
  `(let ((begin (get-internal-run-time)))
     (progn ,@body)
     (/ (- (get-internal-run-time) begin) (float internal-time-units-per-second 1d0))))

(defun compile-quietly (path)
  (let ((*standard-output* (make-broadcast-stream)) (*error-output* (make-broadcast-stream)))
    (handler-bind ((warning #'muffle-warning))
      (multiple-value-bind (fasl warnings failure) (compile-file path)
        (declare (ignore warnings))
        (assert (and fasl (not failure)))))))

(defun answer (proto lisp)
  (let ((text ""))
    `(("generate_s" . ,(seconds-of
                         (setf text (cdr (first (last (protobuf:generate-sources proto)))))))
      ("compile_s" . ,(progn
                        (with-open-file (stream lisp :direction :output :if-exists :supersede
                                                     :external-format :utf-8)
                          (write-string text stream))
                        (seconds-of (compile-quietly lisp)))))))

(format t "ready~%")
(finish-output)
(loop for line = (read-line *standard-input* nil)
      while line
      do (let ((request (base:parse-json line)))
           (flet ((field (name) (cdr (assoc name request :test #'string=))))
             (format t "~A~%" (base:write-json (answer (field "proto") (field "lisp"))))
             (finish-output))))
