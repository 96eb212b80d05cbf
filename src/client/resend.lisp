;;;; Calls that the server has not seen, and says so, are made again without a word (gRFC A6,
;;;; "transparent retries"): those refused by REFUSED_STREAM, and those above the last stream of a
;;;; GOAWAY. Once, since a server that refuses again has a reason; calls that have had no stream yet
;;;; wait for the next connection as often as it takes. All within the call's deadline.
;;;;
;;;; So the only request of a call is kept until its response begins: encoded, or, while its caller
;;;; waits in the stub, as the message it is. What has been sent on a stream of requests is not
;;;; kept; such a call is made again only if nothing has been. Others end with :unavailable, and
;;;; RPC-ERROR-SENT-P says that they may be made again.

(in-package #:clgrpc.client)

(define-hot (waited-for-p :inline t) ((call client-call)) boolean
  "True if the caller waits for CALL, and so cannot change its request meanwhile."
  (and (not (wire-call-unattended call))
       (eq :unary (rpc-method-kind (the rpc-method (call-rpc-method call))))))

(define-hot write-request ((call client-call)) null
  "Send the only request of CALL, which goes on to have it."
  (let ((request (client-call-message call)))
    (typecase request
      (octets (http2:send-data (wire-call-stream call) request 0 (length request) t))
      (wire:parcel (http2:send-data (wire-call-stream call) (wire:parcel-octets request)
                                   0 (wire:parcel-end request) t))
      (t (wire:write-message call request t))))
  nil)

(define-hot forget-request ((call client-call)) null
  "The response to CALL begins: its request will not be needed again."
  (let ((request (shiftf (client-call-message call) nil))
        (stream (wire-call-stream call)))
    (when (and (typep request 'wire:parcel)
               (zerop (http2:stream-queued-octets stream))) ; no octets of it are to be sent still
      (give-octets-back (wire:parcel-taken request))))
  nil)

(defun resend-p (call)
  "True if CALL, which its server says it has not seen, is to be made again."
  (and (not (wire:marked-p (wire:wire-call-marks call) wire:+answer+))
       (not (let ((parts (wire:call-wire-parts call)))
              (and parts (wire:wire-parts-resent parts))))
       (or (client-call-message call)
           (let ((outlet (wire:call-wire-outlet call)))
             (or (null outlet) (zerop (wire:wire-outlet-spoken outlet)))))))

(defun resend (call)
  "Make CALL again, once its stream is closed."
  (let ((parts (wire:ensure-wire-parts call)))
    (setf (wire:wire-parts-resent parts) t
          (wire:wire-parts-wait parts) nil
          (wire:wire-call-marks call) (wire:unmarked (wire:wire-call-marks call)))
    (loop:defer (wire-call-loop call) #'submit-again call)))

(defun submit-again (call)
  (unless (call-status call)
    (submit (client-call-subchannel call) call nil)))
