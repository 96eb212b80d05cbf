;;;; Workflows as they are written in Lisp: lists of steps, and what they mean.
;;;;
;;;;     (define-workflow order
;;;;       (:task "charge" :attempts 5 :attempt-timeout 30)
;;;;       (:wait 3600)
;;;;       (:signal "approved" :timeout 86400)
;;;;       (:task "ship"))

(in-package #:clgrpc.workflow)

(defun payload-octets (payload)
  "PAYLOAD, a string, octets, a message or nil, as octets. Signal MISUSE if it is none of these."
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

(defun step-of (form)
  "The Step that FORM, a list or a Step, means. Signal MISUSE if it is none."
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
          (t (misuse "~S is no step: (:task KIND …), (:wait SECONDS), (:until UNIX-SECONDS) or ~
                      (:signal NAME …)." form))))))

(defglobal **workflows** (make-hash-table :test 'eq :synchronized t)) ; from name to a list of steps

(defun find-workflow-steps (name)
  "Return the steps of the workflow NAME, a symbol, as DEFINE-WORKFLOW has them. Signal MISUSE if
there is none. From any thread."
  (or (gethash name **workflows**) (misuse "There is no workflow ~S." name)))

(defun steps-of (steps)
  "The Steps that STEPS, a list of forms or the name of a workflow, mean."
  (mapcar #'step-of (if (and steps (symbolp steps)) (find-workflow-steps steps) steps)))

(defmacro define-workflow (name &body steps)
  "Define NAME, a symbol, as the workflow of STEPS, none of which is evaluated. A step is a string,
or
 (:task KIND &key name input attempts backoff max-backoff factor attempt-timeout timeout), which a
   worker does; a string alone is a task of that kind. INPUT, a string, is what it gets instead of
   what the step before it has brought. It is tried ATTEMPTS times (10), with pauses of BACKOFF
   seconds (1), then FACTOR (2) times as long each, up to MAX-BACKOFF (60); an attempt may take
   ATTEMPT-TIMEOUT seconds;
 (:wait SECONDS &key name), from when it begins, or (:until UNIX-SECONDS &key name);
 (:signal NAME &key name timeout), until SIGNAL-WORKFLOW gives it one of NAME, whose payload it
   brings.
A step that takes longer than TIMEOUT seconds fails, and so does its workflow. START-WORKFLOW takes
NAME; a workflow that has been started keeps the steps that it was started with. Signal MISUSE for
what is no step."
  `(progn
     (setf (gethash ',name **workflows**) (mapcar #'step-of ',steps))
     ',name))
