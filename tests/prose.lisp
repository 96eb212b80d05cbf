;;;; Plain English in chapters, docstrings and error texts. *MARKS* lists the phrases of sentences
;;;; that must be read twice: a clause about a person or a thing without a noun, "he" for a process,
;;;; "is none", "anew". How often each occurs in chapters and in the sources is bounded, and
;;;; the bounds may only fall.

(in-package #:clgrpc.tests.documentation)

(defparameter *marks*
  '(("whoever|whomever|whosoever" 0 0)
    ("^ what|who|whom" 8 20)            ; titles of measurements in doc/performance.md
    ("of|from|than|beside|by|with|before|after|behind|about what" 0 10)
    ("of|from|than|beside|by|with|before|after|behind|about whom" 0 0)
    ("he|him|his|himself" 0 0)
    ("somebody|nobody|anybody|everybody" 0 0)
    ("!there is|are|was|were none" 0 10)
    ("!there is|are|was|were no !longer|more|less" 0 10)
    ("to be had" 0 0)
    ("as|than may be" 0 1)
    ("anew" 0 0)
    ("tell|tells" 0 10)
    ("is|are|was|were|be|been told" 0 10)
    ("has|have|had|having it|them|one|this|these|all
      done|made|sent|called|asked|closed|opened|kept|taken|written|run|read|ended|begun" 0 0)
    ("has|have|had|having the|a|an|its|their *
      done|made|sent|called|asked|closed|opened|kept|taken|written|run|ended|begun" 0 1)
    ("of those|these that|who" 0 4)
    ("that|those of which|whom|whose" 0 0)
    ("that which" 0 0)
    ("behind it|them|those|one|which" 0 1)
    ("mended" 0 0)
    ("unless|otherwise told|said" 0 0)
    ("is|are to hear" 0 0))
  "Lists of a phrase, and how often it may occur in the chapters and in the texts of the sources. A
phrase consists of words with alternatives; ! stands before words that must not be there, * for any
word, and ^ for the beginning of a sentence that is not a question. The number for the chapters
stays 0; that for the sources is the present one, rounded up to tens: lower it when you rewrite
texts.")

(defparameter *shown-occurrences* 12
  "How many occurrences of a phrase a failed test shows.")

;;; Phrases

(defun text-tokens (text)
  "The words of TEXT, lower case, and its marks of punctuation, as strings."
  (let ((tokens (list "."))
        (start nil))
    (loop for i from 0 to (length text)
          for char = (if (< i (length text)) (char text i) #\Space)
          do (cond ((or (alpha-char-p char) (and start (find char "'-")))
                    (unless start (setf start i)))
                   (t (when start
                        (push (string-downcase (subseq text start i)) tokens)
                        (setf start nil))
                      (when (find char ".;:,()?!") (push (string char) tokens)))))
    (coerce (nreverse (cons "." tokens)) 'simple-vector)))

(defun phrase-elements (phrase)
  "The elements of PHRASE, each :START, :ANY, or a list of T or NIL, whether a word must be one of
the others, and these words."
  (loop for word in (remove "" (uiop:split-string phrase :separator '(#\Space #\Newline))
                            :test #'string=)
        collect (cond ((string= word "^") :start)
                      ((string= word "*") :any)
                      ((char= #\! (char word 0))
                       (cons nil (uiop:split-string (subseq word 1) :separator "|")))
                      (t (cons t (uiop:split-string word :separator "|"))))))

(defun question-p (tokens position)
  "True if the sentence of TOKENS that has POSITION ends with a question mark."
  (let ((end (position-if (lambda (token) (find token '("." ";" "?") :test #'string=))
                          tokens :start position)))
    (and end (string= "?" (svref tokens end)))))

(defun phrase-at-p (elements tokens position)
  (loop for element in elements
        for i from position
        always (and (< i (length tokens))
                    (let ((token (svref tokens i)))
                      (case element
                        (:any (alpha-char-p (char token 0)))
                        (:start (and (find token '("." ";" ":") :test #'string=)
                                     (not (question-p tokens (1+ i)))))
                        (t (eq (first element)
                               (and (find token (rest element) :test #'string=) t))))))))

(defun occurrences (phrase texts)
  "Where PHRASE stands in TEXTS, as texts of some words."
  (loop with elements = (phrase-elements phrase)
        for tokens in texts
        append (loop for i below (length tokens)
                     when (phrase-at-p elements tokens i)
                       collect (format nil "~{~A~^ ~}"
                                       (coerce (subseq tokens (max 0 (- i 5))
                                                       (min (length tokens) (+ i 9)))
                                               'list)))))

;;; Texts

(defun chapter-text (file)
  "The prose of FILE, a chapter: without examples, code, headings and tables made by programs."
  (with-output-to-string (out)
    (loop with example-p = nil
          for line in (uiop:read-file-lines file :external-format :utf-8)
          until (search "table is made" line)
          do (cond ((uiop:string-prefix-p "```" line) (setf example-p (not example-p)))
                   (example-p)
                   ((or (string= "" line) (char= #\# (char line 0))
                        (uiop:string-prefix-p "    " line))
                    (write-line " . " out))
                   (t (loop for (part . more) on (uiop:split-string line :separator "`")
                            for code-p = nil then (not code-p)
                            do (write-string (if code-p "x" (substitute #\. #\| part)) out))
                      (terpri out))))))

(defun chapter-texts ()
  "The tokens of each chapter."
  (loop for name in '("README.md" "CONTRIBUTING.md" "CHANGELOG.md" "doc/**/*.md")
        append (loop for file in (directory (support:root-file name))
                     collect (text-tokens (chapter-text file)))))

(defun string-literals (text)
  "The string literals of TEXT, Lisp source, without comments and characters."
  (loop with literals = '()
        with i = 0
        while (< i (length text))
        do (let ((char (char text i)))
             (cond ((char= char #\;) (setf i (or (position #\Newline text :start i) (length text))))
                   ((uiop:string-prefix-p "#\\" (subseq text i (min (length text) (+ i 2))))
                    (incf i 3))
                   ((char= char #\")
                    (let ((end (clgrpc.tests.architecture:skip-string text i)))
                      (push (subseq text (1+ i) (1- end)) literals)
                      (setf i end)))
                   (t (incf i))))
        finally (return literals)))

(defun source-texts ()
  "The tokens of each text in the sources that has words beside each other: docstrings, texts of
errors, reasons of options and the like."
  (loop for folder in '("src" "async" "sim" "etcd" "cluster" "tools")
        append (loop for file in (directory (support:root-file (format nil "~A/**/*.lisp" folder)))
                     append (loop for text in (string-literals
                                               (uiop:read-file-string file :external-format :utf-8))
                                  when (find #\Space text) collect (text-tokens text)))))

;;; Tests

(test a-phrase-is-found
  (flet ((count-of (phrase text) (length (occurrences phrase (list (text-tokens text))))))
    (is (= 1 (count-of "^ what|who" "What is held counts.")))
    (is (= 0 (count-of "^ what|who" "What is held?")))
    (is (= 1 (count-of "!there is|are no !longer|more" "It is no error.")))
    (is (= 0 (count-of "!there is|are no !longer|more" "There is no error; it is no longer so.")))
    (is (= 1 (count-of "has its * sent" "It has its message sent.")))
    (is (= 1 (count-of "is|are none" "It is
none.")))))

(test prose-has-few-marks
  (loop with kinds = (list (cons "The chapters" (chapter-texts))
                           (cons "The texts in the sources" (source-texts)))
        for (phrase . limits) in *marks*
        do (loop for (kind . texts) in kinds
                 for limit in limits
                 do (let* ((found (occurrences phrase texts))
                           (count (length found)))
                      (is (<= count limit)
                          "~A have ~S ~D times, and may have it ~D times:~%~{  ~A~%~}"
                          kind phrase count limit
                          (subseq found 0 (min *shown-occurrences* count)))))))
