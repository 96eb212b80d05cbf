;;;; Sending: encoding messages straight into the loop's output, back-pressure, posting from other
;;;; threads.
;;;;
;;;; On the loop, a message that fits one frame and both windows is serialised straight into the
;;;; output. A thread may do the same on a client's loop that no thread runs at the moment; then
;;;; messages that the thread sends in a row are written together (loop/threads/coalescing.lisp).
;;;; Any other thread encodes the message into separate octets, charges the call's send budget for
;;;; them, and posts them to the loop.

(in-package #:clgrpc.wire)

(define-hot (ensure-headers :inline t) ((call wire-call)) null
  "Send the headers of our side of CALL unless they were sent already. A client's call sends them
when it gets a stream. Call this on CALL's loop."
  (unless (marked-p call :headers)
    ;; a handler may run for long before it sends its first message; for a single answer, REPLY-NOW
    ;; does this
    (unless (or (null (call-rpc-method call)) (answers-once-p call))
      (loop:update-time (wire-call-loop call)))
    (mark-call call :headers)
    (operate write-head call)
    (observe headers-sent (call-observer call) call))
  nil)

(define-hot (check-send-size :inline t) ((call wire-call) (size index)) null
  (when (> size (send-limit call)) (refuse-size call size)))

(defun refuse-size (call size)
  "Signal an error, because a message of SIZE octets is too long for CALL. If the message is the
only request of CALL, CALL never begins. The error does not refer to CALL then, because a caller
that asked CALL for metadata would wait for ever."
  (let ((begun (not (and (client-p call) (takes-one-p call)))))
    (error (verdict-error :too-long-to-send (list size (send-limit call))
                          :call (and begun call)
                          :sent (and begun (wire-call-stream call) t)))))

(define-hot (write-sized :inline t) ((type protobuf:message-type) message (octets octets) (at index)
                                     (size index))
    null
  "Write MESSAGE of TYPE with its prefix into OCTETS at AT. SIZE is the size of MESSAGE, which the
sizer must have computed immediately before."
  (let* ((start (write-prefix octets at size))
         (end (funcall (the function (protobuf:message-type-writer type)) message octets start)))
    (unless (eql end (+ start size))
      (error "~S was changed while it was encoded." message))
    nil))

(define-hot encode-message ((call wire-call) message compress)
    (or octets byte-buffer)
  "Encode MESSAGE with its prefix, for WRITE-ENCODED. Return fresh octets or, if the encoding is
long or compressed, a byte buffer. COMPRESS is as for SEND. Signal an RPC-ERROR if MESSAGE is too
long. For a long MESSAGE the function may wait until the heap has room. From any thread."
  (let* ((type (outgoing-type call))
         (size (protobuf:measure type message)))
    (declare (type index size))
    (check-send-size call size)
    (flet ((encode () (encode-sized call type message size compress)))
      (declare (dynamic-extent #'encode))
      (if (<= size +long-octets+)
          (encode)
          (call-with-room call (long-room call size compress) (wire-call-options call)
                          #'encode)))))

(defun encode-octets (call message compress)
  "Do what ENCODE-MESSAGE does, for MESSAGE, octets of a message that is already encoded."
  (let ((size (length message)))
    (check-send-size call size)
    (let* ((end (+ size +prefix-octets+))
           (octets (borrow-octets end)))
      (copy-octets message 0 size octets (write-prefix octets 0 size))
      (if (wants-compression-p call compress size (wire-call-options call))
          (compress-encoded call octets end compress (wire-call-options call))
          (make-byte-buffer octets end)))))

(define-hot encode-sized ((call wire-call) (type protobuf:message-type) message (size index)
                          compress)
    (or octets byte-buffer)
  "Do what ENCODE-MESSAGE does, for a MESSAGE of TYPE and SIZE for which the heap has room."
  (let* ((end (+ size +prefix-octets+))
         (octets (borrow-octets end)))
    (declare (type index end))
    (write-sized type message octets 0 size)
    (cond ((wants-compression-p call compress size (wire-call-options call))
           (compress-encoded call octets end compress (wire-call-options call)))
          ((= end (length octets)) octets)
          (t (make-byte-buffer octets end)))))

(defun long-room (call size compress)
  "Return the number of octets of the heap that CALL needs to encode a message of SIZE octets, and
perhaps to compress it."
  (let ((octets (+ size (ash size -2))))  ; rounded up as the store's lengths
    (if (wants-compression-p call compress size (wire-call-options call))
        (* 2 octets)
        octets)))

(define-hot write-message ((call wire-call) message (last boolean)) boolean
  "Send MESSAGE, with END_STREAM if LAST, and return true. If MESSAGE is so long that the loop
should not encode it, send nothing and return false. The caller must then call ENCODE-MESSAGE with
the baton lent, and WRITE-ENCODED. Call this on the loop; CALL must have a stream, and its headers
must have been sent."
  (let* ((stream (the http2:stream (wire-call-stream call)))
         (type (outgoing-type call))
         (size (protobuf:measure type message))
         (total (+ (the index size) +prefix-octets+)))
    (declare (type index size total))
    (check-send-size call size)
    (cond ((http2:reserve-data stream total)
           (multiple-value-bind (octets at) (http2:begin-data stream total)
             (declare (type octets octets) (type index at))
             (write-sized type message octets at size)
             (http2:end-data stream total last)
             ;; called only now, since an observer may send on the same connection
             (observe content-sent (call-observer call) call octets
                      (+ at +prefix-octets+) (+ at total) nil))
           (note-message-sent (the link (wire-call-link call)))
           (tell-sent call stream size nil)
           t)
          ((<= size +byte-buffer-octets+)
           (write-encoded call (encode-message call message nil) last)
           t))))

(define-hot (encoded-length :inline t) ((encoded (or octets byte-buffer))) index
  "The number of octets that are sent for ENCODED, which ENCODE-MESSAGE returned."
  (if (typep encoded 'byte-buffer) (byte-buffer-end encoded) (length encoded)))

(define-hot (encoded-octets :inline t) ((encoded (or octets byte-buffer))) octets
  "The octets of ENCODED, which ENCODE-MESSAGE returned, with the prefix."
  (if (typep encoded 'byte-buffer) (byte-buffer-octets encoded) encoded))

(defun sent-encoding (call encoded)
  "Return the name of the compression of ENCODED, which ENCODE-MESSAGE returned for CALL, a keyword,
or nil if it is not compressed."
  (and (= 1 (aref (encoded-octets encoded) 0))
       (encoding-name (outgoing-encoding call))))

(defun note-sent (call encoded &optional again)
  "Count and report ENCODED, which ENCODE-MESSAGE returned for CALL and which is about to be sent on
CALL's stream, perhaps in another form. If the message was sent on another stream before, AGAIN is
its present stream; otherwise AGAIN is nil. On the loop."
  (let ((stream (or again (wire-call-stream call))))
    (unless again
      (observe content-sent (call-observer call) call (encoded-octets encoded) +prefix-octets+
               (encoded-length encoded) (sent-encoding call encoded)))
    (note-message-sent (if again
                           (http2:connection-user (http2:stream-connection again))
                           (wire-call-link call)))
    (tell-sent call stream (- (encoded-length encoded) +prefix-octets+)
               (and (typep encoded 'byte-buffer) (byte-buffer-plain encoded)))))

(defun write-encoded (call encoded last &key plain again (keep again))
  "Send ENCODED, which ENCODE-MESSAGE returned for CALL, on CALL's stream or, if the message was
sent on another stream before, on the stream AGAIN. If PLAIN is true, the message is sent without
compression. If no memory is free for compression, nothing is sent, and CALL ends. If KEEP is false,
ENCODED belongs to the connection afterwards. On the loop."
  (let ((encoded (if plain (uncompressed call encoded) encoded))
        (stream (or again (wire-call-stream call))))
    (when encoded
      (note-sent call encoded again)
      (if (and (typep encoded 'byte-buffer) (not keep))
          (http2:send-data stream (byte-buffer-taken encoded) 0 (byte-buffer-end encoded) last t)
          (http2:send-data stream (encoded-octets encoded) 0 (encoded-length encoded) last))))
  nil)

(defun wire-crowded (call)
  "The operation CROWDED."
  (let ((link (wire-call-link call)))
    (and link
         (< +long-octets+
            (http2:counters-queued-octets (http2:connection-counters (link-http2 link)))))))

(define-hot wire-room ((call wire-call)) fixnum
  "The operation ROOM."
  (unsent-room call))

(define-hot (sendable-p :inline t) ((call wire-call)) boolean
  "Return true if a message may be sent on CALL, and false if CALL has ended with :ok. In other
cases signal the reason."
  (let ((outbound (call-wire-outbound call)))
    (may-send-p call (and outbound (wire-outbound-over outbound)))))

(define-hot note-spoken ((call wire-call)) null
  "Note that CALL's user sends a message."
  (let ((outbound (ensure-wire-outbound call)))
    (setf (wire-outbound-begun outbound) t)
    (incf (wire-outbound-spoken outbound)))
  nil)

(define-hot send-in-room ((call wire-call) wait-p (function function)) boolean
  "If CALL has room, call FUNCTION, which sends a message of CALL, and return true. If it has no
room and WAIT-P is true, wait for room first; if WAIT-P is false, arrange that ON-WRITABLE is called
when CALL has room, and return false. Also return false if CALL has ended with :ok. If no message
may be sent for another reason, signal an error with that reason. Call this in user code."
  (cond ((not (sendable-p call)) nil)
        ((or (room-p call)
             (and wait-p
                  (progn (wait-for-call call #'room-p)
                         (sendable-p call))))
         (note-spoken call)
         (funcall function)
         t)
        (wait-p nil)
        (t (refuse-to-send call))))

(define-hot (plainly-sendable-p :inline t) ((call wire-call) (outbound wire-outbound)) boolean
  "True if a short message can be written to CALL's stream at once. This is so if headers were sent,
no message of another thread is on its way to the loop, and CALL has room. OUTBOUND is CALL's part.
On the loop."
  (and (wire-call-stream call)
       (null (call-status call))
       (marked-p call :headers)
       (not (marked-p call :closed))
       (zerop (the index (wire-outbound-unsent-octets outbound)))
       (plusp (unsent-room call))))

(define-hot send-at-once ((call wire-call) message compress) (member t :long nil)
  "Send MESSAGE and return t if this thread runs CALL's loop, the message can be written at once,
and a message was sent before. Otherwise do nothing and return nil, or :LONG if only the length of
MESSAGE is the reason; the caller must then use SEND-IN-ROOM, which sends the message, waits or
signals the reason. This is the path of a callback or handler that answers message after message."
  (let ((outbound (call-wire-outbound call)))
    (when (and outbound
               (plusp (wire-outbound-spoken outbound))
               (not (wire-outbound-over outbound))
               (not (and compress (outgoing-encoding call)))
               (not (keeps-sent-p call)))
      (loop:with-baton ((wire-call-loop call))
          (when (plainly-sendable-p call outbound)
            (cond ((write-message call message nil)
                   (incf (wire-outbound-spoken outbound))
                   t)
                  (t :long)))
        nil))))

(define-hot wire-send ((call wire-call) message wait-p compress) boolean
  "The operation SEND."
  (let ((outcome (send-at-once call message compress)))
    (or (eq t outcome)
        (flet ((send-it ()
                 (if outcome
                     (encode-and-send call message compress)
                     (send-message call message compress))))
          (declare (dynamic-extent #'send-it))
          (send-in-room call wait-p #'send-it)))))

(defun sending-begun-p (call)
  "True if CALL's user has sent something, even if only metadata. Code that sends something sets it
to true by SETF."
  (let ((outbound (call-wire-outbound call)))
    (and outbound (wire-outbound-begun outbound))))

(defun (setf sending-begun-p) (begun call)
  (setf (wire-outbound-begun (ensure-wire-outbound call)) begun))

(define-hot (posted-octets :inline t) ((call wire-call)) index
  "The number of octets that threads have sent on CALL and that have not reached the loop yet. While
this number is 0, the loop may send on CALL without overtaking posted messages."
  (let ((outbound (call-wire-outbound call)))
    (if outbound (the index (wire-outbound-unsent-octets outbound)) 0)))

(defun post-charged (call size function)
  "Post FUNCTION, which sends SIZE octets, at least 1, to CALL's loop, even from the loop itself.
Until FUNCTION is called, CALL is charged with SIZE, so that no other message overtakes it."
  (let ((outbound (ensure-wire-outbound call)))
    (sb-sys:without-interrupts          ; charged octets must be posted
      (sb-ext:atomic-incf (wire-outbound-unsent-octets outbound) size)
      (loop:post (wire-call-loop call)
                 (lambda ()
                   (sb-ext:atomic-decf (wire-outbound-unsent-octets outbound) size)
                   (funcall function))))))

(defun post-in-turn (call size function)
  "Do what WIRE-POST does, but run FUNCTION after all messages that other threads have already sent
on CALL. SIZE is as for POST-CHARGED, or 0 if FUNCTION ends CALL's sending."
  (cond ((and (zerop (posted-octets call)) (loop:run-now (wire-call-loop call) function)) t)
        ((zerop size) (loop:post (wire-call-loop call) function))
        (t (post-charged call size function))))

(define-hot encode-and-send ((call wire-call) message compress) null
  "Send MESSAGE from user code. Encode it on this thread, so that the loop need not encode it.
COMPRESS is as for SEND."
  (let ((encoded (encode-message call message compress)))
    (flet ((send-it ()
             (when (zerop (posted-octets call))
               (send-encoded call encoded)
               t)))
      (declare (dynamic-extent #'send-it))
      (unless (values (loop:run-to-send (wire-call-loop call) #'send-it))
        (post-encoded call encoded))))
  nil)

(define-hot send-message ((call wire-call) message compress) null
  "Do what ENCODE-AND-SEND does. But if this thread may run the loop and MESSAGE is short, write
MESSAGE directly into the output."
  (flet ((write-it () (and (zerop (posted-octets call)) (send-on-loop call message))))
    (declare (dynamic-extent #'write-it))
    (unless (and (not (and compress (outgoing-encoding call)))
                 (not (keeps-sent-p call))
                 (values (loop:run-to-send (wire-call-loop call) #'write-it)))
      (encode-and-send call message compress)))
  nil)

(define-hot refuse-to-send ((call wire-call)) null
  "Arrange that ON-WRITABLE is called when CALL has room, because TRY-SEND has found no room. Return
nil."
  (watch-room call)
  (sb-thread:barrier (:memory))
  ;; the loop may have made room just before it could see WRITABLE-WANTED
  (when (room-p call) (wire-post call (lambda () (schedule-callbacks call))))
  nil)

(define-hot send-on-loop ((call wire-call) message) boolean
  "Send MESSAGE, unless CALL has ended. If MESSAGE must be encoded first, send nothing and return
false. On the loop."
  (cond ((or (call-status call) (marked-p call :closed)) t)
        ((and (wire-call-stream call) (not (keeps-sent-p call)))
         (ensure-headers call)
         (write-message call message nil))))

(defun send-encoded (call encoded)
  "Send ENCODED, which ENCODE-MESSAGE returned, unless CALL has ended. On the loop."
  (unless (or (call-status call) (marked-p call :closed))
    (let ((sender (endpoint-sender (wire-call-endpoint call))))
      (cond (sender (funcall sender call encoded))
            ((wire-call-stream call)
             (ensure-headers call)
             (write-encoded call encoded nil))))))

(defun post-encoded (call encoded)
  "Post ENCODED, which ENCODE-MESSAGE returned, to the loop, which sends it. CALL's budget is
charged with the message until the loop handles it."
  (post-charged call (encoded-length encoded)
                (lambda ()
                  (send-encoded call encoded)
                  (when (and (wire-call-stream call) (not (call-status call)) (room-p call))
                    (notify call)
                    (schedule-callbacks call)))))

(defun tell-writable (call)
  "Notify CALL's user that CALL may have room to send."
  (notify call)
  (schedule-callbacks call))
