;;;; How a call ends on the client, for whatever reason: its callers wake, its stream and its other
;;;; attempts are reset, and what it has kept is given back. And how an attempt fails, which may be
;;;; tried again: retry.lisp decides that, as the method of ATTEMPT-FAILED.

(in-package #:clgrpc.client)

(define-hot (side-call-p :inline t) ((call client-call)) boolean
  "True if CALL is the channel's own, see side-call.lisp."
  (let ((parts (wire:call-wire-parts call)))
    (and parts (wire:wire-parts-aside parts))))

(defun stop-waiting (call)
  "CALL has a stream, or has ended."
  (let* ((parts (wire:call-wire-parts call))
         (wait (and parts (wire:wire-parts-wait parts)))
         (core (client-call-core call)))
    (when wait
      (wire:stop-waiting (core-clock core) wait (core-now core)))))

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
                              (remhash call (core-retrying core))
                              (setf (wire:retries-timer (wire:call-retries call)) nil)
                              (funcall (the function function) call))
                            call)))
    (setf (wire:retries-timer (wire:ensure-retries call)) timer
          (gethash call (core-retrying core)) t)
    (schedule-timer (loop:event-loop-wheel (core-loop core)) timer
                    (+ (core-now core) delay-ns))))

(defun end-retries (call)
  "CALL has ended, or is committed: there are no further attempts, and nothing is kept for them."
  (let ((retries (wire:call-retries call)))
    (when retries
      (setf (wire:retries-over retries) t
            (wire:retries-last retries) nil)
      (cancel-retry call)
      (wire:reset-attempts call)
      (sb-ext:atomic-decf (ledger-held (core-replays (client-call-core call)))
                          (shiftf (wire:retries-kept-octets retries) 0)))))

;;; The end of a call

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
      (loop:leave-call (wire-call-loop call) (wire-call-unattended call)))
    (when (zerop (wire:wire-call-born-ns call)) ; it never began
      (setf (wire:wire-call-born-ns call) (loop:event-loop-now (wire-call-loop call))))
    (wire:mark-call call wire:+end+)
    (stop-waiting call)
    (when (and (eq :ok status) (core-throttle (client-call-core call)))
      (count-success (core-throttle (client-call-core call))))
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
