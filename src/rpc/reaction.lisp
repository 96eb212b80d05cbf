;;;; The choice of the callback of a call that is due. The transport decides when and where
;;;; callbacks run; SCHEDULE-CALLBACKS requests that by the operation SCHEDULE.

(in-package #:clgrpc.rpc)

(define-hot (room-p :inline t) ((call call)) boolean
  "True while less than the send budget of CALL is unsent."
  (plusp (the fixnum (operate room call))))

(define-hot (schedule-callbacks :inline t) ((call call)) null
  "Let the callbacks of CALL that are due run soon, if its user has any. Call this, on CALL's loop,
after the store that the callbacks wait for."
  (when (callbacks-p call) (operate schedule call))
  nil)

(define-hot answers-leave-p ((call call)) boolean
  "False if CALL, a handler's, has more answers queued than its send budget, because its peer does
not receive them: more messages would only cause more answers. The transport schedules the callbacks
again when there is room."
  (or (client-p call)
      (room-p call)))

(define-hot message-due-p ((call call) (reactions reactions)) boolean
  "True if the callback for messages of CALL must be called with a message."
  (and (reactions-on-message reactions)
       (messages-wait-p call)
       (answers-leave-p call)
       (deliverable-p call)))

(define-hot watch-room ((call call)) null
  "Let ON-WRITABLE of CALL be called when there is room."
  (setf (outlet-writable-wanted (ensure-outlet call)) t)
  nil)

(define-hot due-callback ((call call) (reactions reactions) (over boolean)) (or null function)
  "The callback of CALL that must run next, other than the callback for messages. If OVER is false,
only the callback for room is considered: the others wait for the last message or for the end of
CALL."
  (cond ((not over) (due-on-writable call reactions))
        ((and (reactions-on-half-close reactions) (all-received-p call))
         (shiftf (reactions-on-half-close reactions) nil))
        ((and (reactions-on-cancel reactions) (cancelled-p call))
         (shiftf (reactions-on-cancel reactions) nil))
        ((and (reactions-on-ended reactions) (call-status call))
         (pop (reactions-on-ended reactions)))
        ((due-on-writable call reactions))))

(define-hot due-on-writable ((call call) (reactions reactions)) (or null function)
  "The callback of CALL for room to send, if the user waits for room and there is some."
  (when (and (reactions-on-writable reactions) (not (call-status call)))
    (let ((outlet (ensure-outlet call)))
      (when (and (outlet-writable-wanted outlet) (room-p call))
        (setf (outlet-writable-wanted outlet) nil)
        (reactions-on-writable reactions)))))

(define-hot all-received-p ((call call)) boolean
  "True if the peer has ended its side in order and its last message has been received."
  (and (not (messages-wait-p call))
       (if (client-p call)
           (eq :ok (call-status call))
           (and (call-half-closed call) (not (call-status call))))))
