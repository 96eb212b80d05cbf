;;;; The form that defines a test.

(in-package #:clgrpc.tests.form)

(defmacro test (name &body body)
  "Define the test NAME, or, if NAME is a list, that of its first element with FiveAM's options that
are its rest. BODY may begin with a sentence that says what it shows.

FiveAM's own form has a test compiled each time that its fasl is loaded; here it is a function of
its file, `TEST NAME`, which FiveAM calls."
  (let ((name (if (consp name) (first name) name))
        (options (if (consp name) (rest name) '()))
        (sentence (when (and (stringp (first body)) (rest body)) (list (pop body)))))
    (let ((function (intern (format nil "TEST ~A" name))))
      `(progn
         (defun ,function () ,@body)
         (let ((sb-ext:*evaluator-mode* :interpret)) ; FiveAM evaluates a call of the function
           (def-test ,name (,@options) ,@sentence (,function)))))))
