;;;; Messages of streams. A handler that runs on its consumer's thread hands each message to the
;;;; consumer's body as it sends it, and takes requests from where they come from; all others find
;;;; theirs in the queue of their end of the call, which is bounded by the sender's budget.
;;;;
;;;; Where two threads meet, the queue is mostly empty when a message comes, and it goes into MAIL,
;;;; one word that the receiver looks at as it spins. The sender puts there what comes while MAIL
;;;; and INCOMING are both empty, so it is older than what is in INCOMING, and newer than what the
;;;; receiver has taken out of that (RECEIVED). A receiver that finds something in INCOMING looks
;;;; into MAIL before it takes it.

(in-package #:clgrpc.inproc)

;;; From the handler to the client

(define-hot consume ((line line) (consumer consumer) message) null
  "Have CONSUMER's body consume MESSAGE; when that is left, the call is over, and the handler that
sends is unwound."
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
  (end-by-client line :cancelled "the caller has lost interest"))

(define-hot consuming-p ((line line) consumer) boolean
  "True if what the handler sends on this thread is for the body of CONSUMER at once."
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

(define-hot hold ((line line) message (size index)) boolean
  "Keep MESSAGE until the handler begins. False if it has begun, or too much is held."
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
                    (hold line message size)
                    (progn (when (eq :threads (site-execution (call-site call)))
                             (begin-elsewhere line))
                           t))
               (progn
                 (begin-elsewhere line)
                 (queue-message call server message size wait-p)))))))

(define-hot begin-soon ((line line)) null
  "The client counts on the handler of LINE, but does not wait for it here."
  (if (and (keeps-p (line-route line))
           (eq :caller (site-execution (call-site (line-client line)))))
      (begin-eagerly line)
      (begin-elsewhere line))
  nil)

;;; By way of a queue

(define-hot sending-room ((call inproc-call)) fixnum
  "The operation ROOM: of the budget of CALL's sender, what the other end has not taken yet."
  (let* ((line (call-line call))
         (inlet (rpc:call-inlet (other-end call)))
         (budget (options-send-budget-octets (sending-options call))))
    (- budget
       (if inlet (the index (rpc:inlet-queued-octets inlet)) 0)
       (if (and (rpc:client-p call) (eq :waiting (line-phase line))) (line-held-octets line) 0))))

(define-hot (room-left-p :inline t) ((call inproc-call)) boolean
  "True if SENDING-ROOM is not used up: mostly nothing at all waits at the other end."
  (let ((inlet (rpc:call-inlet (other-end call))))
    (or (and inlet
             (zerop (the index (rpc:inlet-queued-octets inlet)))
             (not (eq :waiting (line-phase (call-line call)))))
        (plusp (sending-room call)))))

(define-hot may-wait-p ((line line)) boolean
  "False if this thread, which sends on LINE, runs both ends of it, so that nobody would make room
while it waits."
  (not (eq (line-phase line) sb-thread:*current-thread*)))

(define-hot note-waiting ((call inproc-call)) null
  "The sender of CALL wants to know when there is room."
  (if (rpc:client-p call)
      (setf (line-client-waits (call-line call)) t)
      (setf (line-server-waits (call-line call)) t))
  (sb-thread:barrier (:memory))
  nil)

(define-hot put-mail ((receiver inproc-call) message) boolean
  "Give MESSAGE to RECEIVER if nothing is before it."
  (let ((mail (mail receiver)))
    (and mail
         (null (rpc:call-incoming receiver))
         (null (compare-and-swap (svref mail +mail+) nil message))
         (progn
           (rpc:notify-sleeper receiver)
           (when (rpc:callbacks-p receiver) (operate schedule receiver))
           t))))

(define-hot hand-over ((receiver inproc-call) message) boolean
  "Give MESSAGE to RECEIVER's callback, if it has one that does not run, and nothing is before it."
  (let ((reactions (rpc:call-reactions receiver)))
    (and reactions
         (rpc:reactions-on-message reactions)
         (eq :caller (site-execution (call-site receiver)))
         (null (rpc:reactions-scheduled reactions))
         (null (compare-and-swap (rpc:reactions-scheduled reactions) nil t))
         (let ((message (and (null (rpc:call-incoming receiver))
                             (null (rpc:call-received receiver))
                             (null (mail-for receiver))
                             (null (line-ready (call-line receiver)))
                             (null (call-status receiver))
                             (or (rpc:client-p receiver) (room-left-p receiver))
                             message)))
           (run-due receiver (and message
                                  (rpc:filtered (let ((inlet (rpc:call-inlet receiver)))
                                                  (and inlet (rpc:inlet-filter inlet)))
                                                message)))
           (and message t)))))

