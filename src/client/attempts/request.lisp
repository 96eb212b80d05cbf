;;;; What a call sends, on whichever streams its attempts have. Until it has one, what it sends
;;;; waits in its outbox. A caller that may run the channel's loop writes its only request straight
;;;; into the output; others encode it and post the call.
;;;;
;;;; What was sent is kept until the response begins, so that the call can be tried again, or on
;;;; another stream beside. The only request is kept apart from the reply: as it is while its caller
;;;; waits in the stub, else encoded. Of the messages of a stream all are kept if the method has a
;;;; policy for further attempts, else the first few, for a server that has not seen the call
;;;; (resend-octets and resend-messages); and only while there is room for them (base/replay.lisp).
;;;; A single request is charged to that room once it is kept for the sake of a policy.
;;;;
;;;; Everything here runs on the call's loop, unless something else is said.

(in-package #:clgrpc.client)

(define-hot (waited-for-p :inline t) ((call client-call)) boolean
  "True if the caller waits for CALL, and so cannot change its request meanwhile. From any thread."
  (and (not (unattended-p call))
       (eq :unary (rpc-method-kind (the rpc-method (call-rpc-method call))))))

(defun other-attempts (call)
  "The attempts of CALL that are under way beside the one that it goes on with, so far."
  (let ((retries (call-retries call)))
    (and retries (remove (client-call-stream call) (client-retries-running retries)
                         :key #'attempt-stream))))

;;; What is kept

(defun begin-replay (call limit &optional (messages most-positive-fixnum))
  "Keep what CALL, which has sent nothing so far, will send, up to LIMIT octets and MESSAGES,
whatever it was told before."
  (cond ((plusp limit)
         (setf (client-parts-replay (ensure-client-parts call))
               (make-replay (core-replays (client-call-core call)) limit messages)))
        (t (drop-replay call))))

(defun keep-for-replay (call encoded)
  "Keep ENCODED, which CALL sends, and return true. If there is no room for it, or nothing is kept
of CALL, keep nothing of CALL any more and return false."
  (let ((replay (call-replay call)))
    (or (and replay
             (keep-message replay encoded (wire:encoded-length encoded)
                           (options-total-replay-octets (wire-call-options call))))
        (progn (drop-replay call) nil))))

(defun repeatable-p (call)
  "True if all that CALL has sent can be sent again."
  (let ((outlet (call-client-outlet call)))
    (or (and (client-call-request call) t)
        (null outlet)
        (zerop (client-outlet-spoken outlet))
        (and (call-replay call) t))))

(defun encoded-request (call)
  "The only request of CALL, encoded from now on."
  (let ((request (client-call-request call)))
    (if (typep request '(or octets wire:parcel))
        request
        (setf (client-call-request call) (wire:encode-message call request nil)))))

(defun keep-request (call)
  "Have the only request of CALL, or what it sends, be kept for further attempts. Return true if all
of it is."
  (cond ((not (repeatable-p call)) nil)
        ((or (null (client-call-request call)) (call-replay call)) t)
        (t (begin-replay call (options-replay-octets (wire-call-options call)))
           (keep-for-replay call (encoded-request call)))))

(define-hot forget-request ((call client-call)) null
  "The response to CALL begins: what it has sent will not be needed again."
  (when (call-replay call) (drop-replay call))
  (let ((request (shiftf (client-call-request call) nil))
        (stream (client-call-stream call)))
    (when (and (typep request 'wire:parcel)
               stream
               (null (call-retries call)) ; no other attempt had it
               (zerop (http2:stream-queued-octets stream))) ; no octets of it are to be sent still
      (give-octets-back (wire:parcel-taken request))))
  nil)

;;; Sending

(define-hot write-kept ((stream http2:stream) (encoded (or octets wire:parcel)) (last boolean)) null
  "Send ENCODED, of ENCODE-MESSAGE, on STREAM; it stays the call's and is not given to the store."
  (http2:send-data stream (wire:encoded-octets encoded) 0 (wire:encoded-length encoded) last)
  nil)

(defun write-first (call encoded last)
  "Send ENCODED, of ENCODE-MESSAGE, on the stream that CALL goes on with."
  (let* ((stream (client-call-stream call))
         (fitting (fitting call stream encoded)))
    (when fitting
      (wire:note-sent call fitting)
      (write-kept stream fitting last))))

(defun write-again (call stream encoded last)
  "Send ENCODED, of ENCODE-MESSAGE, on STREAM, which is not the first to have it, or not the one
that CALL goes on with."
  (let ((fitting (fitting call stream encoded)))
    (when fitting
      (wire:note-sent call fitting stream)
      (write-kept stream fitting last))))

(define-hot write-request ((call client-call)) null
  "Send the only request of CALL, which goes on to have it."
  (let ((request (client-call-request call)))
    (if (typep request '(or octets wire:parcel))
        (write-first call request t)
        (wire:write-message call request t)))
  nil)

(defun write-replay (call stream)
  "Send on STREAM the messages that CALL has sent so far."
  (let ((replay (call-replay call)))
    (when replay
      (loop for kept in (reverse (replay-messages replay))
            until (call-status call)    ; there was no memory for one
            do (write-again call stream kept nil)))))

(defun keep-to-one (call)
  "CALL goes on with the attempt that it has, since it sends too much to be kept for others."
  (let ((retries (call-retries call)))
    (when retries
      (mapc #'reset-attempt
            (calling:commit retries (http2:stream-user (client-call-stream call)))))))

(defun write-on-attempts (call encoded last)
  "Send ENCODED, of ENCODE-MESSAGE, on all streams of CALL, and keep it if CALL's messages are."
  (cond ((keep-for-replay call encoded)
         (write-first call encoded last)
         (loop for attempt in (other-attempts call)
               until (call-status call)
               do (write-again call (attempt-stream attempt) encoded last)))
        (t (keep-to-one call)
           (let ((fitting (fitting call (client-call-stream call) encoded)))
             (when fitting (wire:write-encoded call fitting last))))))

(defun send-on-attempts (call encoded)
  "Send ENCODED, of ENCODE-MESSAGE, on all streams of CALL, or keep it until there is one."
  (cond ((client-call-stream call) (write-on-attempts call encoded nil))
        (t (let ((outlet (ensure-client-outlet call)))
             (incf (client-outlet-outbox-octets outlet) (wire:encoded-length encoded))
             (push encoded (client-outlet-outbox outlet))))))

(defun longest-outgoing (call request)
  "The octets of REQUEST, a message of CALL or what ENCODE-MESSAGE made of it; or if that is nil, of
the longest message that waits in CALL's outbox, 0 if none does."
  (flet ((length-of (encoded) (- (wire:encoded-length encoded) wire:+prefix-octets+)))
    (typecase request
      (null (let ((outlet (call-client-outlet call)))
              (loop for encoded in (and outlet (client-outlet-outbox outlet))
                    maximize (length-of encoded))))
      ((or octets wire:parcel) (length-of request))
      (t (protobuf:measure (rpc:outgoing-type call) request)))))

;;; The end of what is sent

(defun end-side (stream)
  "End our side of STREAM by an empty DATA frame (RFC 9113 section 8.1)."
  (http2:send-data stream (load-time-value (make-octets 0)) 0 0 t))

(defun write-half-close (call)
  "End our side of CALL, on all of its streams."
  (rpc:observe half-closed (core-observer (client-call-core call)) call)
  (end-side (client-call-stream call))
  (dolist (attempt (other-attempts call)) (end-side (attempt-stream attempt))))

(defun write-outbox (call)
  "Send what has waited for CALL's stream, and the half-close if that waits too."
  (let* ((outlet (call-client-outlet call))
         (waiting (and outlet (nreverse (shiftf (client-outlet-outbox outlet) '())))))
    (when waiting (setf (client-outlet-outbox-octets outlet) 0))
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
  (setf (client-outlet-over (ensure-client-outlet call)) t)
  (wire:post-in-turn call 0
                     (lambda ()
                       (unless (or (call-status call) (wire:marked-p call :closed))
                         (wire:mark-call call :closed)
                         (when (client-call-stream call) (write-half-close call))))))
