;;;; What a loop tells about sockets: conditions that event callbacks get, and that are signalled
;;;; where there is nobody to tell. Their names and meanings are cl-async's.

(in-package #:clgrpc.loop)

(define-condition event-info () ()
  (:documentation "Whatever an event callback is told."))

(define-condition event-error (event-info clgrpc-error)
  ((code :initarg :code :initform -1 :reader event-errcode)
   (reason :initarg :reason :initform "unknown" :reader event-errmsg :reader socket-error-reason))
  (:report (lambda (condition stream) (write-string (event-errmsg condition) stream)))
  (:documentation "Something went wrong. CODE is the system's errno, or -1; REASON says why, as
text."))

(define-condition socket-info (event-info)
  ((socket :initarg :socket :initform nil :reader socket :reader tcp-socket :writer note-socket))
  (:documentation "What an event callback is told about SOCKET, a socket or a server."))

(define-condition socket-error (event-error socket-info)
  ((operation :initarg :operation :initform "go on with" :reader socket-error-operation)
   (address :initarg :address :initform "the connection" :reader socket-error-address))
  (:report (lambda (condition stream)
             (format stream "Cannot ~A ~A: ~A." (socket-error-operation condition)
                     (socket-error-address condition) (socket-error-reason condition))))
  (:documentation "The system refused an OPERATION on ADDRESS; REASON says why. All are texts."))

(define-condition socket-eof (socket-error) ()
  (:default-initargs :reason "the peer has closed it")
  (:documentation "The peer has closed the connection."))

(define-condition socket-reset (socket-error) ()
  (:documentation "The peer has broken off the connection, or the network has."))

(define-condition socket-aborted (socket-error) ()
  (:documentation "The own system has broken off the connection."))

(define-condition socket-timeout (socket-error) ()
  (:documentation "Nothing came, or nothing was taken, for as long as was allowed."))

(define-condition socket-closed (socket-error) ()
  (:documentation "The socket has been closed, and something was to be done with it."))

(define-condition socket-address-in-use (socket-error) ()
  (:documentation "Somebody listens on that address already."))

(define-condition connect-error (socket-error) ()
  (:default-initargs :operation "connect to")
  (:documentation "No connection to ADDRESS came about; nothing was sent."))

(define-condition socket-refused (connect-error) ()
  (:documentation "Nobody listens there."))

(define-condition connect-timeout (connect-error socket-timeout) ()
  (:documentation "No connection came about in time."))

(define-condition dns-error (connect-error) ()
  (:default-initargs :operation "look up")
  (:documentation "A host's addresses, or an address's host, could not be found."))

(document-functions
  event-errcode "The system's errno, a positive integer, or -1 if none says what it was."
  event-errmsg "What went wrong, as text."
  socket "The socket or server that CONDITION is about, or nil."
  tcp-socket "As SOCKET, for those who know that name."
  socket-error-operation "What could not be done, as text that ADDRESS completes."
  socket-error-address "The address with which it could not be done, as text."
  socket-error-reason "Why, as text.")

;;; cl-async's older names

(macrolet ((define-aliases (&rest pairs)
             `(progn
                ,@(loop for (alias name) on pairs by #'cddr
                        collect `(deftype ,alias ()
                                   ,(format nil "Another name for ~A." name)
                                   ',name)))))
  (define-aliases tcp-info socket-info tcp-error socket-error tcp-eof socket-eof
                  tcp-reset socket-reset tcp-timeout socket-timeout tcp-refused socket-refused))

(defun errno-class (result)
  "The class of condition for RESULT, a negated errno."
  (let ((errno (- result)))
    (cond ((or (= errno os:+econnreset+) (= errno os:+epipe+)) 'socket-reset)
          ((= errno os:+etimedout+) 'socket-timeout)
          ((= errno os:+econnaborted+) 'socket-aborted)
          ((= errno os:+eaddrinuse+) 'socket-address-in-use)
          (t 'socket-error))))

(defun errno-condition (result operation address)
  "The condition that says that RESULT, a negated errno, kept us from OPERATION with ADDRESS."
  (make-condition (errno-class result) :code (- result) :reason (os:errno-text result)
                                       :operation operation :address address))
