;;;; Each promise has a test, and the test fails if the promise is broken. The table in
;;;; promises.lisp names for each promise its test and a mutant: a change of one source that breaks
;;;; the promise. Here the mutants are made and judged.
;;;;
;;;; A mutant costs no build. A process is forked from the image that has all tests; it evaluates
;;;; the top-level form that the mutant changes and runs the one test, which must fail. Another fork
;;;; does the same with the form unchanged, where the test must pass: so a failure comes from the
;;;; change, and from nothing else. What the compiler has copied into callers (inline functions,
;;;; macros, constants) stays as it was there; a mutant must be elsewhere.
;;;;
;;;; `scripts/mutants` judges all of them, or some. `make test` draws ten, `make endurance` sixty.

(defpackage #:clgrpc.tests.mutants
  (:use #:cl #:clgrpc.tests.form)
  (:local-nicknames (#:tests #:clgrpc.tests) (#:support #:clgrpc.tests.support))
  (:export #:main))

(in-package #:clgrpc.tests.mutants)

(def-suite :clgrpc.mutants :description "Promises, their tests, and what breaks them.")

(defstruct (promise (:copier nil))
  "What a text promises, and how a test shows that it is kept."
  (source nil :type (or null string))   ; the file whose text it is; nil: an invariant of FILE
  (text "" :type string)                ; part of a sentence there, or the invariant
  (suite "" :type string)               ; the suite of the test, as SUITES= calls it
  (test "" :type string)                ; the name of the test
  (file "" :type string)                ; the source that the mutant changes
  (old "" :type string)                 ; a text that occurs in FILE once
  (new "" :type string))                ; what the mutant has in its place

(defvar *promises* '() "All promises, in the order of the table.")

(defmacro define-promises (source &rest rows)
  "Add ROWS to the table: promises of the file SOURCE, or of no file if it is nil. A row is a list
of the promise, the suite and the name of its test, and of the mutant's file, old text and new
text."
  `(setf *promises*
         (append *promises*
                 (loop for (text suite test file old new) in ',rows
                       collect (make-promise :source ,source :text text :suite suite :test test
                                             :file file :old old :new new)))))

;;; The sources

(defun file-text (name)
  (uiop:read-file-string (support:root-file name) :external-format :utf-8))

(defun occurrences (part text)
  "How often PART occurs in TEXT."
  (loop for start = (search part text) then (search part text :start2 (1+ start))
        while start count t))

(defun flattened (text)
  "TEXT with one space for each run of white space."
  (format nil "~{~A~^ ~}"
          (remove "" (uiop:split-string text :separator '(#\Space #\Newline #\Tab))
                  :test #'string=)))

(defun changed-text (promise)
  "The text of PROMISE's file with the mutant in it."
  (let* ((text (file-text (promise-file promise)))
         (start (search (promise-old promise) text)))
    (concatenate 'string (subseq text 0 start) (promise-new promise)
                 (subseq text (+ start (length (promise-old promise)))))))

(defun form-at (position text)
  "The top-level form of TEXT, Lisp source, that goes beyond POSITION, and the package it is in."
  (with-input-from-string (stream text)
    (let ((*package* (find-package '#:cl-user)))
      (loop
        (let ((form (read stream)))
          (when (< position (file-position stream))
            (return (values form *package*)))
          (when (and (consp form) (eq 'in-package (first form)))
            (setf *package* (find-package (second form)))))))))

(defun evaluate-changed-form (promise mutated-p)
  "Evaluate the top-level form that the mutant of PROMISE changes, as the mutant has it if
MUTATED-P, else as it is."
  (let ((text (file-text (promise-file promise)))
        (changed (changed-text promise)))
    (multiple-value-bind (form package)
        (form-at (mismatch text changed) (if mutated-p changed text))
      (let ((*package* package)
            (*error-output* (make-broadcast-stream)))
        (handler-bind ((warning #'muffle-warning))
          (eval form))))))

;;; One trial: a process that runs one test

(defconstant +failed+ 10 "The exit code of a trial whose test failed.")
(defconstant +skipped+ 11 "The exit code of a trial whose test was skipped, or checked nothing.")
(defconstant +unfit+ 12 "The exit code of a trial that could not begin.")

(defstruct (trial (:copier nil))
  "A process that runs the test of a promise."
  (promise nil :type promise :read-only t)
  (mutated-p nil :read-only t)          ; whether with the mutant
  (pid 0 :type integer)
  (start 0 :type integer)               ; the internal real time at which it began
  (seconds 0 :type real)                ; how long it took
  (output "" :type string)              ; the path of what it prints
  (code nil :type (or null integer)))   ; its exit code, or nil while it runs

(defun suite-called (word)
  "The suite that SUITES= calls WORD, or nil."
  (let ((name (string-upcase (format nil "clgrpc.~A" word))))
    (find-if (lambda (suite) (and (support:suite-p suite)
                                  (string= name (support:test-name suite))))
             (mapcar #'get-test (fiveam:test-names)))))

(defun test-of (promise)
  "The test that shows that PROMISE is kept, or nil if there is none of its name."
  (let ((suite (suite-called (promise-suite promise))))
    (and suite
         (find (promise-test promise) (support:suite-tests suite)
               :key #'support:test-name :test #'string-equal))))

(defun test-code (test)
  "Run TEST and return the exit code that says what came of it."
  (let* ((fiveam:*on-error* nil)
         (results (tests::call-with-time-limit (lambda () (fiveam:run test))
                                               (support:test-name test))))
    (cond ((some #'support:failed-check-p results)
           (fiveam:explain! results)
           +failed+)
          ((or (null results) (some #'support:skipped-check-p results)) +skipped+)
          (t 0))))

(defun run-trial (trial)
  "Do what TRIAL says, in this process, and end it."
  (let ((code +unfit+))
    (unwind-protect
         (let ((file (sb-posix:open (trial-output trial) (logior sb-posix:o-creat sb-posix:o-wronly)
                                    #o600)))
           (sb-posix:dup2 file 1)
           (sb-posix:dup2 file 2)
           (sb-posix:close file)
           (handler-case
               (let ((promise (trial-promise trial)))
                 (evaluate-changed-form promise (trial-mutated-p trial))
                 (tests::call-with-folder
                  (fn (_folder) (setf code (test-code (test-of promise))))))
             (error (condition) (format t "~&~A~%" condition))))
      (finish-output)
      (finish-output *error-output*)
      (sb-ext:exit :code code :abort t))))

(defun start-trial (trial folder)
  "Begin TRIAL in a process of its own, whose output goes to FOLDER."
  (setf (trial-output trial) (format nil "~A~36R" folder (random (expt 36 8)))
        (trial-start trial) (get-internal-real-time))
  (finish-output)
  (let ((pid (sb-posix:fork)))
    (when (zerop pid)
      (run-trial trial))
    (setf (trial-pid trial) pid)))

(defun run-trials (trials count folder ended)
  "Run TRIALS, at most COUNT at once, and call ENDED with each that has ended."
  (let ((left trials) (running '()))
    (loop
      (loop while (and left (< (length running) count))
            do (let ((trial (pop left)))
                 (start-trial trial folder)
                 (push trial running)))
      (unless running (return))
      (multiple-value-bind (pid status) (sb-posix:wait)
        (let ((trial (find pid running :key #'trial-pid)))
          (when trial
            (setf running (remove trial running)
                  (trial-seconds trial) (tests::seconds-since (trial-start trial))
                  (trial-code trial) (if (sb-posix:wifexited status)
                                         (sb-posix:wexitstatus status)
                                         (+ 128 (sb-posix:wtermsig status))))
            (funcall ended trial)))))))

;;; Judgement

(defun verdict (control mutant)
  "What CONTROL and MUTANT, the two trials of a promise, say together: :KILLED, :MISSED, or :BROKEN
if the test does not pass without the mutant, or the mutant cannot be made."
  (cond ((not (eql 0 (trial-code control))) :broken)
        ((eql +unfit+ (trial-code mutant)) :broken)
        ((member (trial-code mutant) (list 0 +skipped+)) :missed)
        (t :killed)))

(defun report (control mutant)
  "Print a line about a promise, whose trials these two are, and what the failed one printed if the
mutant was not killed. Return true if it was."
  (let ((promise (trial-promise control))
        (verdict (verdict control mutant)))
    (format t "~&~(~8A~) ~5,1F s  ~A: ~A (~A ~A)~%" verdict
            (+ (trial-seconds control) (trial-seconds mutant))
            (or (promise-source promise) (promise-file promise))
            (promise-text promise) (promise-suite promise) (promise-test promise))
    (when (eq :broken verdict)
      (dolist (trial (list control mutant))
        (unless (or (eql 0 (trial-code trial))
                    (and (trial-mutated-p trial) (eql +failed+ (trial-code trial))))
          (format t "  exit code ~D of the ~:[control~;mutant~]~%~A~%" (trial-code trial)
                  (trial-mutated-p trial)
                  (if (probe-file (trial-output trial))
                      (uiop:read-file-string (trial-output trial)
                                             :external-format '(:utf-8 :replacement #\?))
                      "")))))
    (finish-output)
    (eq :killed verdict)))

(defun judge (promises &key (processes 1))
  "Judge PROMISES, in at most PROCESSES processes at once, and print a line about each. Return how
many mutants were killed and how many were not. Only in an image without further threads."
  (setf (sb-ext:symbol-global-value 'clgrpc:*log-function*) nil)
  (sb-ext:gc :full t)                   ; so that the processes need not copy what is loaded
  (let ((killed 0) (ended '()))
    (tests::call-with-folder
     (lambda (folder)
       (run-trials (loop for promise in promises
                         collect (make-trial :promise promise)
                         collect (make-trial :promise promise :mutated-p t))
                   processes folder
                   (lambda (trial)
                     (let ((other (find (trial-promise trial) ended :key #'trial-promise)))
                       (cond ((null other) (push trial ended))
                             ((if (trial-mutated-p trial)
                                  (report other trial)
                                  (report trial other))
                              (incf killed))))))))
    (format t "~D killed, ~D not~%" killed (- (length promises) killed))
    (finish-output)
    (values killed (- (length promises) killed))))

(defun drawn (count promises seed)
  (let ((state (sb-ext:seed-random-state seed)) (left (copy-list promises)))
    (loop repeat (min count (length promises))
          collect (let ((promise (elt left (random (length left) state))))
                    (setf left (remove promise left))
                    promise))))

(defun chosen-p (promise words)
  "True if one of WORDS is the suite of PROMISE, or part of the name of its source or its file."
  (or (null words)
      (loop for word in words
            thereis (or (string= word (promise-suite promise))
                        (search word (or (promise-source promise) ""))
                        (search word (promise-file promise))))))

(defun main (arguments)
  "Judge the promises that ARGUMENTS, words of `scripts/mutants`, choose; return the exit code."
  (let ((processes 1) (sample nil) (seed (random (expt 10 9) (make-random-state t))) (words '()))
    (loop while arguments
          do (let ((word (pop arguments)))
               (cond ((string= word "--processes") (setf processes (parse-integer (pop arguments))))
                     ((string= word "--sample") (setf sample (parse-integer (pop arguments))))
                     ((string= word "--seed") (setf seed (parse-integer (pop arguments))))
                     (t (push word words)))))
    (let ((chosen (remove-if-not (lambda (promise) (chosen-p promise words)) *promises*)))
      (when sample
        (format t "seed ~D~%" seed)
        (setf chosen (drawn sample chosen seed)))
      (multiple-value-bind (killed others) (judge chosen :processes processes)
        (if (and (plusp killed) (zerop others)) 0 1)))))

;;; The table

(defparameter *chapters-without-promises*
  '("doc/architecture.md" "doc/decisions.md" "doc/glossary.md" "doc/performance.md"
    "doc/platforms.md" "doc/scaling.md" "doc/guides/coming-from.md")
  "Chapters that draw, explain, measure or compare, and promise nothing that others do not.")

(defun inline-form-p (form)
  "True if FORM defines what the compiler copies into callers."
  (and (consp form)
       (or (member (first form) '(defmacro defconstant))
           (and (consp (second form)) (member :inline (second form)) t))))

(defun complaint (promise)
  "What is wrong with the row of PROMISE, a text, or nil."
  (let ((count (and (probe-file (support:root-file (promise-file promise)))
                    (occurrences (promise-old promise) (file-text (promise-file promise)))))
        (source (promise-source promise)))
    (cond ((null count) (format nil "there is no ~A" (promise-file promise)))
          ((/= 1 count) (format nil "~A has ~D times ~S" (promise-file promise) count
                                (promise-old promise)))
          ((and source (not (search (flattened (promise-text promise))
                                    (flattened (file-text source)))))
           (format nil "~A does not say so" source))
          ((inline-form-p (form-at (search (promise-old promise) (file-text (promise-file promise)))
                                   (file-text (promise-file promise))))
           "callers have copies of what the mutant changes")
          ((null (test-of promise)) (format nil "there is no test ~A in ~A" (promise-test promise)
                                            (promise-suite promise))))))

(test each-promise-has-a-test-and-a-mutant-that-fits
  "Each row quotes its chapter, names a test that exists, and changes a text that its source has."
  (is (<= 80 (length *promises*)))
  (dolist (promise *promises*)
    (let ((complaint (complaint promise)))
      (is (null complaint) "~A: ~A" (promise-text promise) complaint))))

(test each-chapter-has-promises
  "README.md and every chapter have a promise in the table, unless they make none."
  (let ((files (cons "README.md"
                     (loop for path in (directory (support:root-file "doc/**/*.md"))
                           collect (uiop:native-namestring
                                    (uiop:enough-pathname path (support:root-file "")))))))
    (is (null (set-difference (set-difference files *chapters-without-promises* :test #'string=)
                              (remove nil (mapcar #'promise-source *promises*))
                              :test #'string=)))
    (is (subsetp *chapters-without-promises* files :test #'string=))))

(test a-mutant-is-killed-only-by-a-test-that-passes-without-it
  "What two trials say together; a mutant that its test passes, or skips, is missed."
  (flet ((verdict-of (control mutant)
           (let ((promise (first *promises*)))
             (verdict (make-trial :promise promise :code control)
                      (make-trial :promise promise :mutated-p t :code mutant)))))
    (is (eq :killed (verdict-of 0 +failed+)))
    (is (eq :killed (verdict-of 0 139)))        ; its process died
    (is (eq :missed (verdict-of 0 0)))
    (is (eq :missed (verdict-of 0 +skipped+)))
    (is (eq :broken (verdict-of 0 +unfit+)))
    (is (eq :broken (verdict-of +failed+ +failed+)))
    (is (eq :broken (verdict-of +skipped+ +failed+)))))

(test forms-are-found-by-their-place
  "The form that a place is in is read in the package of its file."
  (let ((text "(in-package #:clgrpc.tests.mutants)
;; (a
(defun one () \"(\")
(defun two () promise)"))
    (flet ((name-at (part)
             (multiple-value-bind (form package) (form-at (search part text) text)
               (is (eq (find-package '#:clgrpc.tests.mutants) package))
               (second form))))
      (is (eq 'one (name-at "\"(\"")))
      (is (eq 'two (name-at "promise)"))))))

(test samples-depend-on-their-seed
  "The same seed draws the same promises, each once."
  (is (equal (drawn 10 *promises* 7) (drawn 10 *promises* 7)))
  (is (not (equal (drawn 10 *promises* 7) (drawn 10 *promises* 8))))
  (is (= 10 (length (remove-duplicates (drawn 10 *promises* 7))))))

(test drawn-mutants-are-killed
  "Promises, drawn by a seed that is printed, are kept, and each one's test fails if it is broken.
`scripts/mutants` shows it of all."
  (let ((count (support:at-length 10 60)))
    (multiple-value-bind (output errors code)
        (uiop:run-program
         (append (list "env" "-u" "CLGRPC_ENDURANCE")
                 ;; an image that was saved with all tests judges them itself
                 (and (string= "tests" (pathname-name sb-ext:*core-pathname*))
                      (list (format nil "CLGRPC_TESTS_CORE=~A"
                                    (uiop:native-namestring sb-ext:*core-pathname*))))
                 ;; a mutant that is killed often makes its test wait for what does not come
                 (list (support:root-file "scripts/mutants") "--processes" "3"
                       "--sample" (princ-to-string count)))
         :output :string :error-output :output :ignore-error-status t)
      (declare (ignore errors))
      (is (eql 0 code) "~A" output)
      (is (search (format nil "~D killed, 0 not" count) output) "~A" output))))
