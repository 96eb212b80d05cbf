;;;; Dialects: how a call is written on its stream if that is not gRPC over HTTP/2. A server finds
;;;; the dialect of a request by its content type. A call without a dialect speaks gRPC, whose
;;;; functions are called directly; each place where dialects may differ tests for one first.
;;;;
;;;; The functions were chosen for these dialects:
;;;;
;;;;   gRPC-Web         ends its answers with a message whose flag is #x80, and writes its -text
;;;; form
;;;;                    in base64: RECEIVE, ENCODE, WRITE-END; at a client FLAGS, RECEIVE-FLAGGED
;;;;   Connect, streams end with a message whose flag is 2: the same functions
;;;;   Connect, unary   has a body without prefix (RECEIVE collects it, END delivers it), in JSON or
;;;;                    not (PARSE, ENCODE), time-outs in a field of its own (READ-HEAD), and an
;;;; HTTP
;;;;                    status that is known only with the answer (REPLY, WRITE-END)

(in-package #:clgrpc.wire)

(defstruct (dialect (:copier nil))
  "How calls are written that do not speak gRPC over HTTP/2. Where a function is NIL, what gRPC does
is done. All functions but ENCODE and PARSE run on the call's loop."
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
  "Register DIALECT, in place of one with its name, so that servers find it."
  (let ((others (remove (dialect-name dialect) **dialects** :key #'dialect-name)))
    (setf **dialects** (cons dialect others))
    dialect))

(defun remove-dialect (name)
  "Have servers find no dialect called NAME."
  (setf **dialects** (remove name **dialects** :key #'dialect-name))
  nil)

(defmacro define-dialect (name &rest functions)
  "Define and register the dialect NAME. FUNCTIONS is a plist of forms for the slots of DIALECT;
:ACCEPTS is required."
  `(add-dialect (make-dialect :name ',name ,@functions)))

(defun content-type-dialect (content-type)
  "The dialect of requests of CONTENT-TYPE, a string, or nil."
  (find-if (lambda (dialect) (funcall (dialect-accepts dialect) content-type)) **dialects**))

;;; Connections. A server finds what a new connection speaks by the protocol that ALPN has agreed
;;; on, or by its first octets. HTTP/2 is tried first, and answers connections that no dialect
;;; knows.

(defstruct (connection-dialect (:copier nil))
  "What a server does with connections that do not speak HTTP/2. All functions run on the
connection's loop."
  (name nil :type symbol :read-only t)  ; by which it is replaced
  (alpn '() :type list :read-only t)    ; its names there, strings
  ;; (octets start end): true if a connection that begins so is its own, :more if that is not known
  (opens (constantly nil) :type function :read-only t)
  (begin #'identity :type function :read-only t) ; (link): it is its own
  (handler nil :type loop:handler :read-only t) ; what its connections do from then on
  (octets nil :type (or null function) :read-only t) ; (link): how much memory it keeps, about
  (drain nil :type (or null function) :read-only t) ; (link): end when nothing is under way
  (abandon nil :type (or null function) :read-only t)) ; (link status text): end what is under way

(declaim (sb-ext:freeze-type connection-dialect))

(defmethod print-object ((dialect connection-dialect) stream)
  (print-unreadable-object (dialect stream :type t)
    (format stream "~(~A~)" (connection-dialect-name dialect))))

(declaim (type list **connection-dialects**))
(defglobal **connection-dialects** '()
  "The dialects of connections besides HTTP/2, the newest first; never changed in place.")

(defun remove-connection-dialect (name)
  "Remove the dialect of connections called NAME from those that servers find."
  (setf **connection-dialects**
        (remove name **connection-dialects** :key #'connection-dialect-name))
  nil)

(defun add-connection-dialect (dialect)
  "Register DIALECT, one of connections, in place of one with its name, so that servers find it."
  (remove-connection-dialect (connection-dialect-name dialect))
  (push dialect **connection-dialects**)
  dialect)

(defconstant +longest-opening+ 4096
  "A connection that no dialect knows after so many octets is taken for HTTP/2.")

(defun opening-dialect (protocol octets start end &key (dialects **connection-dialects**))
  "Find which of DIALECTS a connection speaks that begins with OCTETS from START to END. Return a
CONNECTION-DIALECT, NIL for HTTP/2, or :MORE if more octets are needed to tell. PROTOCOL is what
ALPN has agreed on, or nil."
  (flet ((named-p (dialect)
           (member protocol (connection-dialect-alpn dialect) :test #'string=)))
    (cond (protocol (find-if #'named-p dialects))
          ((http2:preface-p octets start end) nil)
          (t (let ((more nil))
               (dolist (dialect dialects (and more (< (- end start) +longest-opening+)
                                              :more))
                 (case (funcall (connection-dialect-opens dialect) octets start end)
                   ((nil))
                   (:more (setf more t))
                   (t (return dialect)))))))))
