;;;; The YAML that service configs are written in, which is a small part of YAML 1.2: mappings and
;;;; sequences by indentation, scalars plain, in quotes or as a block (| and >), comments, {} and
;;;; []. Any other part of YAML (flow collections, anchors, tags, several documents, tabs, texts
;;;; over several lines without a mark) is an error that names it. Data have the form of PARSE-JSON:
;;;; an alist with strings as keys, a vector, a string, :true, :false, :null, an integer.

(in-package #:clgrpc.rest)

(defconstant +longest-yaml+ (expt 2 20)
  "The maximum number of characters of a text in YAML.")

(defconstant +deepest-yaml+ 32
  "The maximum number of mappings and sequences around a value in YAML.")

(defstruct (line (:constructor make-line (number indent text)) (:copier nil))
  "A line that is not empty."
  (number 1 :type index :read-only t)   ; the number of the line, from 1
  (indent 0 :type index)                ; the spaces before TEXT
  (text "" :type string))               ; the text without indentation, comment and trailing spaces

(defstruct (yaml (:copier nil))
  "A text in YAML that is being read."
  (lines '() :type list)                ; the lines that are left
  (raw #() :type simple-vector)         ; all lines as they are written
  (number 1 :type index)                ; the number of the line at hand
  (depth 0 :type index))                ; how many collections are open

(defun wrong-yaml (yaml control &rest arguments)
  "Signal that the line that YAML has read last is wrong."
  (error 'rule-error :rule (format nil "in line ~D" (yaml-number yaml))
                     :text (format nil "~?" control arguments)))

(defun comment-start (text)
  "The index at which the comment of TEXT, a line, begins, or its length."
  (let ((quote nil))
    (loop for i from 0 below (length text)
          for char = (char text i)
          do (cond ((and quote (char= char #\\) (char= quote #\")) (incf i))
                   (quote (when (char= char quote) (setf quote nil)))
                   ((and (find char "\"'")
                         (or (zerop i) (find (char text (1- i)) " :-")))
                    (setf quote char))
                   ((and (char= char #\#) (or (zerop i) (char= #\Space (char text (1- i)))))
                    (return i)))
          finally (return (length text)))))

(defun split-lines (text)
  (loop for start = 0 then (1+ end)
        for end = (position #\Newline text :start start)
        collect (string-right-trim '(#\Return) (subseq text start end))
        while end))

(defun text-lines (yaml raw)
  (loop for text across raw
        for number from 1
        for indent = (or (position #\Space text :test #'char/=) (length text))
        for rest = (string-right-trim " " (subseq text indent (max indent (comment-start text))))
        do (setf (yaml-number yaml) number)
           (when (find #\Tab text :end (min (length text) (1+ indent)))
             (wrong-yaml yaml "a tab indents it; YAML takes spaces"))
        unless (string= "" rest)
          collect (make-line number indent rest)))

(defun next-line (yaml)
  "The next line of YAML, which is not consumed; nil at the end."
  (let ((line (first (yaml-lines yaml))))
    (when line (setf (yaml-number yaml) (line-number line)))
    line))

(defun item-p (line)
  "True if LINE begins an item of a sequence."
  (let ((text (line-text line)))
    (and (char= #\- (char text 0))
         (or (= 1 (length text)) (char= #\Space (char text 1))))))

(defun key-end (text)
  "The index of the colon after the key that TEXT begins with; nil if TEXT does not begin with a
key."
  (let ((from (if (find (char text 0) "\"'")
                  (or (position (char text 0) text :start 1) 0)
                  0)))
    (loop for colon = (position #\: text :start from) then (position #\: text :start (1+ colon))
          while colon
          when (or (= (1+ colon) (length text)) (char= #\Space (char text (1+ colon))))
            return colon)))

;;; Scalars

(defun double-quoted (yaml text)
  (handler-case (parse-json text)
    (json-error () (wrong-yaml yaml "the text in double quotes is not closed, or has an escape ~
                                     that JSON does not have"))))

(defun single-quoted (yaml text)
  (let ((end (1- (length text))))
    (with-output-to-string (out)
      (loop for i from 1
            do (when (>= i (length text))
                 (wrong-yaml yaml "the text in single quotes is not closed"))
               (cond ((char/= #\' (char text i)) (write-char (char text i) out))
                     ((and (< i end) (char= #\' (char text (1+ i))))
                      (write-char #\' out)
                      (incf i))
                     ((= i end) (return))
                     (t (wrong-yaml yaml "something follows the text in single quotes")))))))

(defun plain-scalar (yaml text)
  (cond ((find (char text 0) "&*!|>%@`[{")
         (wrong-yaml yaml "a text without quotes cannot begin with ~S here"
                     (subseq text 0 1)))
        ((search ": " text) (wrong-yaml yaml "a mapping is not allowed on the line of its key"))
        ((member text '("null" "~" "Null" "NULL") :test #'string=) :null)
        ((member text '("true" "True" "TRUE") :test #'string=) :true)
        ((member text '("false" "False" "FALSE") :test #'string=) :false)
        ((and (<= (length text) 18) (every (lambda (char) (char<= #\0 char #\9)) text))
         (parse-integer text))
        (t text)))

(defun scalar (yaml text)
  "The value of TEXT, which ends its line."
  (case (char text 0)
    (#\" (double-quoted yaml text))
    (#\' (single-quoted yaml text))
    (t (cond ((string= text "{}") '())
             ((string= text "[]") #())
             (t (plain-scalar yaml text))))))

(defun block-text (yaml mark indent)
  "The text of the block that MARK, such as |, introduces, below a line with INDENT."
  (let ((lines '()) (number (yaml-number yaml)) (raw (yaml-raw yaml)))
    (loop while (< number (length raw))
          do (let* ((text (svref raw number))
                    (own (position #\Space text :test #'char/=)))
               (when (and own (<= own indent)) (return))
               (push (string-trim " " text) lines)
               (incf number)))
    (loop while (and (yaml-lines yaml) (<= (line-number (first (yaml-lines yaml))) number))
          do (pop (yaml-lines yaml)))
    (format nil (if (char= #\| (char mark 0)) "~{~A~^~%~}" "~{~A~^ ~}") (reverse lines))))

;;; Collections

(defun read-value (yaml text indent)
  "The value that TEXT, the rest of a line with INDENT, is or begins."
  (cond ((member text '("|" "|-" "|+" ">" ">-" ">+") :test #'string=)
         (block-text yaml text indent))
        ((string/= "" text)
         (let ((next (next-line yaml)) (value (scalar yaml text)))
           (when (and next (> (line-indent next) indent))
             (wrong-yaml yaml "it is indented below a value that has ended"))
           value))
        (t (read-below yaml indent))))

(defun read-below (yaml indent)
  "The collection on the lines below one with INDENT, or :null."
  (let ((line (next-line yaml)))
    (if (and line
             (or (> (line-indent line) indent)
                 (and (= (line-indent line) indent) (item-p line))))
        (read-node yaml)
        :null)))

(defun read-item (yaml)
  "The value of the item that the next line begins."
  (let* ((line (next-line yaml))
         (text (line-text line))
         (start (position #\Space text :start 1 :test #'char/=)))
    (cond ((null start)
           (pop (yaml-lines yaml))
           (let ((next (next-line yaml)))
             (if (and next (> (line-indent next) (line-indent line))) (read-node yaml) :null)))
          (t
           (let ((inner (make-line (line-number line) (+ start (line-indent line))
                                   (subseq text start))))
             (cond ((or (item-p inner) (key-end (line-text inner)))
                    (setf (first (yaml-lines yaml)) inner)
                    (read-node yaml))
                   (t (pop (yaml-lines yaml))
                      (read-value yaml (line-text inner) (line-indent line)))))))))

(defun read-sequence-node (yaml indent)
  (coerce (loop for line = (next-line yaml)
                while (and line (= indent (line-indent line)) (item-p line))
                collect (read-item yaml))
          'simple-vector))

(defun read-key (yaml text)
  (let ((key (scalar yaml (string-right-trim " " text))))
    (if (stringp key) key (wrong-yaml yaml "a key must be a text"))))

(defun read-mapping (yaml indent)
  (let ((entries '()) (keys (make-hash-table :test 'equal)))
    (loop for line = (next-line yaml)
          while (and line (= indent (line-indent line)) (not (item-p line)))
          do (let* ((text (line-text line))
                    (colon (or (key-end text) (wrong-yaml yaml "a key and a colon are expected")))
                    (key (if (plusp colon)
                             (read-key yaml (subseq text 0 colon))
                             (wrong-yaml yaml "a colon has no key before it")))
                    (rest (string-left-trim " " (subseq text (1+ colon)))))
               (when (gethash key keys) (wrong-yaml yaml "the key ~A occurs twice" key))
               (setf (gethash key keys) t)
               (pop (yaml-lines yaml))
               (push (cons key (read-value yaml rest indent)) entries)))
    (nreverse entries)))

(defun read-node (yaml)
  "The collection, or the value on a line of its own, that the next line begins."
  (let* ((line (next-line yaml)) (indent (line-indent line)))
    (when (> (incf (yaml-depth yaml)) +deepest-yaml+)
      (wrong-yaml yaml "it nests deeper than ~D levels" +deepest-yaml+))
    (prog1 (cond ((item-p line) (read-sequence-node yaml indent))
                 ((key-end (line-text line)) (read-mapping yaml indent))
                 (t (pop (yaml-lines yaml)) (read-value yaml (line-text line) indent)))
      (decf (yaml-depth yaml))
      (let ((next (next-line yaml)))
        (when (and next (> (line-indent next) indent))
          (wrong-yaml yaml "its indentation matches no line above"))))))

(defun parse-yaml (text)
  "Parse TEXT, a string in the part of YAML that service configs use, and return the data. Signal
RULE-ERROR, with the line, if TEXT is not YAML of this small part."
  (when (> (length text) +longest-yaml+)
    (error 'rule-error :rule "in a service config"
                       :text (format nil "the text has more than ~D characters" +longest-yaml+)))
  (let* ((raw (coerce (split-lines text) 'simple-vector))
         (yaml (make-yaml :raw raw)))
    (setf (yaml-lines yaml) (text-lines yaml raw))
    (when (and (next-line yaml) (string= "---" (line-text (next-line yaml))))
      (pop (yaml-lines yaml)))
    (if (null (next-line yaml))
        '()
        (prog1 (read-node yaml)
          (when (next-line yaml) (wrong-yaml yaml "the text continues after its value"))))))
