;;;; The choice of the callback of a call that is due. The transport decides when and where
;;;; callbacks run; SCHEDULE-CALLBACKS requests a run by the operation SCHEDULE.

(in-package #:clgrpc.rpc)

(define-hot (room-p :inline t) ((call call)) boolean
  "True while fewer octets than the send budget of CALL are unsent."
  (plusp (the fixnum (operate room call))))

(define-hot (schedule-callbacks :inline t) ((call call)) null
  "Let the callbacks of CALL that are due run soon, if its user has callbacks. Call this, on CALL's
loop, after the store for which the callbacks wait."
  (when (callbacks-p call) (operate schedule call))
  nil)

(define-hot answers-leave-p ((call call)) boolean
  "False if CALL, a handler's, has more answers queued than its send budget, because its peer does
not receive them. Further messages would only cause further answers. The transport schedules the
callbacks again when there is room."
  (or (client-p call)
      (room-p call)))

(define-hot message-due-p ((call call) (callbacks callbacks)) boolean
  "True if the callback for messages of CALL must be called with a message."
  (and (callbacks-on-message callbacks)
       (messages-wait-p call)
       (answers-leave-p call)
       (deliverable-p call)))

(define-hot watch-room ((call call)) null
  "Let ON-WRITABLE of CALL be called when there is room."
  (setf (outbound-writable-wanted (ensure-outbound call)) t)
  nil)

(define-hot due-callback ((call call) (callbacks callbacks) (over boolean)) (or null function)
  "The callback of CALL, other than the callback for messages, that must run next. If OVER is false,
this is the callback for room, or nil: the others wait for the last message or for CALL's end."
  (cond ((not over) (due-on-writable call callbacks))
        ((and (callbacks-on-half-close callbacks) (all-received-p call))
         (shiftf (callbacks-on-half-close callbacks) nil))
        ((and (callbacks-on-cancel callbacks) (cancelled-p call))
         (shiftf (callbacks-on-cancel callbacks) nil))
        ((and (callbacks-on-ended callbacks) (call-status call))
         (pop (callbacks-on-ended callbacks)))
        ((due-on-writable call callbacks))))

(define-hot due-on-writable ((call call) (callbacks callbacks)) (or null function)
  "The callback of CALL for room to send, if the user waits for room and CALL has room."
  (when (and (callbacks-on-writable callbacks) (not (call-status call)))
    (let ((outbound (ensure-outbound call)))
      (when (and (outbound-writable-wanted outbound) (room-p call))
        (setf (outbound-writable-wanted outbound) nil)
        (callbacks-on-writable callbacks)))))

(define-hot all-received-p ((call call)) boolean
  "True if the peer has ended its side in order and its last message has been received."
  (and (not (messages-wait-p call))
       (if (client-p call)
           (eq :ok (call-status call))
           (and (call-half-closed call) (not (call-status call))))))
