;;;; The server object and its links. All later files use these structures; server.lisp has the
;;;; functions of the server.

(in-package #:clgrpc.server)

(defglobal **servers** (make-registry)
  "The servers that have not stopped, a registry.")

(defclass wire-server (server)
  ((credentials :initarg :credentials :reader server-credentials) ; the credentials for TLS, or nil
   (server-loops :initform '() :accessor server-loops) ; one SERVER-LOOP for each loop
   (listeners :initform '() :accessor server-listeners) ; one listener for each address
   ;; the argument :EXECUTION of START-SERVER
   (execution :initarg :execution :reader server-execution)
  ;; beside gRPC, a list
  (protocols :initarg :protocols :initform '() :reader server-protocols)
  ;; the origins of web pages that may call, see START-SERVER
  (origins :initarg :origins :initform '() :reader server-origins)
  ;; the claimers of PROTOCOLS for the present services
  (claimers :initform '() :accessor server-claimers)
  (router :initform nil :accessor server-router) ; the router of plain requests, or nil
   (loop-count :initarg :loop-count :reader server-loop-count) ; the number of its loops
   ;; the account of the octets that all links hold
   (account :initform (make-account **process-account**) :reader server-account)
   (admission :accessor server-admission) ; admits connections of peers: see admission.lisp
   ;; a list of T while the server has been asked to give way, else of NIL
   (asked-to-give-way :initform (list nil) :reader server-asked-to-give-way)
   (refusals :accessor server-refusals) ; the server's refusals that are not logged yet
   ;; the encoding of answers, unless a call has another
   (encoding :initarg :encoding :reader server-encoding)
   ;; the server's number and its events in channelz
   (channel-trace :initarg :channel-trace :reader server-channel-trace)
   (sockets :initform '() :accessor server-sockets) ; an alist from number to listener
   ;; the functions of CALL-BEFORE-STOP; under the lock
   (stop-functions :initform '() :accessor server-stop-functions)
   ;; guards the routes, the state and STOP-FUNCTIONS
   (routes-lock :initform (sb-thread:make-mutex :name "clgrpc server routes")
                :reader server-routes-lock)
   (watcher :initform nil :accessor server-watcher) ; a function that ends WATCH-SERVICES
   ;; :starting, :serving, :draining or :stopped
   (state :initform :starting :accessor server-state))
  (:documentation "A server over the network, which also serves calls within the image."))

(defun server-stopping-p (server)
  "True once SERVER stops, or has stopped. From any thread."
  (and (member (server-state server) '(:draining :stopped)) t))

(document-functions
  server-origins "The :ORIGINS that START-SERVER was given."
  server-credentials "The TLS credentials of SERVER, from START-SERVER; nil without TLS."
  server-loops "The server loops of SERVER, one for each of its loops."
  server-channel-trace "The channelz trace of SERVER: its number and its events."
  server-sockets "An alist from the channelz numbers of SERVER's listening sockets to its
listeners.")

(defstruct (server-connection-protocol (:include wire:connection-protocol) (:copier nil))
  "The functions of a connection that does not speak HTTP/2, or not yet."
  (drain nil :type function :read-only t)) ; (link): end the link when nothing is under way

(declaim (sb-ext:freeze-type wire:connection-protocol))

(defstruct (server-link (:include link) (:constructor make-server-link (loop options owner))
                        (:copier nil))
  "A connection of a server's."
  (posted 0 :type sb-ext:word)          ; octets of answers on their way to the loop; atomic
  (place 0 :type index)                 ; the link's place among the links of its server loop
  (permit nil)                          ; the PERMIT of the connection: see admission.lisp
  (peer-view nil)                       ; the server loop's PEER-VIEW: see admission.lisp
  ;; the timer that ends the wait for its first octets
  (opening nil :type (or null timer))
  (queries-due 0 :type nanoseconds)     ; when TAKE-QUERY-OCTETS allows the whole burst again
  ;; the state of HTTP/1.1, if the link speaks that
  (http1 nil :type (or null exchange:http1-connection)))

(declaim (sb-ext:freeze-type server-link))
