;;;; Workers: jobs that claim tasks, do them and report the results, and one job that sends
;;;; heartbeats. Each of the jobs has one task at a time. With its report a job asks for the next
;;;; step of the workflow, if the step's kind is among its kinds, or for another ready task, which
;;;; saves a claim. If there is no such task, the job makes a claim, which waits.
;;;;
;;;; A report that got no answer is sent again until it gets one: the service recognizes it. If the
;;;; session is lost, its tasks belong to others, and the worker opens a new session.

(in-package #:clgrpc.workflow)

(defconstant +claim-wait-seconds+ 20 "How long a claim waits at a node.")
(defconstant +first-pause-seconds+ 1/20
  "The first pause between tries of a request that a node does not answer.")
(defconstant +longest-pause-seconds+ 2 "The longest pause between attempts.")
(defconstant +alone-seconds+ 30
  "How long a task that must be done alone waits for others to end, before it is given back.")
(defconstant +closing-seconds+ 2
  "How long a worker that stops waits for its session to end; otherwise the session ends with its
lease.")

(defstruct (worker (:copier nil))
  "A worker that runs, see START-WORKER. LOCK guards the slots that are not read-only."
  (name "" :type string :read-only t)   ; the name for people
  (channel nil :read-only t)            ; the channel to the service
  ;; an alist from the kinds that the worker does to functions or nil
  (functions nil :read-only t)
  (seconds 10 :type (integer 2) :read-only t) ; how long its sessions last without a heartbeat
  ;; a function of a task and a workflow error, or nil
  (on-refused nil :type (or null function) :read-only t)
  (on-task-lost nil :type (or null function) :read-only t) ; a function of a task, or nil
  (lock (sb-thread:make-mutex :name "clgrpc worker") :read-only t) ; guards all slots below
  ;; notified when any slot of the worker has changed
  (waitqueue (sb-thread:make-waitqueue :name "clgrpc worker") :read-only t)
  ;; of its heart
  (pauses (loop:make-pauses 1/2 1/2) :read-only t)
  (session nil :type (or null string))  ; the worker's session, while it has one
  (held '() :type list)                 ; the tasks that the worker does
  (calls '() :type list)                ; claims that wait
  (heart-call nil)                      ; the call that opens a session now, or nil
  (stream nil)                          ; the call with its heartbeats, or nil
  (answer nil)                          ; the answer to the last heartbeat on STREAM, or nil
  (attempts '() :type list)             ; tasks that are done beside others
  (suspects '() :type list)             ; tasks that must be done alone, including the one under way
  (alone nil :type (or null task))      ; the one of SUSPECTS that is under way
  (state :open :type (member :open :draining :closed)) ; draining: the worker claims no more
  ;; where the worker's jobs run
  (background nil :read-only t)
  (heart nil)                           ; a job, which keeps the session
  (hands '() :type list))               ; jobs, which claim tasks and do them

(document-functions
  make-worker "Make the structure; see START-WORKER."
  worker-p "True of workers.")

(define-printer (worker worker)
  "~A ~(~A~), ~D running, session ~A" (worker-name worker) (worker-state worker)
  (length (worker-held worker)) (worker-session worker))

(defmacro with-worker ((worker) &body body)
  "Evaluate BODY, which reads or changes WORKER, under its lock; wake the threads that wait."
  `(sb-thread:with-mutex ((worker-lock ,worker))
     (multiple-value-prog1 (progn ,@body)
       (sb-thread:condition-broadcast (worker-waitqueue ,worker)))))

(defun worker-open-p (worker)
  "True until WORKER is being stopped. From any thread."
  (eq :open (worker-state worker)))

(defun worker-running (worker)
  "Return the tasks that WORKER does at this moment, a list. From any thread."
  (with-worker (worker) (copy-list (worker-held worker))))

(defun await-worker (worker seconds over-p)
  "Wait for SECONDS, or until OVER-P, a function without arguments that is called under WORKER's
lock, returns true."
  (loop:await-until (worker-waitqueue worker) (worker-lock worker) (loop:notice-end seconds)
                    over-p))

(defun closed-p (worker)
  (eq :closed (worker-state worker)))

;;; Sessions

(defun note-tasks-lost (worker lost-p)
  "Mark those tasks of WORKER for which LOST-P, a function, is true as lost, since they belong to
other workers now, and call ON-TASK-LOST."
  (let ((lost (with-worker (worker)
                (loop for task in (worker-held worker)
                      when (and (not (task-lost task)) (funcall lost-p task))
                        do (setf (task-lost task) t)
                        and collect task))))
    (when (worker-on-task-lost worker)
      (dolist (task lost)
        (loop:guarding (:workflow-worker-error)
          (funcall (worker-on-task-lost worker) task))))))

(defun lose-session (worker session)
  "Handle the end of SESSION: WORKER's tasks belong to others now."
  (when (with-worker (worker)
          (when (equal session (worker-session worker))
            (setf (worker-session worker) nil)
            t))
    (note-tasks-lost worker (constantly t))
    (loop:wake-job (worker-heart worker))))

(defun heart-stub (worker stub)
  "Return a function like STUB, for the heartbeats of WORKER, whose call is cancelled when WORKER
closes."
  (lambda (channel request &key timeout)
    (let ((call (calling:call-async stub channel request :timeout timeout)))
      (unwind-protect
           (progn (with-worker (worker) (setf (worker-heart-call worker) call))
                  (when (closed-p worker) (rpc:cancel call))
                  (loop:await call))
        (with-worker (worker) (setf (worker-heart-call worker) nil))))))

(defun open-own-session (worker)
  "Open a session of WORKER, unless it has one. Return it. Signal a workflow error."
  (or (worker-session worker)
      (let ((session (pb:open-session-reply-session
                      (ask (heart-stub worker #'methods:open-session) (worker-channel worker)
                           (pb:make-open-session-request :worker (worker-name worker)
                                                         :seconds (worker-seconds worker))
                           nil))))
        (with-worker (worker) (setf (worker-session worker) session)))))

(defun await-session (worker)
  "Wait for a session of WORKER. Return the session, or nil if WORKER is being stopped."
  (loop until (await-worker worker 60 (lambda ()
                                        (or (not (worker-open-p worker))
                                            (and (worker-session worker)
                                                 (not (alone-wanted-p worker)))))))
  (and (worker-open-p worker) (worker-session worker)))

(defun held-messages (worker)
  (loop for task in (worker-running worker)
        collect (pb:make-held :id (task-id task) :fence (task-fence task))))

(defun note-lost (worker held)
  "Note that HELD, a sequence of Helds, belong to others now, or have exceeded their longest time."
  (note-tasks-lost worker
                   (lambda (task)
                     (or (find-if (lambda (held)
                                    (and (string= (task-id task) (pb:held-id held))
                                         (= (task-fence task) (pb:held-fence held))))
                                  held)
                         (not (task-held-p task))))))

(defun open-stream (worker)
  "Open a stream for the heartbeats of WORKER, in place of the previous one. Return it."
  (drop-stream worker)
  (let ((call (methods:heartbeats (reach-nodes (worker-channel worker)) :open)))
    (with-worker (worker) (setf (worker-stream worker) call))
    (rpc:on-message call (lambda (reply)
                           (with-worker (worker)
                             (when (eq call (worker-stream worker))
                               (setf (worker-answer worker) reply)))))
    (rpc:on-end call (lambda () (with-worker (worker))))
    (when (closed-p worker) (rpc:cancel call))
    call))

(defun drop-stream (worker)
  "End the stream of WORKER's heartbeats, if it has one."
  (let ((call (with-worker (worker) (shiftf (worker-stream worker) nil))))
    (when call (rpc:cancel call))))

(defun fail-unanswered (call)
  "Signal a workflow error with the reason why no answer has arrived on CALL."
  (with-workflow-errors
    (case (rpc:call-status call)
      ((nil) (status:fail :deadline-exceeded "no heartbeat was answered in time"))
      (:ok (status:fail :unavailable "the node has ended the heartbeats"))
      (t (error (rpc:call-condition call))))))

(defun exchange-heartbeat (worker call request)
  "The answer to REQUEST, a HeartbeatRequest, on CALL, the stream of WORKER. Signal a workflow
error."
  (with-worker (worker) (setf (worker-answer worker) nil))
  (with-workflow-errors (rpc:try-send call request))
  (await-worker worker (max 1 (floor (worker-seconds worker) 3))
                (lambda () (or (worker-answer worker) (rpc:call-status call) (closed-p worker))))
  (or (worker-answer worker)
      (progn (drop-stream worker)
             (fail-unanswered call))))

(defun send-heartbeat (worker session)
  "Send a heartbeat of SESSION, the session of WORKER. Return its answer. A stream that has broken
is replaced; the new stream may lead to another node, which takes the session. Signal a workflow
error."
  (flet ((exchange (call)
           (exchange-heartbeat worker call
                               (pb:make-heartbeat-request :session session
                                                          :held (held-messages worker)))))
    (let ((call (worker-stream worker)))
      (or (and call
               (null (rpc:call-status call))
               (handler-case (exchange call)
                 (session-lost (condition) (error condition))
                 (workflow-error () nil)))
          (exchange (with-workflow-errors (open-stream worker)))))))

(defun beat (worker)
  "Send a heartbeat of WORKER."
  (let ((session (open-own-session worker)))
    (handler-case
        (note-lost worker (pb:heartbeat-reply-lost (send-heartbeat worker session)))
      (session-lost () (lose-session worker session)))))

(defun beat-seconds (worker)
  "The time from one heartbeat of WORKER to the next. A node counts a heartbeat as missing after
half of the session's time."
  (/ (worker-seconds worker) 3))

(defun keep-session (worker)
  "Run the job that opens sessions of WORKER and keeps them alive. Return the seconds until the job
runs again."
  (handler-case (progn (beat worker)
                       (if (worker-session worker) (beat-seconds worker) 0))
    ;; every error, such as one of the channel's interceptor, is caught: without this job the worker
    ;; would have no session any more
    (error (condition)
      (unless (closed-p worker)
        (log-event (if (typep condition 'workflow-error) :warning :error) :workflow-heartbeat
                   :worker (worker-name worker) :condition (bounded-text condition)))
      (loop:next-pause (worker-pauses worker)))))

;;; Doing tasks

(defun function-of (worker kind)
  (or (cdr (assoc kind (worker-functions worker) :test #'string=))
      (gethash kind **steps**)
      (fail-step (format nil "this worker has no function for ~A" kind))))

(defun attempt-span (task function)
  "Call FUNCTION in a span of TASK, whose parent is the span that started the workflow."
  (trace:with-span ((format nil "Step.~A" (task-kind task))
                    :kind :consumer
                    :parent (trace:parse-traceparent (pb:task-traceparent (task-message task)))
                    :attributes (list "workflow.id" (task-id task)
                                      "workflow.step" (task-name task)
                                      "workflow.attempt" (task-attempt task)
                                      "workflow.fence" (task-fence task)))
    (funcall function)))

(defun attempt-task (worker task)
  "Do TASK. Return the request that reports its result."
  (let ((request (pb:make-report-request :id (task-id task) :fence (task-fence task))))
    (handler-case
        (multiple-value-bind (result then)
            (attempt-span task (lambda ()
                                 (funcall (function-of worker (task-kind task)) task)))
          (if (pb:continuation-p result)
              (setf (pb:report-request-continue-as-new request) result)
              (setf (pb:report-request-result request) (payload-octets result)
                    (pb:report-request-then request) (mapcar #'step-of then))))
      (step-failed (condition)
        (setf (pb:report-request-failure request)
              (pb:make-failure :text (short-text (step-failed-text condition))
                               :permanent (not (step-failed-retry-p condition)))))
      (serious-condition (condition)
        (setf (pb:report-request-failure request)
              (pb:make-failure :text (short-text (format nil "~(~A~): ~A" (type-of condition)
                                                         (bounded-text
                                                          condition :limit +longest-text+)))))))
    request))

(defun give-back-request (task)
  (pb:make-report-request :id (task-id task) :fence (task-fence task)
                          :give-back (pb:make-give-back)))

(defun too-large-p (condition)
  "True if CONDITION says that a report is larger than the service or a call accepts, or is invalid,
so that another attempt is useless."
  (or (typep condition '(or too-large invalid-request)) (too-long-p condition)))

(defun send-report (worker task request)
  "Send REQUEST, which reports TASK, until it is answered. Return the Task that follows; nil if no
task follows."
  (let ((pauses (loop:make-pauses +first-pause-seconds+ +longest-pause-seconds+)))
    (loop
      (with-worker (worker)
        (setf (pb:report-request-session request) (or (worker-session worker) "")
              (pb:report-request-next-of-any request) t
              (pb:report-request-next-kinds request)
              (if (and (worker-open-p worker) (not (alone-wanted-p worker)))
                  (mapcar #'car (worker-functions worker))
                  '())))
      (handler-case
          (return (pb:report-reply-next
                   (ask-once #'methods:report (worker-channel worker) request nil)))
        (workflow-error (condition)
          (cond ((and (too-large-p condition) (not (pb:has-report-request-failure request)))
                 (setf (pb:report-request-then request) '()
                       (pb:report-request-failure request)
                       (pb:make-failure :text (short-text (bounded-text condition
                                                                        :limit +longest-text+))
                                        :permanent t)))
                ((or (closed-p worker)
                     (not (or (passing-p condition)
                              ;; until the store works again
                              (typep condition '(or store-full store-forbids)))))
                 (return (note-refused worker task condition)))
                (t (await-worker worker (loop:next-pause pauses)
                                 (lambda () (closed-p worker))))))))))

(defun note-refused (worker task condition)
  "Note that the report of TASK was refused with CONDITION, so that its result is not recorded."
  (setf (task-lost task) t)
  (log-event :warning :workflow-report-refused :worker (worker-name worker) :workflow (task-id task)
                                               :condition (bounded-text condition))
  (when (worker-on-refused worker)
    (loop:guarding (:workflow-worker-error)
      (funcall (worker-on-refused worker) task condition)))
  nil)

;;; A task that was lost with its worker again and again may itself end the worker. Such a task is
;;; done alone: when the other attempts have ended, while no more tasks are claimed; tasks that came
;;; meanwhile are given back. An attempt that hangs may never end. So a task that has waited for
;;; some time to be done alone is given back; the time doubles with each return. A task whose time
;;; is over does not count as under way, even if its function has not returned.

(defun suspect-p (task)
  (<= +free-losses+ (task-losses task)))

(defun alone-wanted-p (worker)
  "True while WORKER does a task alone, or must do one alone."
  (some #'task-held-p (worker-suspects worker)))

(defun alone-end-ns (task)
  "The time until which TASK waits to be done alone: at most half of the time of its attempt."
  (let* ((now (loop:world-now)) (until (task-until-ns task))
         (times (expt 2 (min 10 (pb:task-given-back (task-message task)))))
         (wait (seconds-ns (* times +alone-seconds+))))
    (+ now (if until (min wait (max 0 (floor (- until now) 2))) wait))))

(defun enter-alone (worker task)
  "Wait until nothing else is under way in WORKER. Return true, or false if TASK is not to be done."
  (let ((end (alone-end-ns task)))
    (loop:await-until (worker-waitqueue worker) (worker-lock worker) end
                      (lambda ()
                        (cond ((or (closed-p worker) (not (task-held-p task))) t)
                              ((some #'task-held-p (worker-attempts worker)) nil)
                              ((and (worker-alone worker) (task-held-p (worker-alone worker)))
                               nil)
                              (t (setf (worker-alone worker) task)
                                 t)))))
  (eq task (worker-alone worker)))

(defun attempt-alone (worker task)
  "Do what ATTEMPT-TASK does, once nothing else is under way in WORKER. If that takes too long, or
WORKER closes or TASK is lost before, give TASK back."
  (with-worker (worker) (push task (worker-suspects worker)))
  (unwind-protect (if (enter-alone worker task)
                      (attempt-or-give-back worker task)
                      (give-back-request task))
    (with-worker (worker)
      (when (eq task (worker-alone worker)) (setf (worker-alone worker) nil))
      (setf (worker-suspects worker) (remove task (worker-suspects worker))))))

(defun attempt-beside (worker task)
  "Do what ATTEMPT-TASK does. If another task must be done alone, WORKER closes or TASK is lost,
give TASK back instead."
  (if (with-worker (worker)
        (unless (alone-wanted-p worker) (push task (worker-attempts worker))))
      (unwind-protect (attempt-or-give-back worker task)
        (with-worker (worker)
          (setf (worker-attempts worker) (remove task (worker-attempts worker)))))
      (give-back-request task)))

(defun attempt-or-give-back (worker task)
  (if (or (closed-p worker) (task-lost task))
      (give-back-request task)
      (attempt-task worker task)))

(defun do-task (worker message)
  "Do the task of MESSAGE and report it; then do the tasks in the answers to the reports."
  (loop while message
        do (let* ((timeout (pb:task-timeout-ms message))
                  (task (make-task message (and (plusp timeout)
                                                (+ (loop:world-now) (* 1000000 timeout))))))
             (with-worker (worker) (push task (worker-held worker)))
             (setf message
                   (unwind-protect
                        (send-report worker task
                                     (if (suspect-p task)
                                         (attempt-alone worker task)
                                         (attempt-beside worker task)))
                     (with-worker (worker)
                       (setf (worker-held worker) (remove task (worker-held worker)))))))))

;;; Claims

(defun call-claim (worker session)
  "Make the call that claims a task for SESSION, and return it. The call is cancelled when WORKER
stops."
  (let ((call (calling:call-async #'methods:claim (reach-nodes (worker-channel worker))
                                  (pb:make-claim-request
                                   :session session :max-tasks 1
                                   :kinds (mapcar #'car (worker-functions worker))
                                   :wait-ms (* 1000 +claim-wait-seconds+))
                                  :timeout (+ +call-seconds+ +claim-wait-seconds+))))
    (with-worker (worker)
      (push call (worker-calls worker))
      (unless (worker-open-p worker) (rpc:cancel call)))
    call))

(defun claim-one (worker)
  "Wait for a task. Return the task's message, or nil if no task arrives for a while or WORKER is
stopped."
  (when-let ((session (await-session worker)))
    (let ((call (with-workflow-errors (call-claim worker session))))
      (unwind-protect
           (handler-case
               (let ((tasks (with-workflow-errors (pb:claim-reply-tasks (loop:await call)))))
                 (and (plusp (length tasks)) (elt tasks 0)))
             (session-lost () (lose-session worker session) nil))
        (with-worker (worker)
          (setf (worker-calls worker) (remove call (worker-calls worker))))))))

(defun claim-and-do (worker pauses)
  "Run once a job of WORKER that claims and does tasks. Return the seconds until the job claims
again, nil if WORKER is being stopped. PAUSES are the pauses of this job."
  (handler-case (let ((message (claim-one worker)))
                  (loop:forget-failures pauses)
                  (when message (do-task worker message))
                  (and (worker-open-p worker) 0))
    (error (condition)
      (when (worker-open-p worker)
        (if (typep condition 'workflow-error)
            (log-event :warning :workflow-claim-refused :worker (worker-name worker)
                                                        :condition (bounded-text condition))
            (log-event :error :workflow-worker-error :worker (worker-name worker)
                                                     :condition (bounded-text condition)))
        (loop:next-pause pauses)))))

(defun add-hand (worker)
  "Start a new job of WORKER that claims tasks and does them."
  (let ((pauses (loop:make-pauses +first-pause-seconds+ +longest-pause-seconds+)))
    (loop:add-job (worker-background worker) (lambda () (claim-and-do worker pauses)))))

(defun kinds-alist (kinds)
  "KINDS, of START-WORKER, as an alist. Signal MISUSE."
  (loop for item in kinds
        collect (cond ((stringp item)
                       (unless (gethash item **steps**)
                         (misuse "No DEFINE-STEP defines ~S." item))
                       (list item))
                      ((and (consp item) (stringp (car item))
                            (typep (cdr item) '(or function (and symbol (not null)))))
                       item)
                      (t (misuse "~S is neither a kind of tasks nor a cons of a kind and a ~
                                  function." item)))))

(defun start-worker (channel &key (name "") kinds (concurrency 4) (session-seconds 10) on-refused
                               on-task-lost)
  "Start a worker, and return it. The worker claims tasks of KINDS at the service to which CHANNEL
leads. KINDS is a list of strings, each of which DEFINE-STEP has defined, or of (KIND . FUNCTION)
with a function of a task as DEFINE-STEP defines them. The worker does at most CONCURRENCY tasks at
once, each on a thread of its own. If the worker's heartbeats fail for SESSION-SECONDS, 2 to 3600,
other workers get its tasks. NAME, a string, is shown to people. ON-TASK-LOST, a function of a task,
is called when the worker learns that a task under way belongs to others, or has exceeded its
longest time, so that its work can be stopped. ON-TASK-LOST must not wait, since it runs on the
thread that keeps the worker alive. ON-REFUSED, a function of a task and a WORKFLOW-ERROR, is called
when a report is refused because the task belonged to others. A task that was lost three times in a
row with its worker is done alone: meanwhile the worker does no other task. Nodes need not be
reachable yet. Signal MISUSE for an element of KINDS that is not a kind. From any thread; end it
with STOP-WORKER."
  (check-type concurrency (integer 1 1000))
  (check-type session-seconds (integer 2 3600))
  (let* ((functions (or (kinds-alist kinds) (misuse "A worker needs kinds of tasks.")))
         (worker (make-worker :name name :channel channel :functions functions
                              :seconds session-seconds :on-refused on-refused
                              :on-task-lost on-task-lost
                              :background (loop:make-background "clgrpc worker"
                                                                :threads (1+ concurrency)))))
    (setf (worker-heart worker) (loop:add-job (worker-background worker)
                                              (lambda () (keep-session worker)))
          (worker-hands worker) (loop repeat concurrency collect (add-hand worker)))
    (mapc #'loop:wake-job (cons (worker-heart worker) (worker-hands worker)))
    worker))

(defun stop-worker (worker &key (drain 10))
  "Stop WORKER, which claims no more tasks. The present tasks have DRAIN seconds to end and to be
reported; then other workers get the rest at once. Return true if all have ended. A function that
has not ended by then continues, and its report is refused. From any thread but the worker's own."
  (with-worker (worker)
    (when (worker-open-p worker) (setf (worker-state worker) :draining))
    (mapc #'rpc:cancel (worker-calls worker)))
  (let* ((end (loop:notice-end drain))
         (done (loop for hand in (worker-hands worker)
                     ;; each job gets the order to end
                     count (not (loop:end-job hand :seconds (loop:seconds-until end 0))) into left
                     finally (return (zerop left)))))
    (with-worker (worker)
      (setf (worker-state worker) :closed)
      (dolist (task (worker-held worker)) (setf (task-lost task) t))
      (when (worker-heart-call worker) (rpc:cancel (worker-heart-call worker))))
    (drop-stream worker)
    (when (worker-session worker)
      (handler-case (ask-once #'methods:close-session (worker-channel worker)
                              (pb:make-close-session-request :session (worker-session worker))
                              +closing-seconds+)
        ;; the channel may have been closed before, or an interceptor of the channel fails
        (error ())))
    (loop:end-background (worker-background worker) :seconds (if done 60 0))
    done))
