;;;; Messages of streams. A handler that runs on its consumer's thread hands each message to the
;;;; consumer's body as it sends it, and takes requests straight from their source. In all other
;;;; cases messages go through the queue of the receiving end.

(in-package #:clgrpc.inproc)

;;; From one end to the other

(define-hot hand-over ((receiver inproc-call) message) boolean
  "Call RECEIVER's callback with MESSAGE and return true, if RECEIVER has one that does not run now,
and no other message waits before this one."
  (let ((reactions (rpc:call-reactions receiver)))
    (and reactions
         (rpc:reactions-on-message reactions)
         (eq :caller (site-execution (call-site receiver)))
         (null (rpc:reactions-scheduled reactions))
         (sb-sys:without-interrupts     ; who sets it runs them
           (when (null (compare-and-swap (rpc:reactions-scheduled reactions) nil t))
             (let ((message (and (null (rpc:call-incoming receiver))
                                 (null (rpc:call-received receiver))
                                 (null (mail-for receiver))
                                 (null (line-ready (call-line receiver)))
                                 (null (call-status receiver))
                                 (or (rpc:client-p receiver) (room-left-p receiver))
                                 message)))
               (sb-sys:allow-with-interrupts (run-due receiver message))
               (and message t)))))))

(define-hot queue-message ((call inproc-call) (receiver inproc-call) message (size index) wait-p)
    boolean
  "Give MESSAGE, which CALL sends, to RECEIVER and return true; return false if there is no room."
  (cond ((or (room-left-p call)
             (and wait-p
                  (or (not (may-wait-p (call-line call)))
                      (progn (want-room call)
                             (rpc:wait-for-call call #'rpc:room-p)
                             (rpc:may-send-p call nil)))))
         (unless (or (hand-over receiver message) (put-mail receiver message))
           (rpc:push-incoming receiver message size)
           (when (rpc:callbacks-p receiver) (operate schedule receiver)))
         (when (line-driver (call-line call)) (wake-driver (call-line call)))
         t)
        (wait-p nil)
        (t (setf (rpc:outlet-writable-wanted (rpc:ensure-outlet call)) t)
           (want-room call)
           ;; room may have been made before anybody could see that it is wanted
           (when (and (plusp (sending-room call)) (rpc:callbacks-p call)) (operate schedule call))
           nil)))

;;; From the handler to the client

(define-hot consume ((line line) (consumer consumer) message) null
  "Call CONSUMER's body with MESSAGE. If the body is left by a non-local exit, the call is over, and
the handler that sends is unwound."
  (let ((done nil)
        (inlet (rpc:call-inlet (line-client line))))
    (setf (consumer-inside consumer) t)
    (unwind-protect
         (progn
           (with-consumer-context (consumer)
             (funcall (the function (consumer-function consumer))
                      (rpc:filtered (and inlet (rpc:inlet-filter inlet)) message)))
           (setf done t))
      (setf (consumer-inside consumer) nil)
      (unless done (leave line))))
  nil)

(defun leave (line)
  "The consumer is left by a non-local exit, which unwinds the handler."
  (setf (line-leaving line) t)
  (operate leave (line-client line)))

(define-hot consuming-p ((line line) consumer) boolean
  "True if messages that the handler sends on this thread go to the body of CONSUMER at once."
  (and consumer
       (eq (line-phase line) sb-thread:*current-thread*)
       (consumer-function (the consumer consumer))
       (not (consumer-inside consumer))))

(define-hot server-send ((call inproc-call) message wait-p compress) boolean
  "The operation SEND of a handler."
  (declare (ignore compress))
  (let* ((line (call-line call))
         (client (the inproc-call (line-client line)))
         (consumer (line-consumer line)))
    (look call)
    (cond ((line-leaving line) nil)
          ((not (rpc:may-send-p call nil)) nil)
          (t
           (unless (call-fields client) (setf (call-fields client) (load-time-value (vector))))
           (multiple-value-bind (message size) (pass call message)
             (cond ((consuming-p line consumer) (consume line consumer message) t)
                   (t (queue-message call client message size wait-p))))))))

;;; From the client to the handler

(define-hot keep-early ((line line) message (size index)) boolean
  "Keep MESSAGE until the handler begins and return true; false if the handler has begun, or too
much is kept already."
  (let ((octets (+ (line-held-octets line) size rpc:+arrival-octets+)))
    (when (<= octets (options-send-budget-octets (site-options (call-site (line-client line)))))
      (let ((cell (list message)))
        (loop
          (let ((old (line-held line)))
            (when (eq :closed old) (return nil))
            (setf (cdr cell) old)
            (when (eq old (compare-and-swap (line-held line) old cell))
              (setf (line-held-octets line) octets)
              (return t))))))))

(define-hot client-send ((call inproc-call) message wait-p compress) boolean
  "The operation SEND of a client."
  (declare (ignore compress))
  (let* ((line (call-line call))
         (server (the inproc-call (line-server line))))
    (look call)
    (and (rpc:may-send-p call (call-half-closed server))
         (multiple-value-bind (message size) (pass call message)
           (when (and (eq :waiting (line-phase line)) (keeps-p (line-route line)))
             (begin-soon line))
           (or (and (eq :waiting (line-phase line))
                    (keep-early line message size)
                    (progn (when (eq :threads (site-execution (call-site call)))
                             (begin-elsewhere line))
                           t))
               (progn
                 (begin-elsewhere line)
                 (queue-message call server message size wait-p)))))))

(defun client-close-send (call)
  "The operation CLOSE-SEND of a client."
  (let* ((line (call-line call))
         (server (line-server line)))
    (setf (call-half-closed server) t)
    (tell-half-closed line)
    (notify server)
    (when (eq :threads (site-execution (call-site call))) (begin-elsewhere line))
    (when (rpc:callbacks-p server) (operate schedule server))
    (when (rpc:callbacks-p call) (operate schedule call))))

;;; Receiving

(define-hot next-request ((line line)) t
  "The next request from the source of LINE's requests, as the handler gets it; nil after the last."
  (let* ((client (the inproc-call (line-client line)))
         (source (the function (line-source line)))
         (consumer (and (eq (line-phase line) sb-thread:*current-thread*) (line-consumer line)))
         (message (flet ((next ()
                           (let ((message (funcall source)))
                             (and message
                                  (values (pass client (rpc:outgoing client message)))))))
                    (declare (inline next))
                    (if consumer
                        (with-consumer-context ((the consumer consumer)) (next))
                        (next)))))
    (unless message
      (setf (line-source line) nil
            (call-half-closed (line-server line)) t)
      (tell-half-closed line))
    message))

(define-hot server-receive ((call inproc-call)) t
  "The operation RECEIVE of a handler."
  (let ((line (inproc-call-line call)))
    (look call)
    (cond ((or (null line) (line-leaving line)) nil)
          ((and (null (line-ready line)) (null (line-source line)))
           (receive-next call))
          ((eq :ok (call-status call)) nil)
          ((call-status call) (error (rpc:call-condition call)))
          (t
           (let ((inlet (rpc:call-inlet call))
                 (message (if (line-ready line)
                              (pop (line-ready line))
                              (next-request line))))
             (if message
                 (rpc:filtered (and inlet (rpc:inlet-filter inlet)) message)
                 (receive-next call)))))))

(define-hot client-receive ((call inproc-call)) t
  "The operation RECEIVE of a client."
  (let ((line (call-line call)))
    (when (eq :waiting (line-phase line)) (begin-for-receiver line))
    (look call)
    (when (and (line-consumer line) (consumer-inside (line-consumer line))
               (eq (line-phase line) sb-thread:*current-thread*))
      (misuse "~A is received from within its own DO-MESSAGES, which its handler waits for." call))
    (receive-next call)))

(define-hot client-each ((call inproc-call) (function function)) t
  "The operation EACH of a client: if the handler has not begun, run it here."
  (let ((line (call-line call))
        (execution (site-execution (call-site call))))
    (unless (or (rpc:answers-once-p call) (not (eq :waiting (line-phase line)))
                (eq :threads execution))
      (setf (line-consumer line) (this-context function))
      (when (eq :caller execution)
        ;; what the body sends goes there
        (unless (rpc:takes-one-p call) (open-mail line))
        (begin-here line)
        (setf (line-consumer line) nil)))
    ;; what is queued, and the end
    (rpc:receive-each call function)))
