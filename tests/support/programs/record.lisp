;;;; Texts that are kept: a test makes one, and CHECK-RECORD compares it with that in
;;;; tests/vectors/record, line by line. If a difference is meant, RENEW-RECORDS writes the texts
;;;; again, and their difference shows what has changed. A source names its record as a
;;;; symbol after CHECK-RECORD, so that a test of the architecture finds texts without a test.

(in-package #:clgrpc.tests.support)

(defun record-path (name)
  (root-file (format nil "tests/vectors/record/~(~A~).txt" name)))

(defun first-difference (old new)
  "The first line in which the texts OLD and NEW differ, of each, and its number; nil if none does."
  (flet ((lines (text) (append (uiop:split-string text :separator '(#\Newline)) '(:end))))
    (loop for number from 1
          for a in (lines old)
          for b in (lines new)
          unless (equal a b) return (list number a b))))

(defun id-p (word)
  "True if WORD is an id of a trace or span."
  (and (member (length word) '(16 32)) (every (lambda (char) (digit-char-p char 16)) word)))

(defun without-ids (text)
  "TEXT with ids, which chance makes, replaced by #1, #2 and so on in their order."
  (let ((ids (make-hash-table :test 'equal)))
    (with-output-to-string (stream)
      (loop for start = 0 then (1+ end)
            for end = (or (position-if-not #'alphanumericp text :start start) (length text))
            for word = (subseq text start end)
            do (if (id-p word)
                   (format stream "#~D" (or (gethash word ids)
                                            (setf (gethash word ids)
                                                  (1+ (hash-table-count ids)))))
                   (write-string word stream))
               (when (= end (length text)) (return))
               (write-char (char text end) stream)))))

(defun replaced (text part by)
  "TEXT with BY in each place of PART."
  (with-output-to-string (stream)
    (loop for start = 0 then (+ end (length part))
          for end = (search part text :start2 start)
          do (write-string text stream :start start :end end)
             (when end (write-string by stream))
          while end)))

(defun steady-text (text)
  "TEXT without ids and without the versions of SBCL and clgrpc."
  (replaced (replaced (without-ids text) (lisp-implementation-version) "LISP-VERSION")
            (asdf:component-version (asdf:find-system "clgrpc")) "VERSION"))

(defparameter *renewed* nil "True while texts are written instead of compared.")
(defparameter *changed* '() "The names of the records that have changed while *RENEWED* is true.")

(defun renew-record (name text)
  "Keep TEXT as NAME. Note if this is another text than before."
  (let ((path (record-path name)))
    (unless (and (probe-file path) (string= text (uiop:read-file-string path)))
      (push (string-downcase name) *changed*)
      (with-open-file (stream path :direction :output :if-exists :supersede
                                   :external-format :utf-8)
        (write-string text stream)))))

(defun check-record (name text)
  "TEXT is what is kept as NAME. Another SBCL has other random numbers, and so is not asked."
  (unless (eql 0 (search "2.2.9" (lisp-implementation-version)))
    (skip-test "the records are of SBCL 2.2.9"))
  (let ((text (steady-text text)))
    (if *renewed*
        (renew-record name text)
        (fiveam:is (null (first-difference (uiop:read-file-string (record-path name)) text))
                   "~A: ~S" name
                   (first-difference (uiop:read-file-string (record-path name)) text)))))

(defun call-outcomes (calls)
  "A text with what each of CALLS, lists of a function's name and arguments, returns or signals."
  (let ((*print-pretty* nil) (*print-case* :downcase) (*package* (find-package '#:common-lisp)))
    (format nil "~:{~S~%  ~A~%~}"
            (loop for (name . arguments) in calls
                  collect (list (cons name arguments)
                                (handler-case
                                    (format nil "~{~S~^ ~}"
                                            (multiple-value-list (apply name arguments)))
                                  (error (error) (format nil "~S: ~A" (type-of error) error))))))))

(defun renew-records (suite)
  "Write the records of SUITE again, and return the names of those that have changed."
  (let ((*renewed* t) (*changed* '()))
    (fiveam:run! suite)
    (sort *changed* #'string<)))
