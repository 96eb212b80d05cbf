;;;; Refusals as conditions. A node and a client use the same conditions: decisions signal them at
;;;; the node, and the client makes them from the details of the call's status.

(in-package #:clgrpc.workflow)

(define-condition workflow-error (clgrpc-error)
  ((text :initarg :text :initform "" :reader workflow-error-text) ; the error, as text
   (cause :initarg :cause :initform nil :reader workflow-error-cause) ; the RPC-ERROR, or nil
   (limit :initarg :limit :initform nil :reader workflow-error-limit) ; the name of a limit, or nil
   (most :initarg :most :initform nil :reader workflow-error-most) ; the limit's value
   (actual :initarg :actual :initform nil :reader workflow-error-actual)) ; the value that exceeded
                                                                          ; the limit
  (:report (lambda (condition stream)
             (format stream "~A~@[ (~A: ~A at most~@[, not ~A~])~]" (workflow-error-text condition)
                     (workflow-error-limit condition) (workflow-error-most condition)
                     (workflow-error-actual condition))))
  (:documentation "The workflow service has refused a request, or could not handle it."))

(document-functions
  workflow-error-text "Return the description of the error, a string."
  workflow-error-cause "The RPC-ERROR that reported the error; nil if no RPC reported it."
  workflow-error-limit "The name of the limit that was exceeded, a string; nil if no limit was
exceeded."
  workflow-error-most "Return the value of the limit that was exceeded; nil if no limit was
exceeded."
  workflow-error-actual "Return the value that exceeded the limit; nil if it is not known, or no
limit was exceeded.")

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defparameter *refusals* '())

  (defun refusal-row (code)
    (or (assoc code *refusals*) (error "There is no refusal named ~S." code))))

(defmacro define-refusals (&body rows)
  "Define conditions; each row is the CODE in a Refusal, the status of the call, and documentation.
The condition has the code's name."
  `(progn
     (eval-when (:compile-toplevel :load-toplevel :execute)
       (setf *refusals* ',(loop for (code status) in rows
                                collect (list code (intern (symbol-name code)) status))))
     ,@(loop for (code nil documentation) in rows
             collect `(define-condition ,(intern (symbol-name code)) (workflow-error) ()
                        (:documentation ,documentation)))))

(define-refusals
  (:workflow-not-found :not-found "No workflow has this id, or it was deleted.")
  (:workflow-exists :already-exists "Another workflow has this id: its steps, input, type or time
differ.")
  (:workflow-closed :failed-precondition "The workflow has ended.")
  (:workflow-running :failed-precondition "The workflow has not ended, so it is not deleted.")
  (:schedule-not-found :not-found "No schedule has this id.")
  (:schedule-exists :already-exists "Another schedule has this id.")
  (:claim-lost :aborted "The task no longer belongs to the worker that reports it. Its session had
ended, or the attempt's time was over, and another worker has the task now or will get it; or the
worker has reported another result before. Nothing was recorded.")
  (:session-lost :failed-precondition "The session has ended: no heartbeat of its worker has arrived
for the session's time. The tasks that it had claimed are given to others.")
  (:invalid-request :invalid-argument "The request is invalid: a name that is empty or has a /, a
step that does nothing, a negative time.")
  (:too-large :invalid-argument "Something is larger than a limit allows.")
  (:backlog-full :resource-exhausted "A limit, such as that of workflows, of waiting claims or of
the store's octets, is reached; try again later.")
  (:store-unavailable :unavailable "The store has not answered in time, or changed too often
meanwhile. The request may have been done; it can be sent again unchanged.")
  (:changes-compacted :out-of-range "The store has compacted changes since the requested revision,
and cannot report them one by one. List the workflows, and watch from now on.")
  (:access-denied :permission-denied "The peer may not do this: no permission gives it the role, or
the session belongs to another peer.")
  (:store-full :resource-exhausted "The store is full; it accepts nothing until its operator frees
space.")
  (:store-forbids :failed-precondition "The store does not permit this to the node: its user lacks
the right, or is unknown."))

(defun refuse (code control &rest arguments)
  "Signal the workflow error of CODE, with a text."
  (error (second (refusal-row code)) :text (apply #'format nil control arguments)))

(defun refuse-size (code limit most actual control &rest arguments)
  "Signal the workflow error of CODE: the limit LIMIT, a keyword, is MOST, and the actual number is
ACTUAL."
  (error (second (refusal-row code)) :text (apply #'format nil control arguments)
                                     :limit (string-downcase limit) :most most :actual actual))

(defun refusal-status (condition)
  "Two values: the status of the call that CONDITION, a workflow error, ends, and the Refusal in its
details."
  (destructuring-bind (code type status)
      (find (type-of condition) *refusals* :key #'second)
    (declare (ignore type))
    (values status
            (pb:make-refusal :code code :text (workflow-error-text condition)
                             :limit (or (workflow-error-limit condition) "")
                             :most (or (workflow-error-most condition) 0)
                             :actual (or (workflow-error-actual condition) 0)))))

(defun workflow-condition (error)
  "The condition for users of a workflow service that corresponds to ERROR, an RPC-ERROR."
  (let* ((refusal (status:rpc-error-detail error 'pb:refusal))
         (row (and refusal (assoc (pb:refusal-code refusal) *refusals*))))
    (if row
        (let ((limit (pb:refusal-limit refusal)))
          (make-condition (second row) :text (pb:refusal-text refusal) :cause error
                          :limit (and (string/= "" limit) limit)
                          :most (and (string/= "" limit) (pb:refusal-most refusal))
                          :actual (and (string/= "" limit) (pb:refusal-actual refusal))))
        (make-condition 'workflow-error :text (bounded-text error) :cause error))))

(defmacro with-workflow-errors (&body body)
  "Evaluate BODY; signal an RPC-ERROR in it as the corresponding workflow error."
  `(handler-case (progn ,@body)
     (status:rpc-error (error) (error (workflow-condition error)))))
