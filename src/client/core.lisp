;;;; What a channel does on its loop: it has its servers resolved and balanced, has each call picked
;;;; a subchannel and started on a stream of it, and keeps the calls that wait, for a connection or,
;;;; past the limits of the servers, for a stream.
;;;;
;;;; 1. A call that needs a connection wakes an idle channel. Its resolver begins, or is asked anew;
;;;;    an answer that is certain to come soon is waited for (ANSWERS-P).
;;;; 2. The resolver tells of backends, then and whenever they change; the balancer hears of them.
;;;; 3. The balancer publishes a state and a picker, and the calls that wait are picked for.
;;;; 4. A call that finds no stream waits. It is picked for again when a stream ends, a server
;;;;    allows more, or another picker is published.
;;;;
;;;; Everything here runs on the channel's loop, unless something else is said.

(in-package #:clgrpc.client)

;;; Waiting calls

(defun enqueue-waiting (core call)
  (unless (eq :ready (core-state core)) (begin-waiting core call))
  (trace-event :channel :call-waits :target (core-name core)
               :method (rpc:call-path call) :state (core-state core)
               :before (length (waiting-calls core)))
  (enqueue call (core-waiting core)))

(defun begin-waiting (core call)
  "CALL waits from now on for CORE to have a connection."
  (let ((parts (wire:ensure-wire-parts call)))
    (unless (wire:wire-parts-wait parts)
      (setf (wire:wire-parts-wait parts)
            (wire:read-clock-for-call (core-clock core) (core-now core))))))

;;; Picking

(define-hot (pick :inline t) ((core core) (call client-call)) t
  "What the picker of CORE gives for CALL: a subchannel, a FAILURE or nil."
  (let ((picker (core-picker core)))
    (if (picker-p picker)
        (funcall (picker-function picker) call)
        picker)))

(defun choosy-p (core)
  "True if the calls of CORE that wait hold up no others."
  (let ((picker (core-picker core)))
    (and (picker-p picker) (picker-choosy picker))))

(define-hot submit ((core core) (call client-call) request) t
  "Start CALL, with its only REQUEST unless that is nil, on a stream as soon as there is one."
  (let ((picked (if (and (waiting-calls core) (not (choosy-p core))) nil (pick core call))))
    (multiple-value-bind (stream link)
        (if (subchannel-p picked) (free-stream picked) (values nil nil))
      (cond (stream (start-on-stream call link stream request))
            (t (when request
                 (setf (client-call-request call) (wire:encode-message call request nil)))
               (submit-later core call))))))

(defun submit-later (core call)
  "There is no stream for CALL now."
  (ecase (core-state core)
    (:ready (enqueue-waiting core call) (start-waiting core))
    (:idle (enqueue-waiting core call)
     (unless (core-picker core) (wake core)))
    (:connecting (enqueue-waiting core call))
    (:transient-failure
     (let ((picked (pick core call)))
       (if (and (failure-p picked) (not (client-call-wait-for-ready call)))
           (fail-call call picked)
           (enqueue-waiting core call))))
    (:shutdown (end-client-call call :unavailable "the channel is closed" :ended-by :local
                                                                          :sent nil))))

(defun resubmit (call)
  "Begin another attempt of CALL, unless it has ended, as soon as there is a stream: its own, or, if
it has one, one beside that."
  (unless (call-status call)
    (let* ((core (client-call-core call))
           (picked (if (and (waiting-calls core) (not (choosy-p core))) nil (pick core call))))
      (multiple-value-bind (stream link)
          (if (subchannel-p picked) (free-stream picked) (values nil nil))
        (if stream
            (start-attempt call link stream)
            (submit-later core call))))))

(defun start-attempt (call link stream)
  "CALL, which waits for one, has STREAM of LINK."
  (if (wire-call-stream call)
      (add-attempt call link stream)
      (start-on-stream call link stream nil)))

(defun wanted-p (call)
  "True if CALL, which waits for a stream, still needs one: attempts beside another may not."
  (not (or (call-status call)
           (and (wire-call-stream call)
                (wire:retries-over (wire:ensure-retries call))))))

(defun fail-call (call failure)
  "An attempt of CALL fails, since FAILURE was picked for it."
  (let ((setback (make-setback (failure-status failure) (failure-text failure)
                               :how '(:ended-by :transport :sent nil)
                               :reach (if (failure-drop failure) :dropped :nowhere))))
    (if (plain-p call)
        (end-with-setback call setback)
        (attempt-failed call nil setback))))

(defun start-waiting (core)
  "Pick for the calls that wait, the oldest first, until one finds no stream, or all if the picker
is choosy. Those that wait for ready keep their places when a failure is picked for them."
  (let ((patient '())
        (choosy (choosy-p core)))
    (flet ((start (call)
             "True if the next may try."
             (let ((picked (pick core call)))
               (typecase picked
                 (null (when choosy (push call patient)))
                 (failure (cond ((client-call-wait-for-ready call)
                                 (begin-waiting core call)
                                 (push call patient))
                                (t (fail-call call picked)))
                  t)
                 (t (multiple-value-bind (stream link) (free-stream picked)
                      (cond (stream
                             (stop-waiting call)
                             (start-attempt call link stream)
                             t)
                            (choosy (push call patient)))))))))
      (loop for call = (dequeue (core-waiting core))
            while call
            unless (or (not (wanted-p call)) (start call))
              do (enqueue-first call (core-waiting core))
                 (return)))
    (dolist (call patient) (enqueue-first call (core-waiting core))))
  (dolist (subchannel (core-subchannels core)) (leave-full-links subchannel)))

;;; States

(defun change-core-state (core state)
  (trace-event :connectivity-state :state-changed :target (core-name core)
               :from (core-state core) :to state)
  (setf (core-state core) state)
  (sb-thread:with-mutex ((core-lock core))
    (sb-thread:condition-broadcast (core-changed core)))
  (when (core-dropped core) (funcall (core-dropped core))))

(defun change-picker (core state picker)
  "CORE's channel is in STATE, and its calls are picked for by PICKER from now on."
  (unless (eq :shutdown (core-state core))
    (setf (core-picker core) picker)
    (unless (eq state (core-state core)) (change-core-state core state))
    (when (waiting-calls core)
      (cond (picker (start-waiting core))
            ((eq :idle state) (wake core))))))

(defmethod parent-core ((parent core))
  parent)

(defmethod child-published ((parent core) child state picker)
  (declare (ignore child))
  (change-picker parent state picker))

(defun wake (core)
  "The channel is to connect, if it is idle."
  (cond ((not (eq :idle (core-state core))))
        ((core-picker core) (exit-idle (core-balancer core))) ; which decides call by call
        (t (leave-idle core))))

(defun leave-idle (core)
  "CORE, which is idle, has its servers resolved, anew if need be, and connected to."
  (dolist (call (waiting-calls core)) (begin-waiting core call))
  (change-picker core :connecting nil)
  (enter-stage core :resolve)
  (cond ((not (core-resolving core))
         (setf (core-resolving core) t
               (core-awaiting core) t)
         (run-resolver (core-resolver core) (core-loop core)
                       (lambda (backends failure config)
                         (if failure
                             (receive-failure core failure)
                             (receive-backends core backends config)))))
        (t (setf (core-awaiting core)
                 (or (answers-p (core-resolver core)) (not (core-resolved core))))
           (ask-resolver core)
           (unless (core-awaiting core) (exit-idle (core-balancer core))))))

;;; What the resolver says

(defun receive-backends (core backends pushed)
  "The resolver of CORE has told of BACKENDS, and has PUSHED a service config, as SELECTED-CONFIG
takes it."
  (trace-event :channel :backends :target (core-name core)
                                  :backends (mapcar #'backend-key backends))
  (let ((config (selected-config core pushed)))
    (cond (config
           (adopt-config core config)
           (use-backends core backends))
          (t (receive-failure core (princ-to-string pushed))))))

(defun use-backends (core backends)
  "CORE's servers are BACKENDS from now on."
  (stop-back-off (core-back-off core) (core-loop core))
  (forget-failures (core-back-off core))
  (setf (core-resolved core) (and backends t))
  (update-backends (core-balancer core) backends (core-policy core))
  (cond ((null backends)
         (fail-resolving core (format nil "~A has no servers" (core-name core))))
        ((or (shiftf (core-awaiting core) nil)
             (eq :transient-failure (core-state core)))
         (exit-idle (core-balancer core)))))

(defun receive-failure (core text)
  "The resolver of CORE has no backends because of TEXT. Those that there are stay in use."
  (log-event :info :resolving-failed :target (core-name core) :reason text)
  (cond ((not (core-resolved core)) (fail-resolving core text))
        ((shiftf (core-awaiting core) nil)
         (exit-idle (core-balancer core))))
  (await-resolver core))

(defun fail-resolving (core text)
  "CORE has no backends because of TEXT."
  (setf (core-trouble core) text
        (core-awaiting core) nil)
  (change-picker core :transient-failure (make-failure text)))

(defun await-resolver (core)
  "Ask CORE's resolver, which has failed, again after a while."
  (unless (core-resolved core) (enter-stage core :back-off))
  (stop-back-off (core-back-off core) (core-loop core))
  (start-back-off (core-back-off core) (core-loop core) (core-options core)
                  (lambda ()
                    (unless (core-resolved core) (enter-stage core :resolve))
                    (resolve-again (core-resolver core)))))

;;; The end

(defun shut-down (core)
  "End CORE and every call on it."
  (change-core-state core :shutdown)
  (setf (core-picker core) nil)
  (stop-back-off (core-back-off core) (core-loop core))
  (quit-resolver (core-resolver core))
  (dolist (call (clear-fifo (core-waiting core)))
    (end-client-call-as call :channel-closed :ended-by :local :sent nil))
  (dolist (call (alexandria:hash-table-keys (core-retrying core)))
    (end-client-call-as call :channel-closed :ended-by :local))
  (mapc #'abandon-subchannel (core-subchannels core))
  (close-balancer (core-balancer core)))

(defun close-core (core)
  "End CORE, unless that is done, and give up its client loop. Not on its loop."
  (when (sb-thread:with-mutex ((core-lock core)) (shiftf (core-open core) nil))
    (trace-event :channel :channel-closed :target (core-name core))
    (let ((done (sb-thread:make-semaphore)))
      (loop:run-or-post (core-loop core)
                        (lambda ()
                          (shut-down core)
                          (sb-thread:signal-semaphore done)))
      (loop:await-semaphore done :timeout-seconds 10)
      (release-client-loop (core-client-loop core)))
    (loop:forget-ending core))
  nil)
