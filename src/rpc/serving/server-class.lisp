;;;; The class of servers for all transports: services, the interceptors around their handlers, and
;;;; threads.
;;;;
;;;; An ACCEPTOR brings calls into a server besides its listeners: the in-process transport has one.
;;;; A server that stops closes its acceptors, and waits for their calls as for its connections.

(in-package #:clgrpc.serving)

(defclass server ()
  ((services :initarg :services :reader server-services) ; the service objects
   (options :initarg :options :reader server-options) ; rows of the options table
   ;; functions around the handlers, the outermost first
   (interceptors :initarg :interceptors :initform '() :reader server-interceptors)
   ;; the observer of its events, or nil
   (observer :initarg :observer :initform nil :reader server-observer)
   ;; the reserve of threads, for handlers that block
   (reserve :initarg :reserve :reader server-reserve)
   ;; the acceptors for calls within the image
   (acceptors :initform '() :accessor server-acceptors)
   (accepting :initform t :accessor server-accepting) ; nil once the acceptors are closed
   ;; guards the acceptors and the end
   (lock :initform (sb-thread:make-mutex :name "clgrpc server") :reader server-lock)
   ;; see NOTE-EMPTIED
   (emptied :initform (sb-thread:make-waitqueue :name "clgrpc server emptied")
            :reader server-emptied))
  (:documentation "A gRPC server; made by START-SERVER, ended by STOP-SERVER."))

(document-functions
  server-services "The service objects of SERVER."
  server-options "The options, rows of the options table, with which SERVER runs."
  server-observer "The OBSERVER of SERVER; nil if SERVER has none."
  server-interceptors "The interceptors of SERVER, in the form of CHECK-INTERCEPTORS."
  server-reserve "The reserve whose threads run those handlers of SERVER that block."
  server-lock "The lock that guards SERVER's acceptors and its end."
  server-emptied "The queue on which threads wait for NOTE-EMPTIED.")

(defgeneric acceptor-state (acceptor)
  (:documentation "Three values: the address for clients of ACCEPTOR, a string, or nil; true if
calls that it has accepted are under way; and the number of its calls that have ended. When the last
call under way ends after CLOSE-ACCEPTOR, NOTE-EMPTIED is called. If ACCEPTOR is a server, the
values describe all of its acceptors together; the first value is a list of addresses."))

(defgeneric close-acceptor (acceptor &optional status text)
  (:documentation "Make ACCEPTOR refuse new calls; if STATUS and TEXT are given, end the calls that
it has accepted with STATUS and TEXT. If ACCEPTOR is a server, this applies to all of its acceptors,
including later ones."))

(defun ensure-acceptor (server predicate make)
  "The acceptor of SERVER for which PREDICATE is true; if there is none, add and return the value of
MAKE, which is closed if SERVER's acceptors are closed."
  (flet ((find-acceptor () (find-if predicate (server-acceptors server))))
    (or (find-acceptor)
        (multiple-value-bind (acceptor accepting)
            (sb-thread:with-mutex ((server-lock server))
              (values (or (find-acceptor)
                          (first (push (funcall make) (server-acceptors server))))
                      (server-accepting server)))
          (unless accepting (close-acceptor acceptor))
          acceptor))))

(defmethod acceptor-state ((server server))
  (let ((addresses '()) (busy nil) (ended 0))
    (dolist (acceptor (server-acceptors server) (values addresses busy ended))
      (multiple-value-bind (address its-busy its-ended) (acceptor-state acceptor)
        (when address (setf addresses (append addresses (list address))))
        (when its-busy (setf busy t))
        (incf ended its-ended)))))

(defmethod close-acceptor ((server server) &optional status text)
  (dolist (acceptor (sb-thread:with-mutex ((server-lock server))
                      (setf (server-accepting server) nil)
                      (server-acceptors server)))
    (close-acceptor acceptor status text)))

(defun note-emptied (server)
  "Wake the threads in AWAIT-EMPTIED, since calls or connections of SERVER, which stops, have
ended."
  (sb-thread:with-mutex ((server-lock server))
    (sb-thread:condition-broadcast (server-emptied server))))

(defun await-emptied (server seconds function)
  "Wait, at most SECONDS, until FUNCTION returns true; FUNCTION is called again after each
NOTE-EMPTIED of SERVER. Return the last value of FUNCTION."
  (loop:await-until (server-emptied server) (server-lock server) (loop:notice-end seconds)
                    function))
