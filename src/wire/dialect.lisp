;;;; Dialects: how a call is written on its stream where that is not as gRPC over HTTP/2 has it. A
;;;; server finds the dialect of a request by its content type. A call without one speaks gRPC,
;;;; whose functions are called directly; each place where a dialect may differ tests for that
;;;; first.
;;;;
;;;; What others need of this: gRPC-Web ends its answers with a message whose flag is #x80 and
;;;; writes its -text form in base64 (RECEIVE, ENCODE, WRITE-END; as a client FLAGS and
;;;; RECEIVE-FLAGGED). Connect's streams end with a message whose flag is 2 (the same). A unary call
;;;; of Connect has a body without prefix (RECEIVE collects it, END delivers it), JSON or not
;;;; (PARSE, ENCODE), time-outs in a field of its own (READ-HEAD), and an HTTP status that is known
;;;; only with the answer (REPLY, WRITE-END).

(in-package #:clgrpc.wire)

(defstruct (dialect (:copier nil))
  "How calls speak that do not speak gRPC over HTTP/2. Where a function is NIL they do as gRPC does.
All but ENCODE and PARSE run on the call's loop."
  (name nil :type symbol :read-only t)   ; by which it is replaced
  ;; the request, at a server
  (accepts (constantly nil) :type function :read-only t) ; (content-type): true if it is its own
  (read-head nil :type (or null function) :read-only t) ; (request fields): note what they say
  ;; what the peer sends
  (receive nil :type (or null function) :read-only t) ; (call octets start end): more of the body
  (end nil :type (or null function) :read-only t) ; (call): the body is whole
  (flags '() :type list :read-only t)   ; of prefixes besides 0 and 1 that may come
  ;; (call flag octets start end): a message with such a flag
  (receive-flagged nil :type (or null function) :read-only t)
  (parse nil :type (or null function) :read-only t) ; (call octets start end): a message of them
  ;; what we send
  (write-head nil :type (or null function) :read-only t) ; (call): the first header block
  (encode nil :type (or null function) :read-only t) ; (call message compress): octets or a parcel
  (reply nil :type (or null function) :read-only t) ; (call value): answer with it, and end the call
  (write-end nil :type (or null function) :read-only t)) ; (call): how CALL, a server's, has ended

(declaim (sb-ext:freeze-type dialect))

(defmethod print-object ((dialect dialect) stream)
  (print-unreadable-object (dialect stream :type t)
    (format stream "~(~A~)" (dialect-name dialect))))

(declaim (type list **dialects**))
(defglobal **dialects** '()
  "The dialects of requests, the newest first; never changed in place.")

(defun add-dialect (dialect)
  "Have servers find DIALECT, in place of one with its name."
  (let ((others (remove (dialect-name dialect) **dialects** :key #'dialect-name)))
    (setf **dialects** (cons dialect others))
    dialect))

(defun remove-dialect (name)
  "Have servers find no dialect called NAME."
  (setf **dialects** (remove name **dialects** :key #'dialect-name))
  nil)

(defmacro define-dialect (name &rest functions)
  "Define the dialect NAME, and have servers find it. FUNCTIONS is a plist of forms for the slots of
DIALECT, of which :ACCEPTS is needed."
  `(add-dialect (make-dialect :name ',name ,@functions)))

(defun content-type-dialect (content-type)
  "The dialect of requests of CONTENT-TYPE, a string, or nil."
  (find-if (lambda (dialect) (funcall (dialect-accepts dialect) content-type)) **dialects**))
