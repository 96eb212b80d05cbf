;;;; How a call ends on the client, for whatever reason: its callers wake, its stream and its other
;;;; attempts are reset, and what it has kept is given back.

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
    (apply #'end-call call status :message message how)
    (when (and (wire-call-unattended call)
               (compare-and-swap (client-call-completions call) '() :done)) ; true if there are any
      (loop:run-completions call))
    (when (call-attempts call) (wire:reset-attempts call))
    (when (wire:call-replay call) (wire:drop-replay call))
    (let ((stream (wire-call-stream call)))
      (when (and stream (http2:stream-open-p stream))
        (http2:reset-stream stream (if (eq status :ok) http2:+no-error+ http2:+cancel+))))
    (when (rpc:callbacks-p call) (wire:wire-schedule call))))

(defun end-client-call-as (call name &rest how)
  "As END-CLIENT-CALL, with the status and the text of the verdict NAME."
  (multiple-value-bind (status text) (rpc:verdict name)
    (apply #'end-client-call call status text how)))

(defun client-abort (call status text ended-by)
  "The operation ABORT."
  (end-client-call call status text :ended-by ended-by
                                    :sent (and (wire-call-stream call) t)))
