;;;; The server object. All files after this use it; server.lisp says what it does.

(in-package #:clgrpc.server)

(defclass wire-server (server)
  ((credentials :initarg :credentials :reader server-credentials) ; for TLS, or nil
   (hubs :initform '() :accessor server-hubs) ; one for each loop
   (listeners :initform '() :accessor server-listeners) ; one for each address
   (execution :initarg :execution :reader server-execution) ; what START-SERVER was given
   (loop-count :initarg :loop-count :reader server-loop-count) ; how many loops it is to have
   (ledger :initform (make-ledger) :reader server-ledger) ; of the octets all links hold
   (census :accessor server-census)     ; of the peers: see peer.lisp
   (refusals :accessor server-refusals) ; that the log is to hear of
   (encoding :initarg :encoding :reader server-encoding) ; of answers, if nobody says otherwise
   (watcher :initform nil :accessor server-watcher) ; the function that WATCH-SERVICES has
   ;; :starting, :serving, :draining or :stopped
   (state :initform :starting :accessor server-state))
  (:documentation "A server over the network, which is a server within the image besides."))
