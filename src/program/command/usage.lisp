;;;; The error of a refused command line.

(in-package #:clgrpc.command)

(define-condition usage-error (clgrpc-error)
  ((text :initarg :text :reader usage-error-text)) ; the error, in one line
  (:report (lambda (condition stream) (write-string (usage-error-text condition) stream)))
  (:documentation "The command line is wrong; TEXT describes the error, in one line."))

(defun refuse (control &rest arguments)
  "Signal a USAGE-ERROR."
  (error 'usage-error :text (format nil "~?" control arguments)))

(document-functions
  usage-error-text "Return the error of the command line, in one line.")
