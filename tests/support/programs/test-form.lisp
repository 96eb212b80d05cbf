;;;; The form that defines a test; WITH-REPLACED and WITH-CHANGED, which change functions and values
;;;; while a body runs; and forms for logs, conditions, threads and unused parameters.

(in-package #:clgrpc.tests.form)

(defvar *suite-of-file* nil
  "The file with the last IN-SUITE, and its suite.")

(defun this-file ()
  "The file that is compiled or loaded."
  (or *compile-file-truename* *load-truename*))

(defmacro in-suite (suite)
  "Define the tests of the rest of this file in SUITE. In other files a test is in the suite that is
named as its package: :clgrpc.base is that of clgrpc.tests.base."
  (setf *suite-of-file* (cons (this-file) suite))
  '(progn))

(defun suite-here ()
  "The name of the suite in which TEST defines a test now."
  (if (and *suite-of-file* (equal (this-file) (car *suite-of-file*)))
      (cdr *suite-of-file*)
      (intern (format nil "CLGRPC~A" (subseq (package-name *package*)
                                             (length "CLGRPC.TESTS")))
              '#:keyword)))

(defmacro test (name &body body)
  "Define the test NAME, or, if NAME is a list, that of its first element with FiveAM's options that
are its rest. BODY may begin with a sentence that says what it shows.

FiveAM's own form has a test compiled each time that its fasl is loaded; here it is a function of
its file, `TEST NAME`, which FiveAM calls."
  (let ((name (if (consp name) (first name) name))
        (options (append (when (consp name) (rest name)) (list :suite (suite-here))))
        (sentence (when (and (stringp (first body)) (rest body)) (list (pop body)))))
    (let ((function (intern (format nil "TEST ~A" name))))
      `(progn
         (defun ,function () ,@body)
         (let ((sb-ext:*evaluator-mode* :interpret)) ; FiveAM evaluates a call of the function
           (def-test ,name ,options ,@sentence (,function)))))))

(defun call-with-replaced (rows function)
  "Call FUNCTION as WITH-REPLACED says; ROWS are lists of a name and a stand-in."
  (let ((tag (gensym "STAND-IN")))
    (unwind-protect (loop for (name stand-in) in rows
                          do (sb-int:encapsulate name tag stand-in)
                          finally (return (funcall function)))
      (loop for (name) in rows
            do (sb-int:unencapsulate name tag)))))

(defmacro with-replaced ((&rest rows) &body body)
  "Evaluate BODY while each NAME of ROWS, (NAME STAND-IN), which is the name of a function, means
STAND-IN. That is called with the function itself and its arguments."
  `(call-with-replaced (list ,@(loop for (name stand-in) in rows
                                     collect `(list ,name ,stand-in)))
                       (lambda () ,@body)))

(defun call-with-logged (names function)
  "Call FUNCTION as WITH-LOGGED says."
  (let ((events (list '())))
    (flet ((note (level event &rest plist)
             (when (or (null names) (member event names))
               (sb-ext:atomic-push (list* level event plist) (car events)))))
      (uiop:symbol-call '#:clgrpc.base '#:add-log-listener #'note)
      (unwind-protect (progv (list (uiop:find-symbol* '#:*log-function* '#:clgrpc.base)) '(nil)
                        (funcall function (lambda () (reverse (car events)))))
        (uiop:symbol-call '#:clgrpc.base '#:remove-log-listener #'note)))))

(defmacro with-logged ((events &rest names) &body body)
  "Evaluate BODY without another log of this thread. (EVENTS) returns the events that all threads
have logged meanwhile, oldest first; each is a list of its level, its name and its plist. If there
are NAMES, other events are left out."
  `(call-with-logged ',names (lambda (logged)
                               (flet ((,events () (funcall logged)))
                                 ,@body))))

(defmacro with-changed ((&rest rows) &body body)
  "Evaluate BODY while each PLACE of ROWS, (PLACE VALUE), has VALUE; a row PLACE alone is only
restored afterwards. Threads see the change unless this thread binds PLACE: then use
SYMBOL-GLOBAL-VALUE."
  (let* ((rows (loop for row in rows
                     collect (list* (gensym "FORMER") (if (consp row) row (list row)))))
         (changes (loop for (nil place . value) in rows
                        when value append (cons place value))))
    `(let ,(loop for (former place) in rows collect (list former place))
       (unwind-protect (progn (setf ,@changes) ,@body)
         (setf ,@(loop for (former place) in rows append (list place former)))))))

(defmacro with-signalled ((variable type &rest forms) &body body)
  "Evaluate BODY with VARIABLE the condition of TYPE that FORMS signal; fail if they signal none."
  `(handler-case (progn ,@forms (fiveam:fail "~S signals no ~S" ',(first forms) ',type))
     (,type (,variable) ,@body)))

(defmacro fn ((&rest lambda-list) &body body)
  "A function of LAMBDA-LIST that ignores the parameters whose names begin with _."
  `(lambda ,lambda-list
     (declare (ignore ,@(remove #\_ lambda-list :test-not #'char=
                                                 :key (lambda (name) (char (string name) 0)))))
     ,@body))

(defmacro in-thread (&body body)
  "A new thread that evaluates BODY."
  `(sb-thread:make-thread (lambda () ,@body)))
