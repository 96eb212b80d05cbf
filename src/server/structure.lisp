;;;; The server object, which the files after this share; what it does is in server.lisp.

(in-package #:clgrpc.server)

(defclass server ()
  ((services :initarg :services :reader server-services) ; service objects
   (options :initarg :options :reader server-options) ; rows of the options table
   (credentials :initarg :credentials :reader server-credentials) ; for TLS, or NIL
   (hubs :initform '() :accessor server-hubs) ; one for each loop
   (listeners :initform '() :accessor server-listeners) ; on sockets
   (entrances :initform '() :accessor server-entrances) ; within the image
   (execution :initarg :execution :reader server-execution) ; where handlers run
   (loop-count :initarg :loop-count :reader server-loop-count) ; how many hubs there are to be
   (ledger :initform (wire:make-ledger) :reader server-ledger) ; octets of all its connections
   (census :accessor server-census)     ; its peers
   (refusals :accessor server-refusals) ; what it has refused, for the log
   (interceptors :initarg :interceptors :initform '() :reader server-interceptors) ; around handlers
   (encoding :initarg :encoding :reader server-encoding) ; of answers, or NIL
   (watcher :initform nil :accessor server-watcher) ; called when a service is defined
   (reserve :initarg :reserve :reader server-reserve) ; threads for handlers that block
   (state :initform :starting :accessor server-state) ; then :serving, :draining and :stopped
   (lock :initform (sb-thread:make-mutex :name "clgrpc server") :reader server-lock) ; for EMPTIED
   (emptied :initform (sb-thread:make-waitqueue) :reader server-emptied)) ; connections have ended
  (:documentation "A gRPC server; made by START-SERVER, ended by STOP-SERVER."))

(document-functions
  server-services "The service objects of SERVER."
  server-options "The options, rows of the options table, with which SERVER runs."
  server-entrances "The ENTRANCEs of SERVER, by which calls within the image come."
  server-interceptors "The functions around the handlers of SERVER, the outermost first."
  server-reserve "The reserve of threads on which handlers of SERVER run that block.")
