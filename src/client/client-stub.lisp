;;;; Stubs: INVOKE on a channel, by the kind of the method.
;;;;
;;;;   unary             returns the reply and the call
;;;;   server streaming  returns the call, to RECEIVE from
;;;;   client streaming  REQUEST is a sequence, a generator function (nil when done) or :open;
;;;;                     returns the reply and the call, or for :open the call, whose reply
;;;;                     RECEIVE gives after CLOSE-SEND
;;;;   bidi              the same kinds of REQUEST; returns the call. The loop sends the messages of
;;;;                     a sequence or generator as the peer takes them, while the caller receives.

(in-package #:clgrpc.client)

(defmethod method:invoke ((channel wire-channel) method request &rest options
                       &key timeout deadline metadata values
                         (wait-for-ready :unset) async call-credentials
                         authority max-send-octets max-receive-octets
                         (compression nil compression-p))
  (declare (dynamic-extent options))
  (check-call-options method options)
  (when (core-codec (channel-core channel)) (setf method (method-in-channel method channel)))
  (let ((generator (and (member (rpc-method-kind method) '(:client-streaming :bidi))
                        (not (eq request :open))
                        (request-generator request)))
        (call (let ((now (if (or timeout deadline) (channel-now channel) 0)))
                (make-call channel method (absolute-deadline timeout deadline now) async now)))
        (encoding (if compression-p
                      (nth-value 1 (encoding:check-compression compression))
                      (core-encoding (channel-core channel)))))
    (when encoding (begin-compression call encoding))
    (when metadata (setf (rpc:outgoing-metadata call) (status:check-metadata metadata)))
    (when (or authority max-send-octets max-receive-octets values)
      (rpc:begin-own-options call :authority authority :max-send-octets max-send-octets
                             :max-receive-octets max-receive-octets :values values))
    (when authority
      (setf (client-own-options-authority (ensure-client-own-options call)) authority))
    (when call-credentials (begin-identity call channel call-credentials))
    (unless (eq :unset wait-for-ready)
      (setf (client-own-options-wait-for-ready (ensure-client-own-options call))
            (and wait-for-ready t)))
    (rpc:observe call-made (core-observer (client-call-core call)) call)
    (ecase (rpc-method-kind method)
      (:unary
       (cond (async (submit-call call (rpc:only-request method request)) call)
             (t (submit-and-wait call (rpc:only-request method request) nil nil)
                (if (eq :ok (call-status call))
                    (reply-of call)
                    (fail-or-retry call channel method request options)))))
      (:server-streaming
       (submit-call call (rpc:only-request method request))
       call)
      (:client-streaming
       (keep-first-requests call)
       (cond ((null generator) (submit-call call nil) call)
             (async (submit-call call nil)
                    (send-requests call generator :on-loop t)
                    call)
             (t (submit-and-wait call nil generator (not (functionp request)))
                (cond ((eq :ok (call-status call)) (reply-of call))
                      ((functionp request) (error (rpc:call-condition call)))
                      (t (fail-or-retry call channel method request options))))))
      (:bidi
       (keep-first-requests call)
       (submit-call call nil)
       (when generator (send-requests call generator :on-loop t))
       call))))

(defun method-in-channel (method channel)
  "METHOD with its messages in the codec of CHANNEL, unless METHOD has a codec of its own, or raw
messages."
  (if (or (method:rpc-method-codec method)
          (protobuf:raw-type-p (method:rpc-method-request-type method)))
      method
      (method:method-in-codec method (core-codec (channel-core channel)))))

(defun keep-first-requests (call)
  "Keep the first messages that CALL will send, for a server that has not seen them."
  (let ((options (wire-call-options call)))
    (begin-replay call (options-resend-octets options) (options-resend-messages options))))

(defun channel-now (channel)
  "The time now, by the clock of CHANNEL's loop."
  (loop:read-clock (core-loop (channel-core channel))))

(defun make-call (channel method deadline unattended now)
  "A new call of METHOD on CHANNEL, its own future if UNATTENDED is true. The call begins at NOW; if
NOW is 0, it begins when its loop starts it."
  (unless (channel-open-p channel) (misuse "~A is closed." channel))
  (let ((call (make-client-call
               :rpc-method method :endpoint (channel-core channel) :deadline deadline :born-ns now
               :operations (if (member (rpc-method-kind method) '(:unary :client-streaming))
                               **single-operations**
                               **stream-operations**))))
    (when unattended (wire:mark-call call :unattended))
    call))

(define-hot (encode-unless-short :inline t) ((call client-call) request) t
  "Return nil if WIRE:WRITE-MESSAGE is sure to write REQUEST, CALL's only one, at once. Otherwise
encode REQUEST and return the value of WIRE:ENCODE-MESSAGE, or signal its RPC-ERROR if REQUEST is
too long."
  (let ((limit (min wire:+byte-buffer-octets+ (wire:send-limit call)))
        (size (protobuf:measure (rpc:outgoing-type call) request)))
    (declare (type index size))
    (when (or (> size limit) (wire:outgoing-encoding call))
      (wire:encode-message call request :auto))))

(define-hot submit-call ((call client-call) request) null
  "Hand CALL to its loop with its only REQUEST, or nil. If this thread may run the loop, it writes
the request directly into the output; else it encodes the request. If the loop has just stopped,
since the channel was closed, end CALL."
  (let ((loop (wire-call-loop call))
        (encoded (and request
                      (if (waited-for-p call)
                          (encode-unless-short call request)
                          (wire:encode-message call request :auto))))
        (submitted nil))
    (flet ((begin-here () (begin-call call (if encoded nil request))))
      (declare (dynamic-extent #'begin-here))
      (when request (wire:mark-call call :closed))
      (setf (client-call-request call) encoded)
      (sb-sys:without-interrupts        ; each ENTER-CALL needs its LEAVE
        (loop:enter-call loop (unattended-p call))
        (unless (unattended-p call) (rpc:note-opened call))
        (unwind-protect
             (sb-sys:with-local-interrupts
               (setf submitted (or (loop:run-now loop #'begin-here)
                                   (post-call call (if encoded nil request)))))
          (unless submitted (operate leave call))))))
  nil)

(define-hot post-call ((call client-call) request) (eql t)
  "Post CALL to its loop, which starts CALL. REQUEST is CALL's only request, or nil."
  (when request
    (setf (client-call-request call) (wire:encode-message call request nil)))
  (unless (loop:post (wire-call-loop call) call)
    (end-client-call-as call :channel-closed :ended-by :local :sent nil))
  t)

(define-hot begin-call ((call client-call) request) null
  "Start CALL, unless it has ended; it begins an attempt as soon as it has a stream. On its loop."
  (note-call-begun (client-call-core call))
  (unless (call-status call)
    (when (zerop (client-call-born-ns call))
      (setf (client-call-born-ns call) (loop:event-loop-now (wire-call-loop call))))
    (rpc:observe call-begun (core-observer (client-call-core call)) call)
    (when (core-methods (client-call-core call)) (limit-time call))
    (cond ((rpc:overdue-p call)          ; the answer might be faster than the timer of the deadline
           (rpc:abort-as call :deadline-passed))
          (t (wire:start-deadline call)
             (submit call request))))
  nil)

(defmethod loop:run-posted ((call client-call))
  (guarding-call (call) (begin-call call nil)))

(defun submit-and-wait (call request generator at-once)
  "Submit CALL, send the messages of GENERATOR if it is not nil, by SENDING-AT-ONCE if AT-ONCE is
true, and wait for the end of CALL. A non-local exit at any moment cancels CALL."
  (sb-sys:without-interrupts
    (submit-call call request)
    (unwind-protect
         (sb-sys:with-local-interrupts
           (when generator
             (send-requests call (if at-once (sending-at-once call generator) generator)))
           (rpc:wait-for-call call #'call-status))
      (unless (call-status call) (operate leave call)))))

(defun reply-of (call)
  "Return the reply of CALL, which has one response and has ended, and CALL; or signal its
RPC-ERROR."
  (unless (eq :ok (call-status call)) (error (rpc:call-condition call)))
  (values (let ((reply (shiftf (client-call-reply call) nil)))
            (cond ((null reply) (rpc:pop-incoming call))
                  ((encoded-p reply) (operate decode call reply 0 0))
                  (t reply)))
          call))

;;; Streams of requests

(defun sending-at-once (call generator)
  "A generator for SEND-REQUESTS of the messages of GENERATOR, a function that never waits. The new
generator sends messages itself on the loop, many in one write, and returns only messages that are
long or for which there is no room. If another thread runs the loop, that thread combines the
writes, and the new generator returns every message."
  (declare (type function generator))
  (let ((next nil))
    (flet ((send-those-there-is-room-for ()
             (loop while (and (setf next (funcall generator))
                              (protobuf:message-p next) ; else SEND signals the error
                              (<= (protobuf:serialized-size next) wire:+byte-buffer-octets+)
                              (rpc:try-send call next)))))
      (lambda ()
        (setf next nil)
        (if (loop:run-now (wire-call-loop call) #'send-those-there-is-room-for)
            next
            (funcall generator))))))

;;; Futures

(loop:define-completions (call client-call) (client-call-completions call))
