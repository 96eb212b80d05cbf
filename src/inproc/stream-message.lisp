;;;; Messages of streams. A handler that runs on its consumer's thread passes each message directly
;;;; to the consumer's body, and takes requests directly from their source. In all other cases
;;;; messages go through the queue of the receiving end.

(in-package #:clgrpc.inproc)

;;; Messages from one end to the other

(define-hot hand-over ((receiver inproc-call) message) boolean
  "Call RECEIVER's callback with MESSAGE and return true. Return false if there is no callback, if a
callback runs, or if other messages wait before this one."
  (let ((callbacks (call-inproc-callbacks receiver)))
    (and callbacks
         (inproc-callbacks-on-message callbacks)
         (eq :caller (inproc-core-execution (call-inproc-core receiver)))
         (null (inproc-callbacks-scheduled callbacks))
         (sb-sys:without-interrupts     ; a thread that sets SCHEDULED must run all callbacks
           (when (null (compare-and-swap (inproc-callbacks-scheduled callbacks) nil t))
             (let ((message (and (not (rpc:messages-wait-p receiver))
                                 (null (mailbox-message receiver))
                                 (null (call-pair-ready (call-call-pair receiver)))
                                 (null (call-status receiver))
                                 (or (rpc:client-p receiver) (room-left-p receiver))
                                 message)))
               (sb-sys:allow-with-interrupts (run-due receiver message))
               (and message t)))))))

(define-hot queue-message ((call inproc-call) (receiver inproc-call) message (size index) wait-p)
    boolean
  "Give MESSAGE, which CALL sends, to RECEIVER and return true; return false if RECEIVER has no
room."
  (cond ((or (room-left-p call)
             (and wait-p
                  (or (not (may-wait-p call))
                      (progn (want-room call)
                             (rpc:wait-for-call call #'rpc:room-p)
                             (rpc:may-send-p call nil)))))
         (unless (or (hand-over receiver message) (put-into-mailbox receiver message))
           (rpc:push-incoming receiver message size)
           (rpc:schedule-callbacks receiver))
         (when (call-pair-driver (call-call-pair call)) (wake-driver (call-call-pair call)))
         t)
        (wait-p nil)
        (t (rpc:watch-room call)
           (want-room call)
           ;; there may have been room before other threads could see that a sender waits
           (when (plusp (sending-room call)) (rpc:schedule-callbacks call))
           nil)))

;;; Messages from the handler to the client

(define-hot consume ((call-pair call-pair) (consumer consumer) message) null
  "Call CONSUMER's body with MESSAGE. If the body is left by a non-local exit, end the call and
unwind the handler that sends."
  (let ((done nil))
    (setf (consumer-inside consumer) t)
    (unwind-protect
         (progn
           (with-consumer-context (consumer)
             (funcall (the function (consumer-function consumer))
                      (rpc:filtered (call-pair-client call-pair) message)))
           (setf done t))
      (setf (consumer-inside consumer) nil)
      (unless done (leave call-pair))))
  nil)

(defun leave (call-pair)
  "Unwind the handler, since a non-local exit leaves the consumer."
  (setf (call-pair-leaving call-pair) t)
  (operate leave (call-pair-client call-pair)))

(define-hot consuming-p ((call-pair call-pair) consumer) boolean
  "True if messages that the handler sends on this thread are passed to the body of CONSUMER at
once."
  (and consumer
       (eq (call-pair-phase call-pair) sb-thread:*current-thread*)
       (consumer-function (the consumer consumer))
       (not (consumer-inside consumer))))

(define-hot inproc-server-send ((call inproc-call) message wait-p compress) boolean
  "The operation SEND of a handler."
  (declare (ignore compress))
  (let* ((call-pair (call-call-pair call))
         (client (the inproc-call (call-pair-client call-pair)))
         (consumer (call-pair-consumer call-pair)))
    (look call)
    (cond ((call-pair-leaving call-pair) nil)
          ((not (rpc:may-send-p call nil)) nil)
          (t
           (unless (call-fields client) (setf (call-fields client) (load-time-value (vector))))
           (multiple-value-bind (message size) (pass call message)
             (cond ((consuming-p call-pair consumer) (consume call-pair consumer message) t)
                   (t (queue-message call client message size wait-p))))))))

;;; Messages from the client to the handler

(define-hot keep-early ((call-pair call-pair) message (size index)) boolean
  "Keep MESSAGE until the handler begins and return true. Return false if the handler has begun, or
if too many octets are already kept."
  (let ((octets (+ (call-pair-held-octets call-pair) size rpc:+batch-octets+)))
    (when (<= octets (options-send-budget-octets
                      (inproc-core-options (call-inproc-core (call-pair-client call-pair)))))
      (let ((cell (list message)))
        (loop
          (let ((old (call-pair-held call-pair)))
            (when (eq :closed old) (return nil))
            (setf (cdr cell) old)
            (when (eq old (compare-and-swap (call-pair-held call-pair) old cell))
              (setf (call-pair-held-octets call-pair) octets)
              (return t))))))))

(define-hot inproc-client-send ((call inproc-call) message wait-p compress) boolean
  "The operation SEND of a client."
  (declare (ignore compress))
  (let* ((call-pair (call-call-pair call))
         (server (the inproc-call (call-pair-server call-pair))))
    (look call)
    (and (rpc:may-send-p call (inproc-call-half-closed server))
         (multiple-value-bind (message size) (pass call message)
           (when (and (eq :waiting (call-pair-phase call-pair))
                      (keeps-p (call-pair-route call-pair)))
             (begin-soon call-pair))
           (or (and (eq :waiting (call-pair-phase call-pair))
                    (keep-early call-pair message size)
                    (progn (when (eq :threads (inproc-core-execution (call-inproc-core call)))
                             (begin-elsewhere call-pair))
                           t))
               (progn
                 (begin-elsewhere call-pair)
                 (queue-message call server message size wait-p)))))))

(defun inproc-close-send (call)
  "The operation CLOSE-SEND of a client."
  (let* ((call-pair (call-call-pair call))
         (server (call-pair-server call-pair)))
    (setf (inproc-call-half-closed server) t)
    (tell-half-closed call-pair)
    (notify server)
    (when (eq :threads (inproc-core-execution (call-inproc-core call))) (begin-elsewhere call-pair))
    (rpc:schedule-callbacks server)
    (rpc:schedule-callbacks call)))

;;; Receiving

(define-hot next-request ((call-pair call-pair)) t
  "The next request from the source of CALL-PAIR's requests, in the form in which the handler gets
it; nil after the last."
  (let* ((client (the inproc-call (call-pair-client call-pair)))
         (source (the function (call-pair-source call-pair)))
         (consumer (and (eq (call-pair-phase call-pair) sb-thread:*current-thread*)
                        (call-pair-consumer call-pair)))
         (message (flet ((next ()
                           (when-let ((message (funcall source)))
                             (values (pass client (rpc:outgoing client message))))))
                    (declare (inline next))
                    (if consumer
                        (with-consumer-context ((the consumer consumer)) (next))
                        (next)))))
    (unless message
      (setf (call-pair-source call-pair) nil
            (inproc-call-half-closed (call-pair-server call-pair)) t)
      (tell-half-closed call-pair))
    message))

(define-hot inproc-server-receive ((call inproc-call)) t
  "The operation RECEIVE of a handler."
  (let ((call-pair (inproc-call-call-pair call)))
    (look call)
    (cond ((or (null call-pair) (call-pair-leaving call-pair)) nil)
          ((and (null (call-pair-ready call-pair)) (null (call-pair-source call-pair)))
           (receive-next call))
          ((eq :ok (call-status call)) nil)
          ((call-status call) (error (rpc:call-condition call)))
          (t
           (if-let ((message (if (call-pair-ready call-pair)
                                 (pop (call-pair-ready call-pair))
                                 (next-request call-pair))))
             (rpc:filtered call message)
             (receive-next call))))))

(define-hot inproc-client-receive ((call inproc-call)) t
  "The operation RECEIVE of a client."
  (let ((call-pair (call-call-pair call)))
    (when (eq :waiting (call-pair-phase call-pair)) (begin-for-receiver call-pair))
    (look call)
    (when (and (call-pair-consumer call-pair) (consumer-inside (call-pair-consumer call-pair))
               (eq (call-pair-phase call-pair) sb-thread:*current-thread*))
      (misuse "The body of DO-MESSAGES must not RECEIVE from the same call, ~A: its handler waits ~
               for that body." call))
    (receive-next call)))

(define-hot inproc-each ((call inproc-call) (function function)) t
  "The operation EACH of a client: if the handler has not begun, run it here."
  (let ((call-pair (call-call-pair call))
        (execution (inproc-core-execution (call-inproc-core call))))
    (unless (or (rpc:answers-once-p call) (not (eq :waiting (call-pair-phase call-pair)))
                (eq :threads execution))
      (setf (call-pair-consumer call-pair) (this-context function))
      (when (eq :caller execution)
        ;; messages that the body sends go to the handler's queue
        (unless (rpc:takes-one-p call) (open-mailboxes call-pair))
        (begin-here call-pair)
        (setf (call-pair-consumer call-pair) nil)))
    ;; the queued messages, and the end
    (loop for message = (rpc:receive call)
          while message do (funcall function message))))
