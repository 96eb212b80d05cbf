;;;; The messages that a call sends, on the streams of its attempts. Until a call has a stream its
;;;; messages wait in its outbox. A caller that may run the channel's loop writes its only request
;;;; directly into the output; others encode it and post the call.
;;;;
;;;; Sent messages are kept until the response begins, so that the call can be tried again, or on a
;;;; second stream. The only request is kept as the message itself while its caller waits in the
;;;; stub, else encoded. If the method has a policy for further attempts, all messages of a stream
;;;; are kept; otherwise only the first few (resend-octets and resend-messages), to be sent again if
;;;; the server has not seen the call. The messages are kept only while there is room for them
;;;; (base/replay.lisp). A single request counts for that room only if it is kept because of a
;;;; policy.
;;;;
;;;; Everything here runs on the call's loop, except functions whose docstrings name another thread.

(in-package #:clgrpc.client)

(define-hot (waited-for-p :inline t) ((call client-call)) boolean
  "True if the caller waits for CALL, and so cannot change its request meanwhile. From any thread."
  (and (not (unattended-p call))
       (eq :unary (rpc-method-kind (the rpc-method (call-rpc-method call))))))

(defun other-attempts (call)
  "The attempts of CALL that are under way, except the one with which CALL continues at present."
  (let ((retries (call-retries call)))
    (and retries (remove (client-call-stream call) (client-retries-running retries)
                         :key #'attempt-stream))))

;;; Kept messages

(defun begin-replay (call limit &optional (messages most-positive-fixnum))
  "Keep the messages that CALL will send, at most LIMIT octets and MESSAGES messages. These limits
replace earlier limits. CALL has sent nothing so far."
  (cond ((plusp limit)
         (setf (client-parts-replay (ensure-client-parts call))
               (make-replay (core-replays (client-call-core call)) limit messages)))
        (t (drop-replay call))))

(defun keep-for-replay (call encoded)
  "Keep ENCODED, which CALL sends, and return true. If the room does not suffice, or CALL's messages
are not kept, drop all kept messages of CALL and return false."
  (let ((replay (call-replay call)))
    (or (and replay
             (keep-message replay encoded (wire:encoded-length encoded)
                           (options-total-replay-octets (wire-call-options call))))
        (progn (drop-replay call) nil))))

(defun repeatable-p (call)
  "True if all messages that CALL has sent can be sent again."
  (let ((outbound (call-client-outbound call)))
    (or (and (client-call-request call) t)
        (null outbound)
        (zerop (client-outbound-spoken outbound))
        (and (call-replay call) t))))

(defun encoded-request (call)
  "The only request of CALL in encoded form, which CALL keeps from now on."
  (let ((request (client-call-request call)))
    (if (typep request '(or octets wire:byte-buffer))
        request
        (setf (client-call-request call) (wire:encode-message call request nil)))))

(defun keep-request (call)
  "Keep the only request of CALL, or its messages, for further attempts. Return true if all are
kept."
  (cond ((not (repeatable-p call)) nil)
        ((or (null (client-call-request call)) (call-replay call)) t)
        (t (begin-replay call (options-replay-octets (wire-call-options call)))
           (keep-for-replay call (encoded-request call)))))

(define-hot forget-request ((call client-call)) null
  "Release the kept messages of CALL, since its response begins."
  (when (call-replay call) (drop-replay call))
  (let ((request (shiftf (client-call-request call) nil))
        (stream (client-call-stream call)))
    (when (and (typep request 'wire:byte-buffer)
               stream
               (null (call-retries call)) ; no other attempt had the message
               (zerop (http2:stream-queued-octets stream))) ; no octets are left to be sent
      (give-octets-back (wire:byte-buffer-taken request))))
  nil)

;;; Sending

(defun write-first (call encoded last keep)
  "Send ENCODED, a value of ENCODE-MESSAGE, on the stream with which CALL continues. If KEEP is
true, CALL keeps the message, so its octets are not returned to the store."
  (wire:write-encoded call encoded last
                      :plain (plain-only-p call (client-call-stream call)) :keep keep))

(defun write-again (call stream encoded last)
  "Send ENCODED, a value of ENCODE-MESSAGE, on STREAM. Use this if ENCODED was sent on another
stream before, or if CALL continues with another stream than STREAM."
  (wire:write-encoded call encoded last :plain (plain-only-p call stream) :again stream))

(define-hot write-request ((call client-call)) null
  "Send the only request of CALL, and let CALL keep it."
  (let ((request (client-call-request call)))
    (if (typep request '(or octets wire:byte-buffer))
        (write-first call request t t)
        (wire:write-message call request t)))
  nil)

(defun write-replay (call stream)
  "Send on STREAM the messages that CALL has sent so far."
  (when-let ((replay (call-replay call)))
    (loop for kept in (reverse (replay-messages replay))
          until (call-status call)    ; no memory was left for a message
          do (write-again call stream kept nil))))

(defun keep-to-one (call)
  "Let CALL continue with its present attempt only, because it has too many messages to keep for
further attempts."
  (when-let ((retries (call-retries call)))
    (mapc #'reset-attempt
          (attempt:commit retries (http2:stream-user (client-call-stream call))))))

(defun write-on-attempts (call encoded last)
  "Send ENCODED, a value of ENCODE-MESSAGE, on all streams of CALL, and keep it if CALL's messages
are kept."
  (cond ((keep-for-replay call encoded)
         (write-first call encoded last t)
         (loop for attempt in (other-attempts call)
               until (call-status call)
               do (write-again call (attempt-stream attempt) encoded last)))
        (t (keep-to-one call)
           (write-first call encoded last nil))))

(defun send-on-attempts (call encoded)
  "Send ENCODED, a value of ENCODE-MESSAGE, on all streams of CALL; without a stream, put it into
the outbox."
  (cond ((client-call-stream call) (write-on-attempts call encoded nil))
        (t (let ((outbound (ensure-client-outbound call)))
             (incf (client-outbound-outbox-octets outbound) (wire:encoded-length encoded))
             (push encoded (client-outbound-outbox outbound))))))

(defun longest-outgoing (call request)
  "The number of octets of REQUEST, a message of CALL or the value of ENCODE-MESSAGE for one. If
REQUEST is nil, the octets of the longest message in CALL's outbox, 0 if that is empty."
  (flet ((length-of (encoded) (- (wire:encoded-length encoded) wire:+prefix-octets+)))
    (typecase request
      (null (let ((outbound (call-client-outbound call)))
              (loop for encoded in (and outbound (client-outbound-outbox outbound))
                    maximize (length-of encoded))))
      ((or octets wire:byte-buffer) (length-of request))
      (t (protobuf:measure (rpc:outgoing-type call) request)))))

;;; The end of the client's side

(defun half-close-stream (stream)
  "End our side of STREAM by an empty DATA frame (RFC 9113 section 8.1)."
  (http2:send-data stream (load-time-value (make-octets 0)) 0 0 t))

(defun write-half-close (call)
  "End our side of CALL, on all of its streams."
  (rpc:observe half-closed (core-observer (client-call-core call)) call)
  (half-close-stream (client-call-stream call))
  (dolist (attempt (other-attempts call)) (half-close-stream (attempt-stream attempt))))

(defun write-outbox (call)
  "Send the messages in CALL's outbox, and the half-close if that waits too."
  (let* ((outbound (call-client-outbound call))
         (waiting (and outbound (nreverse (shiftf (client-outbound-outbox outbound) '())))))
    (when waiting (setf (client-outbound-outbox-octets outbound) 0))
    (loop for (encoded . more) on waiting
          until (call-status call)
          do (write-on-attempts call encoded (and (wire:marked-p call :closed) (null more))))
    (when (and (wire:marked-p call :closed) (not (call-status call)))
      (if waiting
          (rpc:observe half-closed (core-observer (client-call-core call)) call)
          (write-half-close call)))
    (wire:tell-writable call)))

(defun client-close-send (call)
  "The operation CLOSE-SEND. From any thread."
  (setf (client-outbound-over (ensure-client-outbound call)) t)
  (wire:post-in-turn call 0
                     (lambda ()
                       (unless (or (call-status call) (wire:marked-p call :closed))
                         (wire:mark-call call :closed)
                         (when (client-call-stream call) (write-half-close call))))))
