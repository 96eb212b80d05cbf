;;;; Refusals as conditions. They are the same at a node, where decisions signal them, and at a
;;;; client, which makes them from the details of the call's status.

(in-package #:clgrpc.workflow)

(define-condition workflow-error (clgrpc-error)
  ((text :initarg :text :initform "" :reader workflow-error-text) ; the error, as text
   (cause :initarg :cause :initform nil :reader workflow-error-cause) ; the RPC-ERROR, or nil
   (limit :initarg :limit :initform nil :reader workflow-error-limit) ; the name of a limit, or nil
   (most :initarg :most :initform nil :reader workflow-error-most) ; its value
   (actual :initarg :actual :initform nil :reader workflow-error-actual)) ; the value that exceeded
                                                                          ; it
  (:report (lambda (condition stream)
             (format stream "~A~@[ (~A: ~A at most~@[, not ~A~])~]" (workflow-error-text condition)
                     (workflow-error-limit condition) (workflow-error-most condition)
                     (workflow-error-actual condition))))
  (:documentation "The workflow service has refused a request, or could not do it."))

(document-functions
  workflow-error-text "Return the description of the error, a string."
  workflow-error-cause "The RPC-ERROR that says so, or nil."
  workflow-error-limit "The name of the limit that was passed, a string, or nil."
  workflow-error-most "Return the value of that limit, or nil."
  workflow-error-actual "Return the value that exceeded the limit, or nil.")

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defparameter *refusals* '())

  (defun refusal-row (code)
    (or (assoc code *refusals*) (error "There is no refusal ~S." code))))

(defmacro define-refusals (&body rows)
  "Define conditions, each a row of the CODE in a Refusal, the status of the call, and
documentation. The condition has the code's name."
  `(progn
     (eval-when (:compile-toplevel :load-toplevel :execute)
       (setf *refusals* ',(loop for (code status) in rows
                                collect (list code (intern (symbol-name code)) status))))
     ,@(loop for (code nil documentation) in rows
             collect `(define-condition ,(intern (symbol-name code)) (workflow-error) ()
                        (:documentation ,documentation)))))

(define-refusals
  (:workflow-not-found :not-found "There is no workflow with this id, or it is forgotten.")
  (:workflow-exists :already-exists "There is a workflow with this id, and it is another one: its
steps, input, type or time differ.")
  (:workflow-closed :failed-precondition "The workflow has ended.")
  (:workflow-running :failed-precondition "The workflow has not ended, so it is not deleted.")
  (:schedule-not-found :not-found "There is no schedule with this id.")
  (:schedule-exists :already-exists "There is a schedule with this id, and it is another one.")
  (:claim-lost :aborted "The task no longer belongs to the worker that reports it: its session had
ended, or the attempt's time was over, and another worker has it now or will get it; or the worker
has reported another result of it before. Nothing was recorded.")
  (:session-lost :failed-precondition "The session has ended: its worker's heartbeats failed for its
time. The tasks that it had claimed go to others.")
  (:invalid-request :invalid-argument "The request is wrong by itself: a name that is empty or has a
/, a step that does nothing, a negative time.")
  (:too-large :invalid-argument "Something is larger than a limit allows.")
  (:backlog-full :resource-exhausted "A limit of the number of workflows, claims or the like is
reached; try again later.")
  (:store-unavailable :unavailable "The store has not answered in time, or changed too often
meanwhile. The request may have been done; it can be sent again as it is.")
  (:changes-compacted :out-of-range "The store no longer has the changes from the requested revision
on one by one. List the workflows, and watch from now on.")
  (:access-denied :permission-denied "The peer may not do this: no permission gives it the role, or
the session is another's.")
  (:store-full :resource-exhausted "The store is full; it takes nothing more until its operator
makes room in it.")
  (:store-forbids :failed-precondition "The store does not let the node do this: its user has not
the right, or is not known."))

(defun refuse (code control &rest arguments)
  "Signal the condition of CODE, with a text."
  (error (second (refusal-row code)) :text (apply #'format nil control arguments)))

(defun refuse-size (code limit most actual control &rest arguments)
  "Signal the condition of CODE: LIMIT, a keyword, allows MOST, and there was ACTUAL."
  (error (second (refusal-row code)) :text (apply #'format nil control arguments)
                                     :limit (string-downcase limit) :most most :actual actual))

(defun refusal-status (condition)
  "The status of the call that CONDITION, a workflow error, ends, and the Refusal in its details."
  (destructuring-bind (code type status)
      (find (type-of condition) *refusals* :key #'second)
    (declare (ignore type))
    (values status
            (pb:make-refusal :code code :text (workflow-error-text condition)
                             :limit (or (workflow-error-limit condition) "")
                             :most (or (workflow-error-most condition) 0)
                             :actual (or (workflow-error-actual condition) 0)))))

(defun workflow-condition (error)
  "The condition that ERROR, an RPC-ERROR, is to the user of a workflow service."
  (let* ((refusal (status:rpc-error-detail error 'pb:refusal))
         (row (and refusal (assoc (pb:refusal-code refusal) *refusals*))))
    (if row
        (let ((limit (pb:refusal-limit refusal)))
          (make-condition (second row) :text (pb:refusal-text refusal) :cause error
                          :limit (and (string/= "" limit) limit)
                          :most (and (string/= "" limit) (pb:refusal-most refusal))
                          :actual (and (string/= "" limit) (pb:refusal-actual refusal))))
        (make-condition 'workflow-error :text (princ-to-string error) :cause error))))

(defmacro with-workflow-errors (&body body)
  "Evaluate BODY; an RPC-ERROR in it is signalled as the workflow error that it is."
  `(handler-case (progn ,@body)
     (status:rpc-error (error) (error (workflow-condition error)))))
