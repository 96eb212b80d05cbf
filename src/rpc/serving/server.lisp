;;;; What a server is, whatever transport carries its calls: services, the interceptors around their
;;;; handlers, and threads.
;;;;
;;;; An ENTRANCE is a way into a server besides its listeners, such as the in-process one. A server
;;;; tells its entrances when it stops, and waits for them as for its connections.

(in-package #:clgrpc.serving)

(defclass server ()
  ((services :initarg :services :reader server-services) ; service objects
   (options :initarg :options :reader server-options) ; rows of the options table
   ;; functions around the handlers, the outermost first
   (interceptors :initarg :interceptors :initform '() :reader server-interceptors)
   (observer :initarg :observer :initform nil :reader server-observer) ; of what it does, or nil
   (reserve :initarg :reserve :reader server-reserve) ; of threads, for handlers that block
   (entrances :initform '() :accessor server-entrances) ; by which calls within the image come
   ;; of the entrances, the routes and the end
   (lock :initform (sb-thread:make-mutex :name "clgrpc server") :reader server-lock)
   ;; see NOTE-EMPTIED
   (emptied :initform (sb-thread:make-waitqueue :name "clgrpc server emptied")
            :reader server-emptied))
  (:documentation "A gRPC server; made by START-SERVER, ended by STOP-SERVER."))

(document-functions
  server-services "The service objects of SERVER."
  server-options "The options, rows of the options table, with which SERVER runs."
  server-observer "The OBSERVER of SERVER, or nil."
  server-interceptors "The interceptors of SERVER, as CHECK-INTERCEPTORS takes them."
  server-reserve "The reserve whose threads run those handlers of SERVER that block."
  server-entrances "The ENTRANCEs of SERVER, by which calls within the image come."
  server-lock "The lock of SERVER's entrances, its routes and its end."
  server-emptied "The queue on which threads wait for NOTE-EMPTIED.")

(defgeneric entrance-address (entrance)
  (:documentation "The address that clients of ENTRANCE give, a string, or nil if it has none."))

(defgeneric close-entrance (entrance)
  (:documentation "Have ENTRANCE begin no more calls."))

(defgeneric entrance-busy-p (entrance)
  (:documentation "True if calls that came by ENTRANCE are under way. When the last of them ends
after CLOSE-ENTRANCE, NOTE-EMPTIED is called."))

(defgeneric abandon-entrance (entrance status text)
  (:documentation "End the calls that came by ENTRANCE with STATUS and TEXT."))

(defgeneric entrance-calls (entrance)
  (:documentation "How many calls that came by ENTRANCE have ended."))

(defun ensure-entrance (server predicate make)
  "The entrance of SERVER for which PREDICATE is true; if there is none, what MAKE returns."
  (flet ((find-entrance () (find-if predicate (server-entrances server))))
    (or (find-entrance)
        (sb-thread:with-mutex ((server-lock server))
          (or (find-entrance)
              (first (push (funcall make) (server-entrances server))))))))

(defun note-emptied (server)
  "Calls or connections of SERVER, which stops, have ended."
  (sb-thread:with-mutex ((server-lock server))
    (sb-thread:condition-broadcast (server-emptied server))))
