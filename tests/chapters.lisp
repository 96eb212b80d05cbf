;;;; The examples of README.md and of the chapters in doc/ are run, each file's in the order of its
;;;; blocks.
;;;;
;;;; A block of ```lisp is read form by form in a fresh package that uses CL, has the local nickname
;;;; GRPC, and is the current one until the file says otherwise; the current directory is the
;;;; project's root. A comment `; => VALUE` after a form says how its first value prints, `; signals
;;;; TYPE` that it signals an error of that type. Instead of running a block one may say why it is
;;;; not run, in the line before it: <!-- not run: the reason -->.

(defpackage #:clgrpc.tests.chapters
  (:use #:cl #:fiveam)
  (:import-from #:clgrpc.base
                #:option-row-name #:option-row-scope #:option-row-only #:option-row-default
                #:option-row-minimum #:option-row-maximum #:option-row-unit #:option-row-reason)
  (:local-nicknames (#:grpc #:clgrpc) (#:support #:clgrpc.tests.support)))

(in-package #:clgrpc.tests.chapters)

(def-suite :clgrpc.chapters :description "The examples and tables in README.md and doc/.")
(in-suite :clgrpc.chapters)

(defun blocks (path)
  "The Lisp blocks of the file at PATH that are to be run: a list of (line . text)."
  (let ((blocks '()) (text nil) (begin 0) (excused nil))
    (with-open-file (stream path :external-format :utf-8)
      (loop for line = (read-line stream nil)
            for number from 1
            while line
            do (cond ((and (null text) (string= "```lisp" (string-trim " " line)))
                      (setf text (make-string-output-stream)
                            begin (1+ number)))
                     ((and text (string= "```" (string-trim " " line)))
                      (unless excused
                        (push (cons begin (get-output-stream-string text)) blocks))
                      (setf text nil
                            excused nil))
                     (text (write-line line text))
                     (t (setf excused (uiop:string-prefix-p "<!-- not run:" line))))))
    (nreverse blocks)))

