;;;; The one condition of HTTP/1.1. After an error the end of the message is unknown, so there is no
;;;; restart: a server answers with the error's status and closes the connection.

(in-package #:clgrpc.http1)

(define-condition http1-error (clgrpc-error)
  ((status :initarg :status :reader http1-error-status) ; the status of a server's answer
   (text :initarg :text :reader http1-error-text)) ; the fault
  (:report (lambda (condition stream)
             (format stream "Bad HTTP/1.1 message (~D): ~A."
                     (http1-error-status condition) (http1-error-text condition))))
  (:documentation "The peer sent octets that RFC 9112 or a limit forbids, or that different
implementations of HTTP/1.1 might parse differently. STATUS is the status with which a server
answers; TEXT describes the fault. After this error the parser cannot be used again."))

(document-functions
  http1-error-status "The status, such as 400, with which a server answers."
  http1-error-text "The fault of the message, as text.")

(declaim (ftype (function (integer string &rest t) nil) bad-message))
(defun bad-message (status control &rest arguments)
  "Signal HTTP1-ERROR."
  (error 'http1-error :status status :text (format nil "~?" control arguments)))
