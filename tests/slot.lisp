;;;; Every slot of a structure, class or condition of src/ has a comment of its own, on its line or
;;;; above it, or a documentation string. A docstring that lists the slots is not enough: it is not
;;;; there where a slot is added. The sources are read as text, since no reader keeps comments.

(in-package #:clgrpc.tests.architecture)

(defun next-form (text start)
  "The position of the next form of TEXT from START on, or of what closes the list around; NIL at
the end."
  (loop with i = start
        while (< i (length text))
        do (let ((char (char text i)))
             (cond ((char= char #\;) (setf i (or (position #\Newline text :start i)
                                                 (length text))))
                   ((uiop:string-prefix-p "#|" (subseq text i (min (length text) (+ i 2))))
                    (setf i (skip-block-comment text i)))
                   ((find char '(#\Space #\Newline)) (incf i))
                   (t (return i))))))

(defun skip-form (text start)
  "The position after the form of TEXT that begins at START."
  (let* ((i (or (position-if-not (lambda (char) (find char "'`,@")) text :start start)
                (length text)))
         (char (char text i)))
    (cond ((char= char #\() (1+ (nth-value 1 (inner-forms text i))))
          ((find char "\"|") (skip-string text i))
          (t (or (position-if (lambda (char) (or (find char *delimiters*) (find char ";\"")))
                              text :start (min (length text)
                                               (if (string= "#\\" (subseq text i (+ i 2)))
                                                   (+ i 3)
                                                   (1+ i))))
                 (length text))))))

(defun inner-forms (text start)
  "The forms in the list of TEXT that begins at START, as conses of start and end; and where the
list is closed."
  (let ((forms '()) (i (1+ start)))
    (loop
      (setf i (next-form text i))
      (when (char= #\) (char text i))
        (return (values (nreverse forms) i)))
      (let ((end (skip-form text i)))
        (push (cons i end) forms)
        (setf i end)))))

(defun slots-of (text definition)
  "The slots in DEFINITION, inner forms of DEFSTRUCT, DEFCLASS or DEFINE-CONDITION in TEXT; and
where what comes before them ends."
  (destructuring-bind (operator name &rest rest) definition
    (cond ((string= "defstruct" (subseq text (car operator) (cdr operator)))
           (let ((documented (and rest (char= #\" (char text (car (first rest)))))))
             (values (if documented (rest rest) rest)
                     (cdr (if documented (first rest) name)))))
          ((rest rest)
           (values (inner-forms text (car (second rest))) (1+ (car (second rest))))))))

(defun unexplained-slots (text definition)
  "The names of the slots in DEFINITION, as SLOTS-OF takes it, that nothing explains."
  (multiple-value-bind (slots before) (slots-of text definition)
    (loop for (start . end) in slots
          for line-end = (or (position #\Newline text :start end) (length text))
          for behind = (subseq text end line-end)
          unless (or (find #\; (subseq text before start))
                     (find #\; behind)
                     (search ":documentation" text :start2 start :end2 end))
            collect (string-trim "(" (subseq text start (position-if (lambda (char)
                                                                       (find char " )"))
                                                                     text :start start)))
          do (setf before (if (find #\; behind) line-end end)))))

(defun unexplained (text)
  "An alist from the names of the structures, classes and conditions that TEXT, Lisp source, defines
and that have slots which nothing explains to these."
  (loop for operator in '("(defstruct " "(defclass " "(define-condition ")
        append (loop for start = (search operator text)
                       then (search operator text :start2 (1+ start))
                     while start
                     append
                     (let ((line (1+ (or (position #\Newline text :end start :from-end t) -1))))
                       (when (every (lambda (char) (char= #\Space char)) (subseq text line start))
                         (let* ((definition (inner-forms text start))
                                (name (string-left-trim
                                       "(" (subseq text (car (second definition))
                                                   (cdr (second definition)))))
                                (slots (unexplained-slots text definition)))
                           (when (and slots (char/= #\, (char name 0)) ; else it is in a macro
                                      (char/= #\, (char (first slots) 0)))
                             (list (cons (subseq name 0 (position-if (lambda (char)
                                                                       (find char '(#\Space #\)
                                                                                    #\Newline)))
                                                                     name))
                                         slots)))))))))

(test slots-are-explained
  (dolist (folder (folders))
    (dolist (file (folder-files folder))
      (let ((found (unexplained (uiop:read-file-string file :external-format :utf-8))))
        (is (null found) "~A has slots that no comment explains:~:{ ~A:~@{ ~A~}~}"
            (file-text file) found)))))

(test the-checks-of-slots-see
  (is (equal '(("one" "a" "c") ("two" "d"))
             (unexplained "(defstruct (one (:include x))
  \"Doc; string\"
  (a 1)
  (b 2) ; what it is
  (c 3))
(defclass two (x)
  ((d :initarg :d)
   ;; above
   (e :initarg :e)
   (f :documentation \"in it\"))
  (:documentation \"It.\"))
(defmacro m () `(defstruct ,name (g 1)))")))
  (is (null (unexplained "(defstruct one
  ;; above
  (a 1)
  (b 2)) ; behind"))))
