;;;; Decisions: from a state and an event to the next state. Each of these functions takes a draft,
;;;; which contains the state, the time and a random number, and an event. The function changes the
;;;; draft and returns true; or returns false, because the event has happened before and nothing
;;;; changes; or signals the workflow error that refuses the event. No decision uses the store, a
;;;; clock or a thread, so tests/cluster/workflow can run them in any order.
;;;;
;;;; The invariants:
;;;;
;;;; - The step under way is the first that is not done. Steps before the one under way never change
;;;;   again.
;;;; - Every claim has a fence above all earlier fences, even those of a deleted workflow with the
;;;;   same id: a fence is at least the store's revision of the state from which it is made. By
;;;;   induction a fence is at most the revision of the transaction that stores it, so a later
;;;;   workflow begins above it.
;;;; - A report is accepted once, and only if its fence is that of the claim in force. Fence and
;;;;   digest are kept with the step, so a repetition of the report is recognized, and any other
;;;;   report is refused. So each acknowledged report is the recorded one. If the next step was
;;;;   claimed with the report, the fence of that claim is kept, too. A repetition of the report is
;;;;   answered with that claim and never with a later claim, which would belong to another thread
;;;;   of the same session.
;;;; - A workflow that has ended does not change any more, until it is deleted.

(in-package #:clgrpc.workflow)

;;; From step to step

(defun end-workflow (draft status reason)
  (let ((state (draft-state draft))
        (retention (limits-retention-seconds (draft-limits draft))))
    (setf (pb:workflow-state-status state) status
          (pb:workflow-state-reason state) (short-text reason)
          (pb:workflow-state-session state) ""
          (pb:workflow-state-signals state) '()
          (pb:workflow-state-ended-unix-ms state) (draft-now draft)
          (pb:workflow-state-expires-unix-ms state)
          (if retention
              (max 1 (later (draft-now draft)
                            (ceiling (* 1000 (if (pb:workflow-state-parent state)
                                                 (max retention +child-seconds+)
                                                 retention)))))
              0))
    (add-event draft :ended :text reason)))

(defun fail-at-step (draft step reason)
  "Let the current step STEP and its workflow fail for good."
  (setf (pb:step-state-status step) :failed
        (pb:step-state-error step) (short-text reason)
        (pb:step-state-ended-unix-ms step) (draft-now draft))
  (add-event draft :step-failed :step step :text reason
                                :fence (pb:workflow-state-fence (draft-state draft)))
  (end-workflow draft :failed (format nil "step ~D, ~A: ~A" (pb:step-state-number step)
                                      (step-text step) reason)))

(defun step-text (step)
  "The name of STEP, a StepState."
  (let* ((definition (pb:step-state-step step)) (name (pb:step-name definition)))
    (if (string/= "" name)
        name
        (ecase (pb:step-action-case definition)
          (:task (pb:step-task definition))
          ((:wait-ms :until-unix-ms) "wait")
          (:signal (pb:step-signal definition))
          (:children "children")))))

(defun pass-step (draft step &key (key "") (octets 0) bringing)
  "Note that the current step STEP is done, and make the next step current. If BRINGING is true,
STEP has produced the payload at KEY, OCTETS long, which is the next task's input."
  (let ((state (draft-state draft)))
    (setf (pb:step-state-status step) :done
          (pb:step-state-error step) ""
          (pb:step-state-due-unix-ms step) 0
          (pb:step-state-ended-unix-ms step) (draft-now draft)
          (pb:workflow-state-session state) "")
    (when bringing
      (setf (pb:step-state-result-key step) key
            (pb:workflow-state-data-key state) key
            (pb:workflow-state-brought state) t
            (pb:workflow-state-data-octets state) octets))
    (incf (pb:workflow-state-current state))))

(defun take-signal (draft name)
  "Remove and return the first signal of NAME that waits in DRAFT; nil if none waits."
  (let* ((state (draft-state draft))
         (signals (pb:workflow-state-signals state))
         (signal (find name signals :key #'pb:pending-signal-name :test #'string=)))
    (when signal
      (setf (pb:workflow-state-signals state) (remove signal signals))
      signal)))

(defun time-step (draft step due)
  "Let STEP wait until DUE. Return true if that time has passed."
  (cond ((<= due (draft-now draft)) t)
        (t (setf (pb:step-state-status step) :timing
                 (pb:step-state-due-unix-ms step) due)
           nil)))

(defun done-at-once-p (draft step)
  "True if STEP, which becomes current, is done as soon as it begins."
  (let ((definition (pb:step-state-step step)))
    (case (pb:step-action-case definition)
      (:wait-ms (zerop (pb:step-wait-ms definition)))
      (:until-unix-ms (<= (pb:step-until-unix-ms definition) (draft-now draft)))
      (:signal (find (pb:step-signal definition) (pb:workflow-state-signals (draft-state draft))
                     :key #'pb:pending-signal-name :test #'string=)))))

(defun put-off-step (draft step)
  "Make STEP, which is done as soon as it begins, current, and leave its completion to a separate
change, which is due now."
  (setf (pb:step-state-begun-unix-ms step) (draft-now draft)
        (pb:step-state-status step) :timing
        (pb:step-state-due-unix-ms step) (draft-now draft)))

(defun begin-step (draft step)
  "Begin STEP. Return true if STEP is done already."
  (let ((definition (pb:step-state-step step)) (now (draft-now draft)))
    (setf (pb:step-state-begun-unix-ms step) now)
    (ecase (pb:step-action-case definition)
      (:task (setf (pb:step-state-status step) :ready)
       nil)
      (:wait-ms
       (when (time-step draft step (later now (pb:step-wait-ms definition)))
         (pass-step draft step)
         t))
      (:until-unix-ms
       (when (time-step draft step (pb:step-until-unix-ms definition))
         (pass-step draft step)
         t))
      (:signal
       (let ((signal (take-signal draft (pb:step-signal definition))))
         (cond (signal
                (pass-step draft step :bringing t :key (pb:pending-signal-key signal)
                                      :octets (pb:pending-signal-octets signal))
                t)
               (t (setf (pb:step-state-status step) :listening)
                  nil))))
      (:children (setf (pb:step-state-status step) :starting)
       nil))))

(defun advance (draft)
  "Begin the current step, and further steps as long as each is done at once, up to the number that
one change may do. If no step is left, the workflow is completed."
  (loop for passed from 0
        for step = (draft-step draft)
        while (and step
                   (if (and (<= +most-steps-at-once+ passed) (done-at-once-p draft step))
                       (not (put-off-step draft step))
                       (begin-step draft step)))
        do (add-event draft :step-done :step step)
        finally (unless step (end-workflow draft :completed ""))))

(defun pass-due-step (draft step)
  "Continue STEP, whose due time has come: the time until which STEP waits has passed, or
PUT-OFF-STEP has left its completion to this change."
  (setf (pb:step-state-due-unix-ms step) 0)
  (if (eq :signal (pb:step-action-case (pb:step-state-step step)))
      (begin-step draft step)
      (pass-step draft step)))

;;; Its beginning

(defun input-of (step)
  "The input that STEP, a Step, has itself; nil if it has none."
  (and (pb:has-step-input step) (pb:step-input step)))

(defun state-depth (state)
  "How many ancestors the workflow of STATE has."
  (let ((parent (pb:workflow-state-parent state)))
    (if parent (pb:parent-depth parent) 0)))

(defun child-id (id number place)
  "The id of the child at PLACE of the step NUMBER of the workflow ID. Signal TOO-LARGE if the id is
too long."
  (check-name (format nil "~A.~D.~D" id number place) "the id of a child"))

(defun children-key (state number)
  "The key of the definitions of the children of the step NUMBER of STATE."
  (payload-key state (format nil "children/~D" number)))

(defun child-key (state number place)
  (payload-key state (format nil "child/~D/~D" number place)))

(defun keep-children (draft step)
  "Move the definitions of the children of STEP, a new StepState, into a payload of DRAFT."
  (let* ((state (draft-state draft)) (definition (pb:step-state-step step))
         (children (pb:step-children definition)) (number (pb:step-state-number step))
         (count (length (pb:children-children children))))
    (child-id (pb:workflow-state-id state) number (1- count))
    (push (cons (children-key state number) (protobuf:serialize children)) (draft-payloads draft))
    (setf (pb:step-state-children step) (loop repeat count collect (pb:make-child-state))
          (pb:step-children definition)
          (pb:make-children :report-failures (pb:children-report-failures children)
                            :abandon (pb:children-abandon children)))))

(defun add-steps (draft steps at)
  "Put STEPS, a sequence of Steps, into DRAFT before the place AT."
  (let* ((state (draft-state draft))
         (known (pb:workflow-state-steps state))
         (count (+ (length known) (length steps)))
         (most (limits-max-steps (draft-limits draft))))
    (when (> count most)
      (refuse-size :too-large :max-steps most count "too many steps"))
    (setf (pb:workflow-state-steps state)
          (concatenate 'vector (subseq known 0 at)
                       (map 'list (lambda (step) (step-state-of draft step)) steps)
                       (subseq known at)))))

(defun step-state-of (draft step)
  "Return the initial StepState of STEP, a Step; put its input into DRAFT."
  (let* ((state (draft-state draft))
         (input (input-of (check-step step (draft-limits draft) (state-depth state))))
         (number (incf (pb:workflow-state-numbers state)))
         (input-key (payload-key state (format nil "in/~D" number)))
         (step-state (pb:make-step-state :step (protobuf:copy-message step) :number number
                                         :input-octets (length input)
                                         :input-key (if input input-key ""))))
    (pb:clear-step-input (pb:step-state-step step-state))
    (cond ((null input))
          ((zerop (length input)) (push (cons input-key input) (draft-payloads draft)))
          (t (setf (pb:step-state-input-key step-state) (add-payload draft input-key input))))
    (when (eq :children (pb:step-action-case step)) (keep-children draft step-state))
    step-state))

(defun check-draft-payloads (draft what)
  "Signal TOO-LARGE unless the payloads of DRAFT fit into one change together with the chunks of its
steps. WHAT names the payloads in the error."
  (let ((payloads (append (draft-small draft) (draft-payloads draft)))
        (most (min +most-payloads+
                   (- +most-parts+
                      (floor (length (pb:workflow-state-steps (draft-state draft)))
                             +left-chunk+)))))
    (when (> (length payloads) most)
      (refuse-size :too-large :inputs most (length payloads) "~A: too many inputs" what))
    (check-payload (draft-limits draft)
                   (loop for (nil . octets) in payloads sum (length octets)) what)))

(defun digest (&rest things)
  "The MD5 digest of THINGS, octets, strings and messages, each preceded by its length. The check
for repeated requests relies on this: given one value, it is infeasible to find another value with
the same digest."
  (sb-md5:md5sum-sequence
   (apply #'concatenate 'octets
          (loop for thing in things
                for octets = (etypecase thing
                               (octets thing)
                               (string (string-octets thing))
                               (structure-object (protobuf:serialize thing :deterministic t)))
                collect (string-octets (format nil "~D " (length octets)))
                collect octets))))

(defun begin-workflow (request now limits &key (traceparent "") parent)
  "The draft of the workflow that REQUEST, a StartRequest, starts. PARENT, a Parent, describes its
parent, if it is a child."
  (let* ((id (check-name (pb:start-request-id request) "the id of a workflow"))
         (timeout (pb:start-request-timeout-ms request))
         (input (pb:start-request-input request))
         (state (pb:make-workflow-state
                 :id id :type (pb:start-request-type request) :status :running
                 :started-unix-ms now :traceparent traceparent :digest (digest request)
                 :parent parent
                 :deadline-unix-ms (if (plusp timeout) (later now timeout) 0)))
         (draft (%make-draft :state state :now now :limits limits)))
    (when (string/= "" (pb:start-request-type request))
      (check-name (pb:start-request-type request) "the type of a workflow"))
    (when (minusp timeout) (refuse :invalid-request "the time of a workflow is negative"))
    (when (zerop (length (pb:start-request-steps request)))
      (refuse :invalid-request "a workflow needs at least one step"))
    (setf (pb:workflow-state-data-key state) (add-payload draft (payload-key state "input") input)
          (pb:workflow-state-data-octets state) (length input))
    (add-steps draft (pb:start-request-steps request) 0)
    (check-draft-payloads draft "the inputs of a workflow")
    (add-event draft :started)
    (advance draft)
    draft))

(defun begun-alike-p (state request)
  "True if REQUEST has started the workflow of STATE. Signal WORKFLOW-EXISTS if a different request
has started it."
  (or (equalp (digest request) (pb:workflow-state-digest state))
      (refuse :workflow-exists "another workflow has the id ~A" (pb:workflow-state-id state))))

;;; Claims

(defun claimable-p (state kinds)
  "True if the current step of STATE is a task of one of KINDS that can be claimed."
  (let ((step (state-step state)))
    (and (running-p state) step (eq :ready (pb:step-state-status step))
         (find (pb:step-task (pb:step-state-step step)) kinds :test #'string=)
         t)))

(defun claim-step (draft session kinds)
  "Let SESSION claim the current task, if its kind is one of KINDS and no other session has it."
  (let ((state (draft-state draft)) (step (draft-step draft)))
    (when (claimable-p state kinds)
      (let ((timeout (pb:step-attempt-timeout-ms (pb:step-state-step step))))
        (setf (pb:step-state-status step) :claimed
              (pb:step-state-due-unix-ms step)
              (if (plusp timeout) (later (draft-now draft) timeout) 0)
              (pb:workflow-state-session state) session
              (pb:workflow-state-claimed-unix-ms state) (draft-now draft)))
      (incf (pb:step-state-attempts step))
      (setf (pb:workflow-state-fence state) (max (1+ (pb:workflow-state-fence state))
                                                 (draft-revision draft)))
      (add-event draft :step-claimed :step step :worker session
                                     :fence (pb:workflow-state-fence state))
      t)))

(defun fence-in-force-p (state fence)
  (let ((step (state-step state)))
    (and (running-p state) step (eq :claimed (pb:step-state-status step))
         (= fence (pb:workflow-state-fence state)))))

(defun recorded-report (state fence)
  "The record in STATE of the report that had FENCE; nil if STATE has no such record."
  (or (loop for step across (pb:workflow-state-steps state)
            thereis (find fence (pb:step-state-recorded step) :key #'pb:recorded-fence))
      (find fence (pb:workflow-state-former-reports state) :key #'pb:recorded-fence)))

(defun recorded-kind (state fence)
  "The kind of the task whose report with FENCE is recorded in STATE; nil if no such report is
recorded, or if its kind is no longer kept."
  (flet ((with-fence (reports) (find fence reports :key #'pb:recorded-fence)))
    (let ((step (find-if (lambda (step) (with-fence (pb:step-state-recorded step)))
                         (pb:workflow-state-steps state)))
          (former (with-fence (pb:workflow-state-former-reports state))))
      (cond (step (pb:step-task (pb:step-state-step step)))
            ((and former (string/= "" (pb:recorded-kind former))) (pb:recorded-kind former))))))

(defun leave-claim (draft step status &key (due 0))
  "End the claim of STEP, and give STEP STATUS."
  (setf (pb:workflow-state-session (draft-state draft)) ""
        (pb:step-state-status step) status
        (pb:step-state-due-unix-ms step) due))

(defun pause-ms (step count chance)
  "The pause of STEP, a StepState, after COUNT attempts, the last of which has failed. CHANCE, a
number from 0 to 1, selects it between half of STEP's back-off and the whole."
  (flet ((given (number default) (if (zerop number) default number)))
    (let* ((step-definition (pb:step-state-step step))
           (first (given (pb:step-backoff-ms step-definition) +default-backoff-ms+))
           (most (given (pb:step-max-backoff-ms step-definition) +default-max-backoff-ms+))
           (factor (rational (given (pb:step-backoff-factor step-definition) 2)))
           (pause first))
      (loop repeat (1- (max 1 count))
            while (< pause most)
            do (setf pause (* pause factor)))
      (max 1 (round (* (min pause (max first most)) (+ 1/2 (/ (rational chance) 2))))))))

(defun attempts-left-p (step)
  (let ((most (pb:step-max-attempts (pb:step-state-step step))))
    (< (pb:step-state-attempts step) (if (zerop most) +default-attempts+ most))))

(defun pause-step (draft step count)
  "Pause STEP, of which COUNT attempts have failed."
  (leave-claim draft step :pausing
               :due (later (draft-now draft) (pause-ms step count (draft-chance draft)))))

(defun retry-step (draft step kind text)
  "Plan another attempt of STEP after a pause. TEXT, from an event of KIND, is the reason why the
last attempt failed. If no more attempts are allowed, the step fails."
  (setf (pb:step-state-error step) (short-text text)
        (pb:step-state-losses step) 0
        (pb:step-state-given-back step) 0)
  (cond ((not (attempts-left-p step))
         (fail-at-step draft step (format nil "~A (attempt ~D, the last)" text
                                          (pb:step-state-attempts step))))
        (t (add-event draft kind :step step :text text
                                 :fence (pb:workflow-state-fence (draft-state draft)))
           (pause-step draft step (pb:step-state-attempts step)))))

(defun undo-claim (draft step)
  "Undo the claim of STEP, which has ended without a result, probably through no fault of STEP; so
the claim does not count as an attempt. Other workers get the step: the first few times in a row at
once, then after pauses. So a task that kills its workers rarely runs beside their other tasks, and
a task that all workers give back is not passed around all the time."
  (decf (pb:step-state-attempts step))
  (let ((count (- (+ (pb:step-state-losses step) (pb:step-state-given-back step))
                  +free-losses+)))
    (if (plusp count)
        (pause-step draft step count)
        (leave-claim draft step :ready))))

;;; Reports

(defun check-fence (draft fence digest)
  "True if the report with FENCE and DIGEST is to be accepted, false if it was accepted before.
Signal a workflow error if the report must be refused."
  (let* ((state (draft-state draft)) (id (pb:workflow-state-id state))
         (recorded (recorded-report state fence)))
    (cond (recorded
           (unless (equalp digest (pb:recorded-digest recorded))
             (refuse :claim-lost "the claim ~D of ~A is over: its task has another result already"
                     fence id)))
          ((not (running-p state))
           (refuse :workflow-closed "the workflow ~A has ended (~(~A~))" id
                   (pb:workflow-state-status state)))
          ((fence-in-force-p state fence) t)
          (t (refuse :claim-lost "the claim ~D of ~A has ended; the last one is ~D" fence id
                     (pb:workflow-state-fence state))))))

(defun note-recorded (step fence digest)
  (let* ((recorded (pb:step-state-recorded step))
         (begin (max 0 (- (length recorded) (1- +most-recorded+)))))
    (setf (pb:step-state-recorded step)
          (concatenate 'vector (subseq recorded begin)
                       (list (pb:make-recorded :fence fence :digest digest))))))

(defun claim-next (draft fence session kinds)
  "Let SESSION, whose report of the claim FENCE made DRAFT, claim the current task, if its kind is
one of KINDS."
  (when (claim-step draft session kinds)
    (let ((state (draft-state draft)))
      (setf (pb:recorded-next-fence (recorded-report state fence)) (pb:workflow-state-fence state))
      t)))

(defun next-claim (state fence)
  "The fence of the claim that was made together with the report of FENCE, if it is still in force
in STATE; else nil."
  (let* ((recorded (recorded-report state fence))
         (next (if recorded (pb:recorded-next-fence recorded) 0)))
    (and (plusp next) (fence-in-force-p state next) next)))

(defun report-result (draft fence result then)
  "Note that the claim FENCE has produced RESULT, octets; THEN, a sequence of Steps, is done next."
  (let ((digest (apply #'digest "result" result (coerce then 'list))))
    (when (check-fence draft fence digest)
      (let* ((step (draft-step draft))
             (key (payload-key (draft-state draft)
                               (format nil "out/~D" (pb:step-state-number step)))))
        (note-recorded step fence digest)
        (pass-step draft step :bringing t :key (add-payload draft key result)
                              :octets (length result))
        (add-steps draft then (pb:workflow-state-current (draft-state draft)))
        (check-draft-payloads draft "a result")
        (when (plusp (length then)) (check-state draft))
        (add-event draft :step-done :step step :fence fence)
        (advance draft)
        t))))

(defun report-failure (draft fence text permanent)
  "Note that the attempt of the claim FENCE has failed. PERMANENT is true if every further attempt
would also fail."
  (let ((digest (digest (if permanent "for good" "failure") text)))
    (when (check-fence draft fence digest)
      (let ((step (draft-step draft)))
        (note-recorded step fence digest)
        (if permanent
            (fail-at-step draft step text)
            (retry-step draft step :attempt-failed text))
        t))))

(defun give-back (draft fence)
  "Note that the worker with the claim FENCE does not do the task; no attempt is counted."
  (let ((digest (digest "given back")))
    (when (check-fence draft fence digest)
      (let ((step (draft-step draft)))
        (note-recorded step fence digest)
        (add-event draft :attempt-given-back :step step :fence fence)
        (incf (pb:step-state-given-back step))
        (undo-claim draft step)
        t))))

(defun held-by-p (state session)
  "True if SESSION has the claim in force in STATE."
  (and (fence-in-force-p state (pb:workflow-state-fence state))
       (string= session (pb:workflow-state-session state))))

(defun lose-claim (draft session fence)
  "Take the claim FENCE, or any claim if FENCE is nil, from SESSION, which has ended or does not
know of the claim, so that other workers get the task. This does not count as an attempt, since a
worker may lose many tasks at once. But a step that is lost again and again fails, since the step
itself may end its workers."
  (let ((state (draft-state draft)) (step (draft-step draft)))
    (when (and (held-by-p state session)
               (or (null fence) (= fence (pb:workflow-state-fence state))))
      (let ((text (format nil "the session ~A has ended or lost the task" session)))
        (add-event draft :attempt-lost :step step :text text
                                       :fence (pb:workflow-state-fence state))
        (setf (pb:step-state-error step) (short-text text))
        (if (< (incf (pb:step-state-losses step)) +most-losses+)
            (undo-claim draft step)
            (fail-at-step draft step (format nil "~A (the loss ~D in a row)" text
                                             (pb:step-state-losses step)))))
      t)))

(defun attempt-limit-ms (step limits)
  "The time that an attempt of STEP, a StepState, may take, according to the step itself or else to
LIMITS; nil if neither sets a limit."
  (let ((own (pb:step-attempt-timeout-ms (pb:step-state-step step)))
        (seconds (limits-attempt-seconds limits)))
    (cond ((plusp own) own)
          (seconds (ceiling (* 1000 seconds))))))

(defun attempt-end (state limits)
  "The time at which the attempt under way in STATE exceeds its limit; nil if it has no limit."
  (let ((ms (attempt-limit-ms (state-step state) limits)))
    (and ms (later (pb:workflow-state-claimed-unix-ms state) ms))))

(defun end-long-attempt (draft session fence)
  "Fail the claim FENCE of SESSION if its attempt has exceeded its limit. Steps with a limit of
their own have a timer; others are checked at each heartbeat of their worker."
  (let* ((state (draft-state draft)) (step (draft-step draft))
         (end (and (held-by-p state session) (= fence (pb:workflow-state-fence state))
                   (attempt-end state (draft-limits draft)))))
    (when (and end (<= end (draft-now draft)))
      (retry-step draft step :attempt-lost "the time of the attempt was over")
      t)))

;;; Requests of users

(defun note-signalled-run (state)
  "Note that the present run of STATE has got a signal."
  (let ((runs (coerce (pb:workflow-state-signal-runs state) 'list))
        (run (pb:workflow-state-run state)))
    (unless (member run runs)
      (setf (pb:workflow-state-signal-runs state) (append runs (list run))))))

(defun note-signal (draft name key octets)
  "Handle a signal of NAME whose payload is at KEY, OCTETS long."
  (let ((state (draft-state draft)) (step (draft-step draft)))
    (unless (running-p state)
      (refuse :workflow-closed "the workflow ~A has ended (~(~A~))" (pb:workflow-state-id state)
              (pb:workflow-state-status state)))
    (add-event draft :signalled :text name)
    (note-signalled-run state)
    (cond ((and (eq :listening (pb:step-state-status step))
                (string= name (pb:step-signal (pb:step-state-step step))))
           (pass-step draft step :bringing t :key key :octets octets)
           (add-event draft :step-done :step step)
           (advance draft))
          (t (let ((most (limits-max-signals (draft-limits draft)))
                   (count (1+ (length (pb:workflow-state-signals state)))))
               (when (> count most)
                 (refuse-size :backlog-full :max-signals most count
                              "too many signals wait in ~A" (pb:workflow-state-id state)))
               (setf (pb:workflow-state-signals state)
                     (concatenate 'vector (pb:workflow-state-signals state)
                                  (list (pb:make-pending-signal :name name :key key
                                                                :octets octets)))))))
    t))

(defun cancel-state (draft reason)
  (let ((state (draft-state draft)))
    (case (pb:workflow-state-status state)
      (:running (end-workflow draft :cancelled reason)
       t)
      (:cancelled nil)
      (t (refuse :workflow-closed "the workflow ~A has ended (~(~A~))"
                 (pb:workflow-state-id state) (pb:workflow-state-status state))))))

(defun delete-state (draft)
  (let ((state (draft-state draft)))
    (when (running-p state)
      (refuse :workflow-running "the workflow ~A has not ended" (pb:workflow-state-id state)))
    (setf (draft-forgotten draft) t)))

;;; Time

(defun step-times (state step)
  "The times at which an event is due for STEP, the current step of STATE: a list of (time .
event)."
  (let ((timeout (pb:step-timeout-ms (pb:step-state-step step)))
        (due (pb:step-state-due-unix-ms step))
        (deadline (pb:workflow-state-deadline-unix-ms state)))
    (append (and (plusp deadline) (list (cons deadline :workflow-late)))
            (and (plusp timeout)
                 (list (cons (later (pb:step-state-begun-unix-ms step) timeout) :step-late)))
            (and (plusp due)
                 (list (cons due (ecase (pb:step-state-status step)
                                   (:claimed :attempt-late)
                                   (:pausing :ready)
                                   (:timing :done))))))))

(defun next-time (state)
  "Two values: the next time, in milliseconds since 1970, at which something of STATE is due, such
as a time-out, a timer or its deletion; and a keyword that names it. Nil if nothing is due."
  (if (running-p state)
      (let ((first nil))
        (dolist (time (step-times state (state-step state)) (values (car first) (cdr first)))
          (when (or (null first) (< (car time) (car first))) (setf first time))))
      (let ((expires (pb:workflow-state-expires-unix-ms state)))
        (if (plusp expires) (values expires :forget) nil))))

(defun handle-due-event (draft)
  "Do the first event that is due at the time of DRAFT or before; return true if there is one."
  (let ((step (draft-step draft)))
    (multiple-value-bind (time what) (next-time (draft-state draft))
      (when (and time (<= time (draft-now draft)))
        (ecase what
          (:forget (setf (draft-forgotten draft) t))
          (:workflow-late (fail-at-step draft step "the time of the workflow is over"))
          (:step-late (fail-at-step draft step "the time of the step is over"))
          (:attempt-late
           (retry-step draft step :attempt-lost "the time of the attempt was over"))
          (:ready (leave-claim draft step :ready)
           (add-event draft :step-ready :step step))
          (:done (pass-due-step draft step)
           (add-event draft :step-done :step step)
           (advance draft)))
        t))))

;;; Checking and completing a draft

(defun check-state (draft)
  "Signal TOO-LARGE if the state of DRAFT has more octets than a workflow's state may have."
  (let ((most (limits-max-state-octets (draft-limits draft)))
        (octets (state-octets (draft-state draft))))
    (when (> octets most)
      (refuse-size :too-large :max-state-octets most octets
                   "the steps of a workflow and their states"))))

(defun finish-draft (draft)
  "Number the change of DRAFT. A workflow with too many changes, or with too large a state, fails.
Return DRAFT."
  (let* ((state (draft-state draft)) (most (limits-max-changes (draft-limits draft)))
         (count (- (1+ (pb:workflow-state-version state))
                   (pb:workflow-state-former-changes state))))
    (when (and (running-p state) (<= most count))
      (fail-at-step draft (draft-step draft) (format nil "more than ~D changes" most)))
    (incf (pb:workflow-state-version state))
    (when (running-p state)
      (handler-case (check-state draft)
        (too-large (condition)
          ;; a new workflow does not exist yet, so it cannot fail
          (unless (draft-old draft) (error condition))
          (fail-at-step draft (draft-step draft)
                        (bounded-text condition :limit +longest-text+)))))
    (incf (pb:workflow-state-payload-octets state)
          (loop for (nil . octets) in (draft-payloads draft) sum (length octets)))
    (note-change-made draft)
    (setf (draft-octets draft) (protobuf:serialize (state-head state)))
    draft))
