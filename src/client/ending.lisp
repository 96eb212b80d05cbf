;;;; How a call ends on the client, for whatever reason: its callers wake, its stream and its other
;;;; attempts are reset, and what it has kept is given back. And how an attempt fails, which may be
;;;; tried again: retry.lisp decides that, as the method of ATTEMPT-FAILED.

(in-package #:clgrpc.client)

(define-hot (side-call-p :inline t) ((call client-call)) boolean
  "True if CALL is the channel's own, see side-call.lisp."
  (let ((parts (wire:call-wire-parts call)))
    (and parts (wire:wire-parts-aside parts))))

(define-hot client-observer ((call client-call)) (or null rpc:observer)
  "The operation OBSERVER: that of CALL's channel, or nil."
  (let ((observer (wire:call-observer call)))
    (and observer (not (side-call-p call)) observer)))

(define-hot since ((call client-call) (ns nanoseconds)) nanoseconds
  "How much later than NS the turn under way on CALL's loop is."
  (max 0 (- (loop:event-loop-now (wire-call-loop call)) ns)))

(define-hot client-elapsed-ns ((call client-call)) nanoseconds
  "The operation ELAPSED-NS."
  (since call (wire:wire-call-born-ns call)))

(defun client-repeats (call)
  "The operation REPEATS."
  (let ((retries (wire:call-retries call)))
    (if retries
        (let* ((hedging (hedging-policy-p (wire:retries-policy retries)))
               (more (- (wire:retries-issued retries) 1
                        ;; the one that is waited for
                        (if (and (not hedging) (wire:retries-timer retries)) 1 0))))
          (values (if hedging 0 more)
                  (if hedging more 0)
                  (wire:retries-resent retries)
                  (+ (wire:retries-idle-ns retries) (idle-ns call retries))))
        (values 0 0 0 0))))

(defun idle-ns (call retries)
  "How long CALL, which has RETRIES, has waited with no attempt under way, up to now."
  (if (and (wire:retries-timer retries) (null (wire-call-stream call)))
      (since call (wire:retries-since-ns retries))
      0))

(defun waited-p (call)
  "True if CALL has waited for addresses, a connection or a stream."
  (let ((parts (wire:call-wire-parts call)))
    (and parts (wire:wire-parts-wait parts) t)))

(defun stop-waiting (call)
  "CALL has a stream, or has ended."
  (let* ((parts (wire:call-wire-parts call))
         (wait (and parts (wire:wire-parts-wait parts)))
         (core (client-call-core call)))
    (when wait
      (wire:stop-waiting (core-clock core) wait (core-now core)))))

;;; Errors of our own, or of a balancer or policy, in what is done for a call

(defmacro guarding-call ((call) &body body)
  "Do BODY, what is due for CALL. An error in it is logged, and CALL ends with :internal."
  `(end-if-failed ,call (nth-value 1 (loop:guarding (:call-failed :method (rpc:call-path ,call))
                                       ,@body))))

(defun end-if-failed (call error)
  (when error
    (end-client-call call :internal (format nil "the channel has failed: ~A" error)
                     :ended-by :local :cause error))
  nil)

;;; What is kept for further attempts

(defun cancel-retry (call)
  "The next attempt of CALL is not waited for any more."
  (let* ((retries (wire:call-retries call))
         (timer (and retries (shiftf (wire:retries-timer retries) nil)))
         (core (client-call-core call)))
    (when timer
      (cancel-timer (loop:event-loop-wheel (core-loop core)) timer)
      (remhash call (core-retrying core)))))

(defun await-retry (call delay-ns function)
  "Call FUNCTION with CALL after DELAY-NS, unless it has ended."
  (cancel-retry call)
  (let* ((core (client-call-core call))
         (timer (make-timer (lambda (call)
                              (let ((retries (wire:call-retries call)))
                                (remhash call (core-retrying core))
                                (incf (wire:retries-idle-ns retries) (idle-ns call retries))
                                (setf (wire:retries-timer retries) nil)
                                (guarding-call (call) (funcall (the function function) call))))
                            call)))
    (setf (wire:retries-timer (wire:ensure-retries call)) timer
          (gethash call (core-retrying core)) t)
    (schedule-timer (loop:event-loop-wheel (core-loop core)) timer
                    (time-after delay-ns (core-now core)))))

(defun end-retries (call)
  "CALL has ended, or is committed: there are no further attempts, and nothing is kept for them."
  (let ((retries (wire:call-retries call)))
    (when retries
      (setf (wire:retries-over retries) t
            (wire:retries-last retries) nil)
      (cancel-retry call)
      (leave-places call)
      (wire:reset-attempts call)
      (sb-ext:atomic-decf (ledger-held (core-replays (client-call-core call)))
                          (shiftf (wire:retries-kept-octets retries) 0)))))

;;; The end of a call

(defun tell-lost-attempt (call status began-ns)
  "An attempt of CALL, which began at BEGAN-NS, has ended with STATUS and had no stream."
  (let ((observer (client-observer call)))
    (rpc:observe attempt-begun observer call nil nil)
    (rpc:observe attempt-ended observer call nil status nil 0 0
                 (since call began-ns))))

(defun tell-lost-attempts (call status)
  "CALL is about to end with STATUS: tell of its attempts that wait for a stream. While the names of
servers are not known there are none (gRFC A66)."
  (let ((core (client-call-core call))
        (retries (wire:call-retries call)))
    (when (or (core-resolved core) (eq :transient-failure (core-state core)))
      (cond ((null retries)
             (unless (wire-call-stream call)
               (tell-lost-attempt call status (wire:wire-call-born-ns call))))
            ((or (null (wire:retries-timer retries))
                 (hedging-policy-p (wire:retries-policy retries)))
             (dolist (number (wire:retries-pending retries))
               (declare (ignore number))
               (tell-lost-attempt call (if (wire-call-stream call) :cancelled status)
                                  (wire:retries-since-ns retries))))))))

(defun end-client-call (call status message &rest how &key details (ended-by :peer) cause (sent t))
  "End CALL, and its stream if that still lives. HOW as for END-CALL. An error that comes after the
deadline is that of the deadline, and what was said of it its cause."
  (declare (ignore details sent))
  (unless (call-status call)
    ;; what the server, or the connection, says of the end of a call may come before our own timer
    ;; has run: a poller waits in whole milliseconds, and reads first
    (unless (or (eq :ok status) (eq :local ended-by) (not (rpc:overdue-p call)))
      (setf how (list :ended-by :local
                      :cause (or cause (format nil "~:@(~A~) from the server~@[: ~A~]"
                                               (substitute #\_ #\- (string status))
                                               (and (plusp (length message)) message)))))
      (setf (values status message) (rpc:verdict :deadline-passed)))
    (wire:seal-batch call)
    (wire:stop-timers call)
    (unless (side-call-p call)
      (note-call-ended (client-call-core call) status)
      (loop:leave-call (wire-call-loop call) (wire-call-unattended call)))
    (when (zerop (wire:wire-call-born-ns call)) ; it never began
      (setf (wire:wire-call-born-ns call) (loop:event-loop-now (wire-call-loop call))))
    (wire:mark-call call wire:+end+)
    (stop-waiting call)
    (leave-places call)
    (when (and (eq :ok status) (core-throttle (client-call-core call)))
      (count-success (core-throttle (client-call-core call))))
    (when (core-observer (client-call-core call)) (tell-lost-attempts call status))
    (apply #'end-call call status :message message how)
    (when (and (wire-call-unattended call)
               (compare-and-swap (client-call-completions call) '() :done)) ; true if there are any
      (loop:run-completions call))
    (when (wire:call-retries call) (end-retries call))
    (when (wire:call-replay call) (wire:drop-replay call))
    (let ((stream (wire-call-stream call)))
      (when (and stream (http2:stream-open-p stream))
        ;; a peer that has ended its side early is told that all is well (gRPC over HTTP/2, "Early
        ;; Server Closure")
        (http2:reset-stream stream (if (http2:stream-receivable-p stream)
                                       http2:+cancel+
                                       http2:+no-error+))))
    (when (rpc:callbacks-p call) (wire:wire-schedule call))))

(defun end-client-call-as (call name &rest how)
  "As END-CLIENT-CALL, with the status and the text of the verdict NAME."
  (multiple-value-bind (status text) (rpc:verdict name)
    (apply #'end-client-call call status text how)))

(defun client-abort (call status text ended-by)
  "The operation ABORT."
  (end-client-call call status text :ended-by ended-by
                                    :sent (and (or (wire-call-stream call)
                                                   (rpc:failed-attempts call))
                                               t)))

;;; Failed attempts

(defun end-with-setback (call setback)
  "SETBACK, of an attempt of CALL, is how CALL ends."
  (when (plusp (length (setback-trailers setback)))
    (setf (rpc:ending-trailer-fields (rpc:ensure-ending call)) (setback-trailers setback)))
  (apply #'end-client-call call (setback-status setback) (setback-message setback)
         (setback-how setback)))

(defgeneric attempt-overtaken (call subchannel)
  (:documentation "An attempt of CALL on SUBCHANNEL has no answer, while one that began later has:
the former is about to be reset."))

(defgeneric attempt-failed (call attempt setback)
  (:documentation "ATTEMPT of CALL, one that CALL goes on without, or nil if it had no stream, has
failed with SETBACK: CALL is tried again, goes on with another attempt, or ends."))

(defgeneric call-started (call)
  (:documentation "CALL, whose channel's service config says something of methods, has a stream for
an attempt; nothing has been sent on it."))

(defun plain-p (call)
  "True if CALL has no policy, nor other attempts: one failure ends it."
  (and (null (wire:call-retries call))
       (null (core-methods (client-call-core call)))))
