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
               (submit-later core call picked))))))

(defun submit-later (core call picked)
  "There is no stream for CALL now, for which PICKED was picked if the picker was asked."
  (if (and (failure-p picked) (ends-p call picked))
      (fail-call call picked)
      (wait-for-stream core call)))

(defun wait-for-stream (core call)
  "CALL waits for a stream, unless there will be none."
  (ecase (core-state core)
    (:ready (enqueue-waiting core call)
     (start-waiting core)
     (let ((failure (and (core-admitted core) (refuse-to-wait core call))))
       (when failure (fail-call call failure))))
    (:idle (enqueue-waiting core call)
     (unless (core-picker core) (wake core)))
    (:connecting (enqueue-waiting core call))
    (:transient-failure
     (let ((picked (pick core call)))
       (if (and (failure-p picked) (ends-p call picked))
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
            (submit-later core call picked))))))

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

(defun ends-p (call failure)
  "True if CALL, which FAILURE was picked for, ends with it."
  (or (failure-drop failure)
      (not (client-call-wait-for-ready call))))

(defun fail-call (call failure)
  "An attempt of CALL fails, since FAILURE was picked for it."
  (let ((setback (make-setback (failure-status failure) (failure-text failure)
                               :how '(:ended-by :transport :sent nil)
                               :reach (if (failure-drop failure) :dropped :nowhere))))
    (if (plain-p call)
        (end-with-setback call setback)
        (attempt-failed call nil setback))))

(defconstant +picks-for-links+ 16
  "So many more servers are picked at most for a call that waits, to find one that may have another
connection.")

(defun ask-for-some-link (core call picked)
  "CALL finds no stream of PICKED: that is to get another link. If it has as many as it may, another
that is picked for CALL is, as CALL starts on whichever has a stream first (gRFC A105)."
  (unless (or (ask-for-link picked)
              (choosy-p core)
              (= 1 (most-links picked)))
    (loop for nil in (core-subchannels core)
          repeat +picks-for-links+
          for other = (pick core call)
          while (subchannel-p other)
          until (ask-for-link other))))

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
                 (failure (cond ((ends-p call picked) (fail-call call picked))
                                (t (begin-waiting core call)
                                   (push call patient)))
                  t)
                 (t (multiple-value-bind (stream link) (free-stream picked)
                      (cond (stream
                             (stop-waiting call)
                             (start-attempt call link stream)
                             t)
                            (t (ask-for-some-link core call picked)
                               (when choosy (push call patient))))))))))
      (loop for call = (dequeue (core-waiting core))
            while call
            unless (or (not (wanted-p call)) (start call))
              do (enqueue-first call (core-waiting core))
                 (return)))
    (dolist (call patient) (enqueue-first call (core-waiting core))))
  (dolist (subchannel (core-subchannels core)) (leave-full-links (trunk-of subchannel))))

(defmethod serve-waiting ((core core))
  (when (waiting-calls core) (start-waiting core)))

;;; States

(defun change-core-state (core state)
  (trace-event :connectivity-state :state-changed :target (core-name core)
               :from (core-state core) :to state)
  (let ((failed (eq :transient-failure state)))
    (note-core-event core (if failed :warning :info) "state changed from ~A to ~A~@[: ~A~]"
                     (state-text (core-state core)) (state-text state)
                     (and failed (core-trouble core))))
  (setf (core-state core) state)
  (sb-thread:with-mutex ((core-lock core))
    (sb-thread:condition-broadcast (core-changed core)))
  (when (core-dropped core) (funcall (core-dropped core))))

(defun change-picker (core state picker)
  "CORE's channel is in STATE, and its calls are picked for by PICKER from now on."
  (unless (eq :shutdown (core-state core))
    (setf (core-picker core) (guarded-picker core picker))
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
  (begin-idle-watch core)
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
                 (or (answer-comes-p core) (not (core-resolved core))))
           (ask-resolver core)
           (unless (core-awaiting core) (exit-idle (core-balancer core))))))

;;; What the resolver says

(defconstant +told-backends+ 8
  "An event of a channel names so many of its servers at most.")

