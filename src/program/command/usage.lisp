;;;; What a command line is refused with.

(in-package #:clgrpc.command)

(define-condition usage-error (clgrpc-error)
  ((text :initarg :text :reader usage-error-text)) ; what is wrong, in one line
  (:report (lambda (condition stream) (write-string (usage-error-text condition) stream)))
  (:documentation "The command line is wrong; TEXT says how, in one line."))

(defun refuse (control &rest arguments)
  "Signal a USAGE-ERROR."
  (error 'usage-error :text (format nil "~?" control arguments)))

(document-functions
  usage-error-text "What is wrong with the command line, in one line.")
