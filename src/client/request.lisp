;;;; The request of a call. Its headers go out when it has a stream; until then what it sends waits
;;;; in its outbox. A caller that may run the channel's loop writes its only request straight into
;;;; the output; others encode it and post the call.
;;;;
;;;; That request is kept apart from the reply until this begins, so that the call may be made
;;;; again: as it is while its caller waits in the stub, else encoded. What streams of requests have
;;;; sent is kept by wire/replay.lisp.

(in-package #:clgrpc.client)

(define-hot (waited-for-p :inline t) ((call client-call)) boolean
  "True if the caller waits for CALL, and so cannot change its request meanwhile."
  (and (not (wire-call-unattended call))
       (eq :unary (rpc-method-kind (the rpc-method (call-rpc-method call))))))

(define-hot write-request ((call client-call)) null
  "Send the only request of CALL, which goes on to have it."
  (let ((request (client-call-request call)))
    (cond ((typep request '(or octets wire:parcel))
           (let* ((stream (the http2:stream (wire-call-stream call)))
                  (fitting (wire:fitting call stream request)))
             (wire:note-first-sent call fitting)
             (wire:write-kept stream fitting t)))
          (t (wire:write-message call request t))))
  nil)

(define-hot forget-request ((call client-call)) null
  "The response to CALL begins: what it has sent will not be needed again."
  (when (wire:call-replay call) (wire:drop-replay call))
  (let ((request (shiftf (client-call-request call) nil))
        (stream (wire-call-stream call)))
    (when (and (typep request 'wire:parcel)
               stream
               (null (wire:call-retries call)) ; no other attempt had it
               (zerop (http2:stream-queued-octets stream))) ; no octets of it are to be sent still
      (give-octets-back (wire:parcel-taken request))))
  nil)

(defun repeatable-p (call)
  "True if all that CALL has sent can be sent again."
  (let ((outlet (wire:call-wire-outlet call)))
    (or (and (client-call-request call) t)
        (null outlet)
        (zerop (wire:wire-outlet-spoken outlet))
        (and (wire:call-replay call) t))))

(defun encoded-request (call)
  "The only request of CALL, encoded from now on."
  (let ((request (client-call-request call)))
    (if (typep request '(or octets wire:parcel))
        request
        (setf (client-call-request call) (wire:encode-message call request nil)))))

(defun write-again (call stream)
  "Send on STREAM what CALL has sent so far."
  (cond ((client-call-request call)
         (let ((fitting (wire:fitting call stream (encoded-request call))))
           (wire:note-sent call stream fitting)
           (wire:write-kept stream fitting t)))
        (t (wire:write-replay call stream)
           (when (wire-call-send-closed call) (wire:end-side stream)))))

;;; Sending

(defun client-close-send (call)
  "The operation CLOSE-SEND. From any thread."
  (setf (wire:wire-outlet-over (wire:ensure-wire-outlet call)) t)
  (wire:post-in-turn call 0
                     (lambda ()
                       (unless (or (call-status call) (wire-call-send-closed call))
                         (wire:close-sending call)
                         (when (wire-call-stream call) (wire:write-half-close call))))))
