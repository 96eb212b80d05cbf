;;;; The core of a channel on its loop. The core resolves the channel's target, balances the
;;;; servers, picks a subchannel for each call and starts the call on a stream. The core keeps the
;;;; calls that wait for a connection or, past the limits of the servers, for a stream.
;;;;
;;;; 1. A call that needs a connection wakes an idle channel. The channel's resolver begins, or is
;;;;    asked again; the channel waits for an answer that is certain to arrive soon (ANSWERS-P).
;;;; 2. The resolver publishes backends, then and whenever they change, to the balancer.
;;;; 3. The balancer publishes a state and a picker, which picks servers for the calls that wait.
;;;; 4. A call that finds no stream waits (stream-queue.lisp), until a stream ends, a server allows
;;;;    more, or another picker is published. A function that was given with the call gets the
;;;;    stream, or the failure: this file does not know attempts (attempt.lisp).
;;;;
;;;; Everything here runs on the channel's loop, except where a docstring names another thread.

(in-package #:clgrpc.client)

;;; Picking

(define-hot (pick :inline t) ((core core) (call client-call)) t
  "The pick of CORE's picker for CALL: a subchannel, a FAILURE or nil."
  (let ((picker (core-picker core)))
    (if (picker-p picker)
        (funcall (picker-function picker) call)
        picker)))

(defun pick-again (core call subchannel)
  "The new pick of CORE's picker for CALL, which waits for a stream of SUBCHANNEL: SUBCHANNEL itself
or a FAILURE."
  (let* ((picker (core-picker core))
         (again (and (picker-p picker) (picker-again picker))))
    (if again (funcall again subchannel call) subchannel)))

(defun waiting-refusal (core queued-attempt)
  "The FAILURE with which CORE's picker refuses to let QUEUED-ATTEMPT wait; nil if it may wait."
  (let* ((picker (core-picker core))
         (waiting (and (picker-p picker) (picker-waiting picker))))
    (and waiting (funcall waiting queued-attempt))))

(define-hot (find-stream :inline t) ((core core) (call client-call))
    (values (or null http2:stream) (or null link) t)
  "Two values: a stream for CALL and its link; or nil and nil if no stream is free now. The third
value is the pick for CALL, or nil."
  (let ((picked (if (and (waiting-p core) (not (eager-p core))) nil (pick core call))))
    (multiple-value-bind (stream link)
        (if (subchannel-p picked) (free-stream picked) (values nil nil))
      (values stream link picked))))

(defun begin-waiting (core call)
  "Note that CALL begins to wait for a connection of CORE, or a stream on one."
  (let ((parts (ensure-client-parts call)))
    (unless (client-parts-wait parts)
      (setf (client-parts-wait parts)
            (read-clock-for-call (core-clock core) (core-now core))))))

(defun begin-place (core call picked taker)
  "Queue CALL, for which PICKED was picked, with TAKER; return the place of CALL."
  (begin-waiting core call)
  (trace-event :channel :call-waits :target (core-name core)
               :method (rpc:call-path call) :state (core-state core)
               :before (stream-queue-count (core-stream-queue core)))
  (add-queued-attempt call picked taker))

(defun deny (call taker failure)
  "Report to TAKER that CALL gets no stream, since FAILURE was picked for it."
  (declare (type function taker))
  (funcall taker call nil nil
           (make-client-failure (failure-status failure) (failure-text failure)
                                :how '(:ended-by :transport :sent nil)
                                :reach (if (failure-drop failure) :dropped :nowhere))))

(defun wait-for-stream (core call picked taker)
  "Let CALL wait for a stream: FIND-STREAM has found no stream for it, and has picked PICKED. TAKER
is called when the wait ends: with CALL, a stream and its link, and nil; or with CALL, nil, nil, and
an ATTEMPT-FAILURE."
  (if (and (failure-p picked) (ends-p call picked))
      (deny call taker picked)
      (ecase (core-state core)
        (:ready (let ((queued-attempt (begin-place core call picked taker)))
                  (cond ((not (choosy-p core)) (start-first core))
                        ((subchannel-p picked) (serve-waiting core picked)))
                  (let ((failure (waiting-refusal core queued-attempt)))
                    (when failure (deny call taker failure)))))
        (:idle (begin-place core call picked taker)
         (unless (core-picker core) (wake core)))
        (:connecting (begin-place core call picked taker))
        (:transient-failure
         (let ((picked (or picked (pick core call))))
           (if (and (failure-p picked) (ends-p call picked))
               (deny call taker picked)
               (begin-place core call picked taker))))
        (:shutdown (rpc:abort-as call :channel-closed)))))

(defun wanted-p (call)
  "True if CALL still needs an attempt that waits to begin: an attempt in parallel to another one
may have become unnecessary."
  (not (or (call-status call)
           (and (client-call-stream call)
                (call-retries call)
                (client-retries-over (call-retries call))))))

(defun ends-p (call failure)
  "True if CALL, for which FAILURE was picked, ends with that failure."
  (or (failure-drop failure)
      (not (client-call-wait-for-ready call))))

(defconstant +picks-for-links+ 16
  "The maximum number of further picks for a waiting call, which look for a server that may have
another connection.")

(defun ask-for-some-link (core call picked)
  "Ask for another link of PICKED, on which CALL finds no stream. If PICKED has as many links as it
may have, pick again for CALL and ask the new server; CALL starts on the first server with a free
stream (gRFC A105)."
  (unless (or (ask-for-link picked)
              (choosy-p core)
              (= 1 (most-links picked)))
    (loop for nil in (core-subchannels core)
          repeat +picks-for-links+
          for other = (pick core call)
          while (subchannel-p other)
          until (ask-for-link other))))

(defun start-at (core queued-attempt picked)
  "Start the call of QUEUED-ATTEMPT on PICKED, its pick, if PICKED is a server with a free stream.
If PICKED is a failure that ends the call, deny the call a stream. Return true if QUEUED-ATTEMPT
left the queue."
  (let ((call (queued-attempt-call queued-attempt)))
    (typecase picked
      (null nil)
      (failure (cond ((ends-p call picked)
                      (leave-place queued-attempt)
                      (deny call (queued-attempt-taker queued-attempt) picked)
                      t)
                     (t (begin-waiting core call)
                        nil)))
      (t (multiple-value-bind (stream link) (free-stream picked)
           (when stream
             (leave-place queued-attempt)
             (stop-waiting call)
             ;; on an error the attempt is in no queue, and the other calls still get their turn
             (guarding-call (call)
                            (funcall (queued-attempt-taker queued-attempt) call stream link nil))
             t))))))

(defun start-first (core)
  "Pick for the calls that wait for any stream, the oldest first, until one finds no stream. Calls
that do not end with a failure wait for another picker."
  (loop for queued-attempt = (ring-first (stream-queue-waiting (core-stream-queue core)))
        for wanted = (and queued-attempt (wanted-p (queued-attempt-call queued-attempt)))
        for picked = (and wanted (pick core (queued-attempt-call queued-attempt)))
        while queued-attempt
        do (cond ((not wanted) (leave-place queued-attempt))
                 ((start-at core queued-attempt picked))
                 (t (move-place queued-attempt picked)
                    (when (subchannel-p picked)
                      (ask-for-some-link core (queued-attempt-call queued-attempt) picked)
                      (drain-full-links (subchannel-connection-set picked)))
                    (unless (failure-p picked) (return))))))

(defun start-those-of (core subchannel)
  "Start the waiting calls for which a choosy picker has picked SUBCHANNEL, the oldest first, until
no stream is free."
  (loop for queued-attempt = (ring-first (subchannel-waiting subchannel))
        for wanted = (and queued-attempt (wanted-p (queued-attempt-call queued-attempt)))
        while queued-attempt
        do (cond ((not wanted) (leave-place queued-attempt))
                 ((start-at core queued-attempt
                            (pick-again core (queued-attempt-call queued-attempt) subchannel)))
                 (t (ask-for-some-link core (queued-attempt-call queued-attempt) subchannel)
                    (return))))
  (drain-full-links (subchannel-connection-set subchannel)))

(defun serve-waiting (core subchannel)
  "Serve the calls that wait in CORE, because a stream of SUBCHANNEL may be free; ask for
connections for the others."
  (if (choosy-p core)
      (start-those-of core subchannel)
      (start-first core)))

(defun place-by-itself (core queued-attempt)
  "Pick for the call of QUEUED-ATTEMPT, which waits for any stream, regardless of other waiting
calls."
  (let* ((call (queued-attempt-call queued-attempt))
         (wanted (wanted-p call))
         (picked (and wanted (pick core call))))
    (cond ((not wanted) (leave-place queued-attempt))
          ((start-at core queued-attempt picked))
          (t (move-place queued-attempt picked)
             (when (subchannel-p picked) (ask-for-some-link core call picked))))))

(defun serve-all (core)
  "Serve the calls that wait in CORE, since each server may have a free stream, or may get another
connection."
  (when (and (waiting-p core) (core-picker core)) (place-anew core)))

(defun place-anew (core)
  "With CORE's new picker, pick for the waiting calls, the oldest first: for all of them or, if
calls of CORE wait in line, until a call finds no stream."
  (gather-places core)
  (if (eager-p core)
      (loop with picker = (core-picker core)
            for queued-attempt in (waiting-places core)
            ;; the start of a call may end others, or change the picker
            while (eq picker (core-picker core))
            do (when (queued-p queued-attempt) (place-by-itself core queued-attempt)))
      (start-first core))
  (dolist (subchannel (core-subchannels core))
    (drain-full-links (subchannel-connection-set subchannel))))

;;; States

(defun unready-text (core)
  "The reason why CORE is not ready, a text; nil if no reason is known. The text says why CORE's
picker picks no server, for example because a server does not serve, or why the last attempt to
connect failed. From any thread."
  (let ((picker (core-picker core)))
    (if (failure-p picker) (failure-text picker) (core-last-error core))))

(defun change-core-state (core state)
  "Set the state of CORE to STATE, and notify everything that waits for a change of the state."
  (trace-event :connectivity-state :state-changed :target (core-name core)
               :from (core-state core) :to state)
  (let ((failed (eq :transient-failure state)))
    (note-core-event core (if failed :warning :info) "state changed from ~A to ~A~@[: ~A~]"
                     (state-text (core-state core)) (state-text state)
                     (and failed (unready-text core))))
  (setf (core-state core) state)
  (sb-thread:with-mutex ((core-lock core))
    (sb-thread:condition-broadcast (core-changed core)))
  (dolist (function (core-state-functions core)) (calling:tell-state function state))
  (when (core-dropped core) (funcall (core-dropped core))))

(defun watch-state (core function)
  "Call FUNCTION with the state of CORE, now and after each change."
  (calling:tell-state function (core-state core))
  (unless (eq :shutdown (core-state core))
    (setf (core-state-functions core) (append (core-state-functions core) (list function)))))

(defun change-picker (core state picker)
  (unless (eq :shutdown (core-state core))
    (setf (core-picker core) (funcall (core-picker-wrapper core) picker))
    (unless (eq state (core-state core)) (change-core-state core state))
    (when (waiting-p core)
      (cond (picker (place-anew core))
            ((eq :idle state) (wake core))))))

(defmethod parent-core ((parent core))
  parent)

(defmethod child-published ((parent core) child state picker)
  (declare (ignore child))
  (change-picker parent state picker))

(defun wake (core)
  "Connect the channel of CORE if it is idle."
  (cond ((not (eq :idle (core-state core))))
        ((core-picker core) (exit-idle (core-balancer core))) ; the balancer connects as calls come
        (t (leave-idle core))))

(defun leave-idle (core)
  "If needed, resolve the target of CORE, which is idle; connect to its servers."
  (dolist (call (waiting-calls core)) (begin-waiting core call))
  (begin-idle-watch core)
  (change-picker core :connecting nil)
  (enter-stage core :resolve)
  (let ((resolution (core-resolution core)))
    (cond ((not (resolution-begun resolution))
           (setf (resolution-begun resolution) t
                 (resolution-awaited resolution) t)
           (run-resolver (resolution-resolver resolution) (core-loop core)
                         (lambda (backends failure config)
                           (if failure
                               (receive-failure core failure)
                               (receive-backends core backends config)))))
          (t (setf (resolution-awaited resolution)
                   (or (answer-comes-p core) (not (resolution-done resolution))))
             (ask-resolver core)
             (unless (resolution-awaited resolution) (exit-idle (core-balancer core)))))))

(defun awaited-p (core)
  "True if CORE waits for the resolver's answer in order to connect; true only once."
  (shiftf (resolution-awaited (core-resolution core)) nil))

(defun end-resolver-wait (core)
  "End the back-off of CORE's resolver; return true if it was waiting."
  (let ((back-off (resolution-back-off (core-resolution core))))
    (prog1 (back-off-timer back-off)
      (stop-back-off back-off (core-loop core))
      (forget-failures back-off))))

;;; Answers of the resolver

(defconstant +told-backends+ 8
  "The maximum number of servers that an event of a channel names.")

(defun usable-backends (core backends)
  "The BACKENDS that CORE's channel uses: the first ones, as long as they together have no more
addresses than the channel may have."
  (let ((most (min (options-max-addresses (core-options core))
                   (options-max-subchannels (core-options core)))))
    (loop for rest on backends
          sum (length (backend-addresses (first rest))) into count
          when (> count most) return (ldiff backends rest)
          finally (return backends))))

(defun note-backends (core backends)
  "Add an event to CORE's trace if BACKENDS, from its resolver, differ from those before."
  (let ((keys (sort (mapcar #'backend-key backends) #'string<)))
    (unless (equal keys (resolution-keys (core-resolution core)))
      (let ((more (- (length keys) +told-backends+)))
        (note-core-event core :info "the resolver has found ~[no servers~:;~:*~D server~:P: ~
                                     ~{~A~^, ~}~@[ and ~D more~]~]"
                         (length keys) (subseq keys 0 (min +told-backends+ (length keys)))
                         (and (plusp more) more)))
      (let ((used (length (usable-backends core backends))))
        (when (< used (length backends))
          (log-event :warning :too-many-addresses :target (core-name core) :used used
                                                  :left-out (- (length backends) used))
          (note-core-event core :warning "only ~D of these servers are used (max-addresses)" used)))
      (setf (resolution-keys (core-resolution core)) keys))))

(defun receive-backends (core backends pushed)
  "Use BACKENDS, from CORE's resolver, and the service config that it has PUSHED, an argument of
SELECTED-CONFIG."
  (trace-event :channel :backends :target (core-name core)
                                  :backends (mapcar #'backend-key backends))
  (note-backends core backends)
  (let ((config (selected-config core pushed)))
    (cond (config
           (adopt-config core config)
           (setf (core-crowded core) nil)
           (use-backends core (usable-backends core backends)))
          (t (receive-failure core (princ-to-string pushed))))))

(defun use-backends (core backends)
  (when backends (end-resolver-wait core))
  (setf (resolution-done (core-resolution core)) (and backends t)
        (resolution-backends (core-resolution core)) backends)
  (update-backends (core-balancer core) backends (core-policy core))
  (cond ((null backends)
         (fail-resolving core (format nil "~A has no servers" (core-name core)))
         (await-resolver core))
        ((or (awaited-p core)
             (eq :transient-failure (core-state core)))
         (exit-idle (core-balancer core))))
  ;; the backends may have more connections now
  (when (eq :ready (core-state core)) (serve-all core)))

(defun receive-failure (core text)
  "Handle the failure of CORE's resolver because of TEXT. The present backends stay in use."
  (log-event :info :resolving-failed :target (core-name core) :reason text)
  (note-core-event core :warning "resolving failed: ~A" text)
  (cond ((not (resolved-p core)) (fail-resolving core text))
        ((awaited-p core) (exit-idle (core-balancer core))))
  (await-resolver core))

(defun fail-resolving (core text)
  "Let CORE, which has no backends because of TEXT, fail."
  (setf (core-last-error core) text
        (resolution-awaited (core-resolution core)) nil)
  (tell-failed-attempt core)
  (change-picker core :transient-failure (make-failure text)))

(defun await-resolver (core)
  "Ask CORE's resolver, which has failed or has published no server, again after a back-off."
  (unless (resolved-p core) (enter-stage core :back-off))
  (let* ((resolution (core-resolution core)) (back-off (resolution-back-off resolution)))
    (stop-back-off back-off (core-loop core))
    (start-back-off back-off (core-loop core) (core-options core)
                    (lambda ()
                      (unless (resolution-done resolution) (enter-stage core :resolve))
                      (resolve-again (resolution-resolver resolution))))))

;;; Idleness. A timer checks from time to time whether the channel has calls, or has had some since
;;; the last check; this costs calls nothing.

(defun used-p (core)
  "True if calls of CORE's user are under way."
  (some (lambda (subchannel) (plusp (subchannel-calls subchannel))) (core-subchannels core)))

(defun busy-p (core)
  "True if CORE has calls of users."
  (or (waiting-p core)
      (plusp (hash-table-count (core-retrying core)))
      (plusp (hash-table-count (core-asking core)))
      (used-p core)))

(defun core-picks (core)
  "How many streams the subchannels of CORE have had."
  (reduce #'+ (core-subchannels core) :key #'subchannel-picks))

(defun idle-limit-ns (core)
  "The time without calls, in nanoseconds, after which CORE becomes idle; 0 means never."
  (let ((seconds (options-idle-seconds (core-options core))))
    (if (plusp seconds) (seconds-ns (max 1 seconds)) 0)))

(defun begin-idle-watch (core)
  "Begin to watch CORE, which is leaving the idle state, so that CORE becomes idle again when it has
had no calls for long enough."
  (let ((watch (core-idle-watch core)))
    (when (and (plusp (idle-limit-ns core)) (null (idle-watch-timer watch)))
      (setf (idle-watch-timer watch)
            (loop:make-lasting-timer (core-loop core) #'watch-idleness core)
            (idle-watch-since-ns watch) (core-now core))
      (watch-idleness core))))

(defun watch-idleness (core)
  "Make CORE idle if it has been without calls for long enough, else check again later. Close
connections beyond the first to a server that have had no calls for that time."
  (let ((watch (core-idle-watch core))
        (now (core-now core))
        (limit (idle-limit-ns core))
        (picks (core-picks core)))
    (dolist (subchannel (core-subchannels core))
      (leave-spare-links (subchannel-connection-set subchannel) (max 0 (- now limit))))
    (flet ((look-again (due)
             (loop:start-timer (core-loop core) (idle-watch-timer watch) due)))
      (cond ((or (busy-p core) (/= picks (idle-watch-picks watch)))
             (setf (idle-watch-picks watch) picks
                   (idle-watch-since-ns watch) now)
             (look-again (+ now (ceiling limit 8))))
            ((< now (+ limit (idle-watch-since-ns watch)))
             (look-again (+ limit (idle-watch-since-ns watch))))
            (t (go-idle core))))))

(defun stop-idle-watch (core)
  (loop:stop-timer (core-loop core) (shiftf (idle-watch-timer (core-idle-watch core)) nil)))

(defun go-idle (core)
  "End the balancer and the resolver of CORE, which has no calls, until it gets one."
  (trace-event :channel :channel-idle :target (core-name core))
  (stop-idle-watch core)
  (end-resolver-wait core)
  (let ((resolution (core-resolution core)))
    (quit-resolver (resolution-resolver resolution))
    (setf (resolution-begun resolution) nil
          (resolution-done resolution) nil
          (resolution-backends resolution) '()
          (resolution-awaited resolution) nil))
  (close-balancer (core-balancer core))
  (setf (core-balancer core) (make-instance 'switch :parent core))
  (change-picker core :idle nil))

(defun end-back-off (core)
  "End the back-offs of CORE's resolver and servers: try them now, and begin later back-offs with
the shortest wait."
  (when (end-resolver-wait core) (resolve-again (resolution-resolver (core-resolution core))))
  (dolist (subchannel (copy-list (core-subchannels core)))
    (let ((back-off (connection-set-back-off (subchannel-connection-set subchannel))))
      (forget-failures back-off)
      (when (back-off-timer back-off)
        (stop-back-off back-off (core-loop core))
        (end-wait (subchannel-connection-set subchannel))
        (connect subchannel))))
  (serve-all core))

;;; The end

(defun shut-down (core)
  "End CORE and every call on it."
  (change-core-state core :shutdown)
  (setf (core-picker core) nil)
  (stop-idle-watch core)
  (end-resolver-wait core)
  (quit-resolver (resolution-resolver (core-resolution core)))
  (dolist (call (append (waiting-calls core)
                        (alexandria:hash-table-keys (core-retrying core))
                        (alexandria:hash-table-keys (core-asking core))))
    (rpc:abort-as call :channel-closed))
  ;; each ended one would be searched for in the list
  (mapc #'abandon-subchannel (shiftf (core-subchannels core) '()))
  (close-balancer (core-balancer core)))

(defun close-core (core)
  "Unless CORE was ended before, end it and release its client loop, even if a non-local exit
interrupts CLOSE-CORE. Do not call this on CORE's loop."
  (sb-sys:without-interrupts            ; a core that is closed gives up its loop
    (when (sb-thread:with-mutex ((core-lock core)) (shiftf (core-open core) nil))
      (trace-event :channel :channel-closed :target (core-name core))
      (quit-registry core **cores**)
      (unwind-protect
           (sb-sys:allow-with-interrupts
             (loop:call-and-wait (core-loop core) (lambda () (shut-down core)) 10 #'identity))
        (loop:forget-ending core)
        (release-client-loop (core-loop core)
                             (and (core-subchannel-pool core)
                                  (subchannel-pool-key (core-subchannel-pool core)))))))
  nil)
