;;;; The conditions that belong to no protocol. Each protocol (http2, protobuf, rpc) defines the
;;;; conditions for errors of peers. Here are the conditions of every layer: MISUSE, an error of the
;;;; caller, and LIMIT-EXCEEDED.

(in-package #:clgrpc.base)

(define-condition clgrpc-error (error) ()
  (:documentation "The root of all errors that clgrpc signals."))

(define-condition misuse (clgrpc-error program-error)
  ((text :initarg :text :reader misuse-text)) ; the fault
  (:report (lambda (condition stream) (write-string (misuse-text condition) stream)))
  (:documentation "The caller broke a rule of the interface of clgrpc; nothing was sent or changed.
The condition is a PROGRAM-ERROR, like the errors that Common Lisp signals for wrong arguments."))

(document-functions
  misuse-text "The caller's fault, as text.")

(defun misuse (control &rest arguments)
  "Signal MISUSE with the text that CONTROL and ARGUMENTS format. From any thread."
  (error 'misuse :text (let ((*print-pretty* nil)) (format nil "~?" control arguments))))

(define-condition function-failed (error)
  ((cause :initarg :cause :reader function-failed-cause)) ; the function's condition
  (:documentation "A user's function that reads a stream has failed. The cause may be the RPC-ERROR
of another call that the function has made; such an error is not a failure of the stream. The cause
is wrapped in this condition, because the stream's own handlers handle RPC-ERRORs, but not
FUNCTION-FAILED."))

(document-functions
  function-failed-cause "The condition that the user's function has signalled.")

(defmacro with-function-failed ((&optional (type 'serious-condition)) &body body)
  "Evaluate BODY, which calls a user's function. Signal FUNCTION-FAILED for a condition of TYPE from
BODY, so that no handler mistakes it for an error of the calling code."
  `(handler-case (progn ,@body)
     (,type (condition) (error 'function-failed :cause condition))))

(define-condition limit-exceeded (clgrpc-error)
  (;; the name of the row of the options table
   (option :initarg :option :reader limit-exceeded-option)
   (limit :initarg :limit :reader limit-exceeded-limit) ; the limit's value
   ;; the value that exceeds it, or nil
   (actual :initarg :actual :initform nil :reader limit-exceeded-actual))
  (:report (lambda (condition stream)
             (format stream "Limit ~(~A~) of ~D exceeded~@[ by a value of ~D~]."
                     (limit-exceeded-option condition) (limit-exceeded-limit condition)
                     (limit-exceeded-actual condition))))
  (:documentation "A quantity that a peer or caller can grow exceeded its limit. OPTION names the
row of the options table, LIMIT is its value. ACTUAL is the value that exceeds the limit, or nil if
it is not known."))

(document-functions
  limit-exceeded-option "The name of the limit's row of the options table, a keyword."
  limit-exceeded-limit "The limit that was exceeded, a number."
  limit-exceeded-actual "The value that exceeds the limit, or nil if it is not known.")
