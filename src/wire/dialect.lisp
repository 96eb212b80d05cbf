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

;;; Connections. A server looks at the first octets of a new connection, or at what ALPN has agreed
;;; on, to find what it speaks. HTTP/2 is first, and is what answers those that nobody knows.

(defstruct (connection-dialect (:copier nil))
  "How a connection speaks that does not speak HTTP/2. All functions run on its loop."
  (name nil :type symbol :read-only t)  ; by which it is replaced
  (alpn '() :type list :read-only t)    ; its names there, strings
  ;; (octets start end): true if a connection that begins so is its own, :more if that is not known
  (opens (constantly nil) :type function :read-only t)
  (begin #'identity :type function :read-only t) ; (link): it is its own
  (handler nil :type loop:handler :read-only t) ; what its connections do from then on
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
  "Have servers find no dialect of connections called NAME."
  (setf **connection-dialects**
        (remove name **connection-dialects** :key #'connection-dialect-name))
  nil)

(defun add-connection-dialect (dialect)
  "Have servers find DIALECT, one of connections, in place of one with its name."
  (remove-connection-dialect (connection-dialect-name dialect))
  (push dialect **connection-dialects**)
  dialect)

(defconstant +longest-opening+ 4096
  "A connection that nobody knows after so many octets is nobody's.")

(defun opening-dialect (protocol octets start end)
  "What a connection speaks that begins with OCTETS from START to END: a CONNECTION-DIALECT, NIL for
HTTP/2, or :MORE if that cannot be said yet. PROTOCOL is what ALPN has agreed on, or nil."
  (flet ((named-p (dialect)
           (member protocol (connection-dialect-alpn dialect) :test #'string=)))
    (cond (protocol (find-if #'named-p **connection-dialects**))
          ((http2:preface-p octets start end) nil)
          (t (let ((more nil))
               (dolist (dialect **connection-dialects**
                                (and more (< (- end start) +longest-opening+) :more))
                 (case (funcall (connection-dialect-opens dialect) octets start end)
                   ((nil))
                   (:more (setf more t))
                   (t (return dialect)))))))))