(defun note-backends (core backends)
  "The resolver of CORE has told of BACKENDS: note that if they are others than before."
  (let ((keys (sort (mapcar #'backend-key backends) #'string<)))
    (unless (equal keys (core-backend-keys core))
      (let ((more (- (length keys) +told-backends+)))
        (note-core-event core :info "the resolver tells of ~[no servers~:;~:*~D server~:P: ~
                                     ~{~A~^, ~}~@[ and ~D more~]~]"
                         (length keys) (subseq keys 0 (min +told-backends+ (length keys)))
                         (and (plusp more) more)))
      (setf (core-backend-keys core) keys))))

(defun receive-backends (core backends pushed)
  "The resolver of CORE has told of BACKENDS, and has PUSHED a service config, as SELECTED-CONFIG
takes it."
  (trace-event :channel :backends :target (core-name core)
                                  :backends (mapcar #'backend-key backends))
  (note-backends core backends)
  (let ((config (selected-config core pushed)))
    (cond (config
           (adopt-config core config)
           (use-backends core backends))
          (t (receive-failure core (princ-to-string pushed))))))

(defun use-backends (core backends)
  "CORE's servers are BACKENDS from now on."
  (when backends
    (stop-back-off (core-back-off core) (core-loop core))
    (forget-failures (core-back-off core)))
  (setf (core-resolved core) (and backends t))
  (update-backends (core-balancer core) backends (core-policy core))
  (cond ((null backends)
         (fail-resolving core (format nil "~A has no servers" (core-name core)))
         (await-resolver core))
        ((or (shiftf (core-awaiting core) nil)
             (eq :transient-failure (core-state core)))
         (exit-idle (core-balancer core))))
  (when (eq :ready (core-state core)) (serve-waiting core))) ; they may have more connections

(defun receive-failure (core text)
  "The resolver of CORE has no backends because of TEXT. Those that there are stay in use."
  (log-event :info :resolving-failed :target (core-name core) :reason text)
  (note-core-event core :warning "resolving failed: ~A" text)
  (cond ((not (core-resolved core)) (fail-resolving core text))
        ((shiftf (core-awaiting core) nil)
         (exit-idle (core-balancer core))))
  (await-resolver core))

(defun fail-resolving (core text)
  "CORE has no backends because of TEXT."
  (setf (core-trouble core) text
        (core-awaiting core) nil)
  (tell-failed-attempt core)
  (change-picker core :transient-failure (make-failure text)))

(defun await-resolver (core)
  "Ask CORE's resolver, which has failed or has told of no server, again after a while."
  (unless (core-resolved core) (enter-stage core :back-off))
  (stop-back-off (core-back-off core) (core-loop core))
  (start-back-off (core-back-off core) (core-loop core) (core-options core)
                  (lambda ()
                    (unless (core-resolved core) (enter-stage core :resolve))
                    (resolve-again (core-resolver core)))))

;;; Idleness. A timer looks from time to time whether the channel has calls, or has had some since
;;; it looked last; calls pay nothing for it.

(defun busy-p (core)
  "True if CORE has calls of users'."
  (or (waiting-calls core)
      (plusp (hash-table-count (core-retrying core)))
      (some (lambda (subchannel)
              (or (subchannel-leaving subchannel)
                  (plusp (subchannel-calls subchannel))))
            (core-subchannels core))))

(defun core-picks (core)
  "How many streams the subchannels of CORE have had."
  (reduce #'+ (core-subchannels core) :key #'subchannel-picks))

(defun idle-limit-ns (core)
  "After how long without calls CORE is to go idle; 0 is never."
  (let ((seconds (options-idle-seconds (core-options core))))
    (if (plusp seconds) (seconds-ns (max 1 seconds)) 0)))

(defun begin-idle-watch (core)
  "CORE leaves its idle state; have it go back there when it has had no calls for long enough."
  (let ((limit (idle-limit-ns core)))
    (when (and (plusp limit) (null (core-idle-timer core)))
      (setf (core-idle-timer core) (make-timer #'watch-idleness core)
            (core-idle-since-ns core) (core-now core))
      (watch-idleness core))))

(defun watch-idleness (core)
  "Look whether CORE has been without calls for long enough, now or else later; or, if not all of
it, which of its connections beyond the first to a server have."
  (let ((now (core-now core))
        (limit (idle-limit-ns core))
        (picks (core-picks core)))
    (dolist (subchannel (core-subchannels core))
      (leave-spare-links (trunk-of subchannel) (max 0 (- now limit))))
    (flet ((look-again (due)
             (schedule-timer (loop:event-loop-wheel (core-loop core)) (core-idle-timer core) due)))
      (cond ((or (busy-p core) (/= picks (core-idle-picks core)))
             (setf (core-idle-picks core) picks
                   (core-idle-since-ns core) now)
             (look-again (+ now (ceiling limit 8))))
            ((< now (+ limit (core-idle-since-ns core)))
             (look-again (+ limit (core-idle-since-ns core))))
            (t (go-idle core))))))

(defun stop-idle-watch (core)
  (let ((timer (shiftf (core-idle-timer core) nil)))
    (when timer (cancel-timer (loop:event-loop-wheel (core-loop core)) timer))))

(defun go-idle (core)
  "End the balancer and the resolver of CORE, which has no calls, until it has one."
  (trace-event :channel :channel-idle :target (core-name core))
  (stop-idle-watch core)
  (stop-back-off (core-back-off core) (core-loop core))
  (forget-failures (core-back-off core))
  (quit-resolver (core-resolver core))
  (setf (core-resolving core) nil
        (core-resolved core) nil
        (core-awaiting core) nil)
  (close-balancer (core-balancer core))
  (setf (core-balancer core) (make-instance 'switch :parent core))
  (change-picker core :idle nil))

(defun end-back-off (core)
  "Have what CORE waits to try again, its resolver and its servers, be tried now, and later waits be
as after the first failure."
  (let ((waits (back-off-timer (core-back-off core))))
    (stop-back-off (core-back-off core) (core-loop core))
    (forget-failures (core-back-off core))
    (when waits (resolve-again (core-resolver core))))
  (dolist (subchannel (copy-list (core-subchannels core)))
    (let ((back-off (trunk-back-off (trunk-of subchannel))))
      (forget-failures back-off)
      (when (back-off-timer back-off)
        (stop-back-off back-off (core-loop core))
        (end-wait (trunk-of subchannel))
        (connect subchannel))))
  (serve-waiting core))

;;; The end

(defun shut-down (core)
  "End CORE and every call on it."
  (change-core-state core :shutdown)
  (setf (core-picker core) nil)
  (stop-idle-watch core)
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
    (quit-registry core **cores**)
    (let ((done (sb-thread:make-semaphore)))
      (loop:run-or-post (core-loop core)
                        (lambda ()
                          (shut-down core)
                          (sb-thread:signal-semaphore done)))
      (loop:await-semaphore done :timeout-seconds 10)
      (release-client-loop (core-client-loop core)
                           (and (core-commons core) (commons-likeness (core-commons core)))))
    (loop:forget-ending core))
  nil)
