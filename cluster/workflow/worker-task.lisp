;;;; Tasks in the form that the functions of a worker get, and those functions by kind.

(in-package #:clgrpc.workflow)

(defstruct (task (:constructor make-task (message until-ns)) (:copier nil))
  "A task that this worker has claimed."
  (message nil :type pb:task :read-only t) ; the node's message
  ;; the time at which the attempt must have ended
  (until-ns nil :type (or null (integer 0)) :read-only t)
  (lost nil :type boolean))             ; true: other workers have the task, or will get it

(declaim (sb-ext:freeze-type task))

(document-functions
  make-task "Make the argument of a function of DEFINE-STEP from MESSAGE, a Task; the worker calls
this."
  task-p "True of tasks.")

(define-printer (task task)
  "~A of ~A, attempt ~D~:[~;, lost~]" (task-kind task) (task-id task) (task-attempt task)
  (task-lost task))

(defun task-id (task)
  "Return the id of the workflow of TASK, a string. From any thread."
  (pb:task-id (task-message task)))

(defun task-kind (task)
  "Return the kind of TASK, a string. From any thread."
  (pb:task-kind (task-message task)))

(defun task-name (task)
  "Return the name of TASK's step, a string. From any thread."
  (pb:task-name (task-message task)))

(defun task-input (task)
  "Return the input of TASK, octets: the result of the previous step, or its workflow's input. From
any thread."
  (pb:task-input (task-message task)))

(defun task-text (task)
  "Return the input of TASK, which is UTF-8, as a string. From any thread."
  (octets-string (task-input task)))

(defun child-results (octets)
  "Return the results of children from OCTETS, the result of the step that has started them: a list
of CLGRPC.WORKFLOW.V1:CHILD-RESULTs in the order of the children, each with an id, a status, a
result (octets) and a reason. From any thread."
  (coerce (pb:child-results-results (protobuf:parse-message 'pb:child-results octets)) 'list))

(defun task-results (task)
  "Return the results of the children that the previous step has started, a list of octets in the
order of the children. CHILD-RESULTS of the input of TASK returns more. From any thread."
  (mapcar #'pb:child-result-result (child-results (task-input task))))

(defun task-fence (task)
  "Return the fencing number of TASK, an integer above that of every earlier claim of its workflow.
A resource that a step changes can store the number, and refuse requests with a lower one. From any
thread."
  (pb:task-fence (task-message task)))

(defun task-attempt (task)
  "Return the number of this attempt of the step, from 1. From any thread."
  (pb:task-attempt (task-message task)))

(defun task-losses (task)
  "Return how often in a row TASK was lost with its worker, from 0. From the third loss on a task is
done alone, since the task may itself end its workers. From any thread."
  (pb:task-losses (task-message task)))

(defun task-held-p (task)
  "True if TASK, as far as this worker knows, is still its own. When TASK-HELD-P is false, a report
would be refused, so further work is useless. From any thread."
  (and (not (task-lost task))
       (or (null (task-until-ns task)) (< (loop:world-now) (task-until-ns task)))))

(define-condition step-failed (clgrpc-error)
  ((text :initarg :text :reader step-failed-text) ; the reason, for the history
   (retry :initarg :retry :reader step-failed-retry-p)) ; true if another attempt may succeed
  (:report (lambda (condition stream) (write-string (step-failed-text condition) stream)))
  (:documentation "The condition that FAIL-STEP signals."))

(defun fail-step (text &key (retry t))
  "End the attempt in which this is called as failed, because of TEXT, a string. Without RETRY the
step is not tried again, and its workflow fails. On the thread of the step's function."
  (error 'step-failed :text text :retry retry))

(defun continue-as-new (steps &key input timeout)
  "Return an object that makes the workflow begin again, under the same id, when a function of
DEFINE-STEP returns it. The new STEPS are as for START-WORKFLOW; the first gets INPUT, a string,
octets, a message or nil. The remaining steps and the history are dropped; the workflow fails when
TIMEOUT seconds are over. Signal MISUSE for a form that is not a step. From any thread."
  (pb:make-continuation :steps (steps-of steps) :input (payload-octets input)
                        :timeout-ms (duration-ms timeout)))

(defglobal **steps** (make-hash-table :test 'equal :synchronized t)) ; from kind to a function

(defmacro define-step (kind (task) &body body)
  "Define how workers do tasks of KIND, a string: they evaluate BODY with TASK bound to the task.
BODY returns the result of the step, a string, octets, a message or nil; and, as its second value, a
list of steps, as in DEFINE-WORKFLOW, that are done before the remaining ones. If BODY returns an
object that CONTINUE-AS-NEW has returned, the workflow begins again. An error in BODY, such as that
of FAIL-STEP, ends the attempt; the step is tried again according to its options. Since a worker may
die before its report is recorded, BODY may run more than once for a step; its result is recorded
once. A new definition takes effect with the next task."
  (check-type kind string)
  `(progn
     (setf (gethash ,kind **steps**)
           (lambda (,task) (declare (ignorable ,task)) ,@body))
     ,kind))
