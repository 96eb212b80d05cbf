;;;; The conditions of memberships, and the statuses that callers of the service get for them.

(in-package #:clgrpc.cluster)

(define-condition cluster-error (clgrpc-error)
  ((text :initarg :text :reader cluster-error-text)) ; the error, as text
  (:report (lambda (condition stream)
             (format stream "cluster: ~A" (cluster-error-text condition))))
  (:documentation "A membership could not be begun or changed, or has ended."))

(document-functions
  cluster-error-text "Return the description of the error, a string.")

(defmacro define-cluster-errors (&body rows)
  "Define conditions, each a row of NAME, the status that a caller of the service gets for it, and
documentation."
  `(progn
     ,@(loop for (name nil documentation) in rows
             collect `(define-condition ,name (cluster-error) ()
                        (:documentation ,documentation)))
     (defparameter *statuses*
       ',(loop for (name status) in rows collect (list name status))
       "The gRPC statuses that conditions become.")))

(define-cluster-errors
  (name-taken :already-exists "Another member has this name, and IF-TAKEN was :refuse.")
  (superseded :failed-precondition "Another member has this name and a later generation: another
process has taken the name over, or this one has joined again since.")
  (not-a-member :not-found "The cluster has no member of this name: the member has left, or its
  lease has ended.")
  (cluster-full :resource-exhausted "The cluster has as many members as it may have.")
  (access-denied :permission-denied "The peer may not do this, or may not be the member that it asks
to be: no permission gives it the role.")
  (membership-lost :unavailable "The lease has ended, or may have, before it was renewed."))

(defun refuse-membership (condition control &rest arguments)
  "Signal CONDITION, the name of a CLUSTER-ERROR."
  (error condition :text (format nil "~?" control arguments)))

(defparameter *etcd-statuses*
  '((etcd:unavailable :unavailable) (etcd:overloaded :resource-exhausted)
    (etcd:space-exceeded :resource-exhausted) (etcd:access-denied :failed-precondition)
    (etcd:compacted :out-of-range) (etcd:future-revision :out-of-range))
  "The statuses of the store's errors; :internal for all others.")

(defun condition-status (condition)
  "The status that a caller of the service gets for CONDITION."
  (flet ((status-in (table)
           (second (find-if (lambda (row) (typep condition (first row))) table))))
    (typecase condition
      (misuse :invalid-argument)
      (cluster-error (status-in *statuses*))
      (etcd:etcd-error (or (status-in *etcd-statuses*) :internal))
      (t :internal))))
