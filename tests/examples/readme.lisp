;;;; The hello world of the README is extracted and run.

(in-package #:clgrpc.tests.examples)

(defun readme-block (heading)
  "The text of the first lisp block below HEADING in the README."
  (with-open-file (stream (support:root-file "README.md") :external-format :utf-8)
    (flet ((skip-to (text) (loop until (string= text (read-line stream)))))
      (skip-to heading)
      (skip-to "```lisp")
      (format nil "~{~A~%~}" (loop for line = (read-line stream)
                                   until (string= "```" line) collect line)))))

(defun run-forms (text)
  "Evaluate the forms of TEXT as a REPL in the project's directory would; return their values."
  (with-standard-io-syntax
    (let ((*package* (find-package '#:cl-user))
          (*load-truename* nil)
          (*compile-file-truename* nil)
          (*default-pathname-defaults* (parse-namestring (support:root-file ""))))
      (with-input-from-string (stream text)
        (loop for form = (read stream nil stream)
              until (eq form stream)
              ;; helloworld.proto is defined already, and this tells of it
              collect (handler-bind ((warning #'muffle-warning)) (eval form)))))))

(test readme-hello-world
  (let ((text (readme-block "## Hello world, both ends")))
    (is (<= 10 (count-if (lambda (line) (plusp (length line)))
                         (uiop:split-string text :separator '(#\Newline)))
            20)
        "about 15 lines")
    (unwind-protect
         (let ((reply (find-if #'helloworld:hello-reply-p (run-forms text))))
           (is-true reply)
           (is (string= "Hello, Ada!" (helloworld:hello-reply-message reply)))
           (is (search (format nil "~S" reply)
                       (uiop:read-file-string (support:root-file "README.md")))
               "what the README says the call returns"))
      (when (find-package '#:hello)
        (let ((server (find-symbol "*SERVER*" '#:hello)))
          (when (boundp server) (grpc:stop-server (symbol-value server) :drain 0)))
        (delete-package '#:hello)))))
