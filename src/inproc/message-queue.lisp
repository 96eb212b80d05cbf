;;;; The queue between the two ends of a call, bounded by the sender's budget.
;;;;
;;;; Between two threads, the queue is usually empty when a message comes. In that case the message
;;;; goes into the MAILBOX, one word that the receiver polls as it spins. The sender uses the
;;;; mailbox only while it and INCOMING are both empty. So the message in the mailbox is older than
;;;; the messages in INCOMING, and newer than those that the receiver has taken from INCOMING
;;;; (RECEIVED). A receiver that finds messages in INCOMING checks its mailbox before it takes them.

(in-package #:clgrpc.inproc)

;;; Room

(define-hot sending-room ((call inproc-call)) fixnum
  "The operation ROOM: the rest of the budget of CALL's sender."
  (let* ((call-pair (call-call-pair call))
         (budget (options-send-budget-octets (sending-options call))))
    (- budget
       (rpc:queued-octets (other-end call))
       (if (and (rpc:client-p call) (eq :waiting (call-pair-phase call-pair)))
           (call-pair-held-octets call-pair) 0))))

(define-hot (room-left-p :inline t) ((call inproc-call)) boolean
  "True if SENDING-ROOM is above 0. Usually no messages are queued for the other end, so this case
is tested first."
  (or (and (zerop (rpc:queued-octets (other-end call)))
           (not (eq :waiting (call-pair-phase (call-call-pair call)))))
      (plusp (sending-room call))))

(define-hot may-wait-p ((call inproc-call)) boolean
  "True if this thread, which sends on CALL, may wait for room. It may not wait if it runs both ends
of CALL, or a callback of CALL, which may run on the other end's thread, because then no thread
would make room."
  (let ((callbacks (call-inproc-callbacks call)))
    (not (or (eq (call-pair-phase (call-call-pair call)) sb-thread:*current-thread*)
             (and callbacks
                  (inproc-callbacks-scheduled callbacks)
                  (eq (inproc-callbacks-runner callbacks) sb-thread:*current-thread*))))))

(define-hot want-room ((call inproc-call)) null
  "Note that the sender of CALL waits for room."
  (if (rpc:client-p call)
      (setf (call-pair-client-waits (call-call-pair call)) t)
      (setf (call-pair-server-waits (call-call-pair call)) t))
  (sb-thread:barrier (:memory))
  nil)

(define-hot taken ((call inproc-call) size) null
  "The operation TAKEN: Note that CALL has taken messages of SIZE octets from its queue. Once half
of the queue is empty, notify the sender, if it waits for room."
  (declare (ignore size))
  (let* ((call-pair (call-call-pair call))
         (client-p (rpc:client-p call)))
    (when (if client-p (call-pair-server-waits call-pair) (call-pair-client-waits call-pair))
      (let ((sender (other-end call)))
        (when (> (* 2 (sending-room sender)) (options-send-budget-octets (sending-options sender)))
          (if client-p
              (setf (call-pair-server-waits call-pair) nil)
              (setf (call-pair-client-waits call-pair) nil))
          (notify sender)
          (rpc:schedule-callbacks sender)))))
  nil)

;;; Putting in and taking out

(define-hot put-into-mailbox ((receiver inproc-call) message) boolean
  "Put MESSAGE into RECEIVER's mailbox and return true, if no other message waits. Messages in a
mailbox are not charged, so it has at most one."
  (let ((mailbox (mailbox receiver)))
    (and mailbox
         (not (rpc:messages-wait-p receiver))
         (null (compare-and-swap (svref mailbox +mailbox-index+) nil message))
         (progn
           (rpc:notify-sleeper receiver)
           (rpc:schedule-callbacks receiver)
           t))))

(define-hot next-message ((call inproc-call)) t
  "The oldest message for CALL, or nil if no message waits now."
  (or (rpc:pop-taken call)
      (let ((queued (rpc:messages-wait-p call)))
        (sb-thread:barrier (:read))
        (let ((message (mailbox-message call)))
          (cond (message
                 ;; the message, and the objects made with it, are in another processor's cache
                 (prefetch-behind message +cache-line-octets+)
                 (setf (svref (mailbox call) +mailbox-index+) nil)
                 (rpc:filtered call message))
                (queued (rpc:pop-incoming call)))))))

(define-hot receive-next ((call inproc-call)) t
  "The next message of CALL, which may be in its mailbox: see RPC:RECEIVE-BY."
  (rpc:receive-by call #'next-message #'mailbox-message))
