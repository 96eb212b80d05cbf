;;;; The chapters of doc/: the Lisp of each is evaluated from its first block to its last, and what
;;;; follows a form as `; => value` must be what the form returns.

(in-package #:clgrpc.tests.examples)
(in-suite :clgrpc.examples)

(defun chapter-text (name)
  "The text of all lisp blocks of doc/NAME.md."
  (with-open-file (stream (support:root-file (format nil "doc/~A.md" name)) :external-format :utf-8)
    (with-output-to-string (text)
      (loop with inside = nil
            for line = (read-line stream nil)
            while line
            do (cond ((string= line "```lisp") (setf inside t))
                     ((string= line "```") (setf inside nil))
                     (inside (write-line line text)))))))

(defun expectation (text start)
  "What a line `; => value` at START of TEXT, but for blanks, says, or nil."
  (let ((at (position #\Space text :start start :test-not
                      (lambda (blank char) (or (char= blank char) (char= #\Newline char)))))
        (mark "; => "))
    (when (and at (uiop:string-prefix-p mark (subseq text at)))
      (subseq text (+ at (length mark)) (position #\Newline text :start at)))))

(defun check-form (form expected)
  "Evaluate FORM; check that its value prints as EXPECTED says, unless that is nil."
  (let ((value (handler-bind ((warning #'muffle-warning)) (eval form))))
    (when expected
      (let ((printed (let ((*print-pretty* nil) (*print-readably* nil)) (prin1-to-string value))))
        (is (string= expected printed) "~S returns ~A, not ~A" form printed expected)))))

(defun check-chapter (name)
  "Evaluate the Lisp of doc/NAME.md as a REPL would in which the README's proto is defined."
  (let ((text (chapter-text name))
        (checked 0))
    (with-standard-io-syntax
      (let ((*package* (find-package '#:cl-user))
            (*default-pathname-defaults* (parse-namestring (support:root-file "")))
            (own nil))
        (unwind-protect
             (loop with at = 0
                   for (form end) = (multiple-value-list
                                     (read-from-string text nil text :start at))
                   until (eq form text)
                   do (let ((expected (expectation text end)))
                        (when expected (incf checked))
                        (check-form form expected)
                        (setf at end
                              own *package*)))
          (unless (member own (list nil (find-package '#:cl-user)))
            (delete-package own)))))
    (is (plusp checked) "doc/~A.md checks nothing" name)))

(defmacro define-chapters (&rest names)
  "Define a test for each of the chapters NAMES of doc/."
  `(progn
     ,@(loop for name in names
             collect `(test ,(intern (format nil "CHAPTER-~:@(~A~)" name))
                        (check-chapter ,name)))))

(define-chapters "compression")
