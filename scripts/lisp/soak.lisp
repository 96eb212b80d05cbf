;;;; Soak for CLGRPC_SOAK_SECONDS and exit with 1 if something was wrong; see scripts/soak. With
;;;; CLGRPC_SOAK_PROGRESS a line on standard error shows its progress.

(load (merge-pathnames "../load.lisp" *load-truename*))
(in-package #:clgrpc.scripts)

(load-strictly "clgrpc-tests/promise")

(defun environment-number (name)
  (let ((value (uiop:getenvp name)))
    (and value (parse-integer value))))

(defun show-progress (text)
  "Show TEXT in a line that the next output replaces."
  (format *error-output* "~C[K~A~C" #\Escape text #\Return)
  (finish-output *error-output*))

(handler-bind ((sb-sys:interactive-interrupt (lambda (interrupt)
                                               (declare (ignore interrupt))
                                               (quit 130))))
  (let ((problems (uiop:symbol-call '#:clgrpc.tests.promise '#:soak
                                    (environment-number "CLGRPC_SOAK_SECONDS")
                                    :seed (environment-number "CLGRPC_SOAK_SEED")
                                    :progress (if (uiop:getenvp "CLGRPC_SOAK_PROGRESS")
                                                  #'show-progress
                                                  #'identity))))
    (format t "~&~:[~{~A~%~}~;All was well.~%~]" (null problems) problems)
    (quit (if problems 1 0))))
