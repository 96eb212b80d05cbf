;;;; Protocols other than gRPC that reach the handlers of a server's services. A protocol is
;;;; registered by name; a server uses only its function that gets the routes and returns a CLAIMER.
;;;; For a request whose content type is not gRPC's, the server calls its claimers in order. A
;;;; claimer returns nil if the request is not its own, or a PLAIN-ANSWER that answers it, or a
;;;; CLAIM. With a claim the request becomes a call by the claim's route. The call has everything
;;;; that calls have: limits, deadline, interceptors, observers, drain (claimed.lisp). The claim
;;;; holds the differences from a gRPC call: the operations of the call, and a PROTOCOL-HANDLER,
;;;; functions of the protocol that the code of dispatch and answers calls.

(in-package #:clgrpc.server)

(defstruct (protocol (:copier nil))
  "A protocol beside gRPC."
  (name nil :type keyword :read-only t) ; the protocol's name in :PROTOCOLS of START-SERVER
  ;; (server table): return a CLAIMER for SERVER, whose routes are those of TABLE; signal MISUSE if
  ;; the protocol cannot serve them. Called when a server starts and when a service is redefined
  (prepare nil :type function :read-only t)
  ;; (server http-method target fields): return the PLAIN-ANSWER to a request of the protocol that
  ;; has no route and no handler; nil for a request of another protocol
  (unrouted nil :type (or null function) :read-only t))

(defstruct (protocol-handler (:copier nil))
  "The functions of a protocol for its calls, in addition to their operations. All functions but
POST-REPLY run on the loop. Protocols include this structure."
  (name nil :type keyword :read-only t) ; the name of the protocol, for observers
  ;; (call octets start end last): more of the request's body, valid only during the call; LAST if
  ;; the body is whole with it
  (receive nil :type function :read-only t)
  (whole nil :type function :read-only t) ; (call): the body is whole. The half-close follows
  ;; (call message): send the only answer and finish the call with :ok, and return true; or return
  ;; false, with nothing done: then POST-REPLY is to be called with the baton lent
  (reply nil :type function :read-only t)
  (post-reply nil :type function :read-only t) ; (call message): the same as REPLY, from any thread
  (begun nil :type (or null function) :read-only t) ; (call): the call has been admitted
  (finish nil :type function :read-only t) ; (call): the call has ended: write the end of its answer
  (writable nil :type function :read-only t)) ; (call): over HTTP/1.1 the peer has taken output

(defstruct (claim (:copier nil))
  "The result of a protocol for the head of a request. A claim is immutable, and kept with the head
for requests that repeat it. Protocols include this structure."
  (handler nil :type protocol-handler :read-only t) ; the handler of the protocol
  (operations nil :type rpc:operations :read-only t) ; the operations of the call
  (route nil :type (or null server-route) :read-only t) ; nil with a rejection only
  (fields #() :type simple-vector :read-only t) ; the metadata, HPACK's fields
  (http-method "POST" :type string :read-only t) ; the method of the HTTP request
  (timeout nil :type (or null (unsigned-byte 62)) :read-only t) ; the time-out in nanoseconds
  ;; the encoding of compressed messages, or nil
  (incoming nil :type (or null encoding:encoding) :read-only t)
  (accepted '() :type list :read-only t) ; the encodings that the client can read
  (rejection '() :type list :read-only t)) ; a status and a text if the request cannot become a call

(declaim (sb-ext:freeze-type protocol))

(define-printer (protocol protocol)
  "~(~A~)" (protocol-name protocol))

(define-printer (protocol-handler protocol-handler)
  "~(~A~)" (protocol-handler-name protocol-handler))

(define-printer (claim claim)
  "~(~A~) ~A" (protocol-handler-name (claim-handler claim)) (claim-route claim))

(document-functions
  protocol-name "The keyword of PROTOCOL in the :PROTOCOLS of START-SERVER."
  protocol-handler-name "The keyword of PROTOCOL-HANDLER's protocol."
  claim-handler "The functions of CLAIM's protocol for its calls."
  claim-route "The route of the calls that CLAIM makes."
  claim-http-method "The method of CLAIM's request, such as \"GET\".")

(defglobal **protocols** '())

(defun register-protocol (protocol)
  "Register PROTOCOL under its name, in place of an earlier one of that name, and return it. From
any thread."
  (setf **protocols** (cons protocol
                            (remove (protocol-name protocol) **protocols** :key #'protocol-name)))
  protocol)

(defun protocol-names ()
  "The names of all loaded protocols other than gRPC, for START-SERVER's :PROTOCOLS. From any
thread."
  (sort (mapcar #'protocol-name **protocols**) #'string<))

(defun find-protocols (names)
  "The protocols other than gRPC among NAMES, the :PROTOCOLS of START-SERVER. Signal MISUSE if one
of NAMES is not known."
  (unless (listp names) (misuse ":protocols is a list of keywords, not ~S." names))
  (loop for name in (remove-duplicates names :from-end t)
        unless (eq :grpc name)
          collect (or (find name **protocols** :key #'protocol-name)
                      (misuse "~(~S~) is not a protocol~@[ (is it :~A?)~]; the protocols ~
                               are :grpc~{, ~(~S~)~}."
                              name
                              (and (typep name '(or symbol string))
                                   (suggested-name (string-downcase name)
                                                   (mapcar #'string-downcase (protocol-names))))
                              (protocol-names)))))

(defun prepare-claimers (server protocols table)
  "The claimers of PROTOCOLS for SERVER with the routes of TABLE, a list. The last claimer answers
requests that have no route and no handler."
  (append (loop for protocol in protocols
                collect (funcall (protocol-prepare protocol) server table))
          (let ((functions (remove nil (mapcar #'protocol-unrouted protocols))))
            (and functions
                 (list (lambda (http-method target fields)
                         (and (not (exchange:answers-p (server-router server) target))
                              (loop for function in functions
                                    thereis (funcall (the function function) server http-method
                                                     target fields)))))))))

(defun claim-request (claimers http-method target fields)
  "The CLAIM or PLAIN-ANSWER of the first of CLAIMERS that returns one for the request, or nil.
FIELDS are the fields of the request's head, in HPACK's form."
  (loop for claimer in claimers
          thereis (funcall (the function claimer) http-method target fields)))
