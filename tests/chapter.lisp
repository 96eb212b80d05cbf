;;;; Runs the examples of README.md or of a chapter of doc/ in an image of its own, which begins as
;;;; README.md has a newcomer begin: SBCL, and ASDF that knows the folder. So a chapter loads what
;;;; it uses.
;;;;
;;;; A block of ```lisp is read form by form in a fresh package that uses CL and is the current one
;;;; until the file says otherwise. Like CL-USER it has no local nicknames, so a chapter has to make
;;;; the nickname GRPC, also for a reader who copies the blocks. The current directory is the
;;;; project's root. A comment `; => VALUE` after a form says how its first value prints, `; signals
;;;; TYPE` that it signals an error of that type. Instead of running a block one may say why it is
;;;; not run, in the line before it: <!-- not run: the reason -->; or which file it is,
;;;; <!-- file: NAME -->, in a guide (examples/guide.lisp).
;;;;
;;;; CHAPTER-COMPLAINTS starts the image, which loads this file, so it needs neither clgrpc nor
;;;; FiveAM, and calls PLAY-CHAPTER.

(defpackage #:clgrpc.tests.chapter
  (:use #:cl)
  (:export #:blocks #:play-chapter #:chapter-complaints))

(in-package #:clgrpc.tests.chapter)

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
                     (t (setf excused (or (uiop:string-prefix-p "<!-- not run:" line)
                                          (uiop:string-prefix-p "<!-- file:" line)))))))
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

(defun printed (value)
  (let ((*print-pretty* nil)) (prin1-to-string value)))

(defun form-complaint (form remark)
  "Evaluate FORM; return what is wrong with it, as text, if REMARK does not agree, else nil."
  (destructuring-bind (&optional kind text) remark
    (handler-case
        (let ((value (printed (handler-bind ((warning #'muffle-warning)) (eval form)))))
          (case kind
            (:value (unless (string= text value)
                      (format nil "~S is ~A, not ~A" form value text)))
            (:signals (format nil "~S signals nothing" form))))
      (error (error)
        (unless (and (eq kind :signals) (typep error (read-from-string text)))
          (format nil "~S signals ~S: ~:*~A" form error))))))

(defun block-complaints (text)
  "What is wrong with the forms of TEXT, which are read one by one, since each may define what the
next is read with."
  (let ((at 0) (complaints '()))
    (loop
      (multiple-value-bind (form end)
          (handler-case (read-from-string text nil text :start at)
            (error (error)
              (push (format nil "what follows position ~D cannot be read: ~A" at error) complaints)
              text))
        (when (eq form text) (return (nreverse complaints)))
        (setf at end)
        (let ((complaint (form-complaint form (remark-after text end))))
          (when complaint (push complaint complaints)))))))

(defun play-chapter (path)
  "Run the examples of the file at PATH, print a line for each that is wrong, and end the image, with
exit code 1 if there was one."
  (let* ((package (make-package "CHAPTER" :use '(#:cl)))
         (*package* package)
         (complaints (loop for (line . text) in (blocks path)
                           append (loop for complaint in (block-complaints text)
                                        collect (format nil "block at line ~D: ~A" line
                                                        complaint)))))
    (format t "~&~{WRONG ~A~%~}" (mapcar (lambda (text) (substitute #\Space #\Newline text))
                                         complaints))
    (finish-output)
    (sb-ext:exit :code (if complaints 1 0) :abort t)))

(defun chapter-complaints (path root)
  "Run the examples of the file at PATH in a fresh image, in the directory ROOT of clgrpc.asd. Return
what is wrong with them, a list of texts."
  (multiple-value-bind (lines error-output code)
      (uiop:run-program (list (uiop:native-namestring sb-ext:*runtime-pathname*) "--noinform"
                              "--no-sysinit" "--no-userinit" "--disable-debugger"
                              "--eval" "(require :asdf)"
                              "--eval" "(push (uiop:getcwd) asdf:*central-registry*)"
                              "--load" "tests/chapter.lisp"
                              "--eval" (format nil "(clgrpc.tests.chapter:play-chapter ~S)" path))
                        :directory root :output :lines :error-output :output
                        :ignore-error-status t)
    (declare (ignore error-output))
    (let ((complaints (remove-if-not (lambda (line) (uiop:string-prefix-p "WRONG " line)) lines)))
      (cond ((eql 0 code) '())
            (complaints)
            (t (list (format nil "its process ended with ~A:~{~%~A~}" code (last lines 20))))))))
