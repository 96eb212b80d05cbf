;;;; The client's functions of a workflow service. In place of a CHANNEL the functions here accept a
;;;; router (group-router.lisp) or, within the node's image, the service object itself. A refusal is
;;;; a workflow error. A call that got no answer can be repeated unchanged.

(in-package #:clgrpc.workflow)

(defconstant +call-seconds+ 10 "How long a call may take.")

(defconstant +silence-seconds+ 1
  "The seconds of silence after which a node gets a ping; after the same time again the node is
given up. The connection to a node may remain open although the node hangs.")

(defun reach-nodes (channel)
  "Make CHANNEL, by which nodes are called, detect soon that one of them hangs."
  (client:limit-channel-silence channel +silence-seconds+))

(defun ask-once (stub channel request timeout)
  "The answer of STUB to REQUEST, within TIMEOUT seconds. Signal a workflow error."
  (with-workflow-errors
    (values (funcall stub (reach-nodes channel) request :timeout (or timeout +call-seconds+)))))

(defun node-lost-p (condition)
  "True if CONDITION, a workflow error, says that a node was lost after it was asked and before it
answered."
  (let ((cause (workflow-error-cause condition)))
    (and (eq 'workflow-error (type-of condition))
         cause
         (eq :unavailable (status:rpc-error-status cause))
         (status:rpc-error-sent-p cause)
         t)))

(defun ask (stub channel request timeout)
  "The answer of STUB to REQUEST, which may be done twice, within TIMEOUT seconds. If a node is lost
meanwhile, ask another one. Signal a workflow error."
  (let ((end (loop:notice-end (or timeout +call-seconds+))) (failure nil))
    (loop
      (handler-case (return (ask-once stub channel request (loop:seconds-until end)))
        (workflow-error (condition)
          (unless (and (node-lost-p condition) (< (loop:world-now) end)) (error condition))
          (setf failure condition))
        ;; the channel was closed meanwhile
        (misuse (condition) (error (or failure condition)))))))

(defun start-workflow (channel id steps &key input type timeout call-timeout)
  "Start the workflow ID, a string of the caller's choice, at the service that CHANNEL leads to.
STEPS are those of DEFINE-WORKFLOW, as a list or by the name of a workflow. INPUT, a string, octets
or a message, is the input of the first. TYPE, a string, is shown to people; by default it is the
name of the workflow in lower case, if STEPS is a name. The workflow fails when TIMEOUT seconds are
over. Return true if this call has started it, false if an equal call had started it before. Signal
WORKFLOW-EXISTS if another workflow has this id, TOO-LARGE, BACKLOG-FULL or another WORKFLOW-ERROR;
at the latest after CALL-TIMEOUT seconds (10). From any thread."
  (pb:start-reply-began
   (ask #'methods:start (route channel id)
        (pb:make-start-request :id id :type (or type (type-of-steps steps)) :steps (steps-of steps)
                               :input (payload-octets input) :timeout-ms (duration-ms timeout))
        call-timeout)))

(defun workflow-state (channel id &key history input result timeout)
  "Return the state of the workflow ID, a CLGRPC.WORKFLOW.V1:GET-WORKFLOW-STATE-REPLY. The reply
includes the HISTORY, the INPUT and the last RESULT if these arguments are true. Signal
WORKFLOW-NOT-FOUND, or another WORKFLOW-ERROR after TIMEOUT seconds (10). From any thread."
  (ask #'methods:get-workflow-state (route channel id)
       (pb:make-get-workflow-state-request :id id :history (and history t) :input (and input t)
                                           :result (and result t))
       timeout))

(defun signal-workflow (channel id name payload &key (signal-id "") timeout)
  "Give the workflow ID a signal of NAME, a string, with PAYLOAD, a string, octets, a message or
nil. PAYLOAD becomes the result of the step that waits for the signal, now or later. Signals with
the same SIGNAL-ID, a string of the caller's choice, count once. Signal WORKFLOW-CLOSED if the
workflow has ended, or another WORKFLOW-ERROR after TIMEOUT seconds (10). From any thread."
  (funcall (if (string= "" signal-id) #'ask-once #'ask)
           #'methods:signal (route channel id)
           (pb:make-signal-request :id id :name name :payload (payload-octets payload)
                                   :signal-id signal-id)
           timeout)
  nil)

(defun cancel-workflow (channel id &key (reason "") timeout)
  "End the workflow ID as :cancelled, because of REASON. Nothing happens if the workflow was
cancelled before. Signal WORKFLOW-CLOSED if the workflow has ended otherwise, or another
WORKFLOW-ERROR after TIMEOUT seconds (10). From any thread."
  (ask #'methods:cancel (route channel id)
       (pb:make-cancel-request :id id :reason reason) timeout)
  nil)

(defun delete-workflow (channel id &key cancel (reason "") timeout)
  "Remove the workflow ID, which has ended, with its history, payloads and result: its id is free
again. If CANCEL is true, a running workflow is cancelled first, because of REASON. Return true if
the workflow existed; false if not, even if an earlier try of the same call has removed it. Signal
WORKFLOW-RUNNING, or another WORKFLOW-ERROR after TIMEOUT seconds (10). From any thread."
  (pb:delete-reply-deleted
   (ask #'methods:delete (route channel id)
        (pb:make-delete-request :id id :cancel (and cancel t) :reason reason)
        timeout)))

(defun search-request (&key (status :any) (type "") started-from started-before ended-from
                         ended-before)
  "The ListRequest for the arguments of MAP-WORKFLOWS. Signal MISUSE."
  (pb:make-list-request :status status :type type
                        :started-from-unix-ms (duration-ms started-from)
                        :started-before-unix-ms (duration-ms started-before)
                        :ended-from-unix-ms (duration-ms ended-from)
                        :ended-before-unix-ms (duration-ms ended-before)))

(defun map-workflows (function channel &rest search
                      &key status type started-from started-before ended-from ended-before timeout)
  "Call FUNCTION with a CLGRPC.WORKFLOW.V1:WORKFLOW-SUMMARY of each workflow, the newest first.
Keywords select workflows: STATUS is :running, :completed, :failed or :cancelled; TYPE is a string;
the workflows began at STARTED-FROM or later and before STARTED-BEFORE, and ended at ENDED-FROM or
later and before ENDED-BEFORE, in seconds since 1970. The workflows are fetched in pages, each
within TIMEOUT seconds (10). A workflow that begins, changes its status or is deleted meanwhile may
be missed. If CHANNEL is a router, the workflows of one group come after those of the previous
group. Signal a WORKFLOW-ERROR. From any thread."
  (declare (ignore status type started-from started-before ended-from ended-before))
  (dolist (channel (if (router-p channel) (router-channels channel) (list channel)))
    (loop with request = (apply #'search-request (alexandria:remove-from-plist search :timeout))
          for reply = (ask #'methods:list channel request timeout)
          do (map nil function (pb:list-reply-workflows reply))
             (setf (pb:list-request-after request) (pb:list-reply-next reply))
          until (string= "" (pb:list-request-after request)))))

;;; Watches

(defstruct (watcher (:copier nil))
  "A watch of changes; see WATCH-WORKFLOW."
  (channel nil :read-only t)            ; the channel to the service
  (id "" :type string :read-only t)     ; the id of the workflow; empty: all workflows
  (function nil :type function :read-only t) ; a function of a Change
  (after 0 :type (integer 0))           ; the number of the last change of the workflow told
  ;; for a watch of all workflows: where to continue; 0: the watch has not begun
  (revision 0 :type (integer 0))
  (told '() :type list)                 ; (id . number) of changes at REVISION that FUNCTION has got
  (end-function nil :type (or null function) :read-only t) ; the function that is called at the end,
                                                           ; or nil
  (call nil)                            ; the call, while there is one
  (pauses (loop:make-pauses 1/5 1/5) :read-only t) ; the pauses between two calls
  (ended nil :type boolean)             ; FUNCTION is called no more
  ;; why the watch has failed, unless the watch's workflow or user has ended it
  (failure nil :type (or null workflow-error))
  (lock (sb-thread:make-mutex :name "clgrpc workflow watcher") :read-only t) ; see below
  ;; CALL and ENDED are changed under the lock; ENDED and the first REVISION wake the waiters
  (waitqueue (sb-thread:make-waitqueue :name "clgrpc workflow watcher") :read-only t)
  ;; where its job runs, which calls FUNCTION
  (background (loop:make-background "clgrpc workflow watcher") :read-only t))

(define-printer (watcher watcher)
  "~:[~;ended, ~]~A after ~D" (watcher-ended watcher) (watcher-id watcher)
  (watcher-after watcher))

(defun of-all-p (watcher)
  (string= "" (watcher-id watcher)))

(defun note-resumption (watcher revision)
  "Record in WATCHER, which watches all workflows, that a watch that breaks off now can be resumed
from REVISION."
  (when (< (watcher-revision watcher) revision)
    (sb-thread:with-mutex ((watcher-lock watcher))
      (setf (watcher-told watcher) '()
            (watcher-revision watcher) revision)
      (sb-thread:condition-broadcast (watcher-waitqueue watcher)))))

(defun note-change-of-all (watcher change)
  "Pass CHANGE, a message of a watch of all workflows, to the function, unless the function has got
CHANGE before."
  (let ((key (cons (pb:change-id change) (pb:change-number change)))
        (revision (pb:change-revision change)))
    (unless (or (string= "" (car key))
                (< revision (watcher-revision watcher))
                (member key (watcher-told watcher) :test #'equal))
      (note-resumption watcher revision)
      (push key (watcher-told watcher))
      (funcall (watcher-function watcher) change))
    (note-resumption watcher (pb:change-resume-revision change))))

(defun note-change (watcher change)
  "Pass CHANGE to the function, unless the function has got it before."
  (cond ((of-all-p watcher) (note-change-of-all watcher change))
        ((< (watcher-after watcher) (pb:change-number change))
         (setf (watcher-after watcher) (pb:change-number change))
         (funcall (watcher-function watcher) change))))

(defun follow-call (watcher)
  "Pass the changes of one call to the function. The call ends without an error when the workflow
ends. Signal a WORKFLOW-ERROR, or FUNCTION-FAILED."
  (with-workflow-errors
    (rpc:with-call (call (methods:watch (reach-nodes (watcher-channel watcher))
                                        (pb:make-watch-request
                                         :id (watcher-id watcher) :after (watcher-after watcher)
                                         :revision (watcher-revision watcher))))
      (sb-thread:with-mutex ((watcher-lock watcher))
        (setf (watcher-call watcher) call)
        (when (watcher-ended watcher) (rpc:cancel call)))
      (loop for change = (rpc:receive call)
            while (and change (not (watcher-ended watcher)))
            do (with-function-failed () (note-change watcher change))))))

(defparameter *too-long-texts*
  '("octets to send, limit" "octets received, limit" "larger than max" "exceeds maximum size")
  "Parts of the texts by which clgrpc and other gRPC report that a message is too long.")

(defun too-long-p (condition)
  "True if CONDITION, a workflow error, says that a message is longer than a call accepts. The
status of CONDITION does not suffice, since an overloaded node or proxy uses the same status."
  (let ((cause (workflow-error-cause condition)))
    (and (eq 'workflow-error (type-of condition))
         cause
         (eq :resource-exhausted (status:rpc-error-status cause))
         (some (lambda (text) (search text (or (status:rpc-error-message cause) "")))
               *too-long-texts*))))

(defun passing-p (condition)
  "True if a call that ended with CONDITION can be tried again."
  (or (typep condition 'store-unavailable)
      (let ((cause (workflow-error-cause condition)))
        (and (eq 'workflow-error (type-of condition))
             cause
             (member (status:rpc-error-status cause)
                     '(:unavailable :deadline-exceeded :cancelled :internal :unknown
                       :resource-exhausted))
             (not (too-long-p condition))))))

(defun finish-watcher (watcher condition)
  (let ((first (sb-thread:with-mutex ((watcher-lock watcher))
                 (sb-thread:condition-broadcast (watcher-waitqueue watcher))
                 (unless (shiftf (watcher-ended watcher) t)
                   (setf (watcher-failure watcher) condition)
                   t))))
    (when (and first (watcher-end-function watcher))
      (loop:guarding (:workflow-watch-error)
        (funcall (watcher-end-function watcher) condition)))
    (loop:end-background (watcher-background watcher))))

(defun fail-watcher (watcher what condition)
  "End WATCHER because of CONDITION, signalled by WHAT."
  (log-event :error :workflow-watch-error :condition (bounded-text condition))
  (finish-watcher watcher (make-condition 'workflow-error
                                          :text (format nil "~A: ~A" what
                                                        (bounded-text condition)))))

(defun attend-watcher (watcher)
  "Run the job of WATCHER once. Return the seconds until WATCHER makes another call, or nil."
  (handler-case (progn (follow-call watcher)
                       (unless (of-all-p watcher) (finish-watcher watcher nil)))
    (workflow-error (condition)
      (unless (passing-p condition) (finish-watcher watcher condition)))
    (function-failed (failure)
      (fail-watcher watcher "the function of a watch" (function-failed-cause failure)))
    (error (condition) (fail-watcher watcher "a watch" condition)))
  (if (watcher-ended watcher)
      nil
      (loop:next-pause (watcher-pauses watcher))))

(defun await-watcher (watcher timeout &optional (begun-p (constantly nil)))
  "Wait until WATCHER has ended, or BEGUN-P is true of it, at most TIMEOUT seconds."
  (loop:await-until (watcher-waitqueue watcher) (watcher-lock watcher) (loop:notice-end timeout)
                    (lambda () (or (watcher-ended watcher) (funcall begun-p watcher)))))

(defun watch-workflow (function channel id &key (after 0) (revision 0) on-end
                                             (timeout +call-seconds+))
  "Watch the workflow ID: call FUNCTION with each change after the number AFTER, a
CLGRPC.WORKFLOW.V1:CHANGE, until the workflow has ended. Each change is reported once and in order,
even if connections break and nodes end meanwhile. If ID is nil, FUNCTION gets the changes of all
workflows, from REVISION of the store on or, if that is 0, from now on, without end. In that case
WATCH-WORKFLOW returns when a node has begun the watch, or after TIMEOUT seconds (10). Return an
object for END-WATCHING. At the end ON-END is called, with nil or with the WORKFLOW-ERROR that has
ended the watch: CHANGES-COMPACTED if some changes can no longer be read one by one, or FUNCTION's
error. Both functions run on a thread of the watch's own. From any thread."
  (when (and (null id) (router-p channel))
    (misuse "A watch of all workflows belongs to one group; ROUTER-CHANNELS returns the channels."))
  (let ((watcher (make-watcher :channel (if id (route channel id) channel) :id (or id "")
                               :function function :after after :revision revision
                               :end-function on-end))
        (begun nil))
    ;; a watch that is not returned, since this thread is unwound, ends
    (with-undoing ((loop:wake-job (loop:add-job (watcher-background watcher)
                                                (lambda () (attend-watcher watcher))))
                   (unless begun (leave-watcher watcher)))
      ;; until the watch knows where it can continue
      (when (of-all-p watcher)
        (await-watcher watcher timeout (lambda (watcher) (plusp (watcher-revision watcher)))))
      (setf begun t))
    watcher))

(defun leave-watcher (watcher &optional (seconds 0))
  "End WATCHER, and wait for its functions, SECONDS at most."
  (sb-thread:with-mutex ((watcher-lock watcher))
    (setf (watcher-ended watcher) t)
    (sb-thread:condition-broadcast (watcher-waitqueue watcher))
    (when (watcher-call watcher) (rpc:cancel (watcher-call watcher))))
  (loop:end-background (watcher-background watcher) :seconds seconds))

(defun end-watching (watcher)
  "End WATCHER, which WATCH-WORKFLOW returned: its functions are not called after this has returned.
From any thread; if WATCHER's function calls this, that call of the function is the last."
  (leave-watcher watcher 60))

(defun await-end (channel id timeout)
  "Wait until the workflow ID has ended, TIMEOUT seconds at most. Return the workflow error that has
ended the watch; nil if no error has ended it."
  (let ((watcher nil))
    (with-undoing ((setf watcher (watch-workflow (constantly nil) channel id))
                   (leave-watcher watcher))
      (await-watcher watcher timeout))
    (end-watching watcher)
    (watcher-failure watcher)))

(defun await-workflow (channel id &key (timeout 60))
  "Wait until the workflow ID has ended. Return three values: the workflow's status, :completed,
:failed or :cancelled; the last result, octets; and the reason why it has failed or was cancelled, a
string. Return nil if the workflow still runs after TIMEOUT seconds. Signal WORKFLOW-NOT-FOUND or
another WORKFLOW-ERROR. From any thread."
  (let ((end (loop:notice-end timeout)) (pauses (loop:make-pauses 1/2 5)))
    (loop for failure = (await-end channel id (loop:seconds-until end))
          for next = (loop:notice-end (loop:next-pause pauses))
          while failure
          ;; too many watches: there may be room soon, or at another node
          do (unless (and (typep failure 'backlog-full) (< next end)) (error failure))
             (loop:world-sleep (loop:seconds-until next)))
    (let* ((reply (workflow-state channel id :result t))
           (state (pb:get-workflow-state-reply-state reply)))
      (if (running-p state)
          nil
          (values (pb:workflow-state-status state) (pb:get-workflow-state-reply-result reply)
                  (pb:workflow-state-reason state))))))
