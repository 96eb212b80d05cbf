;;;; The steps that a node accepts from its users. A step that starts children contains the
;;;; children's steps, which are checked, too.

(in-package #:clgrpc.workflow)

(defun check-child (child limits depth)
  (when (string/= "" (pb:child-type child))
    (check-name (pb:child-type child) "the type of a child"))
  (when (minusp (pb:child-timeout-ms child))
    (refuse :invalid-request "the time of a child is negative"))
  (when (zerop (length (pb:child-steps child)))
    (refuse :invalid-request "a child has at least one step"))
  (map nil (lambda (step) (check-step step limits depth)) (pb:child-steps child)))

(defun check-children (children limits depth)
  "Signal an error unless a step can start CHILDREN, a Children; DEPTH is the number of their
ancestors."
  (let ((count (length (pb:children-children children)))
        (most (limits-max-children limits)) (deepest (limits-max-depth limits)))
    (when (zerop count)
      (refuse :invalid-request "a step that starts children has at least one child"))
    (when (> count most) (refuse-size :too-large :max-children most count "too many children"))
    (when (> depth deepest)
      (refuse-size :too-large :max-depth deepest depth "too many children of children"))
    (map nil (lambda (child) (check-child child limits depth)) (pb:children-children children))))

(defun check-step (step limits depth)
  "Signal an error unless STEP, a Step, is valid in a workflow that has DEPTH ancestors."
  (unless (pb:step-action-case step)
    (refuse :invalid-request "a step does nothing: it has neither task, time, signal nor children"))
  (when (string/= "" (pb:step-name step)) (check-name (pb:step-name step) "the name of a step"))
  (case (pb:step-action-case step)
    (:task (check-name (pb:step-task step) "a kind of tasks"))
    (:signal (check-name (pb:step-signal step) "the name of a signal"))
    (:children (check-children (pb:step-children step) limits (1+ depth))))
  (unless (and (every (lambda (ms) (<= 0 ms +longest-ms+))
                      (list (pb:step-wait-ms step) (pb:step-until-unix-ms step)
                            (pb:step-backoff-ms step) (pb:step-max-backoff-ms step)
                            (pb:step-attempt-timeout-ms step) (pb:step-timeout-ms step)))
               (finite-p (pb:step-backoff-factor step))
               (or (zerop (pb:step-backoff-factor step)) (<= 1 (pb:step-backoff-factor step) 1000)))
    (refuse :invalid-request
            "a step's time is negative or too long, or its factor is not from 1 to 1000"))
  step)
