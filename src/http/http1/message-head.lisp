;;;; The head of a message. A MESSAGE never changes except for its memo. So the parser returns the
;;;; same MESSAGE for a head that a peer repeats octet for octet, and the layer above finds its memo
;;;; in it.

(in-package #:clgrpc.http1)

(deftype framing ()
  "The end of a body: after a number of octets, after its last chunk, or when the connection ends;
:tunnel means that the octets after the head belong to another protocol than HTTP/1.1."
  '(or index (member :chunked :until-close :tunnel)))

(defstruct (message (:copier nil))
  "The head of a request or of a response."
  (http-method "" :type simple-string :read-only t) ; the method of a request, such as "GET"
  (target "" :type simple-string :read-only t) ; the target of a request: the path and query, or "*"
  (status 0 :type (integer 0 999) :read-only t) ; the status of a response
  (reason "" :type simple-string :read-only t) ; the reason phrase of a response, for people
  ;; the minor number of the version, whose major number is 1
  (minor 1 :type (integer 0 9) :read-only t)
  (fields #() :type simple-vector :read-only t) ; HPACK's fields in their order, names in lower case
  (body 0 :type framing :read-only t)   ; the end of the body; 0 without a body
  (persistent-p nil :type boolean :read-only t) ; the connection continues after this message
  (expects-p nil :type boolean :read-only t) ; the peer waits for 100 before it sends the body
  (octets 0 :type index :read-only t)   ; the approximate memory of its strings, in octets
  (memo nil))                           ; a result that the layer above keeps with the message

(declaim (freeze-type message))

(document-functions
  message-http-method "The method of a request, such as \"GET\"; empty in a response."
  message-target "The path and query of a request, or \"*\"; empty in a response."
  message-status "The status of a response; 0 in a request."
  message-reason "The reason phrase of a response, for people; empty in a request."
  message-minor "The minor number of the version, usually 0 or 1; the major number is 1."
  message-fields "A vector of HPACK's fields, names in lower case, in their order. The name of a
request's host is \":authority\". Fields about the connection are not included."
  message-body "The end of the body: its length in octets (0 without a body); :chunked;
:until-close; or :tunnel if the octets after the head belong to another protocol than HTTP/1.1."
  message-persistent-p "True if the connection may be used for another message after this one."
  message-expects-p "True if the client waits for the status 100 before it sends the body."
  message-octets "The approximate number of octets of memory that the target and the fields take."
  message-memo "An object that the layer above has stored in the message by SETF; NIL at first.
Heads that are equal octet for octet have the same message.")

(defmethod print-object ((message message) stream)
  (print-unreadable-object (message stream :type t)
    (if (plusp (message-status message))
        (format stream "~D ~A" (message-status message) (message-reason message))
        ;; without the query, which may contain a secret
        (let ((target (message-target message)))
          (format stream "~A ~A" (message-http-method message)
                  (subseq target 0 (position #\? target)))))
    (format stream ", ~D field~:P, body ~(~A~)" (length (message-fields message))
            (message-body message))))

(defun find-field (message name)
  "Return the first field of MESSAGE whose name is NAME, a string in lower case, or nil if there is
none."
  (find name (message-fields message) :key #'hpack:field-name-string :test #'string=))
