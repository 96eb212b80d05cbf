;;;; What goes wrong with sockets before there is a connection to tell.

(in-package #:clgrpc.loop)

(define-condition socket-error (clgrpc-error)
  ((operation :initarg :operation :reader socket-error-operation)
   (address :initarg :address :reader socket-error-address)
   (reason :initarg :reason :reader socket-error-reason))
  (:report (lambda (condition stream)
             (format stream "Cannot ~A ~A: ~A." (socket-error-operation condition)
                     (socket-error-address condition) (socket-error-reason condition))))
  (:documentation "The system refused an OPERATION on ADDRESS; REASON says why. All are texts."))

(define-condition connect-error (socket-error) ()
  (:default-initargs :operation "connect to")
  (:documentation "No connection to ADDRESS came about; nothing was sent."))

(document-functions
  socket-error-operation "What could not be done, as text that ADDRESS completes."
  socket-error-address "The address with which it could not be done, as text."
  socket-error-reason "Why, as text.")
