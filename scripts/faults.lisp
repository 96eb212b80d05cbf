;;;; Run tests/faults for CLGRPC_FAULTS_MINUTES; scripts/faults has the usage.

(load (merge-pathnames "load.lisp" *load-truename*))
(in-package #:clgrpc.scripts)

(load-strictly "clgrpc/tests/faults")

(defvar *begin* (get-internal-real-time))

(defun tell (text)
  (format t "~&~5D s  ~A~%" (floor (- (get-internal-real-time) *begin*)
                                   internal-time-units-per-second)
          text)
  (finish-output))

(defun faults-to-run ()
  (let ((known (uiop:symbol-call '#:clgrpc.tests.faults '#:fault-names))
        (asked (remove "" (uiop:split-string (or (uiop:getenvp "CLGRPC_FAULTS") ""))
                       :test #'string=)))
    (or (loop for name in asked
              collect (or (find name known :test #'string-equal)
                          (progn (format *error-output* "There is no fault ~A; there are~
                                                         ~{ ~(~A~)~}.~%" name known)
                                 (quit 2))))
        known)))

(when (uiop:getenvp "CLGRPC_FAULTS_LIST")
  (uiop:symbol-call '#:clgrpc.tests.faults '#:list-faults *standard-output*)
  (quit 0))

(multiple-value-bind (complaints summary)
    (uiop:symbol-call '#:clgrpc.tests.faults '#:run-faults
                      :faults (faults-to-run)
                      :seconds (* 60 (let ((*read-eval* nil))
                                       (rational (read-from-string
                                                  (uiop:getenv "CLGRPC_FAULTS_MINUTES")))))
                      :pause (let ((*read-eval* nil))
                               (read-from-string (uiop:getenv "CLGRPC_FAULTS_PAUSE")))
                      :report #'tell)
  (tell summary)
  (dolist (complaint complaints) (tell (format nil "WRONG: ~A" complaint)))
  (tell (if complaints "something was wrong" "all was well"))
  (quit (if complaints 1 0)))
