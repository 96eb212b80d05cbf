;;;; The conditions that event callbacks get. All these conditions are subclasses of SOCKET-ERROR.
;;;; The conditions that the loop also signals are defined in clgrpc.loop; here are the others, and
;;;; cl-async's names.

(in-package #:clgrpc.async)

(define-condition socket-eof (socket-error) ()
  (:default-initargs :reason "the peer has closed the connection")
  (:documentation "The peer has closed the connection."))

(define-condition socket-closed (socket-error) ()
  (:documentation "A function was called for a socket that is closed."))

(macrolet ((define-aliases (&rest pairs)
             `(progn
                ,@(loop for (alias name) on pairs by #'cddr
                        collect `(deftype ,alias ()
                                   ,(format nil "Another name for ~A." name)
                                   ',name)))))
  (define-aliases event-info socket-error event-error socket-error socket-info socket-error
                  tcp-info socket-error tcp-error socket-error tcp-eof socket-eof
                  tcp-reset socket-reset tcp-timeout socket-timeout tcp-refused socket-refused))

(defun event-errcode (condition)
  "Return the errno of the error, a positive integer, or -1 if the error has none. From any thread."
  (loop:socket-error-code condition))

(defun event-errmsg (condition)
  "Return the description of the error, a string. From any thread."
  (socket-error-reason condition))

(defun socket (condition)
  "The socket or server that CONDITION, a SOCKET-ERROR, is about, or nil if it is about none. From
any thread."
  (loop:socket-error-owner condition))

(defun tcp-socket (condition)
  "This is SOCKET under the name that it has in cl-async. From any thread."
  (socket condition))
