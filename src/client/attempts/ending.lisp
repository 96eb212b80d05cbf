;;;; The end of a call on the client, for any reason: its callers are woken, its stream and its
;;;; other attempts are reset, and its kept messages are released.

(in-package #:clgrpc.client)

(define-hot (internal-call-p :inline t) ((call client-call)) boolean
  "True if CALL is the channel's own, see internal-call.lisp."
  (let ((parts (call-client-parts call)))
    (and parts (client-parts-internal parts))))

(define-hot client-observer ((call client-call)) (or null rpc:observer)
  "The operation OBSERVER: the observer of CALL's channel; nil if the channel has none, or CALL is
the channel's own."
  (let ((observer (core-observer (client-call-core call))))
    (and observer (not (internal-call-p call)) observer)))

(define-hot since ((call client-call) (ns nanoseconds)) nanoseconds
  "The nanoseconds from NS to the turn under way on CALL's loop."
  (max 0 (- (loop:event-loop-now (wire-call-loop call)) ns)))

(define-hot client-elapsed-ns ((call client-call)) nanoseconds
  "The operation ELAPSED-NS."
  (since call (client-call-born-ns call)))

(defun client-repeats (call)
  "The operation REPEATS."
  (if-let ((retries (call-retries call)))
    (attempt:count-repeats retries (core-now (client-call-core call)))
    (values 0 0 0 0)))

(defun waited-p (call)
  "True if CALL has waited for addresses, a connection or a stream."
  (let ((parts (call-client-parts call)))
    (and parts (client-parts-wait parts) t)))

(defun stop-waiting (call)
  "End the wait of CALL, which has a stream or has ended."
  (let* ((parts (call-client-parts call))
         (wait (and parts (client-parts-wait parts)))
         (core (client-call-core call)))
    (when wait
      (stop-clock (core-clock core) wait (core-now core)))))

(defun leave-credentials (call)
  "Remove the references to CALL, which has ended, from the credentials that it waited for."
  (let ((asking (core-asking (client-call-core call))))
    (dolist (wait (gethash call asking))
      (setf (identity-wait-call wait) nil)
      (when (identity-wait-leave wait) (funcall (the function (identity-wait-leave wait)))))
    (remhash call asking)))

;;; Errors of the library, of a balancer or of a policy in the code for a call

(defmacro guarding-call ((call) &body body)
  "Evaluate BODY, which works for CALL. An error in BODY is logged, and CALL ends with :internal."
  `(end-if-failed ,call (nth-value 1 (loop:guarding (:call-failed :method (rpc:call-path ,call))
                                       ,@body))))

(defun end-if-failed (call error)
  "End CALL if ERROR, of the channel's own code, is not nil."
  (when error
    (end-client-call call :internal (format nil "the channel has failed: ~A"
                                            (bounded-text error))
                     :ended-by :local :cause error))
  nil)

;;; Its attempts

(defun cancel-retry (call)
  "Stop waiting for the time of the next attempt of CALL."
  (let* ((retries (call-retries call))
         (timer (and retries (shiftf (client-retries-timer retries) nil)))
         (core (client-call-core call)))
    (when timer
      (loop:stop-timer (core-loop core) timer)
      (remhash call (core-retrying core)))))

(defun reset-attempt (attempt)
  "Reset the stream of ATTEMPT, whose call no longer needs it. A peer that has ended its side early
gets the code NO_ERROR (gRPC over HTTP/2, \"Early Server Closure\")."
  (let ((stream (attempt-stream attempt)))
    (when (http2:stream-open-p stream)
      (http2:reset-stream stream (if (http2:stream-receivable-p stream)
                                     http2:+cancel+
                                     http2:+no-error+)))))

(defun drop-replay (call)
  "Release the kept messages of CALL. The garbage collector frees the octets, since some may still
be queued."
  (when-let ((replay (call-replay call)))
    (release-replay replay)
    (setf (client-parts-replay (ensure-client-parts call)) nil)))

(defun end-attempts (call)
  "Reset the attempts of CALL, which has RETRIES and has ended."
  (cancel-retry call)
  (mapc #'reset-attempt (attempt:commit (call-retries call) nil)))

;;; The end of a call

(defun tell-lost-attempt (call status began-ns)
  "Report to the observer an attempt of CALL without a stream, which began at BEGAN-NS and has ended
with STATUS."
  (let ((observer (client-observer call)))
    (rpc:observe attempt-begun observer call nil nil)
    (rpc:observe attempt-ended observer call nil status nil 0 0
                 (since call began-ns))))

(defun tell-lost-attempts (call status)
  "Report the attempts of CALL that wait for a stream, since CALL is about to end with STATUS. While
no addresses of servers are known, attempts are not counted (gRFC A66)."
  (let ((core (client-call-core call))
        (retries (call-retries call)))
    (when (or (resolved-p core) (eq :transient-failure (core-state core)))
      (cond ((null retries)
             (unless (client-call-stream call)
               (tell-lost-attempt call status (client-call-born-ns call))))
            (t
             (dolist (number (client-retries-pending retries))
               (declare (ignore number))
               (tell-lost-attempt call (if (client-call-stream call) :cancelled status)
                                  (client-retries-since-ns retries))))))))

(defun end-client-call (call status message &rest how &key details (ended-by :peer) cause (sent t))
  "End CALL, and its stream if that is still open. HOW is as for END-CALL. An error that comes after
the deadline is replaced by :deadline-exceeded, with the error as its cause."
  (declare (ignore details sent))
  (unless (call-status call)
    ;; the end of a call by the server or the connection may come before our own timer has run: a
    ;; poller waits in whole milliseconds, and reads first
    (unless (or (eq :ok status) (eq :local ended-by) (not (rpc:overdue-p call)))
      (setf how (list :ended-by :local
                      :cause (or cause (format nil "~:@(~A~) from the server~@[: ~A~]"
                                               (substitute #\_ #\- (string status))
                                               (and (plusp (length message)) message)))))
      (setf (values status message) (rpc:verdict :deadline-passed)))
    (unless (internal-call-p call)
      (note-call-ended (client-call-core call) status)
      (loop:leave-call (wire-call-loop call) (unattended-p call)))
    (when (zerop (client-call-born-ns call)) ; it never began
      (setf (client-call-born-ns call) (loop:event-loop-now (wire-call-loop call))))
    (wire:note-end call)
    (stop-waiting call)
    (leave-places call)
    (when (plusp (hash-table-count (core-asking (client-call-core call))))
      (leave-credentials call))
    (when (and (eq :ok status) (core-throttle (client-call-core call)))
      (count-success (core-throttle (client-call-core call))))
    (when (core-observer (client-call-core call)) (tell-lost-attempts call status))
    (apply #'end-call call status :message message :observer (client-observer call) how)
    (when (and (unattended-p call)
               (compare-and-swap (client-call-completions call) '() :done)) ; true if there are any
      (loop:run-completions call))
    (when (call-retries call) (end-attempts call))
    (when (call-replay call) (drop-replay call))
    (when (client-call-stream call) (reset-attempt (http2:stream-user (client-call-stream call))))
    (when (core-dropped (client-call-core call)) ; CALL may have waited for a stream
      (funcall (core-dropped (client-call-core call))))
    (rpc:schedule-callbacks call)))

(defun end-client-call-as (call name &rest how)
  "Do what END-CLIENT-CALL does, with the status and the text of the verdict NAME."
  (multiple-value-bind (status text) (rpc:verdict name)
    (apply #'end-client-call call status text how)))

(defun client-abort (call status text ended-by)
  "The operation ABORT."
  (end-client-call call status text :ended-by ended-by
                                    :sent (and (or (client-call-stream call)
                                                   (rpc:failed-attempts call))
                                               t)))

(defun end-with-failure (call failure)
  (when (plusp (length (client-failure-trailers failure)))
    (setf (rpc:trailer-fields call) (client-failure-trailers failure)))
  (apply #'end-client-call call (client-failure-status failure) (client-failure-message failure)
         (client-failure-how failure)))
