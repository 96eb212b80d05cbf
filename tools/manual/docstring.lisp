;;;; The parts of a docstring. Our docstrings have these forms:
;;;;
;;;; - prose, in which names of arguments and of other functions are written in capitals;
;;;; - rows, one for each argument or keyword: its name in capitals at the margin, two spaces or
;;;;   more, and its meaning, which continues in indented lines;
;;;; - other indented lines, which are shown as they are;
;;;; - sentences that begin with "Signal", "Return" or "From any thread", about conditions, values
;;;;   and the threads that may call.
;;;;
;;;; The sentences about conditions, values and threads are taken out of the prose, so that each
;;;; entry of the manual has them in one place.

(in-package #:clgrpc.manual)

(defstruct (docstring (:copier nil))
  "The parts that PARSE-DOCSTRING has found."
  ;; lists (:prose string), (:rows (name . text)…) or (:lines string…)
  (blocks '() :type list)
  (values '() :type list)               ; the sentences about values, strings
  (conditions '() :type list)           ; the sentences about conditions
  (threads '() :type list)              ; the sentences about threads
  (sources '() :type list))             ; RFCs and gRFCs, as the docstring names them

(defparameter *row-start* (ppcre:create-scanner "^(:?[A-Z*%][A-Z0-9*%+-]*) {2,}(\\S.*)$")
  "A line that begins a row.")

(defparameter *sentence-end* (ppcre:create-scanner "(?<=[.!?])\\s+(?=[A-Z(:])")
  "The separator of two sentences.")

(defparameter *source* (ppcre:create-scanner "RFC \\d+(?:, section [\\d.]*\\d)?|\\bA\\d{1,3}\\b")
  "The pattern of the name of a document that a function implements.")

(defun indented-p (line)
  (and (plusp (length line)) (char= #\Space (char line 0))))

(defun add-line (blocks line)
  "Return BLOCKS, the last block first, after LINE, the next line of a docstring, is added."
  (let ((last (first blocks)))
    (flet ((extend (text) (format nil "~A ~A" text (string-trim " " line))))
      (ppcre:register-groups-bind (name text) (*row-start* line)
        (return-from add-line
          (if (eq :rows (first last))
              (cons (append last (list (cons name text))) (rest blocks))
              (cons (list :rows (cons name text)) blocks))))
      (cond ((string= "" (string-trim " " line)) (cons nil blocks))
            ((and (indented-p line) (eq :rows (first last)))
             (let ((row (first (last last))))
               (setf (cdr row) (extend (cdr row)))
               blocks))
            ((and (indented-p line) (eq :lines (first last)))
             (cons (append last (list line)) (rest blocks)))
            ((indented-p line) (cons (list :lines line) blocks))
            ((eq :prose (first last)) (cons (list :prose (extend (second last))) (rest blocks)))
            (t (cons (list :prose line) blocks))))))

(defparameter *thread-rule*
  (ppcre:create-scanner
   (concatenate 'string "^(From any thread|From (the|a) |In (the|a) [a-z' ]*thread|"
                "On (the|a|any) [a-z' ]*(thread|loop)|Only (from|on|in) )"))
  "The beginning of a sentence that states from which threads a function may be called.")

(defun sentence-kind (sentence)
  "The subject of SENTENCE, of a docstring: :values, :conditions or :threads; nil for any other
subject."
  (cond ((ppcre:scan "^Signals? " sentence) :conditions)
        ((ppcre:scan *thread-rule* sentence) :threads)
        ((ppcre:scan "^(The (second |first )?values? (is|are) |Returns? )" sentence) :values)))

(defun parse-docstring (text)
  "Return a DOCSTRING of TEXT, a string or nil."
  (let ((blocks '()) (parsed (make-docstring)))
    (with-input-from-string (stream (or text ""))
      (loop for line = (read-line stream nil)
            while line do (setf blocks (add-line blocks line))))
    (flet ((prose-left (prose first-p)
             "Return PROSE without the sentences that the manual shows elsewhere. FIRST-P is true if
PROSE begins the docstring; then its first sentence stays."
             (let ((left '()))
               (dolist (sentence (ppcre:split *sentence-end* prose) (nreverse left))
                 (case (and (or left (not first-p)) (sentence-kind sentence))
                   (:conditions (push sentence (docstring-conditions parsed)))
                   (:threads (push sentence (docstring-threads parsed)))
                   (:values (push sentence (docstring-values parsed)))
                   (t (push sentence left)))))))
      (dolist (block (nreverse blocks))
        (case (first block)
          ((nil))
          (:prose (when-let ((left (prose-left (second block) (null (docstring-blocks parsed)))))
                    (push (list :prose (format nil "~{~A~^ ~}" left))
                          (docstring-blocks parsed))))
          (t (push block (docstring-blocks parsed))))))
    (setf (docstring-blocks parsed) (nreverse (docstring-blocks parsed))
          (docstring-values parsed) (nreverse (docstring-values parsed))
          (docstring-conditions parsed) (nreverse (docstring-conditions parsed))
          (docstring-threads parsed) (nreverse (docstring-threads parsed))
          (docstring-sources parsed)
          (remove-duplicates (ppcre:all-matches-as-strings *source* (or text ""))
                             :test #'string= :from-end t))
    parsed))
