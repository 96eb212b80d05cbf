;;;; Continuations: a workflow begins again, as its next run, under the same id. So a workflow may
;;;; live for ever although the steps and changes of a run are limited. The decision is like the
;;;; decisions in decision.lisp: it does not read the store.
;;;;
;;;; Fences, and the numbers of steps and changes, continue to grow, so data of an earlier run are
;;;; never mistaken for those of this run. The keys of a run's payloads contain its number. The
;;;; transaction that begins the next run removes the payloads and the history of the previous one.
;;;; Two kinds of signals are kept: those that no step has waited for yet; and all other signals of
;;;; the last eight runs that got any, so that a repeated signal counts once.

(in-package #:clgrpc.workflow)

(defun step-reports (step)
  "The list of the reports recorded in STEP, a StepState, in the form in which they are kept when
STEP is removed."
  (map 'list (lambda (recorded)
               (let ((copy (protobuf:copy-message recorded)))
                 (setf (pb:recorded-kind copy) (pb:step-task (pb:step-state-step step)))
                 copy))
       (pb:step-state-recorded step)))

(defun last-reports (state)
  "The last reports that are recorded in STATE, at most +MOST-RECORDED+, with the kinds of their
tasks."
  (let ((recorded (sort (concatenate 'list (pb:workflow-state-former-reports state)
                                     (loop for step across (pb:workflow-state-steps state)
                                           append (step-reports step)))
                        #'> :key #'pb:recorded-fence)))
    (subseq recorded 0 (min +most-recorded+ (length recorded)))))

(defun run-of-signal (signal)
  "The run in which SIGNAL, a PendingSignal, was given."
  (let ((key (pb:pending-signal-key signal)))
    (if (uiop:string-prefix-p "signal/" key)
        0
        (parse-integer key :end (position #\/ key)))))

(defun drop-run (draft)
  "Remove the rest of the run of DRAFT that ends, except its signals. Signals of much older runs are
also removed, unless a step may wait for one of them."
  (let* ((state (draft-state draft)) (id (pb:workflow-state-id state))
         (run (pb:workflow-state-run state))
         (waiting (map 'list #'run-of-signal (pb:workflow-state-signals state)))
         (signalled (coerce (pb:workflow-state-signal-runs state) 'list))
         (old (butlast signalled +most-signal-runs+)))
    (push (cons (key "" "history" id "")
                (key "" "history" id (number-text (1+ (pb:workflow-state-version state)))))
          (draft-removals draft))
    (dolist (name '("input" "in/" "out/" "children/" "child/"))
      (note-removal draft (run-key run name)))
    (loop for former in signalled
          if (or (member former waiting) (not (member former old)))
            collect former into kept
          else
            do (note-removal draft (run-key former "signal/"))
          finally (setf (pb:workflow-state-signal-runs state) kept))))

(defun begin-run (draft continuation)
  "Begin the workflow of DRAFT again, with the steps of CONTINUATION."
  (let ((state (draft-state draft)) (timeout (pb:continuation-timeout-ms continuation))
        (input (pb:continuation-input continuation)) (steps (pb:continuation-steps continuation)))
    (when (minusp timeout) (refuse :invalid-request "the time of a workflow is negative"))
    (when (zerop (length steps)) (refuse :invalid-request "a workflow needs at least one step"))
    (drop-run draft)
    (setf (pb:workflow-state-former-reports state) (last-reports state)
          (pb:workflow-state-former-changes state) (pb:workflow-state-version state)
          (pb:workflow-state-steps state) '()
          (pb:workflow-state-payloads state) '()
          (pb:workflow-state-payload-octets state) 0
          (pb:workflow-state-brought state) nil
          (pb:workflow-state-changes state) '()
          (pb:workflow-state-current state) 0
          (pb:workflow-state-deadline-unix-ms state) (if (plusp timeout)
                                                         (later (draft-now draft) timeout)
                                                         0))
    (incf (pb:workflow-state-run state))
    (setf (pb:workflow-state-data-key state) (add-payload draft (payload-key state "input") input)
          (pb:workflow-state-data-octets state) (length input))
    (add-steps draft steps 0)
    (check-draft-payloads draft "the inputs of a continuation")
    (check-state draft)
    (add-event draft :continued :text (format nil "run ~D" (pb:workflow-state-run state)))
    (advance draft)))

(defun report-continuation (draft fence continuation)
  "Note that the claim FENCE is done, and with it this run of the workflow, which begins again as
CONTINUATION describes."
  (let ((digest (digest "continuation" continuation)))
    (when (check-fence draft fence digest)
      (let ((step (draft-step draft)))
        (note-recorded step fence digest)
        (pass-step draft step)
        (add-event draft :step-done :step step :fence fence)
        (begin-run draft continuation)
        t))))
