;;;; Attempts of a call beside its own (wire/attempt.lisp): how they begin, which of them commits
;;;; the call, what becomes of the others. When and how many are made is for retry.lisp and
;;;; hedging.lisp to say. All of it on the call's loop.

(in-package #:clgrpc.client)

(defun next-number (call)
  "The number of the attempt of CALL that begins now: how many have been begun before it."
  (let ((retries (wire:call-retries call)))
    (or (and retries (pop (wire:retries-pending retries))) 0)))

(define-hot (tell-attempt-begun :inline t) ((call client-call) (link link) (stream http2:stream))
    null
  "An attempt of CALL has STREAM of LINK."
  (when (client-observer call) (wire:count-from-none stream))
  (rpc:observe attempt-begun (client-observer call)
               call (wire:link-peer link) (http2:stream-id stream))
  nil)

(define-hot (attempt-began :inline t) ((call client-call)) nanoseconds
  "When CALL's own attempt began."
  (let ((retries (wire:call-retries call)))
    (if (and retries (plusp (wire:retries-began-ns retries)))
        (wire:retries-began-ns retries)
        (wire:wire-call-born-ns call))))

(defun add-attempt (call link stream)
  "Try CALL, which runs and is not committed, on STREAM of LINK as well, and return the attempt."
  (let* ((retries (wire:ensure-retries call))
         (attempt (wire:make-attempt call link stream (next-number call))))
    (setf (http2:stream-user stream) attempt
          (wire:attempt-began-ns attempt) (core-now (client-call-core call)))
    (wire:begin-on-link link)
    (tell-attempt-begun call link stream)
    (let* ((number (wire:attempt-number attempt))
           (refusal (and (core-attempt-interceptors (client-call-core call))
                         (view-other attempt)))
           (metadata (view-metadata call (wire:attempt-view attempt)))
           (setback (or refusal (unfit-headers call link number metadata))))
      (cond (setback (fail-attempt attempt setback))
            (t (push attempt (wire:retries-others retries))
               (write-head call stream number metadata)
               (write-again call stream))))
    attempt))

(defun view-other (attempt)
  "Call the interceptors for ATTEMPT, not its call's own; return how it fails if they say so."
  (multiple-value-bind (view setback)
      (view-attempt (wire:attempt-call attempt) (wire:attempt-link attempt)
                    (wire:attempt-number attempt))
    (setf (wire:attempt-view attempt) view)
    setback))

(defun view-own (call link number)
  "Call the interceptors for CALL's own attempt on LINK that NUMBER others came before; return how
it fails if they say so, or if it cannot have its headers."
  (multiple-value-bind (view setback) (view-attempt call link number)
    (when view (setf (own-view call) view))
    (or setback (unfit-headers call link number (view-metadata call view)))))

(define-hot start-on-stream ((call client-call) (link link) (stream http2:stream) request) null
  "Begin an attempt of CALL, its own, on STREAM of LINK: send its headers and its only REQUEST, or
if that is nil what CALL has sent before, and what has waited for a stream."
  (setf (wire-call-link call) link
        (wire-call-stream call) stream
        (http2:stream-user stream) call)
  (wire:begin-on-link link)
  (tell-attempt-begun call link stream)
  (when request (setf (client-call-request call) request))
  (let* ((retries (wire:call-retries call))
         (number (cond (retries
                        (setf (wire:retries-began-ns retries) (core-now (client-call-core call))
                              (wire:retries-number retries) (next-number call)))
                       (t 0)))
         (setback (if (core-attempt-interceptors (client-call-core call))
                      (view-own call link number)
                      (unfit-headers call link number (rpc:outgoing-metadata call)))))
    (cond (setback (fail-attempt call setback))
          ((and (core-methods (client-call-core call)) (refuse-long-request call request)))
          (t (when (core-methods (client-call-core call)) (call-started call))
             (wire:ensure-headers call)
             (cond ((client-call-request call) (write-request call))
                   (t (wire:write-replay call stream)
                      (wire:write-outbox call))))))
  nil)

(defun set-aside (call)
  "Make the stream of CALL's own attempt another attempt's, and return that."
  (let* ((retries (wire:call-retries call))
         (attempt (wire:make-attempt call (wire-call-link call) (wire-call-stream call)
                                     (if retries (wire:retries-number retries) 0))))
    (setf (wire:attempt-began-ns attempt) (attempt-began call)
          (http2:stream-user (wire-call-stream call)) attempt
          (wire-call-stream call) nil
          (wire:attempt-view attempt) (take-view call))
    attempt))

(defun adopt (attempt)
  "Make ATTEMPT its call's own; return the call, which has no stream now."
  (let ((call (wire:attempt-call attempt)))
    (wire:forget-attempt attempt)
    (when (wire:attempt-view attempt)
      (setf (own-view call) (wire:attempt-view attempt)))
    (setf (wire-call-link call) (wire:attempt-link attempt)
          (wire-call-stream call) (wire:attempt-stream attempt)
          (wire:retries-number (wire:ensure-retries call)) (wire:attempt-number attempt)
          (wire:retries-began-ns (wire:ensure-retries call)) (wire:attempt-began-ns attempt)
          (http2:stream-user (wire:attempt-stream attempt)) call)))

(defun tell-overtaken (attempts began-ns)
  "An attempt that began at BEGAN-NS is answered first: tell of those of ATTEMPTS that began
before."
  (dolist (attempt attempts)
    (when (< (wire:attempt-began-ns attempt) began-ns)
      (attempt-overtaken (wire:attempt-call attempt)
                         (stream-subchannel (wire:attempt-stream attempt)
                                            (wire:attempt-link attempt))))))

(defun commit (attempt)
  "The answer to ATTEMPT begins: its call goes on with it. Return the call."
  (let ((own (set-aside (wire:attempt-call attempt))))
    (tell-overtaken (cons own (call-attempts (wire:attempt-call attempt)))
                    (wire:attempt-began-ns attempt))
    (trace-event :call :attempt-committed :method (rpc:call-path (wire:attempt-call attempt))
                 :peer (wire:link-peer (wire:attempt-link attempt))
                 :stream (http2:stream-id (wire:attempt-stream attempt)))
    (let ((call (adopt attempt)))
      (wire:reset-attempt own)
      (end-retries call)
      call)))

(define-hot committed-call ((stream http2:stream)) (or null client-call)
  "The call that an answer which begins on STREAM is for, from now on its only attempt; nil if
nobody waits for it."
  (let ((user (http2:stream-user stream)))
    (typecase user
      (client-call
       (when (wire:call-retries user) (end-retries user))
       user)
      (wire:attempt
       (and (member user (call-attempts (wire:attempt-call user)))
            (commit user))))))

(defun detach (user)
  "USER of a stream, a call or an attempt, has failed: its call goes on without it, with another
attempt as its own if there is one. Return the attempt."
  (etypecase user
    (client-call
     (let ((attempt (set-aside user))
           (others (call-attempts user)))
       (when others (adopt (first (last others))))
       attempt))
    (wire:attempt
     (wire:forget-attempt user)
     user)))

(defun fail-attempt (user setback)
  "The stream of USER, a call that is not committed, or an attempt, has failed with SETBACK."
  (let* ((attempt (detach user))
         (call (wire:attempt-call attempt)))
    (setf (wire:attempt-status attempt) (setback-status setback)
          (wire:attempt-trailers attempt) (setback-trailers setback))
    (when (wire:attempt-view attempt)
      (setf (attempt-message (wire:attempt-view attempt)) (setback-message setback)))
    (wire:reset-attempt attempt)
    (attempt-failed call attempt setback)))

(define-hot tell-attempt-ended ((call client-call) (stream http2:stream) (link link)
                                (status symbol) attempt)
    link
  "ATTEMPT of CALL on STREAM of LINK, which is returned, or if it is nil CALL's own, is over with
STATUS."
  (rpc:observe attempt-ended (client-observer call)
               call (wire:link-peer link) status (http2:stream-id stream)
               (http2:stream-tally-out stream) (http2:stream-tally-in stream)
               (since call (if attempt (wire:attempt-began-ns attempt) (attempt-began call))))
  (when (core-attempt-interceptors (client-call-core call)) (end-view call attempt status))
  (let* ((subchannel (stream-subchannel stream link))
         (listener (subchannel-listener subchannel)))
    (case status
      (:ok)
      ((:cancelled nil) (incf (subchannel-cancellations subchannel)))
      (t (incf (subchannel-failures subchannel))))
    (when listener
      (funcall listener call subchannel status
               (if attempt
                   (wire:attempt-trailers attempt)
                   (let ((ending (and status (rpc:call-ending call))))
                     (and ending (rpc:ending-trailer-fields ending)))))))
  link)

(defun leave-stream (stream)
  "STREAM, which is closed, is no call's nor attempt's any more. Return the link it was on, or nil
if it had no user."
  (let ((user (http2:stream-user stream)))
    (typecase user
      (client-call
       (setf (wire-call-stream user) nil)
       (wire:release-call user)
       (tell-attempt-ended user stream (wire-call-link user) (call-status user) nil))
      (wire:attempt
       (wire:forget-attempt user)
       (tell-attempt-ended (wire:attempt-call user) stream (wire:attempt-link user)
                           (wire:attempt-status user) user)))))
