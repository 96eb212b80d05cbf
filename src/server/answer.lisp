;;;; From the value that a handler returns, or the condition that ends it, to the end of its call.
;;;; The answer is written at once if this thread runs the loop and the message is short; else this
;;;; thread encodes it and posts it to the loop.

(in-package #:clgrpc.server)

(defun reply-plainly (call value)
  "Answer the plain request of CALL with VALUE, the result of the function of a plain route."
  (if (exchange:plain-answer-p value)
      (exchange:answer (call-http-request call) value)
      (server-finish call :ok "" nil '())))

(define-hot reply-beside-grpc ((call server-call) value) boolean
  "As REPLY-NOW, for a CALL of another protocol than gRPC."
  (cond ((call-claim call)
         (values (funcall (protocol-handler-reply (call-protocol-handler call)) call value)))
        (t (reply-plainly call value) t)))

(define-hot reply-now ((call server-call) message) boolean
  "Send MESSAGE and the status :ok, and return true. If MESSAGE is long, do nothing and return
false: then POST-REPLY must be called with the baton lent. On the loop."
  (cond ((call-status call) t)
        ((call-http-request call) (reply-beside-grpc call message))
        (t (let ((outcome (progn
                            (update-time-if-observed call)
                            (wire:ensure-headers call)
                            (handler-case (and (null (wire:outgoing-encoding call))
                                               (wire:write-message call message nil))
                              ((or error storage-condition) (error)
                                (bad-answer-condition call message error))))))
             (case outcome
               ((t) (unless (zerop (route-long-octets (the server-route (server-call-route call))))
                      (note-answer (server-call-route call)))
                    (server-finish call :ok "" nil '()) t)
               ((nil) nil)
               (t (finish-with-condition call outcome) t))))))

(defun server-reply (call message)
  "The operation REPLY: send MESSAGE and the status :ok. From user code in any thread."
  (when (or (note-reply call) (call-status call))
    (let ((passed nil))
      (unwind-protect
           (progn
             (unless (loop:with-baton ((wire-call-loop call))
                         (and (zerop (wire:posted-octets call)) (reply-now call message))
                       nil)
               (post-reply call message))
             (setf passed t))
        (unless passed (note-later call t))))))

(defun post-reply (call message)
  "Encode MESSAGE on this thread, and post it to the loop, which sends it and the status :ok."
  (cond ((null (call-http-request call))
         (post-reply-by call message #'wire:encode-message #'finish-encoded))
        ((call-claim call)
         (funcall (protocol-handler-post-reply (call-protocol-handler call)) call message))
        ;; only the loop may write the answer of a plain request
        (t (loop:post (wire-call-loop call) (lambda () (reply-now call message))))))

(defun note-answering (call count)
  "Charge CALL's link with COUNT octets of its answer, which are posted to the loop. A negative
COUNT reduces the charge, because these octets have arrived on the loop."
  (let ((link (the server-link (server-call-link call))))
    (sb-ext:atomic-incf (server-link-posted link) count)
    (cond ((minusp count)
           (discharge-account (server-link-account link) (- count))
           (look-at-held-up link))
          (t (charge-account (server-link-account link) count)))))

(defun post-reply-by (call message encode finish)
  "Do what POST-REPLY does, by other functions. ENCODE, a function like WIRE:ENCODE-MESSAGE, is
called with CALL, MESSAGE and :auto on this thread. FINISH, called on the loop, sends the encoded
message, its second argument, and the status :ok."
  (let* ((encoded (handler-case (funcall (the function encode) call message :auto)
                    ((or error storage-condition) (error)
                      (bad-answer-condition call message error))))
         (bad (status:failure-p encoded))
         (size (if bad 0 (wire:encoded-length encoded))))
    (note-answering call size)
    (loop:post (wire-call-loop call)
               (lambda ()
                 (note-answering call (- size))
                 (cond ((call-status call))
                       (bad (finish-with-condition call encoded))
                       (t (funcall (the function finish) call encoded)))))))

(defun finish-encoded (call encoded)
  "Send ENCODED, the answer of CALL, and the status :ok."
  (wire:ensure-headers call)
  (wire:write-encoded call encoded nil)
  (server-finish call :ok "" nil '()))

(defun finish-with-condition (call condition)
  "End CALL with the status of CONDITION."
  (multiple-value-call #'server-finish call (sendable-end call condition)))

(define-hot server-finish ((call server-call) (status symbol) (message string) details
                           (trailers list))
    null
  "End CALL. On the loop."
  (unless (call-status call)
    (rpc:add-trailers call trailers)
    (update-time-if-observed call)
    (wire:note-end call)
    (end-call call status :message message :details details :ended-by :local
                          :observer (server-loop-observer (server-call-endpoint call)))
    (write-end call))
  nil)

(defun finish-from-anywhere (call status message details trailers)
  "The operation FINISH."
  (wire:post-in-turn call 0 (lambda () (server-finish call status message details trailers))))

(defun tell-of-forgotten (call status)
  "If the handler of CALL has returned the call, in order to answer later, and has not answered by
the deadline, log CALL's method and identifiers. CALL is about to end with STATUS."
  (let ((deferred-start (server-call-deferred-start call)))
    (when (and (eq :deadline-exceeded status) deferred-start
               (eq t (deferred-start-later deferred-start)))
      (rpc:log-call-event call :info :call-unanswered :method (rpc:call-path call)))))

(defun server-abort (call status text ended-by)
  "The operation ABORT: end CALL with STATUS, and notify the peer and the handler."
  (declare (ignore ended-by))
  (unless (call-status call)
    (tell-of-forgotten call status)
    (server-finish call status text nil '())
    (rpc:schedule-callbacks call)))

(defun post-metadata (call metadata others function)
  "The operation SEND-METADATA, for METADATA with OTHERS octets of other fields. FUNCTION, without
arguments, sends METADATA on the loop, unless CALL has ended by that time. From any thread."
  (check-metadata-size call metadata others)
  (when (wire:sending-begun-p call) (misuse "The headers of ~A were sent before." call))
  (setf (wire:sending-begun-p call) t)
  (wire:post-in-turn call 1 (lambda () (unless (call-status call) (funcall function)))))

(defun server-send-metadata (call metadata)
  "The operation SEND-METADATA of gRPC."
  (post-metadata call metadata (constant-octets call)
                 (lambda ()
                   (unless (wire:marked-p call :headers)
                     (setf (rpc:outgoing-metadata call) metadata)
                     (wire:ensure-headers call)))))
