;;;; Names are the field's. Every word in the name of a file, a folder, a package, a structure, a
;;;; class, a condition or an exported function is in tests/field-words.txt, the words of the field
;;;; and of English, or it is one of our own, and explained in doc/glossary.md. A word of ours names
;;;; one thing, defined in one folder, and so does a word that has several meanings elsewhere. A
;;;; file's name stands in one folder.

(in-package #:clgrpc.tests.architecture)

(defparameter *most-own-words* 40
  "How many words of our own the glossary may have.")

(defun words-of (name)
  "The words that NAME, of a thing or a path, consists of."
  (loop with name = (string-downcase name)
        for start = (position-if #'alphanumericp name)
          then (position-if #'alphanumericp name :start end)
        while start
        for end = (or (position-if-not #'alphanumericp name :start start) (length name))
        unless (every #'digit-char-p (subseq name start end))
          collect (subseq name start end)))

(defun field-words ()
  "A table whose keys are the words of the field."
  (let ((table (make-hash-table :test #'equal)))
    (dolist (line (uiop:read-file-lines (support:root-file "tests/field-words.txt")) table)
      (unless (find #\# line)
        (dolist (word (words-of line)) (setf (gethash word table) t))))))

(defun glossary-rows (heading)
  "The rows of the table below HEADING in doc/glossary.md, lists of cells."
  (let ((lines (member (format nil "## ~A" heading)
                       (uiop:read-file-lines (support:root-file "doc/glossary.md")
                                             :external-format :utf-8)
                       :test #'string=)))
    (assert lines () "doc/glossary.md has no heading ~A." heading)
    (loop for line in (rest lines)
          until (uiop:string-prefix-p "##" line)
          when (uiop:string-prefix-p "| `" line)
            collect (mapcar (lambda (cell) (string-trim " `" cell))
                            (butlast (rest (uiop:split-string line :separator "|")))))))

(defun own-words ()
  (mapcan (lambda (row) (words-of (first row))) (glossary-rows "Words of our own")))

(defparameter *endings*
  '(("s" "") ("es" "") ("ies" "y") ("ed" "") ("ed" "e") ("ing" "") ("ing" "e") ("er" "") ("er" "e"))
  "What may stand at the end of a word instead of what.")

(defun known-word-p (word table)
  "True if WORD, or the word that it is a form of, is a key of TABLE."
  (or (gethash word table)
      (loop for (ending other) in *endings*
            thereis (and (uiop:string-suffix-p word ending)
                         (gethash (concatenate 'string
                                               (subseq word 0 (- (length word) (length ending)))
                                               other)
                                  table)))))

(defun strange-words (names table)
  "The words of NAMES that TABLE does not know, each with a name that has it: an alist."
  (let ((found '()))
    (dolist (name names (sort found #'string< :key #'car))
      (dolist (word (words-of name))
        (unless (or (known-word-p word table) (assoc word found :test #'string=))
          (push (cons word name) found))))))

;;; The names

(defun named-sources ()
  "The paths of all sources of the library and of what stands on it."
  (loop for pattern in '("src/**/*.lisp" "async/*.lisp" "sim/*.lisp" "etcd/**/*.lisp"
                         "cluster/**/*.lisp" "tools/**/*.lisp")
        append (directory (support:root-file pattern))))

(defun defined-types (file)
  "The names of the structures, classes and conditions that FILE defines."
  (loop for (token name) on (tokens-of file)
        when (and (member token '("defstruct" "defclass" "define-condition") :test #'string=)
                  (every (lambda (char) (or (alphanumericp char) (find char "-%"))) name))
          collect name))

(defun exported-functions ()
  "The names of the functions and macros that our packages export."
  (let ((names '()))
    (dolist (package (list-all-packages) names)
      (when (and (uiop:string-prefix-p "CLGRPC" (package-name package))
                 (not (uiop:string-prefix-p "CLGRPC.TEST" (package-name package)))
                 (not (search "EXAMPLE" (package-name package))))
        (do-external-symbols (symbol package)
          (when (fboundp symbol) (pushnew (symbol-name symbol) names :test #'string=)))))))

(defun all-names ()
  (append (loop for file in (named-sources)
                collect (file-text file)
                append (defined-types file))
          (exported-functions)))

(test names-are-the-field's
  "A word that is neither the field's nor in the glossary is in no name."
  (let ((table (field-words)))
    (dolist (word (own-words)) (setf (gethash word table) t))
    (loop for (word . name) in (strange-words (all-names) table)
          do (fail "~A, in ~A, is neither in tests/field-words.txt nor in doc/glossary.md. Use the ~
                    field's word; if it has none, explain ours in the glossary." word name))
    (is (null (strange-words '("src/rpc/call.lisp" "closed-channels") table)))
    (is (equal '(("gloaming" . "make-gloaming-channel") ("quux" . "src/client/quux.lisp"))
               (strange-words '("src/client/quux.lisp" "make-gloaming-channel") table))
        "a word that nobody knows is found")))

(test own-words-are-few-and-used
  (let ((own (own-words)) (field (field-words)) (used (make-hash-table :test #'equal)))
    (is (<= (length own) *most-own-words*)
        "The glossary has ~D words, ~D are allowed" (length own) *most-own-words*)
    (dolist (name (all-names))
      (dolist (word (words-of name)) (setf (gethash word used) t)))
    (dolist (word own)
      (is-false (gethash word field) "~A is in the glossary and among the field's words" word)
      (is-true (or (gethash word used) (gethash (format nil "~As" word) used))
               "~A is in the glossary, and no name has it" word))))

;;; One meaning

(defun meaning-complaints (rows definitions)
  "What is wrong with DEFINITIONS, lists of a type's name and its folder, by ROWS, lists of a word
and the folder that may define it."
  (loop for (name folder) in definitions
        for row = (assoc name rows :test #'string=)
        when (and row (not (member folder (uiop:split-string (second row) :separator ", `")
                                   :test #'string=)))
          collect (format nil "~A is defined in ~A, and means what ~A defines" name folder
                          (second row))))

(defun type-definitions ()
  "Lists of the name of each type and the folder that defines it."
  (loop for file in (named-sources)
        for folder = (string-right-trim "/" (directory-namestring (file-text file)))
        append (loop for name in (defined-types file) collect (list name folder))))

(test a-word-has-one-meaning
  "A type whose name is a word of the glossary is defined where the glossary says."
  (let ((rows (append (glossary-rows "Words of our own") (glossary-rows "Words with one meaning"))))
    (let ((complaints (meaning-complaints (loop for (word where) in rows collect (list word where))
                                          (type-definitions))))
      (is (null complaints) "~{~A~^~%~}" complaints))
    (is (equal '("site is defined in src/inproc, and means what src/http defines")
               (meaning-complaints '(("site" "src/http"))
                                   '(("site" "src/http") ("site" "src/inproc") ("other" "x")))))))

;;; Names of files

(defun shared-names (files)
  "The names of FILES that several of them have, with how many: an alist."
  (let ((counts '()))
    (dolist (file files)
      (let ((row (assoc (pathname-name file) counts :test #'string=)))
        (if row (incf (cdr row)) (push (cons (pathname-name file) 1) counts))))
    (sort (remove 1 counts :key #'cdr) #'string< :key #'car)))

(test a-file-name-stands-in-one-folder
  "But for package.lisp, which each folder with a package has."
  (loop for (name . count) in (shared-names (named-sources))
        unless (string= "package" name)
          do (fail "~D files are called ~A: name a file for what is in it" count name))
  (is (equal '(("call" . 2)) (shared-names (list #p"a/call.lisp" #p"b/call.lisp" #p"c/x.lisp")))))
