;;;; Errors of connections, listeners and look-ups: conditions that are signalled, or given to
;;;; callbacks.

(in-package #:clgrpc.loop)

(define-condition socket-error (clgrpc-error)
  (;; the system's errno, or -1
   (code :initarg :code :initform -1 :reader socket-error-code)
   ;; the operation that failed, a text that ADDRESS completes
   (operation :initarg :operation :initform "go on with" :reader socket-error-operation)
   ;; a text
   (address :initarg :address :initform "the connection" :reader socket-error-address)
   ;; the reason, a text
   (reason :initarg :reason :initform "unknown" :reader socket-error-reason)
   ;; an upper layer's object for the connection or listener
   (owner :initarg :owner :initform nil :accessor socket-error-owner))
  (:report (lambda (condition stream)
             (format stream "Cannot ~A ~A: ~A." (socket-error-operation condition)
                     (socket-error-address condition) (socket-error-reason condition))))
  (:documentation "The system refused an operation on an address."))

(define-condition socket-reset (socket-error) ()
  (:documentation "The peer or the network has broken off the connection."))

(define-condition socket-aborted (socket-error) ()
  (:documentation "This machine has broken off the connection."))

(define-condition socket-timeout (socket-error) ()
  (:documentation "During the allowed time nothing was received, or nothing could be sent."))

(define-condition socket-address-in-use (socket-error) ()
  (:documentation "Another socket listens on that address already."))

(define-condition connect-error (socket-error) ()
  (:default-initargs :operation "connect to")
  (:documentation "The connection to ADDRESS could not be made; nothing was sent."))

(define-condition socket-refused (connect-error) ()
  (:documentation "No process listens at the address of the connection attempt."))

(define-condition connect-timeout (connect-error socket-timeout) ()
  (:documentation "The connection could not be made in time."))

(define-condition dns-error (connect-error) ()
  (:default-initargs :operation "look up")
  (:documentation "A host's addresses, or an address's host, could not be found."))

(document-functions
  socket-error-code "The system's errno, a positive integer, or -1 if the failure has no errno."
  socket-error-operation "The operation that failed, as a text that the address follows, such as
\"connect to\"."
  socket-error-address "The address of the operation that failed, as text."
  socket-error-reason "The reason of the failure, as text."
  socket-error-owner "The object by which a layer above represents the connection or listener of
CONDITION, such as a socket, or nil if there is none. That layer may use SETF.")

(defun errno-class (result)
  "Return the class of the condition for RESULT, a negated errno."
  (let ((errno (- result)))
    (cond ((or (= errno os:+econnreset+) (= errno os:+epipe+)) 'socket-reset)
          ((= errno os:+etimedout+) 'socket-timeout)
          ((= errno os:+econnaborted+) 'socket-aborted)
          ((= errno os:+eaddrinuse+) 'socket-address-in-use)
          (t 'socket-error))))

(defun errno-condition (result operation address)
  "Return the condition for OPERATION with ADDRESS, both texts, which failed with RESULT, a negated
errno."
  (make-condition (errno-class result) :code (- result) :reason (os:errno-text result)
                                       :operation operation :address address))
