;;;; The pages of the reference: entries as markup, with an example from a chapter, which the tests
;;;; run.

(in-package #:clgrpc.manual)

(defparameter *longest-example* 24
  "The maximum number of lines of an example that an entry shows whole.")

(defvar *parameters* '() "The names of the parameters of the function whose docstring is shown.")

(defparameter *mark*
  (ppcre:create-scanner
   (concatenate 'string "(?<![\\w:/\"])\\*?[A-Z][A-Z0-9*+-]+[A-Z0-9*](?![\\w:])|"
                "(?<!\\w):[a-z][a-z0-9-]*|doc/[a-z/-]+\\.md"))
  "The marked parts of a docstring: a name in capitals, a keyword, the path of a chapter.")

(defun mark-node (word)
  "The node for WORD, which *MARK* has found."
  (let ((entry (unless (member word *parameters* :test #'string=) (find-entry word))))
    (cond ((char= #\: (char word 0)) `(:code () ,word))
          ((uiop:string-prefix-p "doc/" word)
           `(:a (:href ,(format nil "../~A" (site-page word))) ,word))
          (entry `(:a (:href ,(format nil "../~A" (entry-url entry)))
                   (:code () ,(string-downcase word))))
          (t word))))

(defun text-nodes (text)
  "TEXT of a docstring as nodes: names in capitals that have entries become links, keywords code."
  (let ((nodes '()) (start 0))
    (flet ((add (node) (push node nodes)))
      (ppcre:do-matches (from to *mark* text)
        (add (subseq text start from))
        (add (mark-node (subseq text from to)))
        (setf start to))
      (add (subseq text start)))
    (nreverse nodes)))

(defun keyword-table (rows options-p)
  "A table of ROWS, KEYWORD-ROWs; if OPTIONS-P is true the rows have units."
  `(:div (:class "scroll")
    (:table (:class "keywords")
     (:thead () (:tr () (:th () "Keyword") (:th () "Default")
                 ,(when options-p `(:th () "Range and unit"))
                 (:th () "Meaning")))
     (:tbody ()
      ,@(loop for row in rows
              collect `(:tr ()
                        (:td () (:code () ,(keyword-row-name row)))
                        (:td () (:code () ,(keyword-row-default row)))
                        ,(when options-p `(:td () ,(keyword-row-unit row)))
                        (:td () ,@(text-nodes (keyword-row-text row)))))))))

(defun block-node (block)
  (ecase (first block)
    (:prose `(:p () ,@(text-nodes (second block))))
    (:lines `(:pre () ,(format nil "~{~A~^~%~}" (rest block))))
    (:rows nil)))                       ; the rows are in the table of keywords

(defun facts-node (docstring)
  "The sentences of DOCSTRING about values, conditions, threads and sources, as a list."
  (flet ((fact (title sentences)
           (when sentences
             `((:dt () ,title)
               (:dd () ,@(text-nodes (format nil "~{~A~^ ~}" sentences)))))))
    (let ((facts (append (fact "Values" (docstring-values docstring))
                         (fact "Conditions" (docstring-conditions docstring))
                         (fact "Threads" (docstring-threads docstring))
                         (fact "Sources" (docstring-sources docstring)))))
      (when facts `(:dl (:class "facts") ,@facts)))))

(defun meaning-nodes (meaning)
  (let ((docstring (meaning-docstring meaning)) (*parameters* (meaning-parameters meaning)))
    `((:p (:class "signature") (:code () ,(meaning-signature meaning))
       (:span (:class "kind") ,(meaning-kind meaning)))
      ,@(mapcar #'block-node (docstring-blocks docstring))
      ,(facts-node docstring)
      ,(when (meaning-keywords meaning) (keyword-table (meaning-keywords meaning) nil))
      ,(when (meaning-options meaning)
         `(:details ()
           (:summary () ,(format nil "The ~D options" (length (meaning-options meaning))))
           ,(keyword-table (meaning-options meaning) t))))))

(defun uses-name-p (text entry)
  "True if TEXT, an example, has ENTRY's name."
  (let ((name (ppcre:quote-meta-chars (entry-name entry)))
        (prefix (string= "grpc:" (entry-package entry))))
    (ppcre:scan (format nil "(?<![\\w*:-])~:[(?:[a-z.-]+:)?~;(?:clg|g)rpc:~]~A(?![\\w*-])"
                        prefix name)
                text)))

(defun find-example (entry chapters)
  "The shortest example in CHAPTERS that uses ENTRY's name, as a list of its rank, chapter, id and
text, or nil if no example uses it. The chapters of the entry's subject come first."
  (let ((near (subject-chapters (entry-subject entry))) (best nil))
    (dolist (chapter chapters best)
      (loop for (id . text) in (chapter-examples chapter)
            for rank = (+ (if (member (chapter-path chapter) near :test #'string=) 0 100000)
                          (length text))
            when (and (uses-name-p text entry) (or (null best) (< rank (first best))))
              do (setf best (list rank chapter id text))))))

(defun example-node (entry chapters)
  (when-let ((example (find-example entry chapters)))
    (destructuring-bind (chapter id text) (rest example)
      (let ((link `(:a (:href ,(format nil "../~A#~A" (chapter-file chapter) id))
                    ,(chapter-title chapter))))
        (if (<= (count #\Newline text) *longest-example*)
            `(:details (:class "example") (:summary () "Example") (:pre () ,text)
              (:p () "From " ,link))
            `(:p () "Example: " ,link))))))

(defun entry-nodes (entry chapters)
  `(:section (:class "entry" :id ,(entry-anchor entry))
    (:h2 () ,(entry-name entry))
    ,@(mapcan #'meaning-nodes (copy-list (entry-meanings entry)))
    ,(example-node entry chapters)))

(defun reference-nodes (subject entries chapters)
  "The contents of the page of SUBJECT, which has ENTRIES."
  `((:h1 () ,(subject-title subject))
    (:p () "In order: "
     ,@(loop for (path . more) on (subject-chapters subject)
             for chapter = (find path chapters :key #'chapter-path :test #'string=)
             collect `(:a (:href ,(format nil "../~A" (chapter-file chapter)))
                       ,(chapter-title chapter))
             collect (if more ", " ".")))
    (:ul (:class "names")
     ,@(loop for entry in entries
             collect `(:li () (:a (:href ,(format nil "#~A" (entry-anchor entry)))
                               (:code () ,(entry-name entry))))))
    ,@(loop for entry in entries collect (entry-nodes entry chapters))))
