;;;; Which callback of a call is due. When and where callbacks run is the transport's to say.

(in-package #:clgrpc.rpc)

(defun abort-with (call condition)
  "End CALL as CONDITION, an RPC-ERROR of its user's code, says. On its loop."
  (operate abort call (rpc-error-status condition) (rpc-error-message condition) :local))

(define-hot (room-p :inline t) ((call call)) boolean
  "True while less than the send budget of CALL is unsent."
  (plusp (the fixnum (operate room call))))

(define-hot answers-leave-p ((call call)) boolean
  "False if CALL, a handler's, has more queued than its send budget, since its peer does not take
it: more messages would only make more answers. The transport says when to go on."
  (or (client-p call)
      (room-p call)))

(define-hot message-due-p ((call call) (extra extra)) boolean
  "True if a message of CALL is to be given to its callback."
  (and (extra-on-message extra)
       (or (extra-received extra) (call-incoming call))
       (answers-leave-p call)
       (deliverable-p call)))

(define-hot due-callback ((call call) (extra extra)) (or null function)
  "The callback of CALL, other than that for messages, that is to run next."
  (cond ((and (extra-on-half-close extra) (all-received-p call extra))
         (shiftf (extra-on-half-close extra) nil))
        ((and (extra-on-cancel extra) (cancelled-p call))
         (shiftf (extra-on-cancel extra) nil))
        ((and (extra-on-ended extra) (call-status call))
         (shiftf (extra-on-ended extra) nil))
        ((due-on-writable call extra))))

(define-hot due-on-writable ((call call) (extra extra)) (or null function)
  "The callback of CALL for room to send, if it is wanted and there is room."
  (when (and (extra-on-writable extra) (extra-writable-wanted extra) (not (call-status call))
             (room-p call))
    (setf (extra-writable-wanted extra) nil)
    (extra-on-writable extra)))

(define-hot all-received-p ((call call) (extra extra)) boolean
  "True if the peer has ended its side well and its last message has been taken."
  (and (null (call-incoming call))
       (null (extra-received extra))
       (if (client-p call)
           (eq :ok (call-status call))
           (and (call-half-closed call) (not (call-status call))))))
