;;;; A node: what serves the service. It has the store, limits, and what its threads share: the
;;;; desk, where claims wait for tasks, and the alarm, which wakes the clock's thread. Nothing of
;;;; this is the truth about a workflow; a node may die at any moment, and others go on.

(in-package #:clgrpc.workflow)

(defstruct (desk (:copier nil))
  "Where claims wait. LOCK guards the rest."
  (lock (sb-thread:make-mutex :name "clgrpc workflow desk") :read-only t) ; of all below
  (bell (sb-thread:make-waitqueue :name "clgrpc workflow desk") :read-only t) ; RETRIES has one more
  (parked '() :type list)               ; claims that wait for a task, the first one first
  (retries '() :type list)              ; claims for which there may be one now, the last one first
  (arrivals (make-hash-table :test 'equal) :read-only t) ; how many tasks of each kind have come
  (taken (make-hash-table :test 'equal) :read-only t) ; ids that this node is about to claim
  (closed nil :type boolean))           ; nothing is to wait here any more

(defstruct (alarm (:copier nil))
  "What wakes the clock's thread. LOCK guards the rest."
  (lock (sb-thread:make-mutex :name "clgrpc workflow alarm") :read-only t) ; of all below
  (bell (sb-thread:make-waitqueue :name "clgrpc workflow alarm") :read-only t) ; it is to look now
  (rung nil :type boolean)              ; it is to look though its time has not come
  (next-ms nil :type (or null integer)) ; when it is to look, as far as it knows
  (ended '() :type list)                ; sessions that have ended, to be looked at
  (lost-watch t :type boolean)          ; there is no watch of the index, or none any more
  (closed nil :type boolean))           ; it is to end

(defclass workflow-service (pb:workflow)
  ((etcd :initarg :etcd :reader node-etcd) ; the store
   (root :initarg :root :reader node-root) ; the beginning of all keys
   (limits :initarg :limits :reader node-limits) ; what workflows and calls may have at most
   (clock :initarg :clock :reader node-clock) ; a function: nanoseconds since 1970
   (health :initarg :health :reader node-health) ; a health service to be told, or nil
   (instruments :initform nil :accessor node-instruments) ; or nil
   (desk :initform (make-desk) :reader node-desk) ; where claims wait
   (alarm :initform (make-alarm) :reader node-alarm) ; that wakes the clock's thread
   (running :initform 0 :accessor node-running) ; workflows, when they were counted last
   (ready :initform 0 :accessor node-ready) ; tasks nobody has claimed, likewise
   (recent :initform (make-hash-table :test 'equal :synchronized t) :reader node-recent) ; SIGHTINGs
   (watches :initform '() :accessor node-watches) ; calls that watch
   (index-watch :initform nil :accessor node-index-watch) ; of the index, or nil
   (threads :initform '() :accessor node-threads) ; the clock's and the claimers
   (random :initform (make-random-state t) :reader node-random) ; under the lock
   (lock :initform (sb-thread:make-mutex :name "clgrpc workflow") :reader node-lock)) ; of the above
  (:documentation "The service clgrpc.workflow.v1.Workflow, see MAKE-WORKFLOW-SERVICE."))

(defmethod print-object ((node workflow-service) stream)
  (print-unreadable-object (node stream :type t)
    (format stream "~A~:[~; closed~], ~D running, ~D ready" (node-root node)
            (desk-closed (node-desk node)) (node-running node) (node-ready node))))

(defun node-now (node)
  "The time at NODE, in milliseconds since 1970."
  (floor (the integer (funcall (the function (node-clock node)))) 1000000))

(defun below (node limit)
  "A random number from 0 to below LIMIT, an integer or a float."
  (sb-thread:with-mutex ((node-lock node)) (random limit (node-random node))))

(defun node-key (node &rest parts)
  (apply #'key (node-root node) parts))

(defun shuffled (node list)
  "LIST in a random order."
  (mapcar #'cdr (sort (mapcar (lambda (item) (cons (below node 1.0) item)) list) #'< :key #'car)))

(defmacro with-store-errors (&body body)
  "Evaluate BODY; an ETCD-ERROR in it is signalled as the workflow error that it is."
  `(handler-case (progn ,@body)
     (etcd:invalid-request (error) (refuse :too-large "the store does not take this: ~A" error))
     (etcd:etcd-error (error) (refuse :store-unavailable "~A" error))))

(defmacro while-open ((node) &body body)
  "Evaluate BODY unless NODE is closed; then signal STORE-UNAVAILABLE."
  `(progn (when (desk-closed (node-desk ,node)) (refuse :store-unavailable "the node is stopping"))
          ,@body))