(define-hot queue-message ((call inproc-call) (receiver inproc-call) message (size index) wait-p)
    boolean
  "Give MESSAGE, which CALL sends, to RECEIVER, or return false if there is no room, or none any
more."
  (cond ((or (room-left-p call)
             (and wait-p
                  (or (not (may-wait-p (call-line call)))
                      (progn (note-waiting call)
                             (rpc:wait-for-call call #'rpc:room-p)
                             (rpc:may-send-p call nil)))))
         (unless (or (hand-over receiver message) (put-mail receiver message))
           (rpc:push-incoming receiver message size)
           (when (rpc:callbacks-p receiver) (operate schedule receiver)))
         (when (line-driver (call-line call)) (wake-driver (call-line call)))
         t)
        (wait-p nil)
        (t (setf (rpc:outlet-writable-wanted (rpc:ensure-outlet call)) t)
           (note-waiting call)
           ;; room may have been made before anybody could see that it is wanted
           (when (and (plusp (sending-room call)) (rpc:callbacks-p call)) (operate schedule call))
           nil)))

(define-hot taken ((call inproc-call) size) null
  "The operation TAKEN: CALL has taken messages from its queue; when half of it is empty, whoever
waits for room may send again."
  (declare (ignore size))
  (let* ((line (call-line call))
         (client-p (rpc:client-p call)))
    (when (if client-p (line-server-waits line) (line-client-waits line))
      (let ((sender (other-end call)))
        (when (> (* 2 (sending-room sender)) (options-send-budget-octets (sending-options sender)))
          (if client-p
              (setf (line-server-waits line) nil)
              (setf (line-client-waits line) nil))
          (notify sender)
          (when (rpc:callbacks-p sender) (operate schedule sender))))))
  nil)

;;; Receiving

(define-hot next-message ((call inproc-call)) t
  "The oldest message for CALL, or nil if none is there now."
  (let ((inlet (rpc:call-inlet call)))
    (if (and inlet (rpc:inlet-received inlet))
        (rpc:pop-incoming call)
        (let ((queued (rpc:call-incoming call)))
          (sb-thread:barrier (:read))
          (let ((mail (mail-for call)))
            (cond (mail
                   ;; it is in another processor's cache, and so is what was made with it
                   (prefetch-behind mail +cache-line-octets+)
                   (setf (svref (mail call) +mail+) nil)
                   (rpc:filtered (and inlet (rpc:inlet-filter inlet)) mail))
                  (queued (rpc:pop-incoming call))))))))

(define-hot receivable-p ((call inproc-call)) t
  (or (mail-for call)
      (rpc:call-incoming call)
      (call-half-closed call)
      (and (rpc:call-received call) t)))

(define-hot receive-queued ((call inproc-call)) t
  "As RPC:RECEIVE-QUEUED."
  (flet ((next () (and (rpc:deliverable-p call) (next-message call))))
    (cond ((next))
          ((progn (rpc:wait-for-call call #'receivable-p) (next)))
          ((member (call-status call) '(nil :ok)) nil)
          (t (error (rpc:call-condition call))))))

(define-hot next-request ((line line)) t
  "What the source of LINE's requests gives, as the handler gets it, or nil after the last."
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
            (call-half-closed (line-server line)) t))
    message))

(define-hot server-receive ((call inproc-call)) t
  "The operation RECEIVE of a handler."
  (let ((line (inproc-call-line call)))
    (look call)
    (cond ((or (null line) (line-leaving line)) nil)
          ((and (null (line-ready line)) (null (line-source line)))
           (receive-queued call))
          ((eq :ok (call-status call)) nil)
          ((call-status call) (error (rpc:call-condition call)))
          (t
           (let ((inlet (rpc:call-inlet call))
                 (message (if (line-ready line)
                              (pop (line-ready line))
                              (next-request line))))
             (if message
                 (rpc:filtered (and inlet (rpc:inlet-filter inlet)) message)
                 (receive-queued call)))))))

(define-hot client-receive ((call inproc-call)) t
  "The operation RECEIVE of a client."
  (let ((line (call-line call)))
    (when (eq :waiting (line-phase line)) (begin-for-receiver line))
    (look call)
    (when (and (line-consumer line) (consumer-inside (line-consumer line))
               (eq (line-phase line) sb-thread:*current-thread*))
      (misuse "~A is received from within its own DO-MESSAGES, which its handler waits for." call))
    (receive-queued call)))

(define-hot begin-for-receiver ((line line)) null
  "The client is about to wait. A handler that has all it will ever get, and gives one answer, can
run here; so it can if it is to run on a loop that the client drives as it waits."
  (let ((execution (site-execution (call-site (line-client line)))))
    (cond ((and (eq :caller execution) (drivable-p line)) (begin-here line))
          ((and (loop-p execution) (drivable-p line)))
          (t (begin-soon line))))
  nil)

(define-hot client-each ((call inproc-call) (function function)) t
  "The operation EACH of a client: have the handler, if it has not begun, run here."
  (let ((line (call-line call))
        (execution (site-execution (call-site call))))
    (unless (or (answers-once-p call) (not (eq :waiting (line-phase line)))
                (eq :threads execution))
      (setf (line-consumer line) (this-context function))
      (when (eq :caller execution)
        ;; what the body sends goes there
        (unless (takes-one-p call) (open-mail line))
        (begin-here line)
        (setf (line-consumer line) nil)))
    ;; what is queued, and the end
    (rpc:receive-each call function)))

(defun client-close-send (call)
  "The operation CLOSE-SEND of a client."
  (let* ((line (call-line call))
         (server (line-server line)))
    (setf (call-half-closed server) t)
    (notify server)
    (when (eq :threads (site-execution (call-site call))) (begin-elsewhere line))
    (when (rpc:callbacks-p server) (operate schedule server))
    (when (rpc:callbacks-p call) (operate schedule call))))
