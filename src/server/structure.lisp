;;;; The server object, which the files after this share; what it does is in server.lisp.

(in-package #:clgrpc.server)

(defclass server ()
  ((services :initarg :services :reader server-services)
   (options :initarg :options :reader server-options)
   (credentials :initarg :credentials :reader server-credentials)
   (hubs :initform '() :accessor server-hubs)
   (listeners :initform '() :accessor server-listeners)
   (entrances :initform '() :accessor server-entrances)
   (execution :initarg :execution :reader server-execution)
   (loop-count :initarg :loop-count :reader server-loop-count)
   (ledger :initform (wire:make-ledger) :reader server-ledger)
   (census :accessor server-census)
   (refusals :accessor server-refusals)
   (interceptors :initarg :interceptors :initform '() :reader server-interceptors)
   (encoding :initarg :encoding :reader server-encoding)
   (watcher :initform nil :accessor server-watcher)
   (reserve :initarg :reserve :reader server-reserve)
   (state :initform :starting :accessor server-state)
   (lock :initform (sb-thread:make-mutex :name "clgrpc server") :reader server-lock)
   (emptied :initform (sb-thread:make-waitqueue) :reader server-emptied))
  (:documentation "A gRPC server; made by START-SERVER, ended by STOP-SERVER."))

(document-functions
  server-services "The service objects of SERVER."
  server-options "The options, rows of the options table, with which SERVER runs."
  server-entrances "The ENTRANCEs of SERVER, by which calls within the image come."
  server-interceptors "The functions around the handlers of SERVER, the outermost first."
  server-reserve "The reserve of threads on which handlers of SERVER run that block.")
