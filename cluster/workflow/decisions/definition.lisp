;;;; Workflows as they are written in Lisp: lists of steps, and their translation.
;;;;
;;;;     (define-workflow order
;;;;       (:task "charge" :attempts 5 :attempt-timeout 30)
;;;;       (:wait 3600)
;;;;       (:signal "approved" :timeout 86400)
;;;;       (:task "ship"))

(in-package #:clgrpc.workflow)

(defun payload-octets (payload)
  "PAYLOAD, a string, octets, a message or nil, as octets. Signal MISUSE for another type."
  (typecase payload
    (null (make-octets 0))
    (string (string-octets payload))
    ((vector octet) (coerce payload 'octets))
    (protobuf:message (protobuf:serialize payload))
    (t (misuse "A payload is a string, octets, a message or nil, not ~S." payload))))

(defun duration-ms (seconds)
  "SECONDS, a real or nil, as milliseconds, at least 1; 0 for nil."
  (cond ((null seconds) 0)
        ((and (realp seconds) (<= 0 seconds (/ +longest-ms+ 1000)))
         (max 1 (ceiling (* 1000 seconds))))
        (t (misuse "A time is seconds, from 0, not ~S." seconds))))

(defun task-step (kind &key name (input nil input-p) attempts backoff max-backoff factor
                         attempt-timeout timeout)
  (check-type kind string)
  (check-type attempts (or null (integer 1 1000000)))
  (check-type factor (or null (real 1 1000)))
  (let ((step (pb:make-step :name (or name "") :task kind :max-attempts (or attempts 0)
                            :backoff-ms (duration-ms backoff)
                            :max-backoff-ms (duration-ms max-backoff)
                            :backoff-factor (or factor 0)
                            :attempt-timeout-ms (duration-ms attempt-timeout)
                            :timeout-ms (duration-ms timeout))))
    (when input-p (setf (pb:step-input step) (payload-octets input)))
    step))

(defun type-of-steps (steps)
  "The type of a workflow of STEPS, a list or the name of a workflow, if its user gives no type."
  (if (and steps (symbolp steps)) (string-downcase steps) ""))

(defun child-of (steps &key type (input nil input-p) timeout)
  "The Child of STEPS, a list of forms or the name of a workflow."
  (let ((child (pb:make-child :type (or type (type-of-steps steps)) :steps (steps-of steps)
                              :timeout-ms (duration-ms timeout))))
    (when input-p (setf (pb:child-input child) (payload-octets input)))
    child))

(defun children-step (children &key (name "") timeout (failures :fail) abandon)
  "The Step that starts CHILDREN, a list of Childs."
  (check-type failures (member :fail :report))
  (pb:make-step :name name :timeout-ms (duration-ms timeout)
                :children (pb:make-children :children children :abandon (and abandon t)
                                            :report-failures (eq :report failures))))

(defun fork-step (verb arguments)
  "The Step that starts workflows, for a form with VERB and ARGUMENTS."
  (ecase verb
    (:parallel (children-step (mapcar #'child-of arguments)))
    (:children (destructuring-bind (children &rest options) arguments
                 (apply #'children-step
                        (mapcar (lambda (child) (apply #'child-of (alexandria:ensure-list child)))
                                children)
                        options)))
    (:child (destructuring-bind (steps &rest options &key name timeout failures abandon
                                 &allow-other-keys)
                arguments
              (declare (ignore name timeout failures abandon))
              (let ((own '(:name :failures :abandon)))
                (apply #'children-step
                       (list (apply #'child-of steps (apply #'alexandria:remove-from-plist options
                                                            own)))
                       (loop for (key value) on options by #'cddr
                             when (member key own) append (list key value))))))))

(defun step-of (form)
  "The Step that FORM, a list or a Step, means. Signal MISUSE if FORM is not a step."
  (if (pb:step-p form)
      form
      (destructuring-bind (&optional verb argument &rest options)
          (cond ((stringp form) (list :task form))
                ((listp form) form)
                (t '()))
        (case verb
          (:task (apply #'task-step argument options))
          (:wait (destructuring-bind (&key (name "")) options
                   (pb:make-step :name name :wait-ms (duration-ms argument))))
          (:until (destructuring-bind (&key (name "")) options
                    (check-type argument (real 0))
                    (pb:make-step :name name :until-unix-ms (ceiling (* 1000 argument)))))
          (:signal (destructuring-bind (&key (name "") timeout) options
                     (check-type argument string)
                     (pb:make-step :name name :signal argument :timeout-ms (duration-ms timeout))))
          ((:parallel :child :children) (fork-step verb (rest form)))
          (t (misuse "~S is not a step, such as (:task KIND …), (:wait SECONDS), (:until ~
                      UNIX-SECONDS), (:signal NAME …), (:parallel STEPS …), (:child STEPS …) or ~
                      (:children (CHILD …) …)." form))))))

(defglobal **workflows** (make-hash-table :test 'eq :synchronized t)) ; from name to a list of steps

(defun find-workflow-steps (name)
  "Return the steps of the workflow NAME, a symbol, in the form given to DEFINE-WORKFLOW. Signal
MISUSE if NAME is not defined. From any thread."
  (or (gethash name **workflows**)
      (misuse "No workflow has the name ~S; DEFINE-WORKFLOW defines workflows." name)))

(defun steps-of (steps)
  "The Steps that STEPS describes, a list of forms or the name of a workflow."
  (mapcar #'step-of (if (and steps (symbolp steps)) (find-workflow-steps steps) steps)))

(defmacro define-workflow (name &body steps)
  "Define NAME, a symbol, as the workflow of STEPS, which are not evaluated. A step is a string or
one of these lists:
 (:task KIND &key name input attempts backoff max-backoff factor attempt-timeout timeout): a task
   for a worker; a string is a task of that kind. The task gets INPUT, a string, or by default the
   result of the previous step. The task is tried ATTEMPTS times (10), with pauses of BACKOFF
   seconds (1), then FACTOR (2) times as long each, up to MAX-BACKOFF (60); an attempt may take
   ATTEMPT-TIMEOUT seconds, by default the limit of the nodes (an hour);
 (:wait SECONDS &key name), from the beginning of the step, or (:until UNIX-SECONDS &key name);
 (:signal NAME &key name timeout), until SIGNAL-WORKFLOW gives it a signal of NAME, whose payload is
   its result;
 (:parallel STEPS STEPS …), lists of steps, each of which is done as a workflow of its own, a child,
   until all have ended;
 (:child STEPS &key type input timeout name failures abandon), one child, whose STEPS are a list or
   the name of a defined workflow; it fails when TIMEOUT seconds are over;
 (:children (CHILD …) &key name timeout failures abandon), several: each the name of a workflow, or
   a list (STEPS &key type input timeout).
Children get the input that a task in their place would get. The result of such a step is
a CLGRPC.WORKFLOW.V1:CHILD-RESULTS, see CHILD-RESULTS. If a child fails or is cancelled, the step
fails; with FAILURES :report it succeeds, and its result contains the failure. Children are
cancelled when their parent ends first, unless ABANDON is true. A step that takes longer than
TIMEOUT seconds fails, and so does its workflow. START-WORKFLOW accepts NAME; a workflow that was
started keeps the steps with which it was started. Signal MISUSE for a form that is not a step."
  `(progn
     (setf (gethash ',name **workflows**) (mapcar #'step-of ',steps))
     ',name))