(defun remark-after (text position)
  "What the comment after POSITION in TEXT says: (:value string), (:signals string) or nil."
  (let* ((start (position-if-not (lambda (char) (find char '(#\Space #\Newline))) text
                                 :start position))
         (end (and start (position #\Newline text :start start)))
         (line (and start (subseq text start end))))
    (flet ((after (prefix kind)
             (when (and line (uiop:string-prefix-p prefix line))
               (list kind (string-trim " " (subseq line (length prefix)))))))
      (or (after "; =>" :value) (after "; signals" :signals)))))

(defun forms (text)
  "The forms of TEXT, read one by one when asked for, since each may define what the next is read
with: a function that returns a form and its remark, or TEXT itself at the end."
  (let ((at 0))
    (lambda ()
      (multiple-value-bind (form end) (read-from-string text nil text :start at)
        (setf at end)
        (values form (remark-after text end))))))

(defun printed (value)
  (let ((*print-pretty* nil)) (prin1-to-string value)))

(defun check-form (form remark where)
  (destructuring-bind (&optional kind text) remark
    (handler-case
        (let ((value (printed (handler-bind ((warning #'muffle-warning)) (eval form)))))
          (case kind
            (:value (is (string= text value) "~A: ~S is ~A, not ~A" where form value text))
            (:signals (fail "~A: ~S signals nothing" where form))
            (t (pass))))
      (error (error)
        (if (eq kind :signals)
            (is (typep error (read-from-string text)) "~A: ~S signals ~S" where form error)
            (fail "~A: ~S signals ~A" where form error))))))

(defun run-chapter (path)
  (let* ((name (file-namestring path))
         (*default-pathname-defaults* (pathname (support:root-file "")))
         (package (make-package (format nil "CHAPTER-~A" (gensym)) :use '(#:cl)))
         (*package* package))
    (sb-ext:add-package-local-nickname '#:grpc '#:clgrpc package)
    (unwind-protect
         (loop for (line . text) in (blocks path)
               for next = (forms text)
               do (loop
                    (multiple-value-bind (form remark) (funcall next)
                      (when (eq form text) (return))
                      (check-form form remark (format nil "~A, block at line ~D" name line)))))
      (delete-package package))))

(test examples-in-documents
  (dolist (path (cons (support:root-file "README.md")
                      (directory (support:root-file "doc/*.md"))))
    (run-chapter path)))

;;; Tables made from what the library knows

(defun table-text (header rows)
  (format nil "~%| ~{~A~^ | ~} |~%|~{~*---|~}~%~:{| ~@{~A~^ | ~} |~%~}" header header rows))

(defparameter *tables*
  (list (list "doc/limits.md" "<!-- the table is made from the options"
              '("Option" "Of" "Default" "From" "To" "Unit" "What it bounds, and why so")
              (lambda ()
                (loop for row in (grpc:option-table)
                      collect (list (format nil "`~(~S~)`" (option-row-name row))
                                    (format nil "~(~A~)~@[, ~(~A~)s only~]" (option-row-scope row)
                                            (option-row-only row))
                                    (format nil "~(~A~)" (option-row-default row))
                                    (or (option-row-minimum row) "")
                                    (or (option-row-maximum row) "")
                                    (option-row-unit row)
                                    (substitute #\Space #\Newline (option-row-reason row))))))
        (list "doc/transports.md" "<!-- the table is made from the contract"
              '("Operation" "Thread" "Ends" "Default" "What it does")
              #'clgrpc.rpc::contract-table)
        (list "doc/architecture.md" "<!-- the table is made from the sources"
              '("Folder" "Files" "Uses")
              (lambda () (uiop:symbol-call '#:clgrpc.tests.architecture '#:graph-rows)))
        (list "doc/observers.md" "<!-- the table is made from the observations"
              '("what" "arguments" "told when")
              #'clgrpc.rpc::observation-table)
        (list "doc/monitoring.md" "<!-- the table is made from the sources"
              '("instrument" "kind" "unit" "attributes" "by default" "meaning")
              #'clgrpc.metrics:instrument-table)
        (list "doc/observability.md" "<!-- the table is made from the tracers"
              '("Tracer" "Also called" "What it tells")
              (lambda ()
                (loop for tracer in (grpc:tracer-table)
                      collect (list (format nil "`~A`" (grpc:tracer-text tracer))
                                    (format nil "~{`~A`~^, ~}" (grpc:tracer-aliases tracer))
                                    (grpc:tracer-meaning tracer))))))
  "Of each table the chapter, the beginning of the line before it, its header, and a function that
returns its rows. It ends the chapter.")

(defun chapter-parts (file mark)
  "The text of FILE up to its table, behind the line that begins with MARK, and the table."
  (let* ((text (uiop:read-file-string (support:root-file file) :external-format :utf-8))
         (end (1+ (position #\Newline text :start (search mark text)))))
    (values (subseq text 0 end) (subseq text end))))

(defun renew-tables ()
  "Write the tables of the chapters anew."
  (loop for (file mark header rows) in *tables*
        do (let ((text (chapter-parts file mark)))
             (with-open-file (out (support:root-file file) :direction :output
                                                           :if-exists :supersede
                                                           :external-format :utf-8)
               (write-string text out)
               (write-string (table-text header (funcall rows)) out)))))

(test the-tables-are-true
  (loop for (file mark header rows) in *tables*
        do (is (string= (table-text header (funcall rows))
                        (nth-value 1 (chapter-parts file mark)))
               "~A is not what the code says; (clgrpc.tests.chapters::renew-tables)" file)))

(defun logged-events ()
  "The names of the events that the sources log, but for those of tracers, as texts such as
\":goaway\"."
  (let ((names '()))
    (flet ((note-event (word second third)
             (let ((name (cond ((string= word "guarding") second)
                               ((string= word "warn-of") third)
                               ((and (member word '("log-event" "log-condition") :test #'string=)
                                     (string/= ":trace" second))
                                third))))
               (when (and name (char= #\: (char name 0))) (pushnew name names :test #'string=)))))
      (dolist (path (directory (support:root-file "src/*/*.lisp")) names)
        (loop for (word second third) on (clgrpc.tests.architecture::code-tokens
                                          (uiop:read-file-string path :external-format :utf-8))
              while third do (note-event word second third))))))

(test the-events-of-the-log-are-told
  (let ((chapter (uiop:read-file-string (support:root-file "doc/observability.md")
                                        :external-format :utf-8)))
    (dolist (name (logged-events))
      (is (search (format nil "`~A`" name) chapter)
          "doc/observability.md does not tell of the event ~A" name))))
