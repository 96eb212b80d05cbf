;;;; What protoc 33.2 refuses is refused, at the same line.

(in-package #:clgrpc.tests.protobuf)
(in-suite :clgrpc.protobuf)

(defun call-with-directory (function)
  "Call FUNCTION with a fresh directory, which goes afterwards."
  (let ((directory (uiop:ensure-directory-pathname
                    (merge-pathnames (format nil "clgrpc-protos-~36R/"
                                             (random (expt 36 8) (make-random-state t)))
                                     (uiop:temporary-directory)))))
    (ensure-directories-exist directory)
    (unwind-protect (funcall function directory)
      (uiop:delete-directory-tree directory :validate t))))

(defmacro with-directory ((directory) &body body)
  `(call-with-directory (lambda (,directory) ,@body)))

(defun write-proto (directory name text)
  (with-open-file (out (merge-pathnames (format nil "~A.proto" name) directory)
                       :direction :output :external-format :utf-8)
    (write-string text out)))

(test what-protoc-refuses
  (let ((vectors (refused-vectors)))
    (is (<= 200 (length vectors)))
    (with-directory (directory)
      (loop for (name nil text) in vectors do (write-proto directory name text))
      (loop for (name line) in vectors
            for file = (format nil "~A.proto" name)
            for problem = (handler-case (progn (compile-file-named file directory) nil)
                            (proto-syntax-error (condition) condition))
            do (cond ((eql line 0) (is (null problem) "~A: ~A" name problem))
                     ((null problem) (fail "~A was accepted" name))
                     (t
                      (is (equal file (proto-syntax-error-file problem)) "~A" problem)
                      (when line
                        (is (= line (proto-syntax-error-line problem)) "~D: ~A" line
                            problem))))))))

(test a-circle-of-imports-is-refused
  (with-directory (directory)
    (write-proto directory "a" (format nil "syntax = 'proto3';~%~%import 'b.proto';"))
    (write-proto directory "b" (format nil "syntax = 'proto3';~%import 'a.proto';"))
    (handler-case (progn (compile-file-named "a.proto" directory) (fail "it was accepted"))
      (proto-syntax-error (condition)
        (is (equal '("a.proto" 3 1)
                   (list (proto-syntax-error-file condition) (proto-syntax-error-line condition)
                         (proto-syntax-error-column condition))))))))

(test several-rules-broken-at-once
  (is (equal '((2 28) (3 37))
             (problem-places "edition = '2023';
message M { repeated int32 a = 1 [packed = true];
  message bad { string s = 1; int32 t = 2 [features.utf8_validation = NONE]; }
}"))
      "both errors"))
