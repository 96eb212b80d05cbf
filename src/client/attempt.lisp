;;;; Attempts of a call beside its own (wire/attempt.lisp): how they begin, which of them commits
;;;; the call, what becomes of the others. When and how many are made is the policy's to say. All of
;;;; it on the call's loop.

(in-package #:clgrpc.client)

(defun add-attempt (call link)
  "Try CALL, which has sent its headers and is not committed, on LINK as well. Return the attempt,
or nil if LINK has no stream now, or what was sent cannot be sent again."
  (let ((stream (and (null (call-status call))
                     (wire-call-stream call)
                     (not (wire:marked-p (wire:wire-call-marks call) wire:+answer+))
                     (repeatable-p call)
                     (http2:open-stream (wire:link-http2 link)))))
    (when stream
      (let ((attempt (wire:make-attempt call link stream)))
        (setf (http2:stream-user stream) attempt)
        (incf (wire:link-calls link))
        (push attempt (wire:wire-parts-attempts (wire:ensure-wire-parts call)))
        (rpc:observe attempt-begun (wire:call-observer call)
                     call (wire:link-peer link) (http2:stream-id stream))
        (write-head call stream)
        (write-again call stream)
        attempt))))

(defun set-aside (call)
  "Make the stream of CALL's own attempt another attempt's, and return that."
  (let ((attempt (wire:make-attempt call (wire-call-link call) (wire-call-stream call))))
    (setf (http2:stream-user (wire-call-stream call)) attempt
          (wire-call-stream call) nil)
    attempt))

(defun adopt (attempt)
  "Make ATTEMPT its call's own; return the call, which has no stream now."
  (let ((call (wire:attempt-call attempt)))
    (wire:forget-attempt attempt)
    (setf (wire-call-link call) (wire:attempt-link attempt)
          (wire-call-stream call) (wire:attempt-stream attempt)
          (http2:stream-user (wire:attempt-stream attempt)) call)))

(defun commit (attempt)
  "The answer to ATTEMPT begins: its call goes on with it. Return the call."
  (let ((own (set-aside (wire:attempt-call attempt))))
    (trace-event :call :attempt-committed :method (rpc:call-path (wire:attempt-call attempt))
                 :peer (wire:link-peer (wire:attempt-link attempt))
                 :stream (http2:stream-id (wire:attempt-stream attempt)))
    (let ((call (adopt attempt)))
      (wire:reset-attempt own)
      (wire:reset-attempts call)
      call)))

(define-hot committed-call ((stream http2:stream)) (or null client-call)
  "The call that an answer which begins on STREAM is for, from now on its only attempt; nil if
nobody waits for it."
  (let ((user (http2:stream-user stream)))
    (typecase user
      (client-call
       (when (call-attempts user) (wire:reset-attempts user))
       user)
      (wire:attempt
       (and (member user (call-attempts (wire:attempt-call user)))
            (commit user))))))

(defun fail-over (call)
  "The stream of CALL's own attempt has failed: if there are others, go on with the oldest as its
own, and return true."
  (let ((attempts (call-attempts call)))
    (when attempts
      (set-aside call)
      (adopt (first (last attempts)))
      t)))

(define-hot tell-attempt-ended ((call client-call) (link link) (status symbol)) link
  "An attempt of CALL on LINK, which is returned, is over."
  (rpc:observe attempt-ended (wire:call-observer call) call (wire:link-peer link) status)
  (let* ((subchannel (the subchannel (link-owner link)))
         (listener (subchannel-listener subchannel)))
    (unless (member status '(:ok :cancelled nil)) (incf (subchannel-failures subchannel)))
    (when listener
      (funcall listener call subchannel status
               (let ((ending (and status (rpc:call-ending call))))
                 (and ending (rpc:ending-trailer-fields ending))))))
  link)

(defun leave-stream (stream)
  "STREAM, which is closed, is no call's nor attempt's any more. Return the link it was on, or nil
if it had no user."
  (let ((user (http2:stream-user stream)))
    (typecase user
      (client-call
       (setf (wire-call-stream user) nil)
       (wire:release-call user)
       (tell-attempt-ended user (wire-call-link user) (call-status user)))
      (wire:attempt
       (wire:forget-attempt user)
       (tell-attempt-ended (wire:attempt-call user) (wire:attempt-link user) nil)))))
